//! `holdall model get`: downloads a model from the Hugging Face hub into the local cache.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_files::show_bytes;
use holdall_models::hub_download::{self, DownloadError, Watcher};
use holdall_train::TrainError;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::options::OutputOptions;
use crate::screen::{print_json, progress_bytes, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall model get openai/clip-vit-base-patch32\n  \
                  holdall model get google/vit-base-patch16-224 --revision main\n\n\
                  Only safetensors are taken, and what turns pictures and texts into inputs. Sizes and hashes are compared with those that\n\
                  the hub says; a download that was stopped goes on where it was. The system's curl does it. HF_HOME says where models\n\
                  are kept, HF_TOKEN is sent for private ones, HF_ENDPOINT names another server, HF_HUB_OFFLINE=1 forbids the network.")]
pub struct ModelGetArguments {
    /// OWNER/NAME on the hub
    #[arg(value_name = "NAME")]
    pub name: String,
    /// A branch, a tag or a commit [default: main, or where Hugging Face converted it to safetensors]
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    pub revision: Option<String>,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Serialize)]
struct ModelJson<'a> {
    model: &'a str,
    folder: PathBuf,
    commit: String,
    files: Vec<String>,
    downloaded_bytes: u64,
}

/// Validates a revision, which becomes a part of a URL and of a path.
fn revision(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    let is_name = |part: &str| !part.is_empty() && !part.starts_with('.');
    if text.bytes().all(is_plain) && text.split('/').all(is_name) {
        Ok(text.to_owned())
    } else {
        Err("expected a branch, a tag or a commit\nhint: --revision main".to_owned())
    }
}

pub fn run(arguments: ModelGetArguments) -> Result<ExitCode> {
    let name = arguments.name.as_str();
    let mut watcher = Bar::default();
    let _orderly = stop::orderly("Stopping; what came so far stays");
    let stop = &stop::requests().stop;
    let found = hub_download::download(name, arguments.revision.as_deref(), stop, &mut watcher);
    watcher.clear();
    let found = match found {
        Ok(found) => found,
        Err(DownloadError::Stopped) => {
            tell(&DownloadError::Stopped.to_string());
            return Ok(stop::exit_code());
        }
        // Errors of the user's input, or of the hub's files.
        Err(
            error @ (DownloadError::Name { .. }
            | DownloadError::Offline { .. }
            | DownloadError::NoSafetensors { .. }
            | DownloadError::NoCache),
        ) => return Err(TrainError::Config(error.to_string()).into()),
        Err(error) => return Err(TrainError::Run(error.to_string()).into()),
    };
    if arguments.output.json {
        print_json(&ModelJson {
            model: name,
            folder: found.folder,
            commit: found.commit,
            files: found.files,
            downloaded_bytes: found.bytes,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let came = match found.bytes {
        0 => "was there already".to_owned(),
        bytes => format!("downloaded {}", show_bytes(bytes)),
    };
    tell(&format!("{name}: {came}; {}", found.folder.display()));
    tell(&format!("hint: holdall train DATA --model {name}"));
    Ok(ExitCode::SUCCESS)
}

/// Progress bar of the current file.
#[derive(Default)]
struct Bar {
    file: String,
    bar: Option<ProgressBar>,
}

impl Bar {
    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Bar {
    fn tell(&mut self, line: &str) {
        tell(line);
    }

    fn progress(&mut self, file: &str, done: u64, total: u64) {
        if self.file != file {
            self.clear();
            self.file = file.to_owned();
            self.bar = Some(progress_bytes(total, file.to_owned()));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }
}
