//! Learning rates by parameter name: an ordered list of patterns, of which the first match wins.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// `{"vision_model.*": 1e-6}`: rates by pattern, in the order of the config.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RatesByName(pub Vec<(String, f64)>);

impl RatesByName {
    /// The rate of the first pattern that matches the name.
    pub fn rate(&self, name: &str) -> Option<f64> {
        self.0
            .iter()
            .find(|(pattern, _)| matches(pattern, name))
            .map(|&(_, rate)| rate)
    }
}

/// Whether a pattern matches the whole name; `*` matches any text, the empty text included.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or("")) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty(); // no `*`: the pattern is the name
    };
    // The leftmost place for each part leaves the most room for the next.
    for part in parts {
        match rest.find(part) {
            Some(start) => rest = &rest[start + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

impl Serialize for RatesByName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(pattern, rate)| (pattern, rate)))
    }
}

impl<'de> Deserialize<'de> for RatesByName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RatesByName, D::Error> {
        struct RatesVisitor;

        impl<'de> Visitor<'de> for RatesVisitor {
            type Value = RatesByName;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("patterns with their rates, such as {\"vision_model.*\": 1e-6}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RatesByName, A::Error> {
                let mut rates = Vec::new();
                while let Some(rate) = map.next_entry()? {
                    rates.push(rate);
                }
                Ok(RatesByName(rates))
            }
        }

        deserializer.deserialize_map(RatesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, expected) in [
            ("logit_scale", "logit_scale", true),
            ("logit_scale", "logit_scale.x", false),
            ("vision_model.*", "vision_model.layers.0", true),
            ("vision_model.*", "text_model.layers.0", false),
            ("*.bias", "head.bias", true),
            ("*.bias", "head.biases", false),
            ("*.layers.*.weight", "text.layers.3.fc.weight", true),
            ("*.layers.*.weight", "text.layers.weight", false),
            ("*", "anything", true),
            ("*", "", true),
            ("a*a", "a", false),
            ("a**a", "aa", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_match_wins() {
        let rates = RatesByName(vec![("*.bias".into(), 1.0), ("head.*".into(), 2.0)]);
        assert_eq!(rates.rate("head.bias"), Some(1.0));
        assert_eq!(rates.rate("head.weight"), Some(2.0));
        assert_eq!(rates.rate("logit_scale"), None);
    }
}
