//! `holdall data clean`: the CSV again, without the rows that are no use.

use std::process::ExitCode;

use anyhow::Result;
use holdall_data::check::{CleanFile, Cleaned, Duplicates, clean};
use holdall_data::words::{counted, thousands};

use crate::arguments::{DataCleanArguments, DuplicatesArgument};
use crate::commands::data_check::{Wanted, meant, share, watched};
use crate::screen::{print, print_json, tell};
use crate::stop;

pub fn run(arguments: DataCleanArguments) -> Result<ExitCode> {
    let config = meant(&arguments.options, Wanted::Source)?;
    let duplicates = match arguments.duplicates {
        DuplicatesArgument::KeepFirst => Duplicates::KeepFirst,
        DuplicatesArgument::Keep => Duplicates::Keep,
    };
    let Some(cleaned) = watched(|watch| clean(&config, duplicates, watch))? else {
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
    match arguments.options.json {
        true => print_json(&cleaned)?,
        false => print(&show(&cleaned))?,
    }
    tell(&format!(
        "hint: holdall train {}",
        cleaned.filtered.path.display()
    ));
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
