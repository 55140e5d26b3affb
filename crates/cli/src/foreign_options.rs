//! Command-line options of PyTorch scripts: `--weight_decay 0.05` means `--set train.optimizer.weight_decay=0.05`.
//!
//! Words are parsed as typed first. An unknown option is looked up in the table that also translates config keys: if it
//! has an exact counterpart, it is replaced and the line parsed again; otherwise the table's answer becomes the error.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use holdall_train::config::{TypedOption, typed_option};

use crate::arguments::Holdall;

/// The translated words, with a note for each replaced option.
#[derive(Debug)]
pub struct Understood {
    pub words: Vec<OsString>,
    pub notes: Vec<String>,
    /// The config that an option of another script named, such as `--base_config FILE`, as an argument.
    config: Option<String>,
}

/// Why a command line is refused.
#[derive(Debug)]
pub enum NotUnderstood {
    /// By the parser, which includes help and version.
    Parser(clap::Error),
    /// An unknown option, as an error with a hint.
    Option(String),
}

/// Replaces options of other scripts until the line parses.
pub fn understand(words: Vec<OsString>) -> Result<(Holdall, Understood), NotUnderstood> {
    let mut understood = Understood {
        words,
        notes: Vec::new(),
        config: None,
    };
    loop {
        let error = match Holdall::try_parse_from(&understood.words) {
            Ok(holdall) => return Ok((holdall, understood)),
            Err(error) => error,
        };
        let Some(option) = unknown_option(&error) else {
            if let (Some(config), ErrorKind::UnknownArgument) = (&understood.config, error.kind()) {
                return Err(NotUnderstood::Option(format!(
                    "error: {config}: the config takes the place of the data\n\
                     hint: holdall train {config} --set data.train=DATA names both"
                )));
            }
            return Err(NotUnderstood::Parser(error));
        };
        understood.replace(&option, &error)?;
    }
}

fn unknown_option(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) if option.starts_with("--") => Some(option.clone()),
        _ => None,
    }
}

impl Understood {
    fn replace(&mut self, option: &str, error: &clap::Error) -> Result<(), NotUnderstood> {
        let written = |word: &OsString| word.to_string_lossy().into_owned();
        let position = self.words.iter().position(|word| {
            let word = written(word);
            word == option || word.starts_with(&format!("{option}="))
        });
        let Some(position) = position else {
            return Err(NotUnderstood::Option(not_there(
                option,
                None,
                error,
                &self.words,
            )));
        };
        let word = written(&self.words[position]);
        let attached = word.split_once('=').map(|(_, value)| value.to_owned());
        let behind = self.words.get(position + 1).map(written).filter(is_value);
        let typed = typed_option(option, attached.as_deref().or(behind.as_deref()));
        match typed {
            Some(TypedOption::Means { words, .. })
                if is_run_folder(&words) && command(&self.words).1 != ["train"] =>
            {
                let text = not_there(option, None, error, &self.words);
                Err(NotUnderstood::Option(text))
            }
            Some(TypedOption::Means { words, takes_value })
                if takes_sets(&self.words) && is_read(&words, &self.words) =>
            {
                let takes_next = takes_value && attached.is_none();
                let last = position + usize::from(takes_next);
                let old: Vec<String> = self.words[position..=last].iter().map(written).collect();
                self.notes.push(if words.is_empty() {
                    format!("{}: not needed, ignored", old.join(" "))
                } else {
                    format!("{} is {}", old.join(" "), words.join(" "))
                });
                if let [config] = &words[..] {
                    self.config = Some(config.clone());
                }
                let words = words.into_iter().map(OsString::from);
                self.words.splice(position..=last, words);
                Ok(())
            }
            Some(TypedOption::Means { words, .. }) => {
                let means = if words.is_empty() {
                    "not needed here, leave it out".to_owned()
                } else {
                    format!("{} for `holdall train`", words.join(" "))
                };
                let text = not_there(option, Some(means), error, &self.words);
                Err(NotUnderstood::Option(text))
            }
            Some(TypedOption::Answer(answer)) => {
                let text = not_there(option, Some(answer), error, &self.words);
                Err(NotUnderstood::Option(text))
            }
            None => Err(NotUnderstood::Option(not_there(
                option,
                None,
                error,
                &self.words,
            ))),
        }
    }
}

/// Whether a word may be the value of the previous option: neither an option nor a config file.
fn is_value(word: &String) -> bool {
    let is_option = word.starts_with('-') && word.parse::<f64>().is_err();
    let is_config = [".yml", ".yaml"]
        .iter()
        .any(|ending| word.ends_with(ending));
    !is_option && (is_config || !Path::new(word).is_file())
}

/// Whether the typed command has `--set`.
fn takes_sets(words: &[OsString]) -> bool {
    let (command, _) = command(words);
    let mut options = command.get_arguments();
    options.any(|option| option.get_long() == Some("set"))
}

/// Commands whose `--set` accepts data keys only, because other settings belong to a trained model or to none.
const SETS_OF_DATA: [&str; 5] = ["eval", "predict", "check", "clean", "pack"];

/// Whether the option sets the folder of a run, which `holdall train` alone writes.
fn is_run_folder(meant: &[String]) -> bool {
    let sets = |key: &str| meant.iter().any(|word| word.starts_with(key));
    sets("out=") || sets("run_name=")
}

/// Whether the typed command reads the translated settings.
fn is_read(meant: &[String], typed: &[OsString]) -> bool {
    let (command, _) = command(typed);
    let is_about_data = SETS_OF_DATA.contains(&command.get_name());
    let is_of_data = |set: &[String]| set[0] != "--set" || set[1].starts_with("data.");
    !is_about_data || meant.windows(2).all(is_of_data)
}

/// The typed command, and its names: `data`, `clean`.
fn command(words: &[OsString]) -> (clap::Command, Vec<String>) {
    let mut command = Holdall::command();
    let mut names = Vec::new();
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(below) = command.find_subcommand(word) else {
            break;
        };
        command = below.clone();
        names.push(command.get_name().to_owned());
    }
    (command, names)
}

/// The error for an unknown option.
fn not_there(
    option: &str,
    answer: Option<String>,
    error: &clap::Error,
    words: &[OsString],
) -> String {
    let (_, names) = command(words);
    let name = names.last().cloned().unwrap_or_default();
    let path = format!("holdall {}", names.join(" "));
    let path = path.trim_end();
    let hint = answer.unwrap_or_else(|| match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(near)) => format!("did you mean {near}?"),
        _ if (name.as_str(), option) == ("sample", "--out") => {
            format!("the folder is a word by itself: {path} cars FOLDER")
        }
        _ if SETS_OF_DATA.contains(&name.as_str()) => {
            format!("{path} --help lists its options; --set data.KEY=VALUE sets keys of the data section")
        }
        _ if takes_sets(words) => {
            format!("{path} --help lists its options; --set KEY=VALUE sets any key of a config")
        }
        _ => format!("{path} --help lists its options"),
    });
    format!("error: {option}: no such option of {path}\nhint: {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<(Vec<String>, Vec<String>), String> {
        let typed = line.split(' ').map(OsString::from).collect();
        match understand(typed) {
            Ok((_, understood)) => {
                let words = understood.words.iter();
                let words = words
                    .map(|word| word.to_string_lossy().into_owned())
                    .collect();
                Ok((words, understood.notes))
            }
            Err(NotUnderstood::Option(text)) => Err(text),
            Err(NotUnderstood::Parser(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn options_of_scripts_are_what_they_mean() {
        for (line, expected) in [
            (
                "holdall train a.csv --weight_decay 0.05 --patience 3 --epochs 2",
                "holdall train a.csv --set train.optimizer.weight_decay=0.05 --set train.early_stop=3 --epochs 2",
            ),
            (
                "holdall train a.csv --mixed_precision=fp16 --pin_memory --gradient_checkpointing",
                "holdall train a.csv --set precision=fp16 --set train.recompute=blocks",
            ),
            (
                "holdall train --fp16 a.csv --warmup 500",
                "holdall train --set precision=fp16 a.csv --set train.warmup=500",
            ),
            (
                "holdall train --base_config old.yml --selected_gpus 0",
                "holdall train old.yml",
            ),
            (
                "holdall train a.csv --label make --caption report",
                "holdall train a.csv --set data.label=make --set data.caption=report",
            ),
            (
                "holdall plan small --accum-freq 4",
                "holdall plan small --set train.gradient_accumulation=4",
            ),
        ] {
            let (found, notes) = words(line).unwrap();
            assert_eq!(found.join(" "), expected);
            assert!(!notes.is_empty());
        }
    }

    #[test]
    fn an_option_without_a_counterpart_is_answered() {
        for (line, parts) in [
            (
                "holdall train a.csv --optim sgd",
                [
                    "--optim: no such option of holdall train",
                    "hint: the optimizer is AdamW",
                ],
            ),
            (
                "holdall train a.csv --epoch 3",
                ["--epoch: no such option", "hint: did you mean --epochs?"],
            ),
            (
                "holdall train a.csv --flux 3",
                ["--flux: no such option", "--set KEY=VALUE"],
            ),
            (
                "holdall eval runs/a --weight_decay 0.1",
                [
                    "--weight_decay: no such option of holdall eval",
                    "for `holdall train`",
                ],
            ),
            (
                "holdall predict runs/a b.jpg --flux 3",
                ["--flux: no such option", "--set data.KEY=VALUE"],
            ),
            (
                "holdall data sample cars --out a",
                [
                    "--out: no such option of holdall data sample\n",
                    "hint: the folder is a word by itself: holdall data sample cars FOLDER",
                ],
            ),
            (
                "holdall data clean a.csv --out b.csv",
                [
                    "--out: no such option of holdall data clean\n",
                    "--help lists its options",
                ],
            ),
            (
                "holdall data check a.csv --lr 3",
                [
                    "--lr: no such option of holdall data check",
                    "for `holdall train`",
                ],
            ),
            (
                "holdall train a.csv --base_config old.yml",
                [
                    "old.yml: the config takes the place of the data",
                    "hint: holdall train old.yml --set data.train=DATA",
                ],
            ),
            (
                "holdall train a.csv --weight_decay",
                [
                    "--weight_decay: no such option of holdall train",
                    "hint: --set train.optimizer.weight_decay=VALUE",
                ],
            ),
            (
                "holdall train a.csv --label 0.5",
                [
                    "--label: no such option of holdall train",
                    "hint: --set data.label=VALUE, or --set losses.label=VALUE",
                ],
            ),
            (
                "holdall report a --lr 3",
                ["--lr: no such option of holdall report", "hint: "],
            ),
        ] {
            let said = words(line).unwrap_err();
            for part in parts {
                assert!(said.contains(part), "{said}");
            }
        }
    }
}
