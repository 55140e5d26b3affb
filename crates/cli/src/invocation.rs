//! How this program was started, so that suggested commands work verbatim.

use std::path::{Component, Path};

pub use holdall_train::config::shell_words::quoted;

/// `holdall`, or the path or cargo command that the user typed.
pub fn program() -> String {
    let typed = std::env::args_os().next().unwrap_or_default();
    // `cargo run` sets these variables.
    let by_cargo =
        std::env::var_os("CARGO").is_some() && std::env::var_os("CARGO_PKG_NAME").is_some();
    program_of(Path::new(&typed), by_cargo)
}

fn program_of(typed: &Path, by_cargo: bool) -> String {
    let folder = |name: &str| {
        typed
            .components()
            .any(|part| part == Component::Normal(name.as_ref()))
    };
    match typed.parent() {
        _ if by_cargo && folder("release") => "cargo run --release --".to_owned(),
        _ if by_cargo => "cargo run --".to_owned(),
        Some(parent) if parent != Path::new("") => quoted(typed),
        _ => "holdall".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_lines_start_as_this_one_did() {
        for (typed, by_cargo, expected) in [
            ("holdall", false, "holdall"),
            ("/usr/local/bin/holdall", false, "/usr/local/bin/holdall"),
            ("target/release/holdall", false, "target/release/holdall"),
            ("target/release/holdall", true, "cargo run --release --"),
            ("target/debug/holdall", true, "cargo run --"),
            ("", false, "holdall"),
        ] {
            assert_eq!(program_of(Path::new(typed), by_cargo), expected, "{typed}");
        }
    }
}
