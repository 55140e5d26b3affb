//! Addresses, mentions and markup: rare in captions, one token each.

use super::{Match, Text, is_letter, is_space};

fn ends_address(c: char) -> bool {
    is_space(c) || matches!(c, '"' | '<' | '>' | '|' | '(' | ')')
}

/// End of an address without the punctuation after it.
fn trimmed(text: &Text, at: usize, mut end: usize) -> usize {
    while end > at && matches!(text.at(end - 1), '.' | '!' | '?' | '{' | '}' | ',' | '-') {
        end -= 1;
    }
    end
}

/// `http://...`, and `name.com/...` with at least two characters behind the slash.
pub fn address(text: &Text, at: usize) -> Option<Match> {
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|scheme| text.is_at(at, scheme));
    let start = match scheme {
        Some(scheme) => at + scheme.len(),
        None => {
            let host = at + super::words::word(text, at)?.take;
            let ending = [".com", ".net", ".org", ".edu"];
            let is_host = ending
                .iter()
                .any(|ending| host >= at + 5 && text.is_at(host - 4, ending));
            (is_host && text.at(host) == '/').then_some(host + 1)?
        }
    };
    let end = trimmed(text, start, start + text.run(start, |c| !ends_address(c)));
    (end >= start + 2).then_some(Match::new(end - at))
}

/// `user@host.org`, and `a@b`.
pub fn email(text: &Text, at: usize) -> Option<Match> {
    let ends = |c: char| ends_address(c) || matches!(c, '{' | '}');
    let name = text.run(at, |c| c != '@' && !ends(c));
    if !text.at(at).is_ascii_alphanumeric() || text.at(at + name) != '@' {
        return None;
    }
    let start = at + name + 1;
    let end = trimmed(text, start, start + text.run(start, |c| !ends(c)));
    (end > start).then_some(Match::new(end - at))
}

/// `@name`, `#tag`.
pub fn mention(text: &Text, at: usize) -> Option<Match> {
    let length = match text.at(at) {
        '@' if !text.at(at + 1).is_ascii_digit() => {
            text.run(at + 1, |c| c.is_ascii_alphanumeric() || c == '_')
        }
        '#' => text.run(at + 1, is_letter),
        _ => 0,
    };
    (length > 0).then_some(Match::new(1 + length))
}

/// `<b>`, `</p>`, `<a href="...">`, and text of the same form: `<see note>`.
pub fn tag(text: &Text, at: usize) -> Option<Match> {
    if text.at(at) != '<' {
        return None;
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '-');
    let begins = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | ':');
    let length = match text.at(at + 1) {
        '!' | '?' => {
            let begins = matches!(text.at(at + 2), 'a'..='z' | 'A'..='Z' | '-');
            let inside = text.run(at + 2, |c| c != '>');
            begins.then_some(inside + 2)?
        }
        '/' => {
            let name = text.run(at + 2, is_name);
            let space = text.run(at + 2 + name, is_space);
            begins(text.at(at + 2)).then_some(2 + name + space)?
        }
        c if begins(c) => {
            let mut end = at + 1 + text.run(at + 1, is_name);
            loop {
                let space = text.run(end, is_space);
                let name = text.run(end + space, is_name);
                if space == 0 || name == 0 || !begins(text.at(end + space)) {
                    end += space;
                    break;
                }
                end += space + name;
                end = attribute_value(text, end).unwrap_or(end);
            }
            if text.at(end) == '/' {
                end += 1 + text.run(end + 1, is_space);
            }
            end - at
        }
        _ => return None,
    };
    (text.at(at + length) == '>').then_some(Match::new(length + 1))
}

/// End of an attribute's `= "..."`.
fn attribute_value(text: &Text, at: usize) -> Option<usize> {
    let equals = at + text.run(at, is_space);
    let quote = equals + 1 + text.run(equals + 1, is_space);
    let mark = text.at(quote);
    if text.at(equals) != '=' || !matches!(mark, '"' | '\'') {
        return None;
    }
    let end = quote + 1 + text.run(quote + 1, |c| c != mark);
    (text.at(end) == mark).then_some(end + 1)
}
