//! A trained U-Net as a model folder: config.json and model.safetensors, which docs/scripts/unet.py loads in PyTorch.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use holdall_models::folder::{Elements, NamedTensor, Values, write_folder};
use holdall_models::unet::layout;

use super::SegmentTask;
use crate::engine::step::{Step, Stored};
use crate::error::TrainError;
use crate::export::model_files::{SHARD_BYTES, exported, unsaved};

/// A tensor in PyTorch's channels-first layout, converted while it is written.
struct ChannelsFirst<'a> {
    shape: Vec<usize>,
    stored: Stored<'a>,
}

impl Values for ChannelsFirst<'_> {
    fn num_values(&self) -> usize {
        self.stored.num_values()
    }

    fn values(&self) -> io::Result<Cow<'_, [f32]>> {
        let mut values = Vec::with_capacity(self.num_values());
        layout::for_channels_first(&self.shape, &self.stored.values()?, |piece| {
            values.extend_from_slice(piece);
            io::Result::Ok(())
        })?;
        Ok(Cow::Owned(values))
    }

    fn for_pieces(&self, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        layout::for_channels_first(&self.shape, &self.stored.values()?, |piece| {
            Elements::F32(Cow::Borrowed(piece)).for_pieces(&mut *write)
        })
    }
}

/// Writes the model folder.
pub(super) fn save(task: &SegmentTask, step: &Step, folder: &Path) -> Result<(), TrainError> {
    let tensors = task.model.tensors().into_iter();
    let tensors: Vec<NamedTensor<ChannelsFirst<'_>>> = tensors
        .map(|(name, shape)| {
            let tensor = ChannelsFirst {
                stored: exported(step, &name),
                shape: shape.clone(),
            };
            (name, shape, tensor)
        })
        .collect();
    let mut model = task.model.clone();
    model.threshold = task.saved_threshold();
    let saved = write_folder(folder, &model, &tensors, None, Some(SHARD_BYTES));
    saved.map_err(|cause| unsaved(&cause))
}
