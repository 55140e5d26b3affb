//! Sizes of a vision transformer: patches and a class token through a stack of blocks.
//!
//! ```text
//! x        = [class token, patches of the picture] + positions
//! features = input of the classifier, from blocks(x), by family:
//!   ViT, DeiT   class token of layernorm(x)          (DeiT has a distillation token behind the class token)
//!   DINOv2      [class token, mean of patches] of layernorm(x), each block's branches scaled by column
//!   CLIP        mean of patches of x, where x passed a norm before the first block
//! logits   = classifier(features)
//! ```
//!
//! Names, defaults and pooling are those of transformers' `ViTForImageClassification`, `DeiTForImageClassification`,
//! `Dinov2ForImageClassification` and `CLIPForImageClassification`.

use std::path::Path;

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::patchify::Normalization;

use crate::error::ModelError;
use crate::size_checks::{LARGEST_SIZE, MOST_LAYERS, SizeChecks};
use crate::tensor_list::TensorList;
use crate::transformer::{BlockNames, Blocks, NormPlace};

/// Sizes of a vision transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Transformer blocks.
    pub num_layers: usize,
    /// Attention heads, each `hidden_size / num_heads` wide.
    pub num_heads: usize,
    /// Side of the square input, in pixels.
    pub image_size: usize,
    /// Side of a square patch, in pixels.
    pub patch_size: usize,
    /// Colour channels of the input.
    pub num_channels: usize,
    /// Nonlinearity of the MLP.
    pub activation: Activation,
    /// Added to the variance in every layer norm.
    pub layer_norm_eps: f64,
    /// Normalisation of picture bytes. Stored not in config.json, but in the `preprocessor_config.json` beside it.
    pub normalization: Normalization,
}

impl VisionConfig {
    /// Number of patches of a picture.
    pub fn num_patches(&self) -> usize {
        (self.image_size / self.patch_size).pow(2)
    }

    /// Checks the sizes; `section` is the prefix of their keys in `file`.
    pub(crate) fn validate(&self, file: &Path, section: &str) -> Result<(), ModelError> {
        let sizes = SizeChecks { file, section };
        sizes.within("hidden_size", self.hidden_size, LARGEST_SIZE)?;
        sizes.within("intermediate_size", self.intermediate_size, LARGEST_SIZE)?;
        sizes.within("num_hidden_layers", self.num_layers, MOST_LAYERS)?;
        sizes.within("num_attention_heads", self.num_heads, LARGEST_SIZE)?;
        sizes.within("image_size", self.image_size, LARGEST_SIZE)?;
        sizes.within("patch_size", self.patch_size, LARGEST_SIZE)?;
        sizes.within("num_channels", self.num_channels, LARGEST_SIZE)?;
        let heads = ("num_attention_heads", self.num_heads);
        sizes.multiple("hidden_size", self.hidden_size, heads)?;
        let patch = ("patch_size", self.patch_size);
        sizes.multiple("image_size", self.image_size, patch)?;
        sizes.eps("layer_norm_eps", self.layer_norm_eps)
    }
}

/// Architectures with one graph that differ in names, in the tokens before the patches, and in pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `ViTForImageClassification`, `ViTModel`.
    Vit,
    /// `DeiTForImageClassification`, `DeiTModel`.
    Deit,
    /// `Dinov2ForImageClassification`, `Dinov2Model`.
    Dinov2,
    /// `CLIPForImageClassification`, `CLIPVisionModel`, the vision half of `CLIPModel`.
    Clip,
}

/// How the tokens become the classifier's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The class token after the last norm.
    ClassToken,
    /// The mean of the patches before the last norm, which is not read.
    MeanOfPatches,
    /// The class token and the mean of the patches side by side, both after the last norm.
    ClassTokenAndMean,
}

/// Names of a family's tensors. All but the classifier's follow `prefix`.
pub(crate) struct FamilyNames {
    pub prefix: &'static str,
    /// Tokens before the patches, the class token first.
    pub tokens: &'static [&'static str],
    pub patches: &'static str,
    pub positions: &'static str,
    pub pre_norm: Option<&'static str>,
    pub layers: &'static str,
    pub blocks: BlockNames,
    pub last_norm: &'static str,
}

const VIT_BLOCKS: BlockNames = BlockNames {
    norm1: "layernorm_before",
    query: "attention.attention.query",
    key: "attention.attention.key",
    value: "attention.attention.value",
    attention_output: "attention.output.dense",
    norm2: "layernorm_after",
    mlp_in: "intermediate.dense",
    mlp_out: "output.dense",
    layer_scales: None,
};

const VIT: FamilyNames = FamilyNames {
    prefix: "vit.",
    tokens: &["embeddings.cls_token"],
    patches: "embeddings.patch_embeddings.projection",
    positions: "embeddings.position_embeddings",
    pre_norm: None,
    layers: "encoder.layer",
    blocks: VIT_BLOCKS,
    last_norm: "layernorm",
};

const DEIT: FamilyNames = FamilyNames {
    prefix: "deit.",
    tokens: &["embeddings.cls_token", "embeddings.distillation_token"],
    ..VIT
};

const DINOV2: FamilyNames = FamilyNames {
    prefix: "dinov2.",
    blocks: BlockNames {
        norm1: "norm1",
        norm2: "norm2",
        mlp_in: "mlp.fc1",
        mlp_out: "mlp.fc2",
        layer_scales: Some(["layer_scale1.lambda1", "layer_scale2.lambda1"]),
        ..VIT_BLOCKS
    },
    ..VIT
};

/// Module names inside the blocks of both of CLIP's transformers.
pub(crate) const CLIP_BLOCKS: BlockNames = BlockNames {
    norm1: "layer_norm1",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.out_proj",
    norm2: "layer_norm2",
    mlp_in: "mlp.fc1",
    mlp_out: "mlp.fc2",
    layer_scales: None,
};

const CLIP: FamilyNames = FamilyNames {
    prefix: "vision_model.",
    tokens: &["embeddings.class_embedding"],
    patches: "embeddings.patch_embedding",
    positions: "embeddings.position_embedding.weight",
    // The misspelling is Hugging Face's; every released checkpoint has it.
    pre_norm: Some("pre_layrnorm"),
    layers: "encoder.layers",
    blocks: CLIP_BLOCKS,
    last_norm: "post_layernorm",
};

impl Family {
    pub const ALL: [Family; 4] = [Family::Vit, Family::Deit, Family::Dinov2, Family::Clip];

    pub(crate) fn names(self) -> &'static FamilyNames {
        match self {
            Family::Vit => &VIT,
            Family::Deit => &DEIT,
            Family::Dinov2 => &DINOV2,
            Family::Clip => &CLIP,
        }
    }

    /// How the classifier's input is pooled.
    pub fn pooling(self) -> Pooling {
        match self {
            Family::Vit | Family::Deit => Pooling::ClassToken,
            Family::Dinov2 => Pooling::ClassTokenAndMean,
            Family::Clip => Pooling::MeanOfPatches,
        }
    }

    /// Class in transformers of the model with a classifier.
    pub fn classifier_architecture(self) -> &'static str {
        match self {
            Family::Vit => "ViTForImageClassification",
            Family::Deit => "DeiTForImageClassification",
            Family::Dinov2 => "Dinov2ForImageClassification",
            Family::Clip => "CLIPForImageClassification",
        }
    }
}

/// A vision transformer without a classifier.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionTransformerConfig {
    /// Family that determines names and wiring.
    pub family: Family,
    pub vision: VisionConfig,
    pub qkv_bias: bool,
    /// Initial layer scale of random weights; only DINOv2 has layer scales.
    pub layer_scale_init: f64,
}

impl VisionTransformerConfig {
    /// The vision tower of a CLIP model.
    pub fn of_clip(vision: VisionConfig) -> VisionTransformerConfig {
        VisionTransformerConfig {
            family: Family::Clip,
            vision,
            qkv_bias: true,
            layer_scale_init: 1.0,
        }
    }

    /// Width of the classifier's input.
    pub fn num_features(&self) -> usize {
        match self.family.pooling() {
            Pooling::ClassToken | Pooling::MeanOfPatches => self.vision.hidden_size,
            Pooling::ClassTokenAndMean => 2 * self.vision.hidden_size,
        }
    }

    /// Number of tokens before the patches.
    pub fn num_prefix_tokens(&self) -> usize {
        self.family.names().tokens.len()
    }

    /// Number of tokens of a picture.
    pub fn num_tokens(&self) -> usize {
        self.num_prefix_tokens() + self.vision.num_patches()
    }

    pub(crate) fn has_patch_bias(&self) -> bool {
        self.family != Family::Clip
    }

    /// Hugging Face's name of a tensor of this family.
    pub(crate) fn name(&self, part: &str) -> String {
        format!("{}{part}", self.family.names().prefix)
    }

    pub(crate) fn blocks(&self) -> Blocks {
        let (names, vision) = (self.family.names(), &self.vision);
        Blocks {
            prefix: self.name(names.layers),
            names: &names.blocks,
            num_layers: vision.num_layers,
            width: vision.hidden_size,
            mlp_width: vision.intermediate_size,
            num_heads: vision.num_heads,
            activation: vision.activation,
            eps: vision.layer_norm_eps,
            norms: NormPlace::Before,
            causal: false,
            qkv_bias: self.qkv_bias,
        }
    }

    /// Names and shapes of all tensors, with the names of the architecture that has a classifier.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut list = TensorList(Vec::new());
        self.list(&mut list);
        list.0
    }

    /// Checks that the sizes are valid. `file` is named in the error.
    pub fn validate(&self, file: &Path) -> Result<(), ModelError> {
        let section = match self.family {
            Family::Clip => "vision_config.",
            Family::Vit | Family::Deit | Family::Dinov2 => "",
        };
        self.vision.validate(file, section)?;
        let sizes = SizeChecks { file, section };
        let (width, mlp) = (self.vision.hidden_size, self.vision.intermediate_size);
        if self.family == Family::Dinov2 {
            sizes.multiple("intermediate_size", mlp, ("hidden_size", width))?;
        }
        sizes.all_tensors(&self.tensors())
    }

    /// Appends all tensors, with the names of the architecture that has a classifier.
    pub(crate) fn list(&self, list: &mut TensorList) {
        let (names, vision) = (self.family.names(), &self.vision);
        let (width, patch) = (vision.hidden_size, vision.patch_size);
        let is_clip = self.family == Family::Clip;
        // CLIP stores a vector and a matrix where the other families have a batch dimension too.
        for token in names.tokens {
            let shape = [1, 1, width];
            list.add(
                &self.name(token),
                if is_clip { &shape[2..] } else { &shape },
            );
        }
        let patches = self.name(names.patches);
        let patch_shape = [width, vision.num_channels, patch, patch];
        list.add(&format!("{patches}.weight"), &patch_shape);
        if self.has_patch_bias() {
            list.add(&format!("{patches}.bias"), &[width]);
        }
        let shape = [1, self.num_tokens(), width];
        let shape = if is_clip { &shape[1..] } else { &shape };
        list.add(&self.name(names.positions), shape);
        if let Some(norm) = names.pre_norm {
            list.add_weight_and_bias(&self.name(norm), &[width]);
        }
        self.blocks().list(list);
        list.add_weight_and_bias(&self.name(names.last_norm), &[width]);
    }
}

/// Meaning of a classifier's outputs, as transformers' `problem_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// Exactly one label.
    SingleLabel,
    /// Any number of labels.
    MultiLabel,
    Regression,
}

/// A vision transformer and a linear classifier on its features.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassifierConfig {
    /// Model that computes the features.
    pub backbone: VisionTransformerConfig,
    /// Names of the outputs, in order.
    pub labels: Vec<String>,
    /// Meaning of the outputs, if the file states it.
    pub problem: Option<Problem>,
}

impl ClassifierConfig {
    /// Names and shapes of the tensors in the state dict of the family's `...ForImageClassification`. Meant for sizes that
    /// [`ClassifierConfig::validate`] accepts.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut list = TensorList(Vec::new());
        self.backbone.list(&mut list);
        let shape = [self.labels.len(), self.backbone.num_features()];
        list.add_weight_and_bias(super::CLASSIFIER, &shape);
        list.0
    }

    /// Checks that the sizes are valid. `file` is named in the error.
    pub fn validate(&self, file: &Path) -> Result<(), ModelError> {
        self.backbone.validate(file)?;
        let sizes = SizeChecks { file, section: "" };
        sizes.within("id2label", self.labels.len(), LARGEST_SIZE)?;
        sizes.all_tensors(&self.tensors())
    }
}
