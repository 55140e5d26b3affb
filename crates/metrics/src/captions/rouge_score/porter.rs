//! Porter's stemmer with NLTK's extensions, as `rouge_score` uses it.
//!
//! A word is `[C](VC)^m[V]`, with `C` and `V` runs of consonants and vowels; `m` is its measure. A `y` is a consonant at the beginning and
//! after a vowel. NLTK adds a table of irregular words, and differs for short words in -ies and -ied, for -y after a consonant, -alli,
//! -bli, -fulli and -logi.

const IRREGULAR: [(&str, &str); 16] = [
    ("sky", "sky"),
    ("skies", "sky"),
    ("dying", "die"),
    ("lying", "lie"),
    ("tying", "tie"),
    ("news", "news"),
    ("innings", "inning"),
    ("inning", "inning"),
    ("outings", "outing"),
    ("outing", "outing"),
    ("cannings", "canning"),
    ("canning", "canning"),
    ("howe", "howe"),
    ("proceed", "proceed"),
    ("exceed", "exceed"),
    ("succeed", "succeed"),
];

/// Suffix, its replacement, and the measure that the stem must exceed; the first suffix that matches decides.
type Rule = (&'static str, &'static str, usize);

const STEP_2: [Rule; 21] = [
    ("ational", "ate", 0),
    ("tional", "tion", 0),
    ("enci", "ence", 0),
    ("anci", "ance", 0),
    ("izer", "ize", 0),
    ("bli", "ble", 0),
    ("alli", "al", 0),
    ("entli", "ent", 0),
    ("eli", "e", 0),
    ("ousli", "ous", 0),
    ("ization", "ize", 0),
    ("ation", "ate", 0),
    ("ator", "ate", 0),
    ("alism", "al", 0),
    ("iveness", "ive", 0),
    ("fulness", "ful", 0),
    ("ousness", "ous", 0),
    ("aliti", "al", 0),
    ("iviti", "ive", 0),
    ("biliti", "ble", 0),
    ("fulli", "ful", 0),
];

const STEP_3: [Rule; 7] = [
    ("icate", "ic", 0),
    ("ative", "", 0),
    ("alize", "al", 0),
    ("iciti", "ic", 0),
    ("ical", "ic", 0),
    ("ful", "", 0),
    ("ness", "", 0),
];

const STEP_4: [Rule; 18] = [
    ("al", "", 1),
    ("ance", "", 1),
    ("ence", "", 1),
    ("er", "", 1),
    ("ic", "", 1),
    ("able", "", 1),
    ("ible", "", 1),
    ("ant", "", 1),
    ("ement", "", 1),
    ("ment", "", 1),
    ("ent", "", 1),
    ("ou", "", 1),
    ("ism", "", 1),
    ("ate", "", 1),
    ("iti", "", 1),
    ("ous", "", 1),
    ("ive", "", 1),
    ("ize", "", 1),
];

/// The stem of a word in lower case.
pub fn stem(word: &str) -> String {
    if let Some((_, stem)) = IRREGULAR.iter().find(|(irregular, _)| *irregular == word) {
        return (*stem).to_owned();
    }
    if word.len() <= 2 {
        return word.to_owned();
    }
    let word = without_plural(word.to_owned());
    let word = without_ed_or_ing(word);
    let word = y_to_i(word);
    let word = step_2(word);
    let word = by_rules(word, &STEP_3);
    let word = step_4(word);
    let word = without_e(word);
    match word.strip_suffix('l') {
        Some(stem) if stem.ends_with('l') && measure(stem) > 1 => stem.to_owned(),
        _ => word,
    }
}

fn without_plural(word: String) -> String {
    match () {
        () if word.len() == 4 && word.ends_with("ies") => cut(&word, 1),
        () if word.ends_with("sses") || word.ends_with("ies") => cut(&word, 2),
        () if word.ends_with("ss") => word,
        () if word.ends_with('s') => cut(&word, 1),
        () => word,
    }
}

fn without_ed_or_ing(word: String) -> String {
    if word.ends_with("ied") {
        let kept = usize::from(word.len() != 4);
        return cut(&word, 1 + kept);
    }
    if let Some(stem) = word.strip_suffix("eed") {
        return if measure(stem) > 0 {
            cut(&word, 1)
        } else {
            word
        };
    }
    let mut stems = ["ed", "ing"]
        .into_iter()
        .filter_map(|suffix| word.strip_suffix(suffix));
    let Some(stem) = stems.find(|stem| !consonants(stem).iter().all(|&c| c)) else {
        return word;
    };
    let ends = |suffix: &str| stem.ends_with(suffix);
    match () {
        () if ends("at") || ends("bl") || ends("iz") => format!("{stem}e"),
        () if ends_double_consonant(stem) => {
            if ends("l") || ends("s") || ends("z") {
                stem.to_owned()
            } else {
                cut(stem, 1)
            }
        }
        () if measure(stem) == 1 && ends_consonant_vowel_consonant(stem) => format!("{stem}e"),
        () => stem.to_owned(),
    }
}

/// Replaces a final y by i after a consonant, unless it is the second letter.
fn y_to_i(word: String) -> String {
    match word.strip_suffix('y') {
        Some(stem) if stem.len() > 1 && consonants(stem).last() == Some(&true) => {
            format!("{stem}i")
        }
        _ => word,
    }
}

fn step_2(word: String) -> String {
    if let Some(stem) = word.strip_suffix("alli")
        && measure(stem) > 0
    {
        return step_2(format!("{stem}al"));
    }
    // The l counts towards the stem's measure, so that the stem of `geology` has measure above 0.
    match word.strip_suffix("ogi") {
        Some(stem) if stem.ends_with('l') => {
            if measure(stem) > 0 {
                cut(&word, 1)
            } else {
                word
            }
        }
        _ => by_rules(word, &STEP_2),
    }
}

fn step_4(word: String) -> String {
    match word.strip_suffix("ion") {
        Some(stem) => {
            if measure(stem) > 1 && (stem.ends_with('s') || stem.ends_with('t')) {
                stem.to_owned()
            } else {
                word
            }
        }
        None => by_rules(word, &STEP_4),
    }
}

fn without_e(word: String) -> String {
    let Some(stem) = word.strip_suffix('e') else {
        return word;
    };
    match measure(stem) {
        0 => word,
        1 if ends_consonant_vowel_consonant(stem) => word,
        _ => stem.to_owned(),
    }
}

fn by_rules(word: String, rules: &[Rule]) -> String {
    let fits = rules.iter().find(|(suffix, _, _)| word.ends_with(suffix));
    let Some(&(suffix, replacement, least)) = fits else {
        return word;
    };
    let stem = word.strip_suffix(suffix).unwrap_or(&word);
    if measure(stem) > least {
        format!("{stem}{replacement}")
    } else {
        word
    }
}

fn cut(word: &str, count: usize) -> String {
    word[..word.len() - count].to_owned()
}

/// Whether each letter is a consonant; digits count as consonants.
fn consonants(word: &str) -> Vec<bool> {
    let mut flags: Vec<bool> = Vec::with_capacity(word.len());
    for letter in word.bytes() {
        flags.push(match letter {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => flags.last().is_none_or(|&consonant| !consonant),
            _ => true,
        });
    }
    flags
}

fn measure(stem: &str) -> usize {
    let flags = consonants(stem);
    flags.windows(2).filter(|pair| !pair[0] && pair[1]).count()
}

fn ends_double_consonant(word: &str) -> bool {
    match word.as_bytes() {
        [.., a, b] if a == b => consonants(word).last() == Some(&true),
        _ => false,
    }
}

/// Ends like `hop` or `wil`, except in w, x or y; a two-letter stem must be a vowel and a consonant.
fn ends_consonant_vowel_consonant(word: &str) -> bool {
    match consonants(word)[..] {
        [false, true] => true,
        [.., true, false, true] => !word.ends_with(['w', 'x', 'y']),
        _ => false,
    }
}
