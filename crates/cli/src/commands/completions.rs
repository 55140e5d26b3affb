//! `holdall completions`: what a shell needs to complete commands and options.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::{CompletionsArguments, Holdall, ShellArgument};
use crate::screen::print;

pub fn run(arguments: CompletionsArguments) -> Result<ExitCode> {
    let shell = match arguments.shell {
        ShellArgument::Bash => Shell::Bash,
        ShellArgument::Zsh => Shell::Zsh,
        ShellArgument::Fish => Shell::Fish,
        ShellArgument::PowerShell => Shell::PowerShell,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Holdall::command(), "holdall", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
