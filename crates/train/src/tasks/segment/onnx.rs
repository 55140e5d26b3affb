//! ONNX export of a U-Net, for pictures of any size that its stages can halve.

use holdall_graph::{DType, Graph};
use holdall_models::unet;
use holdall_onnx::{BATCH, OnnxError, PictureSize, Precision, Writer};

use super::SegmentTask;
use crate::export::onnx::OnnxFile;

pub(crate) fn programs(
    task: &SegmentTask,
    precision: Precision,
) -> Result<Vec<OnnxFile>, OnnxError> {
    let model = &task.model;
    let side = model.size_multiple();
    let mut graph = Graph::new(DType::F32);
    let dims = [BATCH, side, side, model.input.channels];
    let pixels = graph.input("pixels", &dims, DType::F32);
    let logits = unet::full_size_logits(&mut graph, model, pixels);
    let mut writer = Writer::new(&graph, precision);
    writer.pictures("pixel_values", pixels, PictureSize::Any);
    writer.write_nodes()?;
    writer.output("logits", logits, PictureSize::Any)?;
    let mut file = OnnxFile::new("segmenter", writer.finish("segmenter"));
    file.say("size_multiple", side.to_string());
    file.say("threshold", model.threshold.to_string());
    file.say("mean", format!("{:?}", model.input.mean));
    file.say("std", format!("{:?}", model.input.std));
    Ok(vec![file])
}
