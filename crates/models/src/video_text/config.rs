//! Sizes of a video-text model.

use std::path::Path;

use holdall_graph::ops::activation::Activation;

use super::pooling::{ATTENTION_POOL, TEMPORAL_LAYERS, TEMPORAL_POSITIONS};
use super::{FRAME_POSITIONS, FRAME_PROJECTION, VIDEO_EMBEDDING};
pub use crate::bert::config::BertConfig;
use crate::clip::config::{ClipConfig, TextConfig};
pub use crate::decoder::config::DecoderConfig;
use crate::error::ModelError;
use crate::size_checks::{LARGEST_SIZE, MOST_LAYERS, SizeChecks};
use crate::tensor_list::TensorList;
use crate::transformer::{Blocks, NormPlace};
pub use crate::vit::config::VisionConfig;
use crate::vit::config::{CLIP_BLOCKS, VisionTransformerConfig};

/// The text tower.
#[derive(Debug, Clone, PartialEq)]
pub enum TextTower {
    /// CLIP's tower: causal, read at the end token.
    Clip(TextConfig),
    /// A BERT: bidirectional, read at the class token.
    Bert(BertConfig),
}

/// Input of a temporal transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemporalInput {
    /// The frames' class tokens, before the projection.
    Hidden,
    /// The frames' features after the projection, like CLIP4Clip's seqTransf.
    Projected,
}

/// How frame features become one clip feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of the frames' features, like CLIP4Clip's meanP.
    Mean,
    /// A transformer over frames, and the mean of its outputs.
    Temporal {
        layers: usize,
        heads: usize,
        /// Width inside the MLP.
        inner: usize,
        /// Its input.
        place: TemporalInput,
    },
    /// Learned queries that attend to all tokens of all frames.
    Attention {
        /// Number of queries, whose outputs are averaged.
        queries: usize,
        heads: usize,
    },
}

/// Sizes of a whole video-text model.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoTextConfig {
    /// CLIP's vision tower, applied to each frame.
    pub vision: VisionConfig,
    pub text: TextTower,
    /// Width of the space in which texts and clips are compared.
    pub projection_dim: usize,
    /// Frames of one video.
    pub num_frames: usize,
    /// Videos of one sample; their frames are concatenated.
    pub num_videos: usize,
    pub pooling: Pooling,
    /// Captioning decoder, if the model has one.
    pub decoder: Option<DecoderConfig>,
    /// Whether frame positions are added to the decoder's input. Without them a caption cannot depend on the order of frames.
    pub frame_positions: bool,
    /// Initial standard deviation of the position tables of patches and frames, for random weights; `None` for the usual values. Those are
    /// small beside the embeddings they are added to, so that features that combine place and time, such as the direction of a movement,
    /// are learned late.
    pub position_spread: Option<f64>,
    /// Initial `logit_scale` of random weights: the logarithm of the scale.
    pub logit_scale_init: f64,
}

impl VideoTextConfig {
    /// A CLIP model over one video of `num_frames` frames: mean pooling, no decoder.
    pub fn of_clip(clip: &ClipConfig, num_frames: usize) -> VideoTextConfig {
        VideoTextConfig {
            vision: clip.vision.clone(),
            text: TextTower::Clip(clip.text.clone()),
            projection_dim: clip.projection_dim,
            num_frames,
            num_videos: 1,
            pooling: Pooling::Mean,
            decoder: None,
            frame_positions: false,
            position_spread: None,
            logit_scale_init: clip.logit_scale_init,
        }
    }

    /// A temporal transformer with the usual sizes: heads of 64, or those of CLIP's text tower where its first layers can
    /// initialise the transformer; an MLP four times as wide.
    pub fn temporal(&self, layers: usize, place: TemporalInput) -> Pooling {
        let width = match place {
            TemporalInput::Hidden => self.vision.hidden_size,
            TemporalInput::Projected => self.projection_dim,
        };
        let usual = Pooling::Temporal {
            layers,
            heads: match width / 64 {
                0 => 2,
                heads => heads,
            },
            inner: 4 * width,
            place,
        };
        match (&self.text, place) {
            (TextTower::Clip(text), TemporalInput::Projected) if text.hidden_size == width => {
                Pooling::Temporal {
                    layers,
                    heads: text.num_heads,
                    inner: text.intermediate_size,
                    place,
                }
            }
            _ => usual,
        }
    }

    /// Frames of a sample, all videos together.
    pub fn frames(&self) -> usize {
        self.num_frames * self.num_videos
    }

    /// Tokens of a frame inside the vision tower.
    pub fn tokens_per_frame(&self) -> usize {
        self.backbone().num_tokens()
    }

    /// Tokens of a frame that the vision tower returns: all, or the class token where nothing reads the others.
    pub fn encoded_tokens_per_frame(&self) -> usize {
        if self.reads_all_tokens() {
            self.tokens_per_frame()
        } else {
            1
        }
    }

    /// Number of tokens that the decoder attends to.
    pub fn num_frame_tokens(&self) -> usize {
        self.frames() * self.tokens_per_frame()
    }

    /// Rows of the text tower's word embedding.
    pub fn text_vocab_size(&self) -> usize {
        match &self.text {
            TextTower::Clip(text) => text.vocab_size,
            TextTower::Bert(text) => text.vocab_size,
        }
    }

    /// Longest text, in tokens.
    pub fn max_text_tokens(&self) -> usize {
        match &self.text {
            TextTower::Clip(text) => text.max_positions,
            TextTower::Bert(text) => text.max_positions,
        }
    }

    /// Whether any part reads tokens of a frame besides its class token.
    pub fn reads_all_tokens(&self) -> bool {
        self.decoder.is_some() || matches!(self.pooling, Pooling::Attention { .. })
    }

    pub(super) fn expect_decoder(&self) -> &DecoderConfig {
        self.decoder.as_ref().expect("the model has a decoder")
    }

    pub fn backbone(&self) -> VisionTransformerConfig {
        VisionTransformerConfig::of_clip(self.vision.clone())
    }

    /// The CLIP model formed by both towers and their projections, if the text tower is CLIP's.
    pub fn clip(&self) -> Option<ClipConfig> {
        let TextTower::Clip(text) = &self.text else {
            return None;
        };
        Some(ClipConfig {
            text: text.clone(),
            vision: self.vision.clone(),
            projection_dim: self.projection_dim,
            logit_scale_init: self.logit_scale_init,
        })
    }

    /// The temporal transformer, if the model has one.
    pub(crate) fn temporal_blocks(&self) -> Option<Blocks> {
        let Pooling::Temporal {
            layers,
            heads,
            inner,
            place,
        } = self.pooling
        else {
            return None;
        };
        let (width, activation) = match place {
            TemporalInput::Hidden => (self.vision.hidden_size, Activation::Gelu),
            TemporalInput::Projected => (self.projection_dim, self.vision.activation),
        };
        Some(Blocks {
            prefix: TEMPORAL_LAYERS.into(),
            names: &CLIP_BLOCKS,
            num_layers: layers,
            width,
            mlp_width: inner,
            num_heads: heads,
            activation,
            eps: self.vision.layer_norm_eps,
            norms: NormPlace::Before,
            causal: false,
            qkv_bias: true,
        })
    }

    fn text_width(&self) -> usize {
        match &self.text {
            TextTower::Clip(text) => text.hidden_size,
            TextTower::Bert(text) => text.hidden_size,
        }
    }

    /// Names and shapes of all tensors. Meant for sizes that [`VideoTextConfig::validate`] accepts.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, frames) = (self.vision.hidden_size, self.frames());
        let mut list = TensorList(Vec::new());
        match (&self.text, self.clip()) {
            (_, Some(clip)) => list.0 = clip.tensors(),
            (TextTower::Bert(text), _) => {
                list.add("logit_scale", &[]);
                text.list(&mut list);
                self.backbone().list(&mut list);
                list.add("visual_projection.weight", &[self.projection_dim, width]);
                let shape = [self.projection_dim, self.text_width()];
                list.add("text_projection.weight", &shape);
            }
            (TextTower::Clip(_), None) => unreachable!("CLIP's text tower makes a CLIP model"),
        }
        if self.num_videos > 1 {
            list.add(VIDEO_EMBEDDING, &[self.num_videos, width]);
        }
        if let Some(blocks) = self.temporal_blocks() {
            list.add(TEMPORAL_POSITIONS, &[frames, blocks.width]);
            blocks.list(&mut list);
        }
        if let Pooling::Attention { queries, .. } = self.pooling {
            let name = |part: &str| format!("{ATTENTION_POOL}.{part}");
            list.add(&name("queries"), &[queries, width]);
            list.add(&name("positions"), &[frames, width]);
            list.add_weight_and_bias(&name("norm"), &[width]);
            for part in ["k_proj", "v_proj", "q_proj", "out_proj"] {
                list.add_weight_and_bias(&name(part), &[width, width]);
            }
        }
        if let Some(decoder) = &self.decoder {
            if self.frame_positions {
                list.add(FRAME_POSITIONS, &[frames, width]);
            }
            list.add_weight_and_bias(FRAME_PROJECTION, &[decoder.width, width]);
            decoder.list(&mut list);
        }
        list.0
    }

    /// Checks that the sizes are valid. `file` is named in the error.
    pub fn validate(&self, file: &Path) -> Result<(), ModelError> {
        let top = SizeChecks { file, section: "" };
        match (&self.text, self.clip()) {
            (_, Some(clip)) => clip.validate(file)?,
            (TextTower::Bert(text), _) => text.validate(file, "text_config.")?,
            (TextTower::Clip(_), None) => unreachable!("CLIP's text tower makes a CLIP model"),
        }
        self.vision.validate(file, "vision_config.")?;
        top.within("projection_dim", self.projection_dim, LARGEST_SIZE)?;
        if !self.logit_scale_init.is_finite() {
            let expected = "a finite number".into();
            return Err(top.wrong("logit_scale_init_value", expected, self.logit_scale_init));
        }
        if let Some(spread) = self.position_spread
            && !(spread.is_finite() && spread >= 0.0)
        {
            let expected = "a number of at least 0".into();
            return Err(top.wrong("position_spread", expected, spread));
        }
        top.within("num_frames", self.num_frames, MOST_FRAMES)?;
        top.within("num_videos", self.num_videos, MOST_FRAMES)?;
        let sizes = SizeChecks {
            file,
            section: "pooling.",
        };
        match self.pooling {
            Pooling::Mean => {}
            Pooling::Temporal {
                layers,
                heads,
                inner,
                ..
            } => {
                sizes.within("layers", layers, MOST_LAYERS)?;
                sizes.within("heads", heads, LARGEST_SIZE)?;
                sizes.within("inner", inner, LARGEST_SIZE)?;
            }
            Pooling::Attention { queries, heads } => {
                sizes.within("queries", queries, LARGEST_SIZE)?;
                sizes.within("heads", heads, LARGEST_SIZE)?;
            }
        }
        let (heads, width, key) = match self.pooling {
            Pooling::Mean => (1, 1, ""),
            Pooling::Temporal {
                heads,
                place: TemporalInput::Projected,
                ..
            } => (heads, self.projection_dim, "projection_dim"),
            Pooling::Temporal { heads, .. } | Pooling::Attention { heads, .. } => {
                (heads, self.vision.hidden_size, "vision_config.hidden_size")
            }
        };
        if !width.is_multiple_of(heads) {
            let expected = format!("a divisor of `{key}`, which is {width}");
            return Err(sizes.wrong("heads", expected, heads));
        }
        if let Some(decoder) = &self.decoder {
            decoder.validate(file, "decoder_config.")?;
        }
        top.all_tensors(&self.tensors())
    }
}

/// Limit of a sample's frames.
const MOST_FRAMES: usize = 1 << 12;
