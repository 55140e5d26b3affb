//! `holdall man`: one manual page with every command, in the format of `man`.
//!
//! ```text
//! NAME  SYNOPSIS  DESCRIPTION  OPTIONS  SUBCOMMANDS  examples       for `holdall`
//! HOLDALL TRAIN: synopsis, description, options, examples           for each command and subcommand
//! ```

use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::arguments::Holdall;
use crate::screen::print;

pub fn run() -> Result<ExitCode> {
    print(&page()?)?;
    Ok(ExitCode::SUCCESS)
}

fn page() -> Result<String> {
    let mut holdall = Holdall::command();
    // Names of subcommands are complete only after `build`: `holdall data check`.
    holdall.build();
    let mut text = Vec::new();
    let man = Man::new(holdall.clone()).title("HOLDALL").section("1");
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    commands(&holdall, &mut text)?;
    examples(&holdall, &mut text)?;
    man.render_version_section(&mut text)?;
    Ok(with_one_preamble(&String::from_utf8(text)?))
}

/// Every rendered piece repeats the lines that define an apostrophe; keep them once.
fn with_one_preamble(page: &str) -> String {
    let is_preamble = |line: &&str| line.starts_with(".ie ") || line.starts_with(".el ");
    let preamble = page.lines().take_while(is_preamble);
    let rest = page.lines().filter(|line| !is_preamble(line));
    preamble
        .chain(rest)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Writes every command in order, each followed by its subcommands.
fn commands(parent: &Command, text: &mut Vec<u8>) -> Result<()> {
    let written = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for command in parent.get_subcommands().filter(written) {
        section(command, text)?;
        commands(command, text)?;
    }
    Ok(())
}

fn section(command: &Command, text: &mut Vec<u8>) -> Result<()> {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut heading = Roff::new();
    heading.control("SH", [name.to_uppercase().as_str()]);
    if let Some(about) = command.get_about() {
        heading.text([roman(about.to_string())]);
    }
    heading.control("PP", []);
    let usage = command.clone().render_usage().to_string();
    heading.text([bold(usage.trim_start_matches("Usage: "))]);
    heading.to_writer(text)?;
    let mut options = Vec::new();
    // --help is described once, at the top.
    let command_alone = command
        .clone()
        .mut_args(|argument| match argument.get_id().as_str() {
            "help" => argument.hide(true),
            _ => argument,
        });
    Man::new(command_alone).render_options_section(&mut options)?;
    // The page has one section per command; the options belong to it.
    text.extend_from_slice(
        String::from_utf8(options)?
            .replace(".SH OPTIONS", ".PP")
            .as_bytes(),
    );
    examples(command, text)
}

/// Writes the text after the options in `--help`, line by line.
fn examples(command: &Command, text: &mut Vec<u8>) -> Result<()> {
    let Some(after) = command.get_after_help() else {
        return Ok(());
    };
    let mut lines = Roff::new();
    lines.control("PP", []);
    lines.control("nf", []);
    for line in after.to_string().lines() {
        lines.text([roman(line)]);
    }
    lines.control("fi", []);
    lines.to_writer(text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_section_with_its_options() {
        let page = page().unwrap();
        assert!(page.contains(".TH HOLDALL 1"), "{page}");
        let mut holdall = Holdall::command();
        holdall.build();
        fn look(command: &Command, page: &str) {
            for below in command.get_subcommands() {
                if below.get_name() == "help" {
                    continue;
                }
                let name = below.get_bin_name().unwrap().to_uppercase();
                assert!(page.contains(&format!(".SH \"{name}\"\n")), "{name}");
                look(below, page);
            }
        }
        look(&holdall, &page);
        assert!(page.contains("effective\\-batch"));
        // A dot at the start of a line would be read as a roff request.
        for line in page.lines().filter(|line| line.starts_with('.')) {
            let request = line.split(' ').next().unwrap();
            let known = [
                ".TH", ".SH", ".PP", ".TP", ".RS", ".RE", ".nf", ".fi", ".ie", ".el", ".br", ".IP",
            ];
            assert!(known.contains(&request), "{line}");
        }
    }
}
