//! Punctuation, brackets, dashes, currencies and other signs.

use super::{Becomes, Match, Text, is_space, is_word};

/// HTML entities. `&apos;` yields a quote, because captions have it at most between letters.
const ENTITIES: [(&str, &str); 9] = [
    ("&amp;", "&"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "''"),
    ("&apos;", "'"),
    ("&nbsp;", ""),
    ("&mdash;", "--"),
    ("&ndash;", "--"),
    ("&md;", "--"),
];

pub fn entity(text: &Text, at: usize) -> Option<Match> {
    let (entity, token) = ENTITIES.iter().find(|(entity, _)| text.is_at(at, entity))?;
    let becomes = if token.is_empty() {
        Becomes::Nothing
    } else {
        Becomes::Fixed(token)
    };
    Some(Match {
        becomes,
        ..Match::new(entity.len())
    })
}

pub fn symbol(text: &Text, at: usize) -> Option<Match> {
    if let Some(found) = smiley(text, at).or_else(|| dollar(text, at)) {
        return Some(found);
    }
    let c = text.at(at);
    let fixed = |token| Some(Match::fixed(1, token));
    match c {
        '[' => fixed("-lsb-"),
        ']' => fixed("-rsb-"),
        '{' => fixed("-lcb-"),
        '}' => fixed("-rcb-"),
        '(' => fixed("-lrb-"),
        ')' => fixed("-rrb-"),
        '"' | '“' | '”' | '«' | '»' | '\u{93}' | '\u{94}' => fixed("''"),
        '\'' if text.at(at + 1) == '\'' => Some(Match::fixed(2, "''")),
        '\'' | '`' | '‘' | '’' | '‛' | '‹' | '›' | '\u{91}' | '\u{92}' => fixed("'"),
        '–' | '—' | '―' | '\u{96}' | '\u{97}' => fixed("--"),
        '-' => Some(hyphens(text, at)),
        '…' | '\u{85}' => fixed("..."),
        '.' => Some(full_stops(text, at)),
        '!' | '?' => Some(Match::new(text.run(at, |c| matches!(c, '!' | '?')))),
        '*' | '_' | '@' | '#' => Some(Match::new(text.run(at, |other| other == c))),
        '<' | '>' => Some(Match::new(text.run(at, |other| other == c).min(2))),
        '£' => fixed("#"),
        '€' | '¤' | '₠' | '\u{80}' => fixed("$"),
        '¢' => fixed("cents"),
        '½' => fixed("1/2"),
        '¼' => fixed("1/4"),
        '¾' => fixed("3/4"),
        '⅓' => fixed("1/3"),
        '⅔' => fixed("2/3"),
        '\u{ad}' => fixed("-"),
        c if is_raised(c) => Some(Match::new(text.run(at, is_raised))),
        c if is_lowered(c) => Some(Match::new(text.run(at, is_lowered))),
        c if is_sign(c) => Some(Match::new(1)),
        _ => None,
    }
}

/// A hyphen or a dash, or a bracket's name (`-lrb-`) from another tokenizer.
fn hyphens(text: &Text, at: usize) -> Match {
    let named = ["-lrb-", "-rrb-", "-lsb-", "-rsb-", "-lcb-", "-rcb-"];
    if let Some(name) = named.iter().find(|name| text.is_at(at, name)) {
        return Match::fixed(5, name);
    }
    match text.run(at, |c| c == '-') {
        1 => Match::fixed(1, "-"),
        length => Match::fixed(length, "--"),
    }
}

/// An ellipsis: three to five full stops, adjacent or with spaces between.
fn full_stops(text: &Text, at: usize) -> Match {
    let close = text.run(at, |c| c == '.').min(5);
    let mut apart = 1;
    while apart < 5
        && matches!(text.at(at + 2 * apart - 1), ' ' | '\u{a0}')
        && text.at(at + 2 * apart) == '.'
    {
        apart += 1;
    }
    let length = match (close, apart) {
        (_, 3..) => (2 * apart - 1).max(close),
        (3.., _) => close,
        _ => return Match::fixed(1, "."),
    };
    Match::fixed(length, "...")
}

/// `:-)` and similar, not followed by a letter or digit.
fn smiley(text: &Text, at: usize) -> Option<Match> {
    let mut end = at + usize::from(matches!(text.at(at), '<' | '>'));
    if !matches!(text.at(end), ':' | ';' | '=') {
        return None;
    }
    end += 1;
    let is_mouth = |c: char| "()DPdpO\\{@|[]".contains(c);
    let nose = matches!(text.at(end), '-' | 'o' | '*' | '\'');
    if nose && is_mouth(text.at(end + 1)) {
        end += 1;
    }
    let is_smiley = is_mouth(text.at(end)) && !text.at(end + 1).is_ascii_alphanumeric();
    is_smiley.then_some(Match::ahead(end + 1 - at, end + 2 - at))
}

/// `US$`.
fn dollar(text: &Text, at: usize) -> Option<Match> {
    let capitals = text.run(at, |c| c.is_ascii_uppercase());
    (text.at(at + capitals) == '$').then_some(Match::new(capitals + 1))
}

fn is_raised(c: char) -> bool {
    matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁾')
}

fn is_lowered(c: char) -> bool {
    matches!(c, '₀'..='₎')
}

/// Other signs that form a token; characters that match no rule are dropped.
fn is_sign(c: char) -> bool {
    match c {
        '!'..='~' => !is_word(c),
        '\u{a1}'..='¿' | '×' | '÷' => !matches!(c, '\u{ad}' | 'ª' | 'µ' | 'º'),
        '‖'..='‗' | '‚' | '„'..='‣' | '‰'..='‸' | '※' | '‾'..='⁂' | '⁄' | '₤' => {
            true
        }
        '\u{2100}'..='\u{214f}' | '⅕'..='⅞' => !is_word(c),
        '\u{2190}'..='\u{2426}' | '\u{2440}'..='\u{244a}' | '\u{2460}'..='\u{2bff}' => !is_space(c),
        _ => false,
    }
}
