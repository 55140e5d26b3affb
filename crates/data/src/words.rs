//! Numbers and names as text for messages.

pub(crate) use holdall_files::{counted, thousands};

/// A share as a percentage without trailing zeros: `10%`, `2.5%`.
pub(crate) fn percent(share: f64) -> String {
    let rounded = (share * 1e4).round() / 1e2;
    format!("{rounded}%")
}

/// The candidate most similar to a misspelt word, if one is similar enough.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    const CLOSE: f64 = 0.75;
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            let likeness = strsim::jaro_winkler(&word, &candidate.to_lowercase());
            (likeness, candidate)
        })
        .filter(|(likeness, _)| *likeness >= CLOSE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.to_owned())
}

/// `a, b and 3 more`: names in a message, limited to a few lines.
pub(crate) fn listed(names: &[String]) -> String {
    const MOST: usize = 20;
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let mut text = names[..names.len().min(MOST)].join(", ");
    if names.len() > MOST {
        text += &format!(" and {} more", thousands(names.len() - MOST));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(percent(0.1), "10%");
        assert_eq!(percent(0.025), "2.5%");
    }

    #[test]
    fn names() {
        let makes = ["Chevrolet", "Ford", "BMW"];
        assert_eq!(nearest("chevorlet", makes), Some("Chevrolet".to_owned()));
        assert_eq!(nearest("zzz", makes), None);
        let many: Vec<String> = (0..23).map(|n| n.to_string()).collect();
        assert!(listed(&many).ends_with("19 and 3 more"));
        assert_eq!(listed(&[]), "nothing");
    }
}
