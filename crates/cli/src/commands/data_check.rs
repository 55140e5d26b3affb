//! `holdall data check`: decodes every picture, checks every row, and prints the findings as a table.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_data::DataError;
use holdall_data::check::{
    CheckConfig, Example, Fault, Finding, MAX_ASPECT, MAX_BITS, MAX_COLOUR_DIFFERENCE,
    MIN_PER_LABEL, MIN_SIZE, Outcome, Report, RowKind, Watch, check,
};
use holdall_data::decode::Allowance;
use holdall_data::loader::ClipFraming;
use holdall_data::media::Media;
use holdall_data::samples::{Captions, EvidenceKind, evidence};
use holdall_data::table::{find, source_of};
use holdall_device::cpu;
use holdall_files::{counted, thousands};
use holdall_train::TrainError;
use holdall_train::config::TaskName;
use holdall_train::config::budget::Memory;
use holdall_train::config::{Count, RunConfig, warnings_of_sets_for_data};
use holdall_train::tasks;
use serde::Serialize;

use crate::commands::data_pairs;
use crate::commands::next_command::Typed;
use crate::config_file::{self, Differences};
use crate::failure;
use crate::options::{OutputOptions, TaskArgument, is_yaml, seed};
use crate::screen::{columns, print, print_json, progress, tell};
use crate::stop;

/// Options of `data check` and `data clean`.
#[derive(Args, Clone)]
pub struct CheckOptions {
    /// DATA.csv, CONFIG.yml, or a folder with image_labels.csv or with images and masks; without it, this folder or its `data`
    #[arg(value_name = "CONFIG|DATA")]
    pub target: Option<String>,
    /// What the data is for; told from the data by default
    #[arg(long, value_name = "TASK")]
    pub task: Option<TaskArgument>,
    /// A picture is too small if a side has fewer pixels
    #[arg(long, alias = "min_size", value_name = "PIXELS", default_value_t = MIN_SIZE)]
    pub min_size: u32,
    /// A picture is too narrow if a side is so many times longer than the other
    #[arg(long, alias = "max_aspect", value_name = "TIMES", default_value_t = MAX_ASPECT, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_aspect: u32,
    /// A label with fewer pictures has too few
    #[arg(long, alias = "min_per_label", value_name = "N", default_value_t = MIN_PER_LABEL)]
    pub min_per_label: usize,
    /// Threads that decode pictures: a number, or auto
    #[arg(long, alias = "num_workers", value_name = "N")]
    pub num_workers: Option<Count>,
    /// Seed of the run whose validation rows are meant
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// Keys of the data section, such as data.image=COLUMN or data.validation=val.csv; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall data check photos.csv\n  \
                  holdall data check cars.yml --min-size 64 --min-per-label 5\n  \
                  holdall data check photos.csv --set data.image_root=pictures --set data.validation=val.csv --json\n  \
                  holdall data check FIVES\n  \
                  holdall data check clips.csv --set data.frames=16\n\n\
                  What is looked for: pictures that are missing, of zero size, no image, cut short, broken, or of absurd\n\
                  dimensions; the same pixels twice, nearly so, under two labels or in two splits; groups such as patients in two\n\
                  splits; labels with few pictures; captions that are empty or all the same. Of pictures with masks: masks that cannot be read, of another size, empty, or with values\n\
                  that are no class; the same picture in two splits. Of clips: frames that cannot be read, and clips with fewer\n\
                  frames than are seen. Ctrl-C stops; the same command goes on (with masks: begins anew). Exit code 0: nothing\n\
                  found; 1: something.")]
pub struct DataCheckArguments {
    #[command(flatten)]
    pub options: CheckOptions,
}

impl CheckOptions {
    /// The data options, for follow-up commands in messages.
    pub(super) fn typed(&self) -> Typed<'_> {
        Typed {
            target: self.target.as_deref(),
            sets: &self.sets,
            task: self.task,
            seed: self.seed,
        }
    }

    /// Examples per finding: a table has room for one.
    pub(super) fn num_examples(&self) -> usize {
        if self.output.json { usize::MAX } else { 1 }
    }

    /// The config from the options.
    pub(super) fn config(&self) -> Result<RunConfig> {
        let target = self.target.as_deref();
        let file = target.filter(|target| is_yaml(target)).map(Path::new);
        let mut config = config_file::load(file, &self.sets, Differences::Accept)?;
        if let (None, Some(target)) = (file, target) {
            config.data.train = Some(PathBuf::from(target));
        }
        config.task = self.task.map(TaskName::from).or(config.task);
        Ok(config)
    }
}

/// Warns of typed keys that a command which only reads data does not read. Returns the task: the config's, or what the data is.
pub(super) fn tell_unread_sets(config: &RunConfig, sets: &[String]) -> Option<TaskName> {
    // Errors in the data are reported where it is read.
    let found = || Some(tasks::of_data(&config.data).ok()?.task);
    let task = config.task.or_else(found);
    let warnings = warnings_of_sets_for_data(sets, task);
    warnings.iter().for_each(|warning| tell(warning));
    task
}

#[derive(Serialize)]
struct CheckJson<'a> {
    verdict: &'static str,
    #[serde(flatten)]
    report: &'a Report,
}

pub fn run(arguments: DataCheckArguments) -> Result<ExitCode> {
    let options = &arguments.options;
    let config = options.config()?;
    if tell_unread_sets(&config, &options.sets) == Some(TaskName::Segment) {
        return data_pairs::check(&data_pairs::meant(options, config), options);
    }
    let config = meant(options, config, Wanted::Cleanest)?;
    let Some(report) = watched(|watch| check(&config, watch))? else {
        return Ok(stop::exit_code());
    };
    let is_clean = report.findings.is_empty();
    if arguments.options.output.json {
        let verdict = if is_clean { "clean" } else { "found" };
        print_json(&CheckJson {
            verdict,
            report: &report,
        })?;
    } else {
        print(&show(&report, columns()))?;
        if !is_clean && report.has_lines && source_of(&report.csv).is_none() {
            tell(&format!(
                "hint: `{}` writes one file without the rows that it removes, and one without those that it filters \
                 as well; what it keeps is left unchanged",
                arguments.options.typed().same("data clean")
            ));
        }
    }
    Ok(if is_clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(failure::FOUND)
    })
}

/// Which CSV to take if a folder has several.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The CSV that training would take.
    Cleanest,
    /// The CSV that cleaning starts from.
    Source,
}

/// The check that the options describe.
pub(super) fn meant(
    options: &CheckOptions,
    mut config: RunConfig,
    wanted: Wanted,
) -> Result<CheckConfig> {
    let has_config = options.target.as_deref().is_some_and(is_yaml);
    let named = config.data.train.as_deref();
    let found = find(named).map_err(TrainError::from)?;
    let is_named = named.is_some_and(|path| !path.is_dir());
    let mut csv = found.csv;
    match wanted {
        Wanted::Cleanest => found.notes.iter().for_each(|note| tell(note)),
        // No note about a cleaner CSV beside this one: the user is about to clean.
        Wanted::Source if is_named => {}
        Wanted::Source => {
            let source = source_of(&csv).filter(|source| source.is_file());
            csv = source.unwrap_or(csv);
            tell(&format!("Data: {} (found by its name)", csv.display()));
        }
    }
    if !has_config {
        let mut of_csv = config.clone();
        of_csv.data.train = Some(csv.clone());
        let note = tasks::guess_label(&mut of_csv)?;
        note.iter().for_each(|note| tell(note));
        config.data.label = of_csv.data.label;
    }
    let kind = match config.task {
        Some(TaskName::Clip) => Some(EvidenceKind::Captions),
        Some(TaskName::Classify) => Some(EvidenceKind::Labels),
        Some(TaskName::Segment) => Some(EvidenceKind::Masks),
        Some(TaskName::VideoText) => Some(EvidenceKind::Clips),
        None => evidence(&config.data).ok().map(|evidence| evidence.kind),
    };
    let (media, captions) = match kind {
        Some(EvidenceKind::Labels) => (Media::Pictures, Captions::None),
        Some(EvidenceKind::Clips) => (Media::Clips, Captions::Required),
        // Without captions and labels, only the pictures are checked.
        None if config.data.caption.is_none() => {
            tell(
                "No column of captions or labels found: pictures alone are checked (`--set data.caption=COLUMN` names one)",
            );
            (Media::Pictures, Captions::None)
        }
        _ => (Media::Pictures, Captions::Required),
    };
    let frames = config.data.frames.map(|frames| frames as usize);
    let num_workers = options.num_workers.unwrap_or(config.num_workers);
    Ok(CheckConfig {
        data: config.data,
        media,
        captions,
        csv,
        seed: options.seed.unwrap_or(config.seed),
        min_size: options.min_size,
        max_aspect: options.max_aspect,
        min_frames: frames.unwrap_or(ClipFraming::DEFAULT_FRAMES),
        min_per_label: options.min_per_label,
        num_examples: options.num_examples(),
        num_workers: num_workers.exactly().filter(|number| *number > 0),
        allowance: allowance(config.memory),
    })
}

/// Memory for checking pictures: the rest of the budget, or a quarter of free memory.
pub(super) fn allowance(memory: Memory) -> Allowance {
    let free = cpu::available_bytes().unwrap_or(u64::MAX);
    let total = cpu::total_bytes().unwrap_or(free);
    Allowance::new(match memory {
        Memory::Auto => free / 4,
        memory => {
            let held = cpu::resident_bytes().unwrap_or(0) + OTHERS_BYTES;
            memory.resolve(total, free).saturating_sub(held)
        }
    })
}

/// Rows, findings, threads, and code that is not loaded yet.
const OTHERS_BYTES: u64 = 16 << 20;

/// Runs with a progress bar; `None` if it was stopped.
pub(super) fn watched<T>(
    run: impl FnOnce(Watch<'_>) -> Result<Outcome<T>, DataError>,
) -> Result<Option<T>> {
    let mut orderly = None;
    let bar = progress(0, "Looking at pictures");
    let outcome = run(Watch {
        stop: &stop::requests().stop,
        on_start: &mut |num_rows| {
            // Results from here on are kept beside the CSV.
            orderly = Some(stop::orderly("Stopping; once more to stop at once"));
            bar.set_length(num_rows as u64);
        },
        on_progress: &|num_rows| bar.inc(num_rows as u64),
        on_note: &mut |note| tell(note),
    });
    bar.finish_and_clear();
    match outcome.map_err(TrainError::from)? {
        Outcome::Done(done) => Ok(Some(done)),
        Outcome::Stopped {
            num_done,
            num_rows,
            is_kept,
        } => {
            let hint = if is_kept {
                "the same command goes on from there"
            } else {
                "the same command begins anew: what was looked at could not be written down"
            };
            tell(&format!(
                "Stopped after {} of {}\nhint: {hint}",
                thousands(num_done),
                counted(num_rows, "row")
            ));
            Ok(None)
        }
    }
}

fn show(report: &Report, width: usize) -> String {
    let num_rows = report.rows + report.validation_rows;
    let mut text = format!("{}: {}", report.csv.display(), counted(report.rows, "row"));
    let [_, validation, test] = report.sides;
    if report.validation_rows > 0 {
        text += &format!(", {} in validation", thousands(report.validation_rows));
    } else if report.has_marked_sides {
        text += &format!(" ({} to validate on", thousands(validation));
        if test > 0 {
            text += &format!(", {} to test on", thousands(test));
        }
        text.push(')');
    }
    if let Some(labels) = &report.labels {
        text += &format!(
            ", {} of `{}`",
            counted(labels.count, "label"),
            labels.column
        );
    }
    text.push('\n');
    if !report.findings.is_empty() {
        text += &format!(
            "\n  {:<24}{:>9}{:>8}  {:<9}{}\n",
            "found", "rows", "share", "clean", "first"
        );
    }
    for finding in &report.findings {
        let line = format!(
            "  {:<24}{:>9}{:>8}  {:<9}",
            finding.kind.words(),
            thousands(finding.count),
            share(finding.share),
            finding.on_clean.words()
        );
        let room = width.saturating_sub(line.len());
        text += &line;
        text += &first(report, finding, room, width);
        text.push('\n');
    }
    let captions = &report.captions;
    let different = thousands(captions.different);
    text += &match captions.commonest_rows {
        0 => "\n".to_owned(),
        1 => format!("\nCaptions: {different}, all different\n"),
        _ => format!(
            "\nCaptions: {different} different; {} of the rows share theirs with another\n",
            share(captions.identical_share)
        ),
    };
    if captions.commonest_rows > 1 {
        let rows = format!(" in {}", counted(captions.commonest_rows, "row"));
        let room = width.saturating_sub(rows.len() + "The commonest: \"\"".len());
        text += &format!(
            "The commonest: \"{}\"{rows}\n",
            shortened(&captions.commonest, room)
        );
    }
    if report.findings.iter().any(|finding| {
        matches!(
            finding.kind,
            Fault::Row(RowKind::NearDuplicate | RowKind::NearLeak)
        )
    }) {
        text += &format!("{}\n", near_copies());
    }
    text += &if report.findings.is_empty() {
        format!("Nothing wrong in {}\n", counted(num_rows, "row"))
    } else {
        format!(
            "{} of {} can be used\n",
            thousands(report.usable_rows),
            counted(num_rows, "row")
        )
    };
    text
}

/// Note on the criteria for near copies.
pub(super) fn near_copies() -> String {
    format!(
        "Near copies: at most {MAX_BITS} of 63 bits of the perceptual hash differ, and colours by\n\
         {MAX_COLOUR_DIFFERENCE} of 255 on average; `data clean --duplicates keep-first-near` removes them"
    )
}

/// The first example of a finding, fitted into `room` columns; its image gets a line of its own, as wide as the table, where its name does
/// not fit.
fn first(report: &Report, finding: &Finding, room: usize, width: usize) -> String {
    let Some(example) = finding.examples.first() else {
        return String::new();
    };
    let Example {
        csv,
        row,
        image,
        detail,
        ..
    } = example;
    if let (
        Fault::Row(
            RowKind::FewOfLabel
            | RowKind::SameCaption
            | RowKind::LabelSpelling
            | RowKind::SplitNotUnderstood,
        ),
        Some(detail),
    ) = (finding.kind, detail)
    {
        return shortened(detail, room);
    }
    let name = csv.file_name().unwrap_or(csv.as_os_str()).to_string_lossy();
    let place = if *csv == report.csv {
        format!("row {row}")
    } else {
        format!("{name} row {row}")
    };
    let detail = match (finding.kind, detail) {
        // The name of this row's CSV tells which CSV the other row is in.
        (Fault::Row(RowKind::Leak | RowKind::NearLeak), Some(detail)) => {
            let detail = detail.split(" of ").next().unwrap_or(detail);
            format!(" {detail}")
        }
        (_, Some(detail)) => format!(" {detail}"),
        (_, None) => String::new(),
    };
    let length = |text: &str| text.chars().count();
    let name = image.rsplit('/').next().unwrap_or(image);
    let least = length(image).min(length(name) + ELLIPSIS.len());
    let left = room.saturating_sub(length(&place) + length(&detail) + 1);
    if least <= left {
        let image = shortened_left(image, left);
        return format!("{place}{detail} {image}").trim_end().to_owned();
    }
    // Details that do not fit beside the row go below it.
    let (beside, below) = if length(&place) + length(&detail) <= room {
        (detail.as_str(), "")
    } else {
        ("", detail.trim_start())
    };
    let indent = if below.is_empty() {
        INDENT.to_owned()
    } else {
        format!("{INDENT}{below} ")
    };
    let image = shortened_left(image, width.saturating_sub(length(&indent)));
    format!("{place}{beside}\n{indent}{image}")
        .trim_end()
        .to_owned()
}

const INDENT: &str = "    ";
/// Replaces the start of a path.
const ELLIPSIS: &str = "...";

/// `0.3%`; a share above 0 is never shown as 0%.
pub(super) fn share(share: f64) -> String {
    match share * 100.0 {
        percent if percent > 0.0 && percent < 0.1 => "<0.1%".to_owned(),
        percent if percent < 10.0 && percent > 0.0 => format!("{percent:.1}%"),
        percent => format!("{percent:.0}%"),
    }
}

fn shortened(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let start: String = text.chars().take(room.saturating_sub(3)).collect();
    format!("{start}...")
}

/// The end of a path, which tells more than its start.
fn shortened_left(text: &str, room: usize) -> String {
    let length = text.chars().count();
    if length <= room {
        return text.to_owned();
    }
    let end: String = text
        .chars()
        .skip(length - room.saturating_sub(3).min(length))
        .collect();
    format!("{ELLIPSIS}{end}")
}

#[cfg(test)]
mod tests {
    use holdall_data::check::{CaptionFacts, OnClean, Severity};

    use super::*;

    /// A wider terminal shows more of a path.
    #[test]
    fn tables_are_as_wide_as_the_terminal() {
        let image = format!("{}/7.jpg", "folder".repeat(20));
        let csv = PathBuf::from("cars.csv");
        let report = Report {
            csv: csv.clone(),
            rows: 9,
            sides: [9, 0, 0],
            has_marked_sides: false,
            validation_rows: 0,
            usable_rows: 8,
            has_lines: true,
            findings: vec![Finding {
                kind: Fault::Row(RowKind::Duplicate),
                severity: Severity::Warning,
                on_clean: OnClean::Filtered,
                count: 1,
                share: 0.1,
                rows: vec![3],
                validation_rows: Vec::new(),
                examples: vec![Example {
                    csv,
                    row: 3,
                    image: image.clone(),
                    detail: None,
                }],
            }],
            captions: CaptionFacts {
                different: 0,
                identical_share: 0.0,
                commonest: String::new(),
                commonest_rows: 0,
            },
            labels: None,
        };
        let widest = |width: usize| {
            let shown = show(&report, width);
            let lengths = shown.lines().map(|line| line.chars().count());
            (lengths.max(), shown.contains(&image))
        };
        assert_eq!(widest(80), (Some(80), false));
        assert_eq!(widest(120), (Some(120), false));
        assert!(widest(400).1);
    }

    #[test]
    fn shares_and_long_names() {
        assert_eq!(share(0.0), "0%");
        assert_eq!(share(0.000_01), "<0.1%");
        assert_eq!(share(0.003), "0.3%");
        assert_eq!(share(0.25), "25%");
        assert_eq!(share(1.0), "100%");
        assert_eq!(shortened("a photo", 7), "a photo");
        assert_eq!(shortened("a photo of", 7), "a ph...");
        assert_eq!(shortened_left("images/7.jpg", 8), "...7.jpg");
        assert_eq!(shortened_left("ä", 0), "...");
    }
}
