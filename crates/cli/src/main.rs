//! The `holdall` binary: one file per command, with its arguments.

mod arguments;
mod array_file;
mod commands;
mod config_file;
mod failure;
mod foreign_options;
mod host;
mod invocation;
mod options;
mod processes;
mod run_log;
mod screen;
mod stop;
mod watch;

use std::process::ExitCode;

use holdall_buffers::KeepingAllocator;

use arguments::{BenchCommand, Command, ConfigCommand, DataCommand, ModelCommand};
use foreign_options::{NotUnderstood, understand};

/// Reader threads keep their decoders' memory between pictures.
#[global_allocator]
static ALLOCATOR: KeepingAllocator = KeepingAllocator;

fn main() -> ExitCode {
    holdall_device::cpu::steady_allocator();
    limit_reading_to_free_memory();
    stop::listen();
    let _leaving = processes::Leaving;
    let holdall = match understand(std::env::args_os().collect()) {
        Ok((holdall, understood)) => {
            understood.notes.iter().for_each(|note| screen::tell(note));
            holdall
        }
        Err(NotUnderstood::Parser(error)) => error.exit(),
        Err(NotUnderstood::Option(text)) => {
            screen::tell(&text);
            return ExitCode::from(failure::BAD_INPUT);
        }
    };
    holdall_device::cuda::on_progress(screen::tell);
    let result = match holdall.command {
        Command::Demo(arguments) => commands::demo::run(arguments),
        Command::Train(arguments) => commands::train::run(arguments),
        Command::Eval(arguments) => commands::eval::run(arguments),
        Command::Predict(arguments) => commands::predict::run(arguments),
        Command::Export(arguments) => commands::export::run(arguments),
        Command::Retrieval(arguments) => commands::retrieval::run(arguments),
        Command::CaptionScores(arguments) => commands::caption_scores::run(arguments),
        Command::Data(arguments) => match arguments.command {
            DataCommand::Check(arguments) => commands::data_check::run(arguments),
            DataCommand::Clean(arguments) => commands::data_clean::run(arguments),
            DataCommand::Pack(arguments) => commands::data_pack::run(arguments),
            DataCommand::Sample(arguments) => commands::data_sample::run(arguments),
        },
        Command::Config(arguments) => match arguments.command {
            ConfigCommand::Translate(arguments) => commands::config_translate::run(arguments),
        },
        Command::Model(arguments) => match arguments.command {
            ModelCommand::Get(arguments) => commands::model_get::run(arguments),
        },
        Command::Report(arguments) => commands::report::run(arguments),
        Command::Analyze(arguments) => commands::analyze::run(arguments),
        Command::Monitor(arguments) => commands::monitor::run(arguments),
        Command::Doctor(arguments) => commands::doctor::run(arguments),
        Command::Completions(arguments) => commands::completions::run(arguments),
        Command::Man => commands::man::run(),
        Command::Plan(arguments) => commands::plan::run(arguments),
        Command::Verify(arguments) => commands::verify::run(arguments),
        Command::Bench(arguments) => match arguments.command {
            BenchCommand::Clip(arguments) => commands::bench_step::run_clip(arguments),
            BenchCommand::Classify(arguments) => commands::bench_step::run_classify(arguments),
            BenchCommand::Segment(arguments) => commands::bench_step::run_segment(arguments),
            BenchCommand::Captions(arguments) => commands::bench_captions::run(arguments),
            BenchCommand::VideoText(arguments) => commands::bench_step::run_video_text(arguments),
            BenchCommand::Loader(arguments) => commands::bench_loader::run(arguments),
            BenchCommand::Exchange(arguments) => commands::bench_exchange::run(arguments),
            BenchCommand::Retrieval(arguments) => commands::bench_retrieval::run(arguments),
        },
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            processes::fail(&format!("{error:#}"));
            failure::report(&error)
        }
    }
}

/// Bounds readers of tables, texts and headers by the memory that is free now; commands with a budget set a smaller limit.
fn limit_reading_to_free_memory() {
    if let Some(free) = holdall_device::cpu::available_bytes() {
        let held = holdall_files::resident_bytes().unwrap_or(0);
        holdall_files::set_memory_limit(held.saturating_add(free));
    }
}
