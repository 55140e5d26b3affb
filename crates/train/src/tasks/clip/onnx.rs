//! ONNX export of CLIP's encoders.

use holdall_graph::{DType, Graph};
use holdall_models::clip::{self, TextInputs};
use holdall_models::config::TextPooling;
use holdall_onnx::{BATCH, OnnxError, PictureSize, Precision, Program, Writer};

use super::ClipTask;
use crate::export::onnx::OnnxFile;

pub(crate) fn programs(task: &ClipTask, precision: Precision) -> Result<Vec<OnnxFile>, OnnxError> {
    Ok(vec![
        OnnxFile::new("image_encoder", image_encoder(task, precision)?),
        OnnxFile::new("text_encoder", text_encoder(task, precision)?),
    ])
}

fn image_encoder(task: &ClipTask, precision: Precision) -> Result<Program, OnnxError> {
    let (model, size) = (&task.model, task.model.vision.image_size);
    let mut graph = Graph::new(DType::F32);
    let pixels = graph.input("pixels", &[BATCH, size, size, 3], DType::F32);
    let features = graph.output("features", &[BATCH, model.projection_dim]);
    clip::vision(&mut graph, model, pixels, features);
    let head = clip::heads(&mut graph, model, task.num_labels).label;
    let logits =
        head.map(|[weight, bias]| graph.linear("head", features, weight, Some(bias), None));
    let mut writer = Writer::new(&graph, precision);
    writer.pictures("pixel_values", pixels, PictureSize::Fixed);
    writer.write_nodes()?;
    writer.output("image_embeds", features, PictureSize::Fixed)?;
    if let Some(logits) = logits {
        writer.output("logits", logits, PictureSize::Fixed)?;
    }
    Ok(writer.finish("image encoder"))
}

fn text_encoder(task: &ClipTask, precision: Precision) -> Result<Program, OnnxError> {
    let text = &task.model.text;
    let mut graph = Graph::new(DType::F32);
    let [end, lengths] = ["end", "lengths"].map(|name| graph.input(name, &[BATCH], DType::I64));
    let inputs = TextInputs {
        ids: graph.input("ids", &[BATCH, text.max_positions], DType::I64),
        lengths,
        end: Some(end),
        order: None,
    };
    let features = graph.output("features", &[BATCH, task.model.projection_dim]);
    clip::text(&mut graph, &task.model, &inputs, features);
    let mut writer = Writer::new(&graph, precision);
    writer.indices("input_ids", inputs.ids);
    writer.ends(inputs.ids, end_token(text.pooling), end, lengths)?;
    writer.write_nodes()?;
    writer.output("text_embeds", features, PictureSize::Fixed)?;
    Ok(writer.finish("text encoder"))
}

/// The token that ends a text; `None` if it is the token of the highest id.
pub(in crate::tasks) fn end_token(pooling: TextPooling) -> Option<i64> {
    match pooling {
        TextPooling::HighestId => None,
        TextPooling::FirstEos(eos) => Some(eos),
    }
}
