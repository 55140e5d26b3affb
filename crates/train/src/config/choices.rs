//! Config values with a few named choices, and how each is spelled.

use holdall_device::Arithmetic;
use holdall_graph::ops::update::MomentFormat;
use holdall_plan::Recompute;
use serde::{Deserialize, Serialize};

use super::word_or_number::{WordOrNumber, WordOrNumbers};

/// Number format of the arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// The best format of the device; f32 on a CPU.
    #[default]
    Auto,
    /// 32-bit floats.
    #[serde(alias = "fp32", alias = "float32")]
    F32,
    /// 16-bit IEEE floats with loss scaling.
    #[serde(alias = "float16")]
    Fp16,
    /// 16-bit brain floats.
    #[serde(alias = "bfloat16")]
    Bf16,
    /// 32-bit floats with 10-bit products.
    Tf32,
}

impl Precision {
    /// Spelling in a config.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Auto => "auto",
            Precision::F32 => "f32",
            Precision::Fp16 => "fp16",
            Precision::Bf16 => "bf16",
            Precision::Tf32 => "tf32",
        }
    }

    /// `None` leaves the choice to the device.
    pub fn arithmetic(self) -> Option<Arithmetic> {
        match self {
            Precision::Auto => None,
            Precision::F32 => Some(Arithmetic::F32),
            Precision::Fp16 => Some(Arithmetic::F16),
            Precision::Bf16 => Some(Arithmetic::Bf16),
            Precision::Tf32 => Some(Arithmetic::Tf32),
        }
    }
}

/// Number format of the optimizer's moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OptimizerState {
    /// 32-bit floats.
    #[default]
    #[serde(rename = "f32", alias = "fp32", alias = "float32")]
    F32,
    /// 16-bit brain floats, rounded at random.
    #[serde(rename = "bf16", alias = "bfloat16")]
    Bf16,
    /// One byte, by block-wise dynamic quantisation.
    #[serde(rename = "8bit", alias = "8-bit", alias = "int8")]
    EightBit,
}

impl OptimizerState {
    /// Memory format of the moments.
    pub fn moments(self) -> MomentFormat {
        match self {
            OptimizerState::F32 => MomentFormat::F32,
            OptimizerState::Bf16 => MomentFormat::Bf16,
            OptimizerState::EightBit => MomentFormat::EightBit,
        }
    }
}

/// Number format of accumulated weight gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GradientFormat {
    /// 32-bit floats.
    #[default]
    #[serde(rename = "f32", alias = "fp32", alias = "float32")]
    F32,
    /// 16-bit brain floats for matrices, 32-bit floats for the rest.
    #[serde(rename = "bf16", alias = "bfloat16")]
    Bf16,
}

/// State that is divided among several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shard {
    /// Nothing: every process has all of it.
    #[default]
    None,
    /// The optimizer's state.
    Optimizer,
}

/// Activations to keep for the backward pass; the others are recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecomputeChoice {
    /// The fastest choice within the memory budget.
    #[default]
    Auto,
    /// Keep everything.
    None,
    /// Recompute norms and activations.
    Cheap,
    /// Recompute whole blocks.
    Blocks,
}

impl RecomputeChoice {
    /// `None` leaves the choice open.
    pub fn policy(self) -> Option<Recompute> {
        match self {
            RecomputeChoice::Auto => None,
            RecomputeChoice::None => Some(Recompute::None),
            RecomputeChoice::Cheap => Some(Recompute::Cheap),
            RecomputeChoice::Blocks => Some(Recompute::Blocks),
        }
    }
}

/// Weights of classes in the label loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WordOrNumbers", into = "WordOrNumbers")]
pub enum ClassWeights {
    /// Equal weights.
    #[default]
    None,
    /// Inverse class frequency.
    Balanced,
    /// A weight per class, in the order of the classes.
    Each(Vec<f64>),
}

impl TryFrom<WordOrNumbers> for ClassWeights {
    type Error = String;

    fn try_from(written: WordOrNumbers) -> Result<ClassWeights, String> {
        match written {
            WordOrNumbers::Numbers(numbers) => Ok(ClassWeights::Each(numbers)),
            WordOrNumbers::Word(word) if word == "none" => Ok(ClassWeights::None),
            WordOrNumbers::Word(word) if word == "balanced" => Ok(ClassWeights::Balanced),
            WordOrNumbers::Word(word) => Err(format!(
                "`{word}`, expected none, balanced, or a list of numbers"
            )),
        }
    }
}

impl From<ClassWeights> for WordOrNumbers {
    fn from(weights: ClassWeights) -> WordOrNumbers {
        match weights {
            ClassWeights::None => WordOrNumbers::Word("none".to_owned()),
            ClassWeights::Balanced => WordOrNumbers::Word("balanced".to_owned()),
            ClassWeights::Each(numbers) => WordOrNumbers::Numbers(numbers),
        }
    }
}

/// Course of the learning rate after the warmup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Half a cosine, down to `lr_end`.
    #[default]
    Cosine,
    /// A straight line, down to `lr_end`.
    Linear,
    /// No decay.
    #[serde(alias = "constant_with_warmup")]
    Constant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subset {
    /// Held-out samples.
    Validation,
    /// Training samples.
    Train,
}

/// A count, or `auto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WordOrNumber", into = "WordOrNumber")]
pub enum Count {
    /// Chosen for the machine.
    #[default]
    Auto,
    /// Set by the user.
    Exactly(usize),
}

impl Count {
    /// The user's count; `None` for `auto`.
    pub fn exactly(self) -> Option<usize> {
        match self {
            Count::Auto => None,
            Count::Exactly(count) => Some(count),
        }
    }
}

impl TryFrom<WordOrNumber> for Count {
    type Error = String;

    fn try_from(written: WordOrNumber) -> Result<Count, String> {
        match written.count() {
            Some(count) => Ok(Count::Exactly(count)),
            None if written.is_word("auto") => Ok(Count::Auto),
            None => Err(written.instead_of("auto, or a whole number of at least 0")),
        }
    }
}

impl From<Count> for WordOrNumber {
    fn from(count: Count) -> WordOrNumber {
        match count {
            Count::Auto => WordOrNumber::Word("auto".to_owned()),
            Count::Exactly(count) => WordOrNumber::Whole(count as u64),
        }
    }
}

impl std::str::FromStr for Count {
    type Err = String;

    /// Parses an option value: `auto` or `4`.
    fn from_str(text: &str) -> Result<Count, String> {
        match text.parse() {
            Ok(number) => WordOrNumber::Whole(number).try_into(),
            Err(_) => WordOrNumber::Word(text.to_owned()).try_into(),
        }
    }
}

/// Length of the linear rise of the learning rate from almost zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WordOrNumber", into = "WordOrNumber")]
pub enum Warmup {
    /// A number of optimizer steps.
    Steps(usize),
    /// A share of all optimizer steps, in percent.
    Percent(f64),
}

impl Default for Warmup {
    fn default() -> Warmup {
        Warmup::Percent(5.0)
    }
}

impl Warmup {
    /// Steps of the warmup in a run of `num_steps`.
    pub fn steps(self, num_steps: usize) -> usize {
        match self {
            Warmup::Steps(steps) => steps,
            Warmup::Percent(percent) => (num_steps as f64 * percent / 100.0).round() as usize,
        }
    }
}

impl TryFrom<WordOrNumber> for Warmup {
    type Error = String;

    fn try_from(written: WordOrNumber) -> Result<Warmup, String> {
        if let Some(steps) = written.count() {
            return Ok(Warmup::Steps(steps));
        }
        let percent = match &written {
            WordOrNumber::Word(word) => word.strip_suffix('%'),
            _ => None,
        };
        percent
            .and_then(|percent| percent.trim().parse().ok())
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(Warmup::Percent)
            .ok_or_else(|| written.instead_of("steps such as 500, or a share of all such as 5%"))
    }
}

impl From<Warmup> for WordOrNumber {
    fn from(warmup: Warmup) -> WordOrNumber {
        match warmup {
            Warmup::Steps(steps) => WordOrNumber::Whole(steps as u64),
            Warmup::Percent(percent) => WordOrNumber::Word(format!("{percent}%")),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WordOrNumber", into = "WordOrNumber")]
pub enum EvalEvery {
    /// After each epoch.
    #[default]
    Epoch,
    /// After this many optimizer steps.
    Steps(usize),
    Never,
}

impl TryFrom<WordOrNumber> for EvalEvery {
    type Error = String;

    fn try_from(written: WordOrNumber) -> Result<EvalEvery, String> {
        match written.count() {
            Some(steps) if steps > 0 => Ok(EvalEvery::Steps(steps)),
            _ if written.is_word("epoch") => Ok(EvalEvery::Epoch),
            _ if written.is_word("none") => Ok(EvalEvery::Never),
            _ => Err(written.instead_of("epoch, a number of steps of at least 1, or none")),
        }
    }
}

impl From<EvalEvery> for WordOrNumber {
    fn from(every: EvalEvery) -> WordOrNumber {
        match every {
            EvalEvery::Epoch => WordOrNumber::Word("epoch".to_owned()),
            EvalEvery::Steps(steps) => WordOrNumber::Whole(steps as u64),
            EvalEvery::Never => WordOrNumber::Word("none".to_owned()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WordOrNumber", into = "WordOrNumber")]
pub enum SaveEvery {
    /// After each epoch.
    #[default]
    Epoch,
    /// After this many optimizer steps.
    Steps(usize),
}

impl TryFrom<WordOrNumber> for SaveEvery {
    type Error = String;

    fn try_from(written: WordOrNumber) -> Result<SaveEvery, String> {
        match written.count() {
            Some(steps) if steps > 0 => Ok(SaveEvery::Steps(steps)),
            _ if written.is_word("epoch") => Ok(SaveEvery::Epoch),
            _ => Err(written.instead_of("epoch, or a number of steps of at least 1")),
        }
    }
}

impl From<SaveEvery> for WordOrNumber {
    fn from(every: SaveEvery) -> WordOrNumber {
        match every {
            SaveEvery::Epoch => WordOrNumber::Word("epoch".to_owned()),
            SaveEvery::Steps(steps) => WordOrNumber::Whole(steps as u64),
        }
    }
}
