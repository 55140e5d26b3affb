//! `holdall config translate`: converts a config of another tool into a config of Holdall.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_train::TrainError;
use holdall_train::config::RunConfig;

use crate::config_file::{tell_differences, tell_translation};
use crate::invocation::{program, quoted};
use crate::options::OverwriteOption;
use crate::screen::{print, tell};

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall config translate multitask_config.yaml --out reports.yml\n  \
                  holdall config translate config.yml                 # to the screen\n  \
                  holdall train multitask_config.yaml --accept        # without writing it down\n\n\
                  Reads a YAML file of a PyTorch project: sections such as trainer: and dataset:, or flat keys such as learning_rate\n\
                  and data_filename. Each setting\n  \
                  - becomes a key of Holdall's config (mixed_precision: fp16 is precision: fp16),\n  \
                  - is not needed (pin_memory: batches are always pinned), or\n  \
                  - differs in effect (another tower, another loss): these are named, and stand on top of the new file.\n\
                  docs/from-pytorch.md lists all settings that are known.")]
pub struct ConfigTranslateArguments {
    /// The file of the other tool
    #[arg(value_name = "OLD")]
    pub file: PathBuf,
    /// The file to write; without it, the config goes to stdout
    #[arg(long, value_name = "NEW")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: OverwriteOption,
}

pub fn run(arguments: ConfigTranslateArguments) -> Result<ExitCode> {
    let file = &arguments.file;
    arguments
        .overwrite
        .check_files([("--out", &arguments.out)], std::slice::from_ref(file))?;
    let (_, translations) = RunConfig::load_translated(Some(file), &[])?;
    let Some(translation) = translations.iter().find(|one| one.file == *file) else {
        return Err(TrainError::Config(format!(
            "{}: a config of Holdall, nothing to translate\nhint: {} train {} runs it",
            file.display(),
            program(),
            quoted(file)
        ))
        .into());
    };
    tell_translation(translation);
    tell_differences(translation);
    let Some(out) = &arguments.out else {
        print(&translation.file_text(None))?;
        return Ok(ExitCode::SUCCESS);
    };
    let text = translation.file_text(Some(out.parent().unwrap_or(Path::new(""))));
    holdall_files::write_whole(out, text.as_bytes())?;
    tell(&format!(
        "Wrote {}\nNext: {} train {}",
        out.display(),
        program(),
        quoted(out)
    ));
    Ok(ExitCode::SUCCESS)
}
