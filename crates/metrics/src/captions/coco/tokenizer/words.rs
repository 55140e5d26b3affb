//! Words with hyphens, apostrophes, slashes and full stops, and contractions.

use super::{Becomes, Match, Text, is_apostrophe, is_letter, is_like_apostrophe, is_word};

/// Words that are split in two, with the start of the second.
const TWO_IN_ONE: [(&str, usize); 6] = [
    ("cannot", 3),
    ("gonna", 3),
    ("gotta", 3),
    ("lemme", 3),
    ("gimme", 3),
    ("wanna", 3),
];

/// Words with an apostrophe that stay one token; the apostrophe becomes `'`.
const WITH_APOSTROPHE: [&str; 13] = [
    "'n'",
    "'em",
    "'til",
    "'till",
    "'cause",
    "c'mon",
    "c'est",
    "ol'",
    "somethin'",
    "dunkin'",
    "li'l",
    "nat'l",
    "ev'ry",
];

pub fn two_in_one(text: &Text, at: usize) -> Option<Match> {
    for (word, first) in TWO_IN_ONE {
        if text.is_at(at, word) {
            return Some(Match::ahead(first, word.len()));
        }
    }
    let (is, was) = (text.is_at(at + 1, "tis"), text.is_at(at + 1, "twas"));
    match text.at(at) {
        '\'' if is => Some(Match::ahead(2, 4)),
        '\'' if was => Some(Match::ahead(2, 5)),
        _ => None,
    }
}

/// `is` of `isn't`: letters that do not end in n, before `n't`.
pub fn before_not(text: &Text, at: usize) -> Option<Match> {
    let letters = text.run(at, |c| c.is_ascii_alphabetic());
    let word = letters.checked_sub(1).filter(|&word| word > 0)?;
    not(text, at + word)?;
    match text.at(at + word - 1) {
        'n' | 'N' => None,
        _ => Some(Match::ahead(word, word + 3)),
    }
}

/// `n't`.
pub fn not(text: &Text, at: usize) -> Option<Match> {
    let is_not =
        text.is_at(at, "n") && is_like_apostrophe(text.at(at + 1)) && text.is_at(at + 2, "t");
    is_not.then_some(Match {
        becomes: Becomes::Apostrophe,
        ..Match::new(3)
    })
}

/// `patient` of `patient's`.
pub fn before_auxiliary(text: &Text, at: usize) -> Option<Match> {
    let word = word(text, at)?.take;
    let auxiliary = auxiliary_length(text, at + word)?;
    Some(Match::ahead(word, word + auxiliary))
}

/// `'s`, `'ll` and the like. A letter after a straight one makes it a quotation mark.
pub fn auxiliary(text: &Text, at: usize) -> Option<Match> {
    let length = auxiliary_length(text, at)?;
    let letter = text.at(at + length).is_ascii_alphabetic();
    (!letter || text.at(at) != '\'').then_some(Match {
        seen: length + usize::from(!letter),
        take: length,
        becomes: Becomes::Apostrophe,
    })
}

fn auxiliary_length(text: &Text, at: usize) -> Option<usize> {
    if !is_apostrophe(text.at(at)) {
        return None;
    }
    let two = ["re", "ve", "ll"];
    if two.iter().any(|ending| text.is_at(at + 1, ending)) {
        return Some(3);
    }
    matches!(text.at(at + 1).to_ascii_lowercase(), 's' | 'm' | 'd').then_some(2)
}

/// A letter, then letters and digits; a full stop, ! or ? before another letter joins the parts.
pub fn word(text: &Text, at: usize) -> Option<Match> {
    if !is_letter(text.at(at)) {
        return None;
    }
    let mut end = at + text.run(at, is_word);
    while matches!(text.at(end), '.' | '!' | '?') && is_letter(text.at(end + 1)) {
        end += 1 + text.run(end + 1, is_word);
    }
    Some(Match::new(end - at))
}

/// `mid-lad`, `frame_1`, `o'hara-smith`.
pub fn parts(text: &Text, at: usize) -> Option<Match> {
    let mut end = at + part(text, at)?;
    while matches!(text.at(end), '-' | '_' | '‐' | '‑') {
        match part(text, end + 1) {
            Some(length) => end += 1 + length,
            None => break,
        }
    }
    Some(Match::new(end - at))
}

/// Letters and digits, or a name with an elided article before it.
fn part(text: &Text, at: usize) -> Option<usize> {
    elided(text, at).or_else(|| Some(text.run(at, is_word)).filter(|&length| length > 0))
}

/// `d'artagnan`, `o'brien`, `l'oreal`.
fn elided(text: &Text, at: usize) -> Option<usize> {
    let is_article = matches!(text.at(at).to_ascii_lowercase(), 'd' | 'o' | 'l');
    let is_name = is_like_apostrophe(text.at(at + 1)) && is_letter(text.at(at + 2));
    let length = text.run(at + 2, is_word);
    (is_article && is_name && length > 1).then_some(2 + length)
}

/// `shi'ite`, `hallowe'en`: a vowel, an apostrophe, and a vowel or a capital. `n'est`, `b'gosh` with a capital B: one letter, an
/// apostrophe, and two or more letters.
pub fn between_vowels(text: &Text, at: usize) -> Option<Match> {
    let first = text.run(at, is_letter);
    let second = text.run(at + first + 1, is_letter);
    if !is_apostrophe(text.at(at + first)) || first == 0 || second == 0 {
        return None;
    }
    let last = text.at(at + first - 1).to_ascii_lowercase();
    let next = text.at(at + first + 1);
    let vowels = matches!(last, 'a' | 'e' | 'i' | 'o' | 'u' | 'y')
        && matches!(next, 'a' | 'e' | 'i' | 'o' | 'u' | 'A'..='Z');
    let one_letter = last == 'n' || text.at(at).is_ascii_uppercase() && last != 'y';
    (first > 1 && vowels || first == 1 && one_letter && second > 1)
        .then_some(Match::new(first + 1 + second))
}

/// `1.5-mm`, `u.s.-based`, `non-a.b.`: the first part may contain full stops and commas, the later ones may be initials.
pub fn hyphens_after_stops(text: &Text, at: usize) -> Option<Match> {
    let is_part = |c: char| c.is_ascii_alphanumeric();
    if !is_part(text.at(at)) {
        return None;
    }
    let mut end = at + text.run(at, |c| is_part(c) || matches!(c, '.' | ','));
    let first = end;
    while text.at(end) == '-' {
        let letters = text.run(end + 1, is_part);
        match super::abbreviations::initials_length(text, end + 1).unwrap_or(letters) {
            0 => break,
            length => end += 1 + length,
        }
    }
    (end > first).then_some(Match::new(end - at))
}

/// `and/or`, `120/80`, `s/p-cabg`: at most three parts, each with up to two hyphens.
pub fn slashes(text: &Text, at: usize) -> Option<Match> {
    let mut end = at + slash_part(text, at)?;
    let mut num_slashes = 0;
    while num_slashes < 2 && text.at(end) == '/' {
        let Some(length) = slash_part(text, end + 1) else {
            break;
        };
        end += 1 + length;
        num_slashes += 1;
    }
    (num_slashes > 0).then_some(Match::new(end - at))
}

fn slash_part(text: &Text, at: usize) -> Option<usize> {
    let mut length = text.run(at, |c| c.is_ascii_alphanumeric());
    if length == 0 {
        return None;
    }
    for _ in 0..2 {
        let letters = text.run(at + length + 1, |c| c.is_ascii_alphabetic());
        if text.at(at + length) != '-' || letters == 0 {
            break;
        }
        length += 1 + letters;
    }
    Some(length)
}

/// `AT&T`, `A+B`: capitals only.
pub fn initials(text: &Text, at: usize) -> Option<Match> {
    let capitals = |at| Some(text.run(at, |c| c.is_ascii_uppercase())).filter(|&length| length > 0);
    let first = at + capitals(at)?;
    let mut end = first;
    while matches!(text.at(end), '&' | '+') {
        match capitals(end + 1) {
            Some(length) => end += 1 + length,
            None => break,
        }
    }
    (end > first).then_some(Match::new(end - at))
}

/// `pro-` and `anti-` keep their hyphen where no word follows.
pub fn hyphen_prefix(text: &Text, at: usize) -> Option<Match> {
    let prefixes = ["pro-", "anti-"];
    let prefix = prefixes.iter().find(|prefix| text.is_at(at, prefix))?;
    Some(Match::new(prefix.len()))
}

/// Fixed words with an apostrophe, `'90s`, and the `y'` of `y'all`.
pub fn with_apostrophe(text: &Text, at: usize) -> Option<Match> {
    let is_at = |word: &str| {
        (word.chars().enumerate()).all(|(i, c)| match c {
            '\'' => is_apostrophe(text.at(at + i)),
            c => text.at(at + i).eq_ignore_ascii_case(&c),
        })
    };
    let whole = WITH_APOSTROPHE
        .iter()
        .filter(|word| is_at(word))
        .map(|word| word.len());
    let mut longest = whole.max().map(Match::new);
    let mut offer = |found: Match| {
        if longest.is_none_or(|longest| found.seen > longest.seen) {
            longest = Some(found);
        }
    };
    if is_apostrophe(text.at(at)) {
        if text.is_at(at + 1, "n") && super::is_space(text.at(at + 2)) {
            offer(Match::ahead(2, 3));
        }
        let digit = |index: usize| text.at(at + index).is_ascii_digit();
        let decade = matches!(text.at(at + 1), '2'..='9') && text.at(at + 2) == '0';
        if decade && text.is_at(at + 3, "s") {
            offer(Match::new(4));
        }
        if digit(1) && digit(2) && super::is_space(text.at(at + 3)) {
            offer(Match::ahead(3, 4));
        }
    }
    if is_apostrophe(text.at(at + 1)) {
        match text.at(at).to_ascii_lowercase() {
            'd' | 'l' | 'j' => offer(Match::new(2)),
            'y' if is_letter(text.at(at + 2)) => offer(Match::ahead(2, 3)),
            _ => {}
        }
    }
    longest
}
