//! Abbreviations: full stops that belong to a word.

use super::{Match, Text, is_space, is_word, words};

/// Abbreviations that often end a sentence: months, weekdays, states, companies, titles behind a name. In any case.
const ANYWHERE: &[&str] = &[
    "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec", "mon",
    "tue", "tues", "wed", "thu", "thurs", "fri", "ala", "ariz", "calif", "colo", "conn", "ct",
    "dak", "fla", "ga", "ind", "kan", "kans", "ky", "md", "mich", "minn", "mo", "mont", "neb",
    "nev", "okla", "penn", "tenn", "va", "vt", "wis", "wisc", "wyo", "inc", "co", "cos", "corp",
    "pty", "ptys", "pte", "ptes", "ltd", "plc", "bancorp", "bhd", "assn", "univ", "intl", "sys",
    "jr", "sr", "bros", "ph.d", "ed.d", "blvd", "rd", "esq", "etc", "al", "seq", "tel", "est",
    "ext", "sq",
];

/// Abbreviated states that are also words: only with a capital.
const CAPITALIZED: &[&str] = &[
    "Az", "Ark", "Del", "Ill", "La", "Mass", "Miss", "Ore", "Pa", "Tex", "Wash",
];

/// Abbreviations before a name or a number, which therefore never end a sentence. In any case.
const BEFORE_A_NAME: &[&str] = &[
    "mr", "mrs", "ms", "dr", "drs", "prof", "profs", "sen", "sens", "rep", "reps", "atty", "attys",
    "lt", "col", "gen", "messrs", "gov", "govs", "adm", "rev", "maj", "sgt", "cpl", "pvt", "capt",
    "st", "ste", "ave", "pres", "lieut", "hon", "brig", "cmdr", "comdr", "pfc", "spc", "supt",
    "supts", "det", "mt", "ft", "vs", "v", "alex", "wm", "jos", "cie", "a.k.a", "cf", "treas",
    "dept", "assoc", "bldg", "ph",
];

/// Abbreviations only before a number: `no. 5`, `fig. 3`.
const BEFORE_A_NUMBER: &[&str] = &["no", "nos", "fig", "figs", "prop", "pp", "art", "ca"];

/// Words that begin a sentence: a single letter before one of them ends its sentence, and loses its full stop.
const SENTENCE_STARTS: &[&str] = &[
    "A",
    "About",
    "According",
    "Additionally",
    "After",
    "An",
    "As",
    "At",
    "But",
    "Earlier",
    "He",
    "Her",
    "Here",
    "However",
    "If",
    "In",
    "It",
    "Last",
    "Many",
    "More",
    "Mr.",
    "Ms.",
    "Now",
    "Once",
    "One",
    "Other",
    "Our",
    "She",
    "Since",
    "So",
    "Some",
    "Such",
    "That",
    "The",
    "Their",
    "Then",
    "There",
    "These",
    "They",
    "This",
    "We",
    "What",
    "When",
    "While",
    "Yet",
    "You",
];

pub fn abbreviation(text: &Text, at: usize) -> Option<Match> {
    let mut longest: Option<Match> = None;
    let mut offer = |found: Option<Match>| {
        if let Some(found) = found
            && longest.is_none_or(|longest| found.seen > longest.seen)
        {
            longest = Some(found);
        }
    };
    offer(before_comma(text, at));
    let word: String = (text.chars.get(at..).unwrap_or_default().iter())
        .take_while(|c| c.is_ascii_alphanumeric())
        .collect();
    let lower = word.to_ascii_lowercase();
    let stop = at + word.len();
    // The original looks ahead two more characters, so that `etc.a` is two tokens and `etc.and` one.
    let anywhere = |length: usize| Match::ahead(length + 1, length + 3);
    if text.at(stop) == '.' {
        let capital = word.starts_with(|c: char| c.is_ascii_uppercase());
        let capitalized = || {
            CAPITALIZED
                .iter()
                .any(|state| state.eq_ignore_ascii_case(&word))
        };
        if ANYWHERE.contains(&&*lower) || capital && capitalized() {
            offer(Some(anywhere(word.len())));
        }
        if BEFORE_A_NAME.contains(&&*lower) {
            offer(Some(Match::new(word.len() + 1)));
        }
        if BEFORE_A_NUMBER.contains(&&*lower) {
            let space = usize::from(is_space(text.at(stop + 1)));
            let number = text.at(stop + 1 + space).is_ascii_digit();
            offer(number.then_some(Match::ahead(word.len() + 1, word.len() + 2 + space)));
        }
    }
    for degree in ["ph.d.", "ed.d."] {
        offer(text.is_at(at, degree).then(|| anywhere(degree.len() - 1)));
    }
    offer(initials(text, at));
    longest
}

/// `c.`, `e.g.`, `p.m.`
fn initials(text: &Text, at: usize) -> Option<Match> {
    if !text.at(at).is_ascii_alphabetic() || is_word(text.at(at + 1)) {
        return None;
    }
    if let Some(length) = initials_length(text, at) {
        return Some(Match::new(length));
    }
    (text.at(at + 1) == '.').then(|| {
        if starts_sentence(text, at + 2) {
            Match::ahead(1, 3)
        } else {
            Match::new(2)
        }
    })
}

/// Length of `a.b.c.`: at least two letters, each followed by a full stop.
pub fn initials_length(text: &Text, at: usize) -> Option<usize> {
    let mut num_letters = 0;
    while text.at(at + 2 * num_letters).is_ascii_alphabetic()
        && text.at(at + 2 * num_letters + 1) == '.'
    {
        num_letters += 1;
    }
    (num_letters > 1).then_some(2 * num_letters)
}

fn starts_sentence(text: &Text, at: usize) -> bool {
    let space = text.run(at, is_space);
    let rest = text.chars.get(at + space..).unwrap_or_default();
    let word: String = rest.iter().take_while(|&&c| !is_space(c)).collect();
    let starts =
        || SENTENCE_STARTS.contains(&&*word) || super::links::tag(text, at + space).is_some();
    space > 0 && starts()
}

/// Any word whose full stop is followed by a comma, colon or semicolon: the sentence continues.
fn before_comma(text: &Text, at: usize) -> Option<Match> {
    let words = [
        words::word,
        words::parts,
        words::hyphens_after_stops,
        words::initials,
    ];
    let longest = words
        .iter()
        .filter_map(|word| word(text, at))
        .map(|word| word.take)
        .max()?;
    let goes_on =
        text.at(at + longest) == '.' && matches!(text.at(at + longest + 1), ',' | ';' | ':');
    goes_on.then_some(Match::ahead(longest + 1, longest + 2))
}
