//! `holdall data check` and `clean` of pictures with masks.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use holdall_data::check::{
    CleanPairs, Duplicates, PairCheck, PairReport, check_pairs, clean_pairs,
};
use holdall_data::source::{EvidenceKind, evidence};
use holdall_files::{counted, thousands};
use holdall_train::config::RunConfig;
use holdall_train::tasks::TaskName;
use serde::Serialize;

use crate::commands::data_check::{CheckOptions, allowance, share, watched};
use crate::commands::train::is_yaml;
use crate::failure;
use crate::screen::{print, print_json, tell};
use crate::stop;

/// What the options mean, where the data is pictures with masks.
pub(super) fn meant(options: &CheckOptions) -> Result<Option<PairCheck>> {
    let target = options.target.as_deref();
    let file = target.filter(|target| is_yaml(target)).map(Path::new);
    let mut config = RunConfig::load(file, &options.sets)?;
    if let (None, Some(target)) = (file, target) {
        config.data.train = Some(PathBuf::from(target));
    }
    let has_masks = match config.task {
        Some(task) => task == TaskName::Segment,
        // What is wrong with data of other kinds is said by their own check.
        None => evidence(&config.data).is_ok_and(|evidence| evidence.kind == EvidenceKind::Masks),
    };
    if !has_masks {
        return Ok(None);
    }
    let num_workers = options.num_workers.unwrap_or(config.num_workers);
    Ok(Some(PairCheck {
        seed: options.seed.unwrap_or(config.seed),
        min_size: options.min_size,
        num_workers: num_workers.exactly().filter(|number| *number > 0),
        allowance: allowance(config.memory),
        data: config.data,
    }))
}

#[derive(Serialize)]
struct CheckJson<'a> {
    verdict: &'static str,
    #[serde(flatten)]
    report: &'a PairReport,
}

pub(super) fn check(config: &PairCheck, is_json: bool) -> Result<ExitCode> {
    let Some(report) = watched(|watch| check_pairs(config, watch))? else {
        return Ok(stop::exit_code());
    };
    let is_clean = report.findings.is_empty();
    if is_json {
        let verdict = if is_clean { "clean" } else { "found" };
        let report = &report;
        print_json(&CheckJson { verdict, report })?;
    } else {
        print(&show(&report))?;
        if !is_clean {
            tell(&format!(
                "hint: holdall data clean {} writes a CSV without pairs that are no use",
                report.place.display()
            ));
        }
    }
    Ok(match is_clean {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(failure::FOUND),
    })
}

pub(super) fn clean(config: &PairCheck, duplicates: Duplicates, is_json: bool) -> Result<ExitCode> {
    let Some(clean) = watched(|watch| clean_pairs(config, duplicates, watch))? else {
        return Ok(stop::exit_code());
    };
    match is_json {
        true => print_json(&clean)?,
        false => print(&show_clean(&clean))?,
    }
    tell(&format!(
        "hint: holdall train {} --set 'data.validation={{column: split}}'",
        clean.csv.display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn show(report: &PairReport) -> String {
    let splits = report.splits.iter();
    let splits: Vec<String> = splits
        .map(|(name, count)| format!("{} to {}", thousands(*count), verb(name)))
        .collect();
    let mut text = format!(
        "{}: {} ({})\n",
        report.place.display(),
        counted(report.pairs, "pair"),
        splits.join(", ")
    );
    let classes = report.classes.iter().zip(&report.class_shares);
    let classes: Vec<String> = classes
        .map(|(name, part)| format!("{name} {}", share(*part)))
        .collect();
    text += &format!("Classes: {}\n", classes.join(", "));
    if !report.findings.is_empty() {
        text += &format!("\n  {:<24}{:>9}{:>8}  first\n", "found", "pairs", "share");
    }
    for finding in &report.findings {
        let first = finding.examples.first();
        let first = first.map_or(String::new(), |example| match example.detail.as_str() {
            "" => example.image.clone(),
            detail => format!("{}: {detail}", example.image),
        });
        text += &format!(
            "  {:<24}{:>9}{:>8}  {first}\n",
            finding.kind.words(),
            thousands(finding.count),
            share(finding.share)
        );
    }
    text += &match report.findings.is_empty() {
        true => format!("Nothing wrong in {}\n", counted(report.pairs, "pair")),
        false => format!(
            "\n{} of {} can be used\n",
            thousands(report.usable_pairs),
            counted(report.pairs, "pair")
        ),
    };
    text
}

fn verb(split: &str) -> &str {
    match split {
        "train" => "train on",
        "validation" => "validate on",
        _ => "test on",
    }
}

fn show_clean(clean: &CleanPairs) -> String {
    let mut text = format!(
        "{}: {}, not touched\n",
        clean.place.display(),
        counted(clean.pairs, "pair")
    );
    for (kind, count) in &clean.gone {
        text += &format!("  {:<30}{:>9}\n", kind.words(), thousands(*count));
    }
    text += &format!("{}: {}\n", clean.csv.display(), counted(clean.rows, "row"));
    text
}
