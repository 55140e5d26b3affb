//! How this program was started, so that lines to type next work as they stand.

use std::path::{Component, Path};

/// `holdall`, or what was typed instead of it.
pub fn program() -> String {
    let typed = std::env::args_os().next().unwrap_or_default();
    // `cargo run` says so.
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

/// A path as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=\\~".contains(&byte);
    match text.bytes().all(is_plain) && !text.is_empty() {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
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

    #[test]
    fn paths_with_blanks_and_quotes_are_one_word() {
        assert_eq!(quoted(Path::new("/tmp/demo")), "/tmp/demo");
        assert_eq!(quoted(Path::new("my runs/it's")), "'my runs/it'\\''s'");
    }
}
