//! `holdall data check` and `clean` for pictures with masks.

use std::process::ExitCode;

use anyhow::Result;
use holdall_data::check::{
    CleanPairs, Copies, MAX_ASPECT, MIN_PER_LABEL, PairCheck, PairFault, PairFinding, PairReport,
    check_pairs, clean_pairs,
};
use holdall_data::segmentation::FIELD_OF_VIEW_HINT;
use holdall_files::{Existing, counted, thousands};
use holdall_train::config::RunConfig;
use serde::Serialize;

use crate::commands::data_check::{CheckOptions, allowance, near_copies, share, watched};
use crate::failure;
use crate::screen::{print, print_json, tell};
use crate::stop;

/// The check that the options describe.
pub(super) fn meant(options: &CheckOptions, config: RunConfig) -> PairCheck {
    let num_workers = options.num_workers.unwrap_or(config.num_workers);
    for (option, is_changed) in [
        ("--max-aspect", options.max_aspect != MAX_ASPECT),
        ("--min-per-label", options.min_per_label != MIN_PER_LABEL),
    ] {
        if is_changed {
            tell(&format!(
                "warning: {option}: no effect, images with masks are not looked at for it"
            ));
        }
    }
    PairCheck {
        seed: options.seed.unwrap_or(config.seed),
        min_size: options.min_size,
        num_examples: options.num_examples(),
        num_workers: num_workers.exactly().filter(|number| *number > 0),
        allowance: allowance(config.memory),
        data: config.data,
    }
}

#[derive(Serialize)]
struct CheckJson<'a> {
    verdict: &'static str,
    #[serde(flatten)]
    report: &'a PairReport,
}

pub(super) fn check(config: &PairCheck, options: &CheckOptions) -> Result<ExitCode> {
    let Some(report) = watched(|watch| check_pairs(config, watch))? else {
        return Ok(stop::exit_code());
    };
    let is_clean = report.findings.is_empty();
    if options.output.json {
        let verdict = if is_clean { "clean" } else { "found" };
        let report = &report;
        print_json(&CheckJson { verdict, report })?;
    } else {
        print(&show(&report))?;
        if !is_clean {
            tell(&format!(
                "hint: `{}` writes a CSV without pairs that are no use",
                options.typed().same("data clean")
            ));
        }
    }
    Ok(if is_clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(failure::FOUND)
    })
}

pub(super) fn clean(
    config: &PairCheck,
    copies: Copies,
    existing: Existing,
    options: &CheckOptions,
) -> Result<ExitCode> {
    let Some(clean) = watched(|watch| clean_pairs(config, copies, existing, watch))? else {
        return Ok(stop::exit_code());
    };
    if options.output.json {
        print_json(&clean)?
    } else {
        print(&show_clean(&clean))?
    }
    if clean.is_copy {
        let line = options.typed().train(&clean.csv, |_| false, &[]);
        tell(&format!("hint: {line}"));
        return Ok(ExitCode::SUCCESS);
    }
    // The written list has its own columns for all of these.
    let is_replaced = |key: &str| {
        let own = [
            "image",
            "mask",
            "field_of_view",
            "image_subdir",
            "label_subdir",
        ];
        let own = own.map(|key| format!("data.{key}"));
        own.iter().any(|own| own == key) || key == "data.validation"
    };
    let validation = ["data.validation={column: split}".to_owned()];
    let line = options.typed().train(&clean.csv, is_replaced, &validation);
    tell(&format!("hint: {line}"));
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
        let first = first.map_or(String::new(), |example| {
            match (example.image.as_str(), example.detail.as_str()) {
                (image, "") => image.to_owned(),
                ("", detail) => detail.to_owned(),
                (image, detail) => format!("{image}: {detail}"),
            }
        });
        text += &format!(
            "  {:<24}{:>9}{:>8}  {first}\n",
            finding.kind.words(),
            thousands(finding.count),
            share(finding.share)
        );
    }
    if report
        .findings
        .iter()
        .any(|finding| matches!(finding.kind, PairFault::NearDuplicate | PairFault::NearLeak))
    {
        text += &format!("\n{}\n", near_copies());
    }
    let fields = |finding: &PairFinding| finding.kind == PairFault::FieldOfView;
    if report.findings.iter().any(fields) {
        text += &format!("\nMasks that are fields of view teach nothing: {FIELD_OF_VIEW_HINT}\n");
    }
    text += &if report.findings.is_empty() {
        format!("Nothing wrong in {}\n", counted(report.pairs, "pair"))
    } else {
        format!(
            "\n{} of {} can be used\n",
            thousands(report.usable_pairs),
            counted(report.pairs, "pair")
        )
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
