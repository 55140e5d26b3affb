//! Quoting for commands in messages.

use std::path::Path;

/// A path quoted for the system's shell: PowerShell on Windows.
pub fn quoted(path: &Path) -> String {
    // Within quotes, PowerShell reads two of them as one.
    let quote = if cfg!(windows) { "''" } else { "'\\''" };
    quoted_with(&path.display().to_string(), quote)
}

/// `quote`: a quotation mark within quotes.
fn quoted_with(text: &str, quote: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=\\~".contains(&byte);
    if text.bytes().all(is_plain) && !text.is_empty() {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', quote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_blanks_and_quotes_are_one_word() {
        assert_eq!(quoted(Path::new("/tmp/demo")), "/tmp/demo");
        assert_eq!(quoted_with("my runs/it's", "'\\''"), "'my runs/it'\\''s'");
        assert_eq!(quoted_with("my runs/it's", "''"), "'my runs/it''s'");
    }
}
