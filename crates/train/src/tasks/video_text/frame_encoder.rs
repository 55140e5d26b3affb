//! The vision tower alone: computes the tokens of the frame cache.

use holdall_data::loader::ClipFraming;
use holdall_device::{Arithmetic, Device, HostRow};
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::cast::Cast;
use holdall_graph::{DType, Graph};
use holdall_models::video_text;
use holdall_models::video_text::config::VideoTextConfig;

use super::VideoTextTask;
use crate::engine::forward::ForwardModel;
use crate::engine::task::{Storing, Task};
use crate::error::TrainError;
use crate::planning::picture_costs::PictureCosts;

const PROGRAM: &str = "frame encoder";
/// Most clips per forward pass: a larger batch would hold memory that training cannot use afterwards.
const MOST_AT_A_TIME: usize = 16;

/// Graph from frames to frame tokens in f32, which represents tokens of shorter formats exactly.
pub(super) fn write_encoder(
    model: &VideoTextConfig,
    pixels: DType,
    arithmetic: Arithmetic,
    batch: usize,
) -> Graph {
    let mut graph = Graph::new(arithmetic.compute());
    let size = model.vision.image_size;
    let dims = [batch, model.frames(), size, size, 3];
    let pixels = graph.input("frames", &dims, pixels);
    graph.forward_program(PROGRAM, |g| {
        g.name_endpoint("pixels", pixels);
        let tokens_bsd = video_text::encode_frames(g, model, pixels);
        let shape = g.shape(tokens_bsd);
        let found = g.output("tokens", shape.dims());
        if g.dtype(tokens_bsd) == g.dtype(found) {
            g.push_new(AddInto {}, vec![tokens_bsd], &[found])
        } else {
            g.push_new(Cast {}, vec![tokens_bsd], &[found])
        };
    });
    graph
}

/// Runs the vision tower.
pub(super) struct FrameEncoder {
    model: ForwardModel,
    dtype: DType,
    tokens: Vec<u8>,
}

impl FrameEncoder {
    /// A frame encoder for clips of this framing; `seed` draws random weights.
    pub(super) fn new(
        task: &VideoTextTask,
        (framing, arithmetic, seed): (&ClipFraming, Arithmetic, u64),
        storing: &Storing<'_>,
    ) -> Result<FrameEncoder, TrainError> {
        let device = storing.device;
        let build = |batch: usize| write_encoder(&task.model, task.pixels, arithmetic, batch);
        let row_bytes = framing.row_bytes() as u64;
        let budget = storing.budget_bytes;
        let mut model = ForwardModel::of_graph(
            device,
            &build,
            arithmetic,
            (MOST_AT_A_TIME, row_bytes, budget),
        )?;
        model.set_weights(device, task.weights(seed)?)?;
        Ok(FrameEncoder {
            model,
            dtype: arithmetic.compute(),
            tokens: Vec::new(),
        })
    }

    pub(super) fn batch(&self) -> usize {
        self.model.batch()
    }

    /// Memory for decoding: enough for all workers at once within the budget, and at least for the largest clip.
    pub(super) fn decode_bytes(
        &self,
        device: &Device,
        budget_bytes: Option<u64>,
        costs: &PictureCosts,
        workers: usize,
    ) -> u64 {
        let together = costs.together_bytes(workers);
        let free = if device.is_gpu() {
            holdall_device::cpu::available_bytes().map(|free| free / 4)
        } else {
            budget_bytes.map(|budget| budget.saturating_sub(device.held_bytes().unwrap_or(0)))
        };
        free.map_or(together, |free| together.min(free))
            .max(costs.largest_bytes())
    }

    /// Frame tokens of clips, one row per clip, in the number format of the step.
    pub(super) fn encode(
        &mut self,
        device: &Device,
        clips: &[HostRow],
    ) -> Result<&[u8], TrainError> {
        let mut forward = self.model.forward(device);
        forward.feed_pictures(&format!("{PROGRAM}/pixels"), clips);
        forward.run(PROGRAM)?;
        let tokens = forward.read_rows(&format!("{PROGRAM}/tokens"), clips.len())?;
        self.tokens.clear();
        match self.dtype {
            DType::Bf16 => {
                let narrow = tokens.iter().map(|&one| half::bf16::from_f32(one));
                self.tokens.extend(narrow.flat_map(half::bf16::to_le_bytes));
            }
            DType::F16 => {
                let narrow = tokens.iter().map(|&one| half::f16::from_f32(one));
                self.tokens.extend(narrow.flat_map(half::f16::to_le_bytes));
            }
            _ => {
                let bytes = tokens.iter().flat_map(|one| one.to_le_bytes());
                self.tokens.extend(bytes);
            }
        }
        Ok(&self.tokens)
    }
}
