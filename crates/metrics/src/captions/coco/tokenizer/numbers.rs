//! Numbers, fractions, telephone numbers.

use super::{Match, Text, is_digit};

/// `12`, `1,000.5`, `.5`, `10:30`, with a sign.
pub fn number(text: &Text, at: usize) -> Option<Match> {
    let sign = usize::from(matches!(text.at(at), '-' | '+'));
    let mut end = at + sign;
    end += text.run(end, is_digit);
    while matches!(text.at(end), '.' | ',' | ':' | '\u{ad}') && is_digit(text.at(end + 1)) {
        end += 1 + text.run(end + 1, is_digit);
    }
    (end > at + sign).then_some(Match::new(end - at))
}

/// `12/05/2019`, `5/10-20`.
pub fn date(text: &Text, at: usize) -> Option<Match> {
    let digits = |at: usize| text.run(at, |c| c.is_ascii_digit());
    let mut end = at;
    for _ in 0..2 {
        let length = digits(end);
        if !(1..=2).contains(&length) || !matches!(text.at(end + length), '-' | '/') {
            return None;
        }
        end += length + 1;
    }
    let year = digits(end);
    (year >= 2).then_some(Match::new(end + year.min(4) - at))
}

/// `1/2`, `1 1/2`, `1-1/2`, each number of at most four digits.
pub fn fraction(text: &Text, at: usize) -> Option<Match> {
    let plain = |at: usize| {
        let above = text.run(at, |c| c.is_ascii_digit());
        let is_fraction = (1..=4).contains(&above) && matches!(text.at(at + above), '/' | '⁄');
        let below = text.run(at + above + 1, |c| c.is_ascii_digit());
        (is_fraction && below > 0).then_some(above + 1 + below.min(4))
    };
    let whole = text.run(at, |c| c.is_ascii_digit());
    let mixed = || {
        let is_mixed = (1..=4).contains(&whole) && is_gap(text.at(at + whole));
        is_mixed
            .then(|| plain(at + whole + 1))?
            .map(|length| whole + 1 + length)
    };
    mixed().or_else(|| plain(at)).map(Match::new)
}

fn is_gap(c: char) -> bool {
    matches!(c, '-' | ' ' | '\u{a0}')
}

/// Text in the form of a telephone number, even if it is none: `555-123-4567`, `100 200 3000`, `(555) 123-4567`, `555.123.4567`.
pub fn telephone(text: &Text, at: usize) -> Option<Match> {
    let bracket = NumberPart::Code;
    let shapes: [&[NumberPart]; 5] = [
        &[
            bracket,
            NumberPart::Digits(3, 4),
            NumberPart::PerhapsGap,
            NumberPart::Digits(3, 5),
        ],
        &[
            NumberPart::Plus,
            NumberPart::Digits(2, 4),
            NumberPart::Gap,
            NumberPart::Digits(3, 4),
            NumberPart::PerhapsGap,
            NumberPart::Digits(3, 5),
        ],
        &[
            NumberPart::Plus,
            NumberPart::Digits(2, 4),
            NumberPart::Gap,
            NumberPart::Digits(2, 4),
            NumberPart::Gap,
            NumberPart::Digits(3, 4),
            NumberPart::PerhapsGap,
            NumberPart::Digits(3, 5),
        ],
        &[
            NumberPart::Digits(2, 4),
            NumberPart::Stop,
            NumberPart::Digits(3, 4),
            NumberPart::Stop,
            NumberPart::Digits(3, 5),
        ],
        &[
            NumberPart::Plus,
            NumberPart::Digits(2, 4),
            NumberPart::Stop,
            NumberPart::Digits(2, 4),
            NumberPart::Stop,
            NumberPart::Digits(3, 4),
            NumberPart::Stop,
            NumberPart::Digits(3, 5),
        ],
    ];
    let ends = shapes.iter().filter_map(|shape| end_of(text, at, shape));
    ends.max().map(|end| Match::new(end - at))
}

#[derive(Clone, Copy)]
enum NumberPart {
    /// Two or three digits in brackets, with or without a space after them.
    Code,
    /// Up to two plus signs.
    Plus,
    /// A number of digits within these bounds.
    Digits(usize, usize),
    Gap,
    PerhapsGap,
    Stop,
}

/// Furthest end of a match of a shape.
fn end_of(text: &Text, at: usize, shape: &[NumberPart]) -> Option<usize> {
    let Some((&part, rest)) = shape.split_first() else {
        return Some(at);
    };
    let digits = |at: usize| text.run(at, |c| c.is_ascii_digit());
    match part {
        NumberPart::Code => {
            let length = digits(at + 1);
            let is_code =
                text.at(at) == '(' && (2..=3).contains(&length) && text.at(at + 1 + length) == ')';
            let next = at + length + 2;
            let space = usize::from(matches!(text.at(next), ' ' | '\u{a0}'));
            is_code.then(|| end_of(text, next + space, rest))?
        }
        NumberPart::Plus => end_of(text, at + text.run(at, |c| c == '+').min(2), rest),
        NumberPart::Digits(least, most) => {
            let most = digits(at).min(most);
            (least..=most)
                .filter_map(|length| end_of(text, at + length, rest))
                .max()
        }
        NumberPart::Gap => is_gap(text.at(at)).then(|| end_of(text, at + 1, rest))?,
        NumberPart::PerhapsGap => {
            let with = is_gap(text.at(at))
                .then(|| end_of(text, at + 1, rest))
                .flatten();
            with.max(end_of(text, at, rest))
        }
        NumberPart::Stop => (text.at(at) == '.').then(|| end_of(text, at + 1, rest))?,
    }
}
