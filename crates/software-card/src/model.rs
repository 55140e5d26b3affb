//! The simulated card: `HOLDALL_SOFTWARE_GPU=rtx-4060`, or with overrides, `rtx-4060,memory=4096,capability=7.5,count=2`.
//!
//! `wddm` is a card under Windows: its free memory includes host memory, allocations beyond the card's memory go to the host and are slow,
//! memory per process is not reported, and pinned memory has a limit (`pinned=MiB`) and is charged against the card. `neighbour=6000@5` is
//! another process that takes 6,000 MiB after this process has queried the free memory five times. Processes that name the same card share
//! its memory, unless they name different machines (`machine=second`).

use std::sync::OnceLock;

/// Environment variable with the card; if it is unset, there is no card.
pub const CARD_VARIABLE: &str = "HOLDALL_SOFTWARE_GPU";

/// Environment variable with the seed of the random orders.
const SEED_VARIABLE: &str = "HOLDALL_SOFTWARE_GPU_SEED";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name as the driver reports it.
    pub name: String,
    pub total_bytes: u64,
    /// 89 for compute capability 8.9.
    pub capability: u32,
    pub num_processors: i32,
    /// Maximum shared memory of a block.
    pub shared_bytes: i32,
    /// Number of such cards in the machine.
    pub count: usize,
    /// Name of the machine; processes on different machines share nothing.
    pub machine: String,
    pub seed: u64,
    /// Whether the card behaves as under Windows.
    pub is_wddm: bool,
    /// Maximum pinned host memory; under Linux there is no limit.
    pub pinned_bytes: u64,
    /// Another process, which takes memory while this one runs.
    pub neighbour: Option<Neighbour>,
}

/// Another process on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub bytes: u64,
    /// Number of this process's queries of free memory before it starts.
    pub after: u64,
}

/// Host memory that a card under Windows may use as its own: half of a small machine's memory.
pub const SHARED_BYTES: u64 = 8 << 30;

/// Slowdown of work on a card whose memory spilled to the host.
pub const SPILLED_SLOWDOWN: f64 = 20.0;

/// Card memory of the driver's context.
pub const CONTEXT_BYTES: u64 = 256 << 20;

/// Operations and bytes per second, and minimum seconds of a kernel.
pub const FLOPS_PER_SECOND: f64 = 15e12;
pub const BYTES_PER_SECOND: f64 = 272e9;
pub const SECONDS_PER_KERNEL: f64 = 3e-6;

impl Model {
    fn parse(text: &str, seed: u64) -> Result<Model, String> {
        let mut words = text.split(',');
        let (name, mebibytes, capability, num_processors) = match words.next().unwrap_or_default() {
            "rtx-4060" => ("NVIDIA GeForce RTX 4060", 8188, 89, 24),
            "t4" => ("Tesla T4", 15_360, 75, 40),
            "a100" => ("NVIDIA A100", 40_960, 80, 108),
            other => return Err(format!("expected rtx-4060, t4 or a100, found {other}")),
        };
        let mut model = Model {
            name: format!("{name} (software card: for tests)"),
            total_bytes: mebibytes << 20,
            capability,
            num_processors,
            shared_bytes: 0,
            count: 1,
            machine: "this".to_owned(),
            seed,
            is_wddm: false,
            pinned_bytes: u64::MAX,
            neighbour: None,
        };
        for word in words {
            let wrong = || {
                format!(
                    "{word}: expected memory=MiB, capability=8.9, count=2, machine=NAME, wddm, pinned=MiB or neighbour=MiB@5"
                )
            };
            if word == "wddm" {
                model.is_wddm = true;
                model.pinned_bytes = model.pinned_bytes.min(SHARED_BYTES);
                continue;
            }
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            match key {
                "memory" => {
                    model.total_bytes = value.parse::<u64>().map_err(|_| wrong())? << 20;
                }
                "capability" => {
                    let digits = value.replace('.', "");
                    model.capability = digits.parse().map_err(|_| wrong())?;
                }
                "pinned" => {
                    model.pinned_bytes = value.parse::<u64>().map_err(|_| wrong())? << 20;
                }
                "neighbour" => {
                    let (mebibytes, after) = value.split_once('@').ok_or_else(wrong)?;
                    model.neighbour = Some(Neighbour {
                        bytes: mebibytes.parse::<u64>().map_err(|_| wrong())? << 20,
                        after: after.parse().map_err(|_| wrong())?,
                    });
                }
                "count" => model.count = value.parse().map_err(|_| wrong())?,
                "machine" if value.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                    model.machine = value.to_owned();
                }
                _ => return Err(wrong()),
            }
        }
        if model.capability == 90 {
            return Err(
                "capability 9.0: Hopper's own products have no meaning in software".to_owned(),
            );
        }
        model.shared_bytes = match model.capability {
            ..80 => 64 << 10,
            80 => 163 << 10,
            _ => 99 << 10,
        };
        Ok(model)
    }
}

/// The card that the environment names, or the reason why there is none.
pub fn model() -> Result<&'static Model, &'static str> {
    static MODEL: OnceLock<Result<Model, String>> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        let text =
            std::env::var(CARD_VARIABLE).map_err(|_| format!("{CARD_VARIABLE} names no card"))?;
        let seed = std::env::var(SEED_VARIABLE).ok();
        let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1);
        let parsed = Model::parse(&text, seed);
        if let Err(reason) = &parsed {
            eprintln!("software card: {CARD_VARIABLE}: {reason}");
        }
        parsed
    });
    model.as_ref().map_err(String::as_str)
}

/// Pseudo-random numbers from a seed.
pub struct Draws(u64);

impl Draws {
    pub fn new(seed: u64) -> Draws {
        Draws(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_named_with_what_differs() {
        let model = Model::parse("rtx-4060,memory=4096,capability=7.5,count=2", 7).unwrap();
        assert_eq!((model.total_bytes, model.capability), (4 << 30, 75));
        assert_eq!(
            (model.count, model.shared_bytes, model.seed),
            (2, 64 << 10, 7)
        );
        let model = Model::parse("rtx-4060,wddm,pinned=64", 1).unwrap();
        assert!(model.is_wddm);
        assert_eq!(model.pinned_bytes, 64 << 20);
        let model = Model::parse("t4,neighbour=100@3", 1).unwrap();
        let expected = Neighbour {
            bytes: 100 << 20,
            after: 3,
        };
        assert_eq!(model.neighbour, Some(expected));
        for wrong in [
            "",
            "rtx-4060,pinned=much",
            "rtx-4060,neighbour=100",
            "rtx-9999",
            "rtx-4060,memory",
            "rtx-4060,capability=9.0",
            "t4,colour=red",
        ] {
            assert!(Model::parse(wrong, 1).is_err(), "{wrong}");
        }
    }
}
