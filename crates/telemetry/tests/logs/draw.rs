//! Draws logs of runs: a level, and what happens to it.

use std::fmt::Write;

use holdall_files::{GOLDEN, SplitMix64};

/// What logs are drawn from.
pub struct Dice(SplitMix64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(SplitMix64(
            seed.wrapping_mul(GOLDEN) ^ 0x5851_f42d_4c95_7f2d,
        ))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// In `[low, high)`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.0.unit()
    }

    /// In `[low, high)`, each factor equally likely.
    pub fn factor(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.between(0.0, 1.0) < share
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.between(1e-12, 1.0).ln()).sqrt();
        radius * self.between(0.0, std::f64::consts::TAU).cos()
    }
}

/// Who wrote the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Our own `memory.jsonl`: phases, epochs, process.
    Holdall,
    /// nvidia-smi: neither.
    Smi,
    /// A script's JSON lines: allocated, reserved, steps.
    Torch,
    /// `nvidia-smi dmon -s pum -o DT`: no total, a header every 20 lines.
    Dmon,
}

/// One look, in shares of the card.
#[derive(Clone, Debug)]
pub struct Look {
    pub time: f64,
    pub step: usize,
    pub epoch: usize,
    pub phase: &'static str,
    /// What the run holds.
    pub held: f64,
    /// What others hold.
    pub others: f64,
    /// What its allocator reserves, where it has one.
    pub reserved: f64,
    pub utilization: f64,
    pub step_seconds: f64,
    pub waited: Option<f64>,
}

/// A run: its looks, and what it ran on.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub writer: Writer,
    pub card_bytes: f64,
    pub num_epochs: usize,
    pub looks: Vec<Look>,
    /// Looks at the beginning and at the end with nothing on the card, where somebody looks from outside.
    pub empty: [usize; 2],
}

impl Drawn {
    /// A healthy run: a level, noise that may linger, evaluations, a busy GPU.
    pub fn healthy(dice: &mut Dice) -> Drawn {
        let writer = dice.pick(&[Writer::Holdall, Writer::Smi, Writer::Torch]);
        Drawn::healthy_of(writer, dice)
    }

    pub fn healthy_of(writer: Writer, dice: &mut Dice) -> Drawn {
        let (num_epochs, per_epoch) = (10 + dice.below(20), 24 + dice.below(40));
        Drawn::healthy_for(writer, num_epochs, per_epoch, dice)
    }

    /// For so many epochs of so many looks.
    pub fn healthy_for(
        writer: Writer,
        num_epochs: usize,
        per_epoch: usize,
        dice: &mut Dice,
    ) -> Drawn {
        let card_gib = dice.pick(&[8.0, 12.0, 16.0, 24.0, 48.0, 80.0, 141.0]);
        let level = dice.between(0.55, 0.85);
        let noise = if dice.chance(0.2) {
            0.0
        } else {
            dice.factor(0.000_05, 0.005)
        };
        let lingers = dice.between(0.0, 0.6);
        let evaluates = dice.chance(0.6);
        let of_evaluation = dice.between(-0.3, 0.04);
        let base_utilization = dice.between(82.0, 99.0);
        let step_seconds = dice.factor(0.02, 3.0);
        let mut looks = Vec::new();
        let mut odd = 0.0;
        let mut time = 1.7e9;
        for epoch in 0..num_epochs {
            for at in 0..per_epoch {
                odd = lingers * odd + noise * dice.normal();
                let is_evaluation = evaluates && at * 8 >= per_epoch * 7;
                let seconds = step_seconds * dice.between(0.95, 1.1);
                time += seconds;
                let dip = if dice.chance(0.03) {
                    dice.between(0.0, 60.0)
                } else {
                    0.0
                };
                let shift = if is_evaluation { of_evaluation } else { 0.0 };
                let held = (level + odd + shift).clamp(0.02, 0.9);
                looks.push(Look {
                    time,
                    step: epoch * per_epoch + at,
                    epoch,
                    phase: if is_evaluation { "evaluate" } else { "train" },
                    held,
                    others: 0.004,
                    reserved: (level + 3.0 * noise + 0.03).clamp(0.02, 0.92),
                    utilization: (base_utilization + 3.0 * dice.normal() - dip).clamp(0.0, 100.0),
                    step_seconds: seconds,
                    waited: None,
                });
            }
        }
        let ends = |dice: &mut Dice, num_looks: usize| {
            if dice.chance(0.4) {
                dice.below(num_looks / 6)
            } else {
                0
            }
        };
        let empty = [ends(dice, looks.len()), ends(dice, looks.len())];
        Drawn {
            writer,
            empty,
            card_bytes: card_gib * 1_073_741_824.0,
            num_epochs,
            looks,
        }
    }

    /// Where in the run a look is, 0 to 1, and the look.
    pub fn each(&mut self, mut change: impl FnMut(f64, &mut Look)) {
        let last = (self.looks.len() - 1) as f64;
        for (at, look) in self.looks.iter_mut().enumerate() {
            change(at as f64 / last, look);
        }
    }

    /// Adds to what the run holds, and to what is reserved for it.
    pub fn add(&mut self, mut share: impl FnMut(f64, &Look) -> f64) {
        self.each(|at, look| {
            let more = share(at, look);
            look.held += more;
            look.reserved = look.reserved.max(look.held + 0.01);
        });
    }

    /// The log as its writer writes it.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let card = self.card_bytes;
        if self.writer == Writer::Smi {
            out += "timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n";
        }
        let [before, after] = self.empty;
        for (at, look) in self.looks.iter().enumerate() {
            let bytes = |share: f64| (share.clamp(0.0, 1.0) * card) as u64;
            let result = match self.writer {
                Writer::Holdall => writeln!(
                    out,
                    "{{\"time\":{},\"step\":{},\"epoch\":{},\"phase\":\"{}\",\"device\":\"cuda:0\",\"used_bytes\":{},\
                     \"total_bytes\":{},\"process_bytes\":{},\"arena_bytes\":null,\"host_rss_bytes\":null,\
                     \"gpu_utilization\":{},\"samples_per_s\":{},\"waited_for_data\":{}}}",
                    look.time,
                    look.step,
                    look.epoch,
                    look.phase,
                    bytes(look.held + look.others),
                    bytes(1.0),
                    bytes(look.held),
                    look.utilization,
                    32.0 / look.step_seconds,
                    look.waited
                        .map_or("null".to_owned(), |waited| waited.to_string()),
                ),
                Writer::Smi | Writer::Dmon => {
                    let is_empty = at < before || at + after >= self.looks.len();
                    let (held, utilization) = if is_empty {
                        (0.0, 0.0)
                    } else {
                        (look.held, look.utilization)
                    };
                    let time = look.time - 1.7e9;
                    let (minutes, seconds) = ((time / 60.0) as u64, time % 60.0);
                    let (day, hour, minute) = (1 + minutes / 1440, minutes / 60 % 24, minutes % 60);
                    let used = bytes(held + look.others) >> 20;
                    if self.writer == Writer::Dmon {
                        if at % 20 == 0 {
                            out += "#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec     fb   bar1\n\
                                    #YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %     MB     MB\n";
                        }
                        writeln!(
                            out,
                            " 202603{day:02}   {hour:02}:{minute:02}:{:02}      0    297     61      - {utilization:6.0}     72      0      0 {used:6}      5",
                            seconds as u64
                        )
                    } else {
                        writeln!(
                            out,
                            "2026/03/{day:02} {hour:02}:{minute:02}:{seconds:06.3}, 0, {used} MiB, {} MiB, {utilization:.0} %",
                            bytes(1.0) >> 20,
                        )
                    }
                }
                Writer::Torch => writeln!(
                    out,
                    "{{\"step\": {}, \"epoch\": {}, \"phase\": \"{}\", \"memory_allocated_mb\": {}, \"memory_reserved_mb\": {}, \
                     \"total_mb\": {}, \"step_time\": {}}}",
                    look.step,
                    look.epoch,
                    if look.phase == "train" {
                        "train"
                    } else {
                        "val"
                    },
                    bytes(look.held) as f64 / 1_048_576.0,
                    bytes(look.reserved) as f64 / 1_048_576.0,
                    bytes(1.0) as f64 / 1_048_576.0,
                    look.step_seconds,
                ),
            };
            result.unwrap();
        }
        out
    }
}
