//! Tokenizes captions like `pycocoevalcap`: the output of CoreNLP 3.4.1's PTBTokenizer with `-preserveLines -lowerCase`, without the
//! tokens in [`DROPPED`].
//!
//! The rules are fitted to that tokenizer's output. At every position the longest match wins, and of equally long ones the first rule:
//!
//! ```text
//! words         lad   t2-weighted   non-st-elevation   o'brien   frame_1   end.next      a full stop, ! or ? between letters joins them
//! contractions  is n't   patient 's   we 'll   can not   gon na   't was
//! numbers       55-60   1,000   .5   :70   -3   1/2   1 1/2 and 100 200 3000 (a telephone number) are one token
//! slashes       and/or   120/80   mg/dl   mm/hg/s; a third slash starts a new token
//! abbreviations dr.   etc.   e.g.   p.m.   c.   no. 5; not: no.   fig.   lad.
//! brackets      -lrb- -rrb- -lsb- -rsb- -lcb- -rcb-: kept, because the list of punctuation has them in capitals and tokens are lower case
//! symbols       %   /   ±   °   ½ as 1/2   £ as #   € as $   !! and ?! are kept, ! and ? dropped
//! ```
//!
//! Known differences from the original:
//! - The original tokenizes all captions as one text. A caption that ends in one letter and a full stop ("vitamin C.") loses the full stop
//!   of `c.` when the *next* caption begins with The, A, He ...: here a caption never depends on its neighbour.
//! - East Asian smileys, file names and web addresses of rare forms, markup with unusual attributes.
//! - Letters and digits outside of Latin, Greek and Cyrillic follow this compiler's Unicode tables, not those of CoreNLP's lexer.
//!
//! `fixtures/captions` holds the original's output for 690 lines of captions, reports and odd text, and the script that produced it.

mod abbreviations;
mod links;
mod numbers;
mod symbols;
mod words;

/// Punctuation tokens that are removed after tokenizing.
const DROPPED: [&str; 13] = [
    "''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";",
];

/// Lower-case tokens of a caption, without punctuation. A token may contain a no-break space (`1 1/2`): BLEU and CIDEr-D, which split at
/// any white space, count it as two words, ROUGE-L as one.
pub fn tokenize(caption: &str) -> Vec<String> {
    let text = Text {
        chars: caption.chars().collect(),
    };
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.chars.len() {
        if is_space(text.at(at)) {
            at += 1;
            continue;
        }
        let found = text.longest(at);
        let taken = &text.chars[at..at + found.take];
        at += found.take;
        let token = match found.becomes {
            Becomes::Nothing => continue,
            Becomes::Fixed(token) => token.to_owned(),
            Becomes::Itself => lower_case(taken.iter().copied()),
            Becomes::Apostrophe => lower_case(taken.iter().map(|&c| straight(c))),
        };
        if !DROPPED.contains(&&*token) {
            tokens.push(token);
        }
    }
    tokens
}

/// Output of a match.
#[derive(Clone, Copy, Debug)]
enum Becomes {
    /// The matched text in lower case, white space as no-break spaces, brackets by their names.
    Itself,
    /// Like `Itself`, with a straight apostrophe.
    Apostrophe,
    /// A fixed token.
    Fixed(&'static str),
    /// No token.
    Nothing,
}

/// A match of one rule.
#[derive(Clone, Copy, Debug)]
struct Match {
    /// Characters that the rule looked at; the rule with the most wins.
    seen: usize,
    /// Characters of the token.
    take: usize,
    becomes: Becomes,
}

impl Match {
    fn new(take: usize) -> Match {
        Match::ahead(take, take)
    }

    fn ahead(take: usize, seen: usize) -> Match {
        Match {
            seen,
            take,
            becomes: Becomes::Itself,
        }
    }

    fn fixed(take: usize, token: &'static str) -> Match {
        Match {
            becomes: Becomes::Fixed(token),
            ..Match::new(take)
        }
    }
}

/// Rules in the order of precedence for matches of equal length.
const RULES: [fn(&Text, usize) -> Option<Match>; 24] = [
    links::tag,
    symbols::entity,
    words::two_in_one,
    words::before_not,
    words::before_auxiliary,
    words::word,
    links::address,
    links::email,
    links::mention,
    words::auxiliary,
    words::not,
    numbers::date,
    numbers::number,
    numbers::fraction,
    words::hyphen_prefix,
    words::slashes,
    words::initials,
    abbreviations::abbreviation,
    words::with_apostrophe,
    numbers::telephone,
    words::between_vowels,
    words::parts,
    words::hyphens_after_stops,
    symbols::symbol,
];

struct Text {
    chars: Vec<char>,
}

impl Text {
    /// The character at an index; a line feed past the end, because a caption is a line.
    fn at(&self, index: usize) -> char {
        self.chars.get(index).copied().unwrap_or('\n')
    }

    fn longest(&self, at: usize) -> Match {
        let mut longest: Option<Match> = None;
        for rule in RULES {
            if let Some(found) = rule(self, at)
                && longest.is_none_or(|longest| found.seen > longest.seen)
            {
                longest = Some(found);
            }
        }
        // Characters unknown to the original, such as emoji and control characters, yield no token.
        longest.unwrap_or(Match {
            becomes: Becomes::Nothing,
            ..Match::new(1)
        })
    }

    /// Number of characters from `at` on that satisfy `is_such`.
    fn run(&self, at: usize, is_such: impl Fn(char) -> bool) -> usize {
        let rest = self.chars.get(at..).unwrap_or_default();
        rest.iter().take_while(|&&c| is_such(c)).count()
    }

    /// Whether the text at `at` equals the lower-case `expected`, ignoring case.
    fn is_at(&self, at: usize, expected: &str) -> bool {
        (expected.chars().enumerate()).all(|(i, c)| self.at(at + i).eq_ignore_ascii_case(&c))
    }
}

fn lower_case(token: impl Iterator<Item = char>) -> String {
    let mut text = String::new();
    for c in token {
        match c {
            '(' => text += "-lrb-",
            ')' => text += "-rrb-",
            c if is_space(c) => text.push('\u{a0}'),
            c => text.extend(c.to_lowercase()),
        }
    }
    text
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
}

fn is_word(c: char) -> bool {
    c.is_alphabetic() || is_digit(c) || is_mark(c)
}

fn is_letter(c: char) -> bool {
    c.is_alphabetic() || is_mark(c)
}

/// Combining accents and the soft hyphen.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{ad}')
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '\u{ff10}'..='\u{ff19}')
}

/// Apostrophes of contractions.
fn is_apostrophe(c: char) -> bool {
    matches!(c, '\'' | '\u{92}' | '’')
}

/// Apostrophes and characters that people type for them.
fn is_like_apostrophe(c: char) -> bool {
    is_apostrophe(c) || matches!(c, '`' | '\u{91}' | '‘' | '‛')
}

fn straight(c: char) -> char {
    match c {
        '\u{92}' | '’' => '\'',
        '\u{91}' | '‘' | '‛' => '`',
        c => c,
    }
}
