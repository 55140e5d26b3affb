//! The forward programs of an evaluation: image encoder and text encoder.

use std::borrow::Cow;

use holdall_device::{DeviceError, HostRow};
use holdall_graph::{DType, Graph, ValueId};
use holdall_models::clip::{self, ClipInputs, end_token};
use holdall_models::config::TextPooling;

use super::ClipTask;
use super::batch::{END, IDS, LENGTHS, PIXELS};
use super::step::FEATURES;
use crate::engine::forward::Forward;

const IMAGE_ENCODER: &str = "image encoder";
const TEXT_ENCODER: &str = "text encoder";

/// Writes both programs. If the step's inputs and features have the same batch size, the programs share them.
pub(super) fn write_programs(task: &ClipTask, g: &mut Graph, batch: usize) {
    let model = &task.model;
    let rows_of = |g: &Graph, value: ValueId| g.shape(value).dims()[0];
    let input = |g: &mut Graph, name: &str, dims: &[usize], dtype: DType| match g.endpoint(name) {
        Some(value) if rows_of(g, value) == batch => value,
        _ => g.input(
            &format!("evaluated {name}"),
            &[&[batch], dims].concat(),
            dtype,
        ),
    };
    let size = model.vision.image_size;
    let inputs = ClipInputs {
        pixels: input(g, PIXELS, &[size, size, 3], task.pixels),
        ids: input(g, IDS, &[task.num_tokens], DType::I64),
        end: input(g, END, &[], DType::I64),
        lengths: input(g, LENGTHS, &[], DType::I64),
        order: None,
    };
    let [image, text] = FEATURES.map(|name| match g.endpoint(name) {
        Some(value) if g.endpoint(PIXELS) == Some(inputs.pixels) => g.rows(value, 0, batch),
        _ => g.output(&format!("evaluated {name}"), &[batch, model.projection_dim]),
    });
    g.forward_program(IMAGE_ENCODER, |g| {
        g.name_endpoint("pixels", inputs.pixels);
        g.name_endpoint("features", image);
        clip::vision(g, model, inputs.pixels, image);
        if let Some([weight, bias]) = clip::heads(g, model, task.num_labels).label {
            let dims = [batch, g.shape(bias).num_elements()];
            let logits = g.output("logits", &dims);
            g.linear_into(image, weight, bias, logits);
        }
    });
    g.forward_program(TEXT_ENCODER, |g| {
        for (name, value) in [
            (IDS, inputs.ids),
            (END, inputs.end),
            (LENGTHS, inputs.lengths),
        ] {
            g.name_endpoint(name, value);
        }
        g.name_endpoint("features", text);
        clip::text(g, model, &inputs.text(), text);
    });
}

/// Runs the forward programs of a CLIP.
pub struct Encoder<'a> {
    forward: Forward<'a>,
    pooling: TextPooling,
}

/// Features of pictures, rows of unit length; with a label head, its logits too.
pub struct EncodedPictures<'a> {
    /// `rows x projection`.
    pub features: Cow<'a, [f32]>,
    /// `rows x labels`.
    pub logits: Option<Cow<'a, [f32]>>,
}

impl<'a> Encoder<'a> {
    pub fn new(task: &ClipTask, forward: Forward<'a>) -> Encoder<'a> {
        Encoder {
            forward,
            pooling: task.model.text.pooling,
        }
    }

    /// Most samples per call.
    pub fn batch(&self) -> usize {
        self.forward.rows("image encoder/pixels")
    }

    /// Length of a feature vector.
    pub fn projection(&self) -> usize {
        self.forward.width("image encoder/features")
    }

    pub fn num_tokens(&self) -> usize {
        self.forward.width("text encoder/ids")
    }

    /// Encodes at least one picture and at most [`Encoder::batch`].
    pub fn pictures(&mut self, pictures: &[HostRow]) -> Result<EncodedPictures<'_>, DeviceError> {
        self.forward.feed_pictures("image encoder/pixels", pictures);
        self.forward.run(IMAGE_ENCODER)?;
        let (forward, rows) = (&self.forward, pictures.len());
        let logits = "image encoder/logits";
        Ok(EncodedPictures {
            features: forward.read_rows("image encoder/features", rows)?,
            logits: if forward.has(logits) {
                Some(forward.read_rows(logits, rows)?)
            } else {
                None
            },
        })
    }

    /// Encodes captions; `ids` has [`Encoder::num_tokens`] token ids per caption.
    pub fn captions(&mut self, ids: &[i64]) -> Result<Cow<'_, [f32]>, DeviceError> {
        let captions = ids.chunks(self.num_tokens());
        let ends: Vec<i64> = captions
            .map(|caption| end_token(caption, self.pooling) as i64)
            .collect();
        let lengths: Vec<i64> = ends.iter().map(|end| end + 1).collect();
        self.forward.feed_indices("text encoder/ids", ids);
        self.forward.feed_indices("text encoder/end", &ends);
        self.forward.feed_indices("text encoder/lengths", &lengths);
        self.forward.run(TEXT_ENCODER)?;
        self.forward.read_rows("text encoder/features", ends.len())
    }
}
