//! `holdall completions`: the completion script of a shell.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use crate::arguments::Holdall;
use crate::screen::print;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall completions bash > ~/.local/share/bash-completion/completions/holdall\n  \
                  holdall completions zsh > ~/.zfunc/_holdall       (with fpath+=~/.zfunc before compinit in ~/.zshrc)\n  \
                  holdall completions fish > ~/.config/fish/completions/holdall.fish\n  \
                  holdall completions powershell >> $PROFILE")]
pub struct CompletionsArguments {
    /// The shell that will read the script
    #[arg(value_name = "SHELL")]
    pub shell: ShellArgument,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShellArgument {
    /// Bash
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
    /// PowerShell
    #[value(name = "powershell")]
    PowerShell,
}

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
