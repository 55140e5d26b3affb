//! ONNX export of a classifier.

use holdall_graph::{DType, Graph};
use holdall_models::vit;
use holdall_onnx::{BATCH, OnnxError, PictureSize, Precision, Writer};

use super::ClassifyTask;
use crate::export::onnx::OnnxFile;

pub(crate) fn programs(
    task: &ClassifyTask,
    precision: Precision,
) -> Result<Vec<OnnxFile>, OnnxError> {
    let size = task.image_size();
    let mut graph = Graph::new(DType::F32);
    let pixels = graph.input("pixels", &[BATCH, size, size, 3], DType::F32);
    let features = vit::features(&mut graph, &task.model.backbone, pixels, None);
    let logits = vit::classifier(&mut graph, features, task.num_outputs());
    let mut writer = Writer::new(&graph, precision);
    writer.pictures("pixel_values", pixels, PictureSize::Fixed);
    writer.write_nodes()?;
    writer.output("logits", logits, PictureSize::Fixed)?;
    Ok(vec![OnnxFile::new(
        "classifier",
        writer.finish("classifier"),
    )])
}
