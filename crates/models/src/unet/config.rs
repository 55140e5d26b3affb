//! Sizes of a U-Net: encoder stages that halve the size, and one decoder stage less that doubles it again.
//!
//! ```text
//! plain      stage = [conv 3x3 -> norm -> activation] x blocks
//! residual   stage = [conv 3x3 -> norm -> activation -> conv 3x3 -> norm -> + shortcut -> activation] x blocks, behind a stem
//! down       max pooling before a stage, or a stride of 2 in its first convolution
//! up         transposed convolution 2x2, or upsampling; joined with the stage's own output of the same size
//! head       conv 1x1 -> logits, at full size; with deep supervision at the coarser sizes too
//! ```
//!
//! Convolutions before a norm have no bias: the norm would cancel most of it. Names are those of docs/scripts/unet.py.

use std::path::Path;

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::normalize_pixels::PixelDepth;

use crate::error::ModelError;
use crate::size_checks::{LARGEST_SIZE, SizeChecks};
use crate::tensor_list::TensorList;

/// Limit of the stages of a U-Net: pictures of 65,536 pixels a side are halved no further.
pub const MOST_STAGES: usize = 12;
/// Limit of convolutions or residual blocks per stage.
const MOST_BLOCKS: usize = 64;
/// Limit of the classes: a byte mask has 256 values, one of which is not counted.
pub const MOST_CLASSES: usize = 255;

/// Kind of encoder stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnetKind {
    /// Plain convolutions.
    Plain,
    /// Residual blocks of two convolutions, like nnU-Net's residual encoder.
    ResidualEncoder,
}

/// Normalisation of activations, per sample. There is no batch norm: it cannot be split into micro-batches exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Norm {
    /// Over the pixels of each group of channels.
    Group {
        /// Number of groups; divides the channels of every stage.
        groups: usize,
    },
    /// Over the pixels of each channel.
    Instance,
}

impl Norm {
    /// Number of groups for this many channels.
    pub fn groups(self, channels: usize) -> usize {
        match self {
            Norm::Group { groups } => groups,
            Norm::Instance => channels,
        }
    }
}

/// Upsampling before a decoder stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Up {
    /// A transposed convolution of 2 x 2, which also halves the channels.
    Transposed,
    /// Repeats every pixel 2 x 2 times.
    Nearest,
    /// Bilinear interpolation.
    Bilinear,
}

/// Downsampling before an encoder stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Down {
    /// Max pooling of 2 x 2.
    MaxPool,
    /// A stride of 2 in the stage's first convolution.
    Strided,
}

/// Input pictures and their normalisation `(value / maximum - mean) / std`, channel by channel.
#[derive(Debug, Clone, PartialEq)]
pub struct PictureInput {
    pub channels: usize,
    pub depth: PixelDepth,
    /// Mean of each channel, for values scaled to 0 to 1.
    pub mean: Vec<f64>,
    /// Divisor of each channel.
    pub std: Vec<f64>,
}

/// Sizes of a U-Net.
#[derive(Debug, Clone, PartialEq)]
pub struct UnetConfig {
    /// Kind of the encoder; the decoder is plain.
    pub kind: UnetKind,
    pub input: PictureInput,
    /// Channels of each stage, from the full size down.
    pub channels: Vec<usize>,
    /// Convolutions (plain) or residual blocks of each encoder stage.
    pub encoder_blocks: Vec<usize>,
    /// Convolutions of each decoder stage.
    pub decoder_blocks: usize,
    pub norm: Norm,
    /// Added to the variance in every norm.
    pub norm_eps: f64,
    /// Activation after every norm but that of a shortcut.
    pub activation: Activation,
    pub up: Up,
    pub down: Down,
    /// Whether coarser decoder stages have heads of their own during training.
    pub deep_supervision: bool,
    /// Class names. One name: present or absent (sigmoid). Several: exactly one per pixel (softmax), the background first.
    pub classes: Vec<String>,
    /// Height and width that pictures are resized to; `None` keeps their size.
    pub image_size: Option<[usize; 2]>,
    /// Side of the square training patches; `None` for whole pictures.
    pub patch: Option<usize>,
    /// Probability from which a pixel belongs to the class; with several classes the most probable one is taken.
    pub threshold: f64,
}

impl UnetConfig {
    pub fn num_stages(&self) -> usize {
        self.channels.len()
    }

    /// Heights and widths must be multiples of this.
    pub fn size_multiple(&self) -> usize {
        1 << (self.num_stages() - 1)
    }

    /// Logits per pixel: a single class has one.
    pub fn num_outputs(&self) -> usize {
        self.classes.len()
    }

    /// Number of classes in masks: a single class has two, present and absent.
    pub fn num_mask_values(&self) -> usize {
        self.classes.len().max(2)
    }

    /// Levels that have a head, full size first: level `i` has `1 / 2^i` of the size. With deep supervision, like nnU-Net, all
    /// decoder stages but the coarsest.
    pub fn num_heads(&self) -> usize {
        if self.deep_supervision {
            (self.num_stages() - 2).max(1)
        } else {
            1
        }
    }

    /// Weight of each head's loss: half of that of the next larger size, summing to 1.
    pub fn head_weights(&self) -> Vec<f64> {
        let halves = (0..self.num_heads()).map(|level| 0.5f64.powi(level as i32));
        let total: f64 = halves.clone().sum();
        halves.map(|half| half / total).collect()
    }

    /// Channels that upsampling brings into a decoder stage.
    pub(crate) fn up_channels(&self, level: usize) -> usize {
        match self.up {
            Up::Transposed => self.channels[level],
            Up::Nearest | Up::Bilinear => self.channels[level + 1],
        }
    }

    /// Every module with weights, in the order of the forward pass.
    pub(crate) fn modules(&self) -> Vec<(String, Module)> {
        let mut modules = Vec::new();
        let mut add = |name: String, module: Module| modules.push((name, module));
        let conv = |inputs, outputs, kernel| Module::Conv {
            outputs,
            inputs,
            kernel,
            bias: false,
        };
        let mut inputs = self.input.channels;
        if self.kind == UnetKind::ResidualEncoder {
            let width = self.channels[0];
            add("stem.conv".into(), conv(inputs, width, 3));
            add("stem.norm".into(), Module::Norm { width });
            inputs = width;
        }
        for (stage, (&width, &blocks)) in self.channels.iter().zip(&self.encoder_blocks).enumerate()
        {
            for block in 0..blocks {
                let name = |part: &str| format!("encoder.{stage}.{block}.{part}");
                match self.kind {
                    UnetKind::Plain => {
                        add(name("conv"), conv(inputs, width, 3));
                        add(name("norm"), Module::Norm { width });
                    }
                    UnetKind::ResidualEncoder => {
                        add(name("conv1"), conv(inputs, width, 3));
                        add(name("norm1"), Module::Norm { width });
                        add(name("conv2"), conv(width, width, 3));
                        add(name("norm2"), Module::LastNormOfBlock { width });
                        if inputs != width {
                            add(name("shortcut.conv"), conv(inputs, width, 1));
                            add(name("shortcut.norm"), Module::Norm { width });
                        }
                    }
                }
                inputs = width;
            }
        }
        for level in (0..self.num_stages() - 1).rev() {
            let width = self.channels[level];
            if self.up == Up::Transposed {
                let up = Module::Transposed {
                    inputs: self.channels[level + 1],
                    outputs: width,
                };
                add(format!("up.{level}"), up);
            }
            let mut inputs = width + self.up_channels(level);
            for block in 0..self.decoder_blocks {
                let name = |part: &str| format!("decoder.{level}.{block}.{part}");
                add(name("conv"), conv(inputs, width, 3));
                add(name("norm"), Module::Norm { width });
                inputs = width;
            }
            if level < self.num_heads() {
                let head = Module::Conv {
                    outputs: self.num_outputs(),
                    inputs: width,
                    kernel: 1,
                    bias: true,
                };
                add(format!("head.{level}"), head);
            }
        }
        modules
    }

    /// Names and shapes of the tensors in the state dict of docs/scripts/unet.py.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut list = TensorList(Vec::new());
        for (name, module) in self.modules() {
            let weight = format!("{name}.weight");
            let bias = format!("{name}.bias");
            match module {
                Module::Conv {
                    outputs,
                    inputs,
                    kernel,
                    bias: has_bias,
                } => {
                    list.add(&weight, &[outputs, inputs, kernel, kernel]);
                    if has_bias {
                        list.add(&bias, &[outputs]);
                    }
                }
                Module::Transposed { inputs, outputs } => {
                    list.add(&weight, &[inputs, outputs, 2, 2]);
                    list.add(&bias, &[outputs]);
                }
                Module::Norm { width } | Module::LastNormOfBlock { width } => {
                    list.add(&weight, &[width]);
                    list.add(&bias, &[width]);
                }
            }
        }
        list.0
    }

    /// Checks that the sizes are valid. `file` is named in the error.
    pub fn validate(&self, file: &Path) -> Result<(), ModelError> {
        let sizes = SizeChecks { file, section: "" };
        let stages = self.num_stages();
        if !(2..=MOST_STAGES).contains(&stages) {
            let expected = format!("2 to {MOST_STAGES} stages");
            return Err(sizes.wrong("channels", expected, stages));
        }
        sizes.within("input_channels", self.input.channels, LARGEST_SIZE)?;
        for (key, numbers) in [("mean", &self.input.mean), ("std", &self.input.std)] {
            if numbers.len() != self.input.channels {
                let expected = format!("{} numbers, one per channel", self.input.channels);
                return Err(sizes.wrong(key, expected, numbers.len()));
            }
            let is_right = |number: &f64| number.is_finite() && (key == "mean" || *number > 0.0);
            if let Some(wrong) = numbers.iter().find(|number| !is_right(number)) {
                return Err(sizes.wrong(key, "finite numbers, `std` above 0".into(), wrong));
            }
        }
        if self.encoder_blocks.len() != stages {
            let expected = format!("{stages} numbers, one per stage");
            return Err(sizes.wrong("encoder_blocks", expected, self.encoder_blocks.len()));
        }
        for &blocks in &self.encoder_blocks {
            sizes.within("encoder_blocks", blocks, MOST_BLOCKS)?;
        }
        sizes.within("decoder_blocks", self.decoder_blocks, MOST_BLOCKS)?;
        for &width in &self.channels {
            sizes.within("channels", width, LARGEST_SIZE)?;
            if let Norm::Group { groups } = self.norm {
                sizes.within("groups", groups, LARGEST_SIZE)?;
                sizes.multiple("channels", width, ("groups", groups))?;
            }
        }
        sizes.eps("norm_eps", self.norm_eps)?;
        sizes.within("classes", self.classes.len(), MOST_CLASSES)?;
        let patch = self.patch.map(|side| [side; 2]);
        for (key, size) in [("image_size", self.image_size), ("patch", patch)] {
            for side in size.into_iter().flatten() {
                sizes.within(key, side, LARGEST_SIZE)?;
                let multiple = self.size_multiple();
                if !side.is_multiple_of(multiple) {
                    let expected = format!("a multiple of {multiple}: {stages} stages halve it");
                    return Err(sizes.wrong(key, expected, side));
                }
            }
        }
        if !(self.threshold > 0.0 && self.threshold < 1.0) {
            let expected = "a number between 0 and 1".into();
            return Err(sizes.wrong("threshold", expected, self.threshold));
        }
        sizes.all_tensors(&self.tensors())
    }
}

/// A module that has weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Module {
    Conv {
        outputs: usize,
        inputs: usize,
        kernel: usize,
        bias: bool,
    },
    Transposed {
        inputs: usize,
        outputs: usize,
    },
    Norm {
        width: usize,
    },
    /// The last norm of a residual block's main branch, before the shortcut is added.
    LastNormOfBlock {
        width: usize,
    },
}
