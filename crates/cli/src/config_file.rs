//! Reads config files; files of other tools are translated, and the translation is printed.

use std::path::Path;

use anyhow::Result;
use holdall_train::config::{RunConfig, Translation};

use crate::screen::tell;

/// Treatment of translated settings that have another effect here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Differences {
    /// The command stops with an error.
    Refuse,
    /// The command prints them and continues.
    Accept,
}

/// The config in `file`, or the defaults, overridden by `KEY=VALUE` settings.
pub fn load(file: Option<&Path>, sets: &[String], differences: Differences) -> Result<RunConfig> {
    load_layers(file.as_slice(), sets, differences)
}

/// Like [`load`] for several files, each overriding the previous one.
pub fn load_layers(
    files: &[&Path],
    sets: &[String],
    differences: Differences,
) -> Result<RunConfig> {
    let (config, translations) = RunConfig::load_layers(files, sets)?;
    for translation in &translations {
        tell_translation(translation);
        match translation.refusal() {
            Some(refusal) if differences == Differences::Refuse => return Err(refusal.into()),
            _ => tell_differences(translation),
        }
    }
    Ok(config)
}

/// Prints translated and ignored settings.
pub fn tell_translation(translation: &Translation) {
    let became = translation.became();
    let widths = became.iter().map(|(written, _)| written.chars().count());
    let width = widths.max().unwrap_or(0).min(44);
    tell(&format!(
        "{} is a config of another tool. Translated:",
        translation.file.display()
    ));
    for (written, keys) in became {
        tell(&format!("  {written:width$}  -> {keys}"));
    }
    let unneeded = translation.unneeded();
    if !unneeded.is_empty() {
        tell(&format!("Not needed here: {}", unneeded.join(", ")));
    }
}

/// Prints settings that have another effect here.
pub fn tell_differences(translation: &Translation) {
    let differences = translation.differences();
    if !differences.is_empty() {
        tell("Differs in effect:");
    }
    for (written, became) in differences {
        tell(&format!("  {written}: {became}"));
    }
}
