//! Settings of mixup and cutmix.

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// Settings of mixup and cutmix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mixing {
    /// Lambda of mixup is drawn from Beta(mixup, mixup); 0 turns mixup off.
    pub mixup: f64,
    /// Lambda of cutmix is drawn from Beta(cutmix, cutmix); 0 turns cutmix off.
    pub cutmix: f64,
    /// Share of samples that are mixed.
    pub probability: f64,
    /// With both on, the share of mixed samples that get cutmix.
    pub switch: f64,
}

impl Default for Mixing {
    fn default() -> Mixing {
        Mixing {
            mixup: 0.0,
            cutmix: 0.0,
            probability: 1.0,
            switch: 0.5,
        }
    }
}

impl Mixing {
    /// Whether any sample is mixed.
    pub fn is_on(&self) -> bool {
        (self.mixup > 0.0 || self.cutmix > 0.0) && self.probability > 0.0
    }

    pub fn validate(&self) -> Result<(), DataError> {
        let wrong = |key, expected, found: f64, hint| {
            Err(DataError::Setting {
                key,
                expected,
                found: found.to_string(),
                hint,
            })
        };
        for (key, alpha) in [("mixing.mixup", self.mixup), ("mixing.cutmix", self.cutmix)] {
            if !(alpha >= 0.0 && alpha.is_finite()) {
                return wrong(
                    key,
                    "0 or more",
                    alpha,
                    "0.2 mixes a little, 1 evenly; 0 leaves it out",
                );
            }
        }
        for (key, share) in [
            ("mixing.probability", self.probability),
            ("mixing.switch", self.switch),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return wrong(key, "0 to 1", share, "1 is every sample, 0.5 every second");
            }
        }
        Ok(())
    }
}
