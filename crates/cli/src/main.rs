//! The `holdall` binary: arguments as typed, arguments as meant, work. One file per command.

mod arguments;
mod commands;
mod failure;
mod screen;

use std::process::ExitCode;

use clap::Parser;

use arguments::{BenchCommand, Command, Holdall};

fn main() -> ExitCode {
    let holdall = Holdall::parse();
    let result = match holdall.command {
        Command::Plan(arguments) => commands::plan::run(arguments),
        Command::Verify(arguments) => commands::verify::run(arguments),
        Command::Bench(arguments) => match arguments.command {
            BenchCommand::Clip(arguments) => commands::bench_clip::run(arguments),
        },
    };
    match result {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
