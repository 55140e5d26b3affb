//! U-Nets as graphs: a plain one, nnU-Net's plain one, and nnU-Net's with a residual encoder.
//!
//! A skip join copies nothing: `joined` is one activation. The last norm of an encoder stage writes its first columns, the
//! upsampling writes the others, and the decoder's convolution reads all of them. Where memory is short, norms, activations,
//! pooling, upsampling and transposed convolutions are recomputed: only raw outputs of convolutions are kept.
//!
//! Legend: `n` samples, `h` height, `w` width, `c` channels, `k` outputs, `l` kernel.

pub mod config;
pub mod config_json;
pub mod init;
pub mod layout;
mod presets;

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::pool2d::Pool;
use holdall_graph::ops::upsample2d::Upsampling;
use holdall_graph::{Decay, Graph, ValueId};

use config::{Down, UnetConfig, UnetKind, Up};

/// `model_type` in config.json.
pub(crate) const MODEL_TYPE: &str = "holdall-unet";
/// Class name in docs/scripts/unet.py.
pub(crate) const ARCHITECTURE: &str = "Unet";

/// Writes the network; returns the logits `[n, h, w, k]` of each head: full size first, then, with deep supervision, half the
/// size and so on. Blocks are named `encoder.0`, ..., `decoder.0`. `pixels` are raw bytes, or numbers that are already
/// normalised.
pub fn logits(graph: &mut Graph, config: &UnetConfig, pixels_nhwc: ValueId) -> Vec<ValueId> {
    let num_heads = config.num_heads();
    write(graph, config, pixels_nhwc, num_heads)
}

/// Like [`logits`], with the full-size head alone, as a trained model is used.
pub fn full_size_logits(graph: &mut Graph, config: &UnetConfig, pixels_nhwc: ValueId) -> ValueId {
    write(graph, config, pixels_nhwc, 1)[0]
}

fn write(
    graph: &mut Graph,
    config: &UnetConfig,
    pixels_nhwc: ValueId,
    num_heads: usize,
) -> Vec<ValueId> {
    let writer = Writer { config };
    let mut joined = Vec::new();
    let mut x_nhwc = pixels_nhwc;
    for stage in 0..config.num_stages() {
        x_nhwc = graph.block(&format!("encoder.{stage}"), |graph| {
            if stage == 0 {
                let input = &config.input;
                let (mean, std) = (&input.mean, &input.std);
                x_nhwc = graph.normalize_pixels("normalized", x_nhwc, input.depth, mean, std);
            }
            writer.encoder_stage(graph, stage, x_nhwc, &mut joined)
        });
    }
    let mut heads = Vec::new();
    for level in (0..config.num_stages() - 1).rev() {
        let joined_nhwc = joined[level];
        x_nhwc = graph.block(&format!("decoder.{level}"), |graph| {
            let x_nhwc = writer.decoder_stage(graph, level, x_nhwc, joined_nhwc);
            if level < num_heads {
                heads.push(writer.head(graph, level, x_nhwc));
            } else if level < config.num_heads() {
                // A head that this program does not compute is still part of the model.
                writer.head_parameters(graph, level);
            }
            x_nhwc
        });
    }
    heads.reverse();
    heads
}

struct Writer<'c> {
    config: &'c UnetConfig,
}

impl Writer<'_> {
    /// Writes an encoder stage; all but the last write their output to the first columns of a new entry of `joined`.
    fn encoder_stage(
        &self,
        graph: &mut Graph,
        stage: usize,
        mut x_nhwc: ValueId,
        joined: &mut Vec<ValueId>,
    ) -> ValueId {
        let config = self.config;
        let width = config.channels[stage];
        let name = format!("encoder.{stage}");
        let mut stride = 1;
        if stage > 0 {
            match config.down {
                Down::MaxPool => {
                    x_nhwc = graph.pool2d(&format!("{name}.pooled"), x_nhwc, Pool::Max, 2);
                }
                Down::Strided => stride = 2,
            }
        } else if config.kind == UnetKind::ResidualEncoder {
            let conv = self.conv(graph, "stem.conv", x_nhwc, [width, 3], 1);
            x_nhwc = self.norm(graph, "stem.norm", conv, Some(config.activation), None);
        }
        let &[batch, height, full_width, _] = graph.shape(x_nhwc).dims() else {
            panic!("pictures are [samples, height, width, channels]");
        };
        let output = (stage + 1 < config.num_stages()).then(|| {
            let sides = [height / stride, full_width / stride];
            let columns = width + config.up_channels(stage);
            let dims = [batch, sides[0], sides[1], columns];
            let joined_nhwc = graph.activation(&format!("joined.{stage}"), &dims);
            joined.push(joined_nhwc);
            graph.columns(joined_nhwc, 0, width)
        });
        let blocks = config.encoder_blocks[stage];
        for block in 0..blocks {
            let name = format!("{name}.{block}");
            let y = output.filter(|_| block + 1 == blocks);
            let stride = if block == 0 { stride } else { 1 };
            x_nhwc = match config.kind {
                UnetKind::Plain => self.conv_norm(graph, &name, x_nhwc, width, stride, y),
                UnetKind::ResidualEncoder => self.residual(graph, &name, x_nhwc, width, stride, y),
            };
        }
        x_nhwc
    }

    /// Upsamples `x` to twice its size beside the skip, and writes the decoder stage.
    fn decoder_stage(
        &self,
        graph: &mut Graph,
        level: usize,
        x_nhwc: ValueId,
        joined_nhwc: ValueId,
    ) -> ValueId {
        let config = self.config;
        let width = config.channels[level];
        let y = graph.columns(joined_nhwc, width, config.up_channels(level));
        let name = format!("up.{level}");
        let upsampled = |graph: &mut Graph, mode| graph.upsample2d_into(&name, x_nhwc, 2, mode, y);
        match config.up {
            Up::Nearest => upsampled(graph, Upsampling::Nearest),
            Up::Bilinear => upsampled(graph, Upsampling::Bilinear),
            Up::Transposed => {
                let inputs = graph.shape(x_nhwc).width();
                let dims = [inputs, 2, 2, width];
                let weight = graph.parameter(&format!("{name}.weight"), &dims, Decay::Yes);
                let bias = graph.parameter(&format!("{name}.bias"), &[width], Decay::No);
                graph.transposed_conv2d_into(&name, x_nhwc, weight, Some(bias), [2, 2], y);
            }
        }
        let mut x_nhwc = joined_nhwc;
        for block in 0..config.decoder_blocks {
            let name = format!("decoder.{level}.{block}");
            x_nhwc = self.conv_norm(graph, &name, x_nhwc, width, 1, None);
        }
        x_nhwc
    }

    fn head(&self, graph: &mut Graph, level: usize, x_nhwc: ValueId) -> ValueId {
        let [weight, bias] = self.head_parameters(graph, level);
        let name = format!("head.{level}");
        graph.conv2d(&name, x_nhwc, weight, Some(bias), [1, 1], [0, 0])
    }

    fn head_parameters(&self, graph: &mut Graph, level: usize) -> [ValueId; 2] {
        let (outputs, width) = (self.config.num_outputs(), self.config.channels[level]);
        let dims = [outputs, 1, 1, width];
        let weight = graph.parameter(&format!("head.{level}.weight"), &dims, Decay::Yes);
        let bias = graph.parameter(&format!("head.{level}.bias"), &[outputs], Decay::No);
        [weight, bias]
    }

    /// A 3 x 3 convolution with norm and activation, written to `y` if given.
    fn conv_norm(
        &self,
        graph: &mut Graph,
        name: &str,
        x_nhwc: ValueId,
        width: usize,
        stride: usize,
        y: Option<ValueId>,
    ) -> ValueId {
        let activation = Some(self.config.activation);
        let conv = self.conv(graph, &format!("{name}.conv"), x_nhwc, [width, 3], stride);
        let name = format!("{name}.norm");
        match y {
            Some(y) => self.norm_into(graph, &name, conv, activation, None, y),
            None => self.norm(graph, &name, conv, activation, None),
        }
    }

    /// Residual block: two convolutions and a shortcut, which is the identity, a mean pooling where the block halves the size, or
    /// a 1 x 1 convolution where the block changes the channels.
    fn residual(
        &self,
        graph: &mut Graph,
        name: &str,
        x_nhwc: ValueId,
        width: usize,
        stride: usize,
        y: Option<ValueId>,
    ) -> ValueId {
        let activation = Some(self.config.activation);
        let named = |part: &str| format!("{name}.{part}");
        let conv1 = self.conv(graph, &named("conv1"), x_nhwc, [width, 3], stride);
        let between = self.norm(graph, &named("norm1"), conv1, activation, None);
        let conv2 = self.conv(graph, &named("conv2"), between, [width, 3], 1);
        let mut shortcut = x_nhwc;
        if stride > 1 {
            shortcut = graph.pool2d(&named("pooled"), shortcut, Pool::Average, stride);
        }
        if graph.shape(x_nhwc).width() != width {
            let conv = self.conv(graph, &named("shortcut.conv"), shortcut, [width, 1], 1);
            shortcut = self.norm(graph, &named("shortcut.norm"), conv, None, None);
        }
        let name = named("norm2");
        match y {
            Some(y) => self.norm_into(graph, &name, conv2, activation, Some(shortcut), y),
            None => self.norm(graph, &name, conv2, activation, Some(shortcut)),
        }
    }

    fn conv(
        &self,
        graph: &mut Graph,
        name: &str,
        x_nhwc: ValueId,
        [width, kernel]: [usize; 2],
        stride: usize,
    ) -> ValueId {
        let dims = [width, kernel, kernel, graph.shape(x_nhwc).width()];
        let weight_ollc = graph.parameter(&format!("{name}.weight"), &dims, Decay::Yes);
        let padding = [kernel / 2; 2];
        graph.conv2d(name, x_nhwc, weight_ollc, None, [stride; 2], padding)
    }

    fn norm(
        &self,
        graph: &mut Graph,
        name: &str,
        x_nhwc: ValueId,
        activation: Option<Activation>,
        residual: Option<ValueId>,
    ) -> ValueId {
        let dims = graph.shape(x_nhwc);
        let y = graph.activation(name, dims.dims());
        self.norm_into(graph, name, x_nhwc, activation, residual, y)
    }

    fn norm_into(
        &self,
        graph: &mut Graph,
        name: &str,
        x_nhwc: ValueId,
        activation: Option<Activation>,
        residual: Option<ValueId>,
        y: ValueId,
    ) -> ValueId {
        let width = graph.shape(x_nhwc).width();
        let [gamma, beta] = ["weight", "bias"]
            .map(|kind| graph.parameter(&format!("{name}.{kind}"), &[width], Decay::No));
        let (groups, eps) = (self.config.norm.groups(width), self.config.norm_eps);
        graph.group_norm_into(
            name, x_nhwc, gamma, beta, groups, eps, activation, residual, y,
        );
        y
    }
}

#[cfg(test)]
mod tests {
    use super::config::Norm;
    use super::*;
    use holdall_graph::{DType, Section};

    /// Every preset, and a variant with all options that presets do not use.
    fn variants() -> Vec<UnetConfig> {
        let presets = UnetConfig::PRESETS.iter();
        let mut variants: Vec<UnetConfig> = presets
            .map(|name| UnetConfig::preset(name).expect("listed"))
            .collect();
        variants.push(UnetConfig {
            up: Up::Bilinear,
            norm: Norm::Instance,
            activation: Activation::Gelu,
            down: Down::MaxPool,
            deep_supervision: false,
            classes: ["background", "artery", "vein"].map(String::from).to_vec(),
            ..UnetConfig::preset("nnunet-resenc").expect("listed")
        });
        variants
    }

    #[test]
    fn the_graph_has_the_parameters_of_the_state_dict() {
        for config in variants() {
            let mut graph = Graph::new(DType::Bf16);
            let side = 2 * config.size_multiple();
            let pixels = graph.input("pixels", &[2, side, side, 3], DType::U8);
            let heads = logits(&mut graph, &config, pixels);
            assert_eq!(heads.len(), config.num_heads());
            for (level, &head) in heads.iter().enumerate() {
                let side = side >> level;
                assert_eq!(
                    graph.shape(head).dims(),
                    [2, side, side, config.classes.len()]
                );
            }
            // A forward program has the same parameters, including unused ones.
            graph.enter(Section::Forward);
            full_size_logits(&mut graph, &config, pixels);
            let mut found: Vec<(String, Vec<usize>)> = graph
                .parameters()
                .iter()
                .map(|p| (p.name.clone(), graph.shape(p.value).dims().to_vec()))
                .collect();
            let expected = config.tensors().into_iter();
            let mut expected: Vec<_> = expected
                .map(|(name, dims)| match dims[..] {
                    [a, b, height, width] => (name, vec![a, height, width, b]),
                    _ => (name, dims),
                })
                .collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn every_parameter_of_a_model_has_a_start_and_no_other_name_has() {
        for config in variants() {
            for (name, _) in config.tensors() {
                assert!(init::start_of(&config, &name).is_some(), "{name}");
            }
            for name in [
                "encoder.0.0.conv.bias",
                "head.9.weight",
                "up.0",
                "down.0.weight",
            ] {
                assert!(init::start_of(&config, name).is_none(), "{name}");
            }
        }
    }

    #[test]
    fn weights_start_as_pytorch_and_nnunet_draw_them() {
        let drawn = |config: &UnetConfig, name: &str| {
            let (_, shape) = (config.tensors().into_iter())
                .find(|(known, _)| known == name)
                .expect("a tensor");
            let mut values = vec![0.0; shape.iter().product()];
            init::fill(config, 3, name, &mut values).expect("known");
            let square: f32 = values.iter().map(|value| value * value).sum();
            let largest = values.iter().fold(0.0f32, |most, one| most.max(one.abs()));
            ((square / values.len() as f32).sqrt(), largest)
        };
        let plain = UnetConfig::preset("unet").expect("listed");
        // nn.Conv2d: fan in 64 * 9; nn.ConvTranspose2d(128, 64, 2): fan in 64 * 4.
        let (_, largest) = drawn(&plain, "encoder.0.1.conv.weight");
        assert!((largest - 1.0 / 24.0).abs() < 1e-3, "{largest}");
        let (_, largest) = drawn(&plain, "up.0.weight");
        assert!((largest - 1.0 / 16.0).abs() < 1e-3, "{largest}");
        assert_eq!(drawn(&plain, "encoder.0.1.norm.weight"), (1.0, 1.0));
        let residual = UnetConfig::preset("nnunet-resenc").expect("listed");
        let (spread, _) = drawn(&residual, "encoder.1.1.conv1.weight");
        let expected = (2.0f32 / 1.0001 / (64.0 * 9.0)).sqrt();
        assert!(
            (spread / expected - 1.0).abs() < 0.02,
            "{spread} {expected}"
        );
        assert_eq!(drawn(&residual, "encoder.1.1.norm2.weight"), (0.0, 0.0));
        assert_eq!(drawn(&residual, "encoder.1.1.norm1.weight"), (1.0, 1.0));
        assert_eq!(drawn(&residual, "head.0.bias"), (0.0, 0.0));
    }
}
