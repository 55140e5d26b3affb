//! `holdall data clean`: writes the CSV again without the unusable rows.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_data::check::{
    CleanFile, Cleaned, Conflicts, Copies, Duplicates, Fault, Gone, RowKind, clean,
};
use holdall_files::{counted, thousands};
use holdall_train::config::TaskName;

use crate::commands::data_check::{CheckOptions, Wanted, meant, share, tell_unread_sets, watched};
use crate::commands::data_pairs;
use crate::options::OverwriteOption;
use crate::screen::{print, print_json, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall data clean photos.csv\n  \
                  holdall data clean photos.csv --min-size 64 --min-per-label 10 --duplicates keep\n\n\
                  What it writes: photos_cleaned.csv, the rows whose picture can be read and whose caption is not empty, and\n\
                  photos_filtered.csv, those of them that pass the filters: size, shape, duplicates, pictures per label.\n\
                  photos.csv is not touched; rows are copied byte for byte. `holdall train FOLDER` takes the filtered one.\n\
                  Of pictures with masks it writes the pairs that can be used: of FOLDER as FOLDER/pairs_cleaned.csv with image, mask,\n\
                  fov and split, of a CSV as NAME_cleaned.csv, rows copied byte for byte.")]
pub struct DataCleanArguments {
    /// What becomes of rows that show the same picture
    #[arg(long, value_name = "RULE", default_value = "keep-first")]
    pub duplicates: DuplicatesArgument,
    /// What becomes of rows that show the same picture under different labels, or with different masks
    #[arg(long, value_name = "RULE", default_value = "leave-out")]
    pub conflicts: ConflictsArgument,
    #[command(flatten)]
    pub overwrite: OverwriteOption,
    #[command(flatten)]
    pub options: CheckOptions,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ConflictsArgument {
    /// None of them stays: nobody knows which label is right
    LeaveOut,
    /// The first stays
    KeepFirst,
    /// All stay
    Keep,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DuplicatesArgument {
    /// The first stays; what is set apart for validation or the test is not trained on
    KeepFirst,
    /// The same for near copies, by their perceptual hash
    KeepFirstNear,
    /// All stay
    Keep,
}

pub fn run(arguments: DataCleanArguments) -> Result<ExitCode> {
    let copies = Copies {
        duplicates: match arguments.duplicates {
            DuplicatesArgument::KeepFirst => Duplicates::KeepFirst,
            DuplicatesArgument::KeepFirstNear => Duplicates::KeepFirstNear,
            DuplicatesArgument::Keep => Duplicates::Keep,
        },
        conflicts: match arguments.conflicts {
            ConflictsArgument::LeaveOut => Conflicts::LeaveOut,
            ConflictsArgument::KeepFirst => Conflicts::KeepFirst,
            ConflictsArgument::Keep => Conflicts::Keep,
        },
    };
    let existing = arguments.overwrite.existing();
    let options = &arguments.options;
    let config = options.config()?;
    if tell_unread_sets(&config, &options.sets) == Some(TaskName::Segment) {
        let pairs = data_pairs::meant(options, config);
        return data_pairs::clean(&pairs, copies, existing, options);
    }
    let config = meant(options, config, Wanted::Source)?;
    let Some(cleaned) = watched(|watch| clean(&config, copies, existing, watch))? else {
        return Ok(stop::exit_code());
    };
    for file in [&cleaned.cleaned, &cleaned.filtered] {
        if file.replaced {
            tell(&format!(
                "{} was there and is replaced",
                file.path.display()
            ));
        }
    }
    if arguments.options.output.json {
        print_json(&cleaned)?
    } else {
        print(&show(&cleaned))?
    }
    let is_conflict = |gone: &&Gone| gone.reason == Fault::Row(RowKind::TwoLabels);
    if let Some(gone) = cleaned.filtered.gone.iter().find(is_conflict) {
        tell(&format!(
            "{} left out: the same picture under two labels; `--conflicts keep-first` or `keep` says otherwise",
            counted(gone.count, "row")
        ));
    }
    let typed = arguments.options.typed();
    let line = typed.train(&cleaned.filtered.path, |_| false, &[]);
    tell(&format!("hint: {line}"));
    Ok(ExitCode::SUCCESS)
}

fn show(cleaned: &Cleaned) -> String {
    let mut text = format!(
        "{}: {}, not touched\n\n",
        cleaned.csv.display(),
        counted(cleaned.rows, "row")
    );
    text += &format!("  {:<30}{:>9}{:>8}\n", "gone", "rows", "share");
    for (what, file) in [
        ("cannot be used", &cleaned.cleaned),
        ("filtered out", &cleaned.filtered),
    ] {
        text += &part(what, file, cleaned.rows);
    }
    text += "\n";
    for file in [&cleaned.cleaned, &cleaned.filtered] {
        text += &format!("{}: {}\n", file.path.display(), counted(file.rows, "row"));
    }
    text
}

fn part(what: &str, file: &CleanFile, num_rows: usize) -> String {
    let line = |name: &str, count: usize| {
        let of_all = share(count as f64 / num_rows as f64);
        format!("  {name:<30}{:>9}{of_all:>8}\n", thousands(count))
    };
    let total = file.gone.iter().map(|gone| gone.count).sum();
    let mut text = line(what, total);
    for gone in &file.gone {
        text += &line(&format!("  {}", gone.reason.words()), gone.count);
    }
    text
}
