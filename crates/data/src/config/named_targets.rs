//! `data: {targets: {...}}`: training targets of each picture, in the order of the config. The metric of the first target selects the best
//! model unless the config names another metric.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::TargetConfig;

/// Targets by name, in the order of the config.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedTargets(Vec<(String, TargetConfig)>);

impl NamedTargets {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends a target, or replaces the target of the same name.
    pub fn insert(&mut self, name: String, target: TargetConfig) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = target,
            None => self.0.push((name, target)),
        }
    }

    /// Names and targets, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TargetConfig)> {
        self.0.iter().map(|(name, target)| (name.as_str(), target))
    }
}

impl Serialize for NamedTargets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, target) in &self.0 {
            map.serialize_entry(name, target)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for NamedTargets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NamedTargets, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = NamedTargets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("targets by name, such as `targets: {make: make}`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamedTargets, A::Error> {
                let mut targets = NamedTargets::default();
                while let Some((name, target)) = map.next_entry()? {
                    targets.insert(name, target);
                }
                Ok(targets)
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_keep_the_order_of_the_config() {
        let json = r#"{"year":"year","make":"make","angle":"angle"}"#;
        let targets: NamedTargets = serde_json::from_str(json).unwrap();
        let names: Vec<&str> = targets.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["year", "make", "angle"]);
        let again = serde_json::to_string(&targets).unwrap();
        assert_eq!(
            serde_json::from_str::<NamedTargets>(&again).unwrap(),
            targets
        );
    }
}
