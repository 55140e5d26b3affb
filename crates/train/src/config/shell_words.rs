//! Quoting for commands in messages.

use std::path::Path;

/// A path quoted for a shell.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=\\~".contains(&byte);
    if text.bytes().all(is_plain) && !text.is_empty() {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_blanks_and_quotes_are_one_word() {
        assert_eq!(quoted(Path::new("/tmp/demo")), "/tmp/demo");
        assert_eq!(quoted(Path::new("my runs/it's")), "'my runs/it'\\''s'");
    }
}
