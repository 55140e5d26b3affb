//! Exported files of every task are valid ONNX and have the weights of the state dict. docs/scripts/check_onnx.py compares
//! their results with onnxruntime.

use std::collections::HashSet;

use holdall_data::samples::{Target, TargetKind};
use holdall_models::clip::config::ClipConfig;
use holdall_models::unet::config::UnetConfig;
use holdall_models::vit::config::VisionTransformerConfig;
use holdall_onnx::proto::{GraphProto, ModelProto};
use prost::Message;

use super::*;
use crate::engine::task::Task;
use crate::tasks::classify::{self, ClassifyTask, Head};
use crate::tasks::clip::{self, ClipTask};
use crate::tasks::segment::{self, SegmentTask};
use crate::tasks::video_text::{self, VideoTextTask};

const BOTH: [Precision; 2] = [Precision::Full, Precision::Half];

/// Operators of opset 17 that exported files may use.
const OPERATORS: &[&str] = &[
    "Add",
    "ArgMax",
    "AveragePool",
    "Cast",
    "Concat",
    "Conv",
    "ConvTranspose",
    "Div",
    "Equal",
    "Erf",
    "Expand",
    "Gather",
    "GatherND",
    "Identity",
    "InstanceNormalization",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "MatMul",
    "Max",
    "MaxPool",
    "Mul",
    "ReduceL2",
    "ReduceMean",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Resize",
    "Shape",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Transpose",
    "Unsqueeze",
    "Where",
];

fn classifier(backbone: &str) -> ClassifyTask {
    let names = ["a", "b", "c"].map(str::to_owned).to_vec();
    let target = Target {
        name: "label".to_owned(),
        kind: TargetKind::Class { names },
    };
    let backbone = VisionTransformerConfig::preset(backbone).expect("listed");
    ClassifyTask::new(backbone, vec![Head::new(&target)])
}

/// Every preset of every task: its files, and the task.
fn all(precision: Precision) -> Vec<(String, Vec<OnnxFile>, Box<dyn Task>)> {
    let mut all: Vec<(String, Vec<OnnxFile>, Box<dyn Task>)> = Vec::new();
    for name in ClipConfig::PRESETS {
        let task = ClipTask::new(ClipConfig::preset(name).expect("listed"), Some(3));
        let files = clip::onnx::programs(&task, precision).unwrap();
        all.push((format!("clip {name}"), files, Box::new(task)));
    }
    for name in VisionTransformerConfig::PRESETS {
        let task = classifier(name);
        let files = classify::onnx::programs(&task, precision).unwrap();
        all.push((format!("classify {name}"), files, Box::new(task)));
    }
    for name in UnetConfig::PRESETS {
        let task = SegmentTask::new(UnetConfig::preset(name).expect("listed"), [64, 64]);
        let files = segment::onnx::programs(&task, precision).unwrap();
        all.push((format!("segment {name}"), files, Box::new(task)));
    }
    for name in VideoTextTask::PRESETS {
        let task = VideoTextTask::preset(name).expect("listed");
        let files = video_text::onnx::programs(&task, precision).unwrap();
        all.push((format!("video-text {name}"), files, Box::new(task)));
    }
    all
}

/// Checks names and order as ONNX's checker does.
fn check(graph: &GraphProto, weights: &[String]) {
    let mut defined: HashSet<&str> = HashSet::new();
    let constants = graph.initializer.iter().map(|tensor| &tensor.name);
    let inputs = graph.input.iter().map(|input| &input.name);
    for name in inputs.chain(constants).chain(weights) {
        assert!(defined.insert(name), "{name} is defined twice");
    }
    let mut read: HashSet<&str> = HashSet::new();
    let mut computed = Vec::new();
    for node in &graph.node {
        assert!(
            OPERATORS.contains(&node.op_type.as_str()),
            "{}",
            node.op_type
        );
        for input in node.input.iter().filter(|input| !input.is_empty()) {
            assert!(defined.contains(input.as_str()), "{input} of {}", node.name);
            read.insert(input);
        }
        for output in &node.output {
            assert!(defined.insert(output), "{output} is defined twice");
            computed.push(output.as_str());
        }
    }
    let outputs: HashSet<&str> = graph.output.iter().map(|one| one.name.as_str()).collect();
    for name in &outputs {
        assert!(computed.contains(name), "{name} is not computed");
    }
    for name in computed {
        assert!(
            read.contains(name) || outputs.contains(name),
            "{name} is not read"
        );
    }
    for weight in weights {
        assert!(read.contains(weight.as_str()), "{weight} is not read");
    }
}

#[test]
fn every_preset_of_every_task_is_a_well_formed_program() {
    for precision in BOTH {
        for (name, files, _) in all(precision) {
            for OnnxFile { program, .. } in files {
                println!("{name}: {} nodes", program.graph.node.len());
                check(&program.graph, &program.weight_names());
            }
        }
    }
}

/// The files of a model together contain all of its weights, under the names of the state dict, except weights that no
/// program reads.
#[test]
fn weights_have_the_names_of_the_state_dict() {
    for (name, files, task) in all(Precision::Full) {
        let written: HashSet<String> = (files.iter())
            .flat_map(|file| file.program.weight_names())
            .collect();
        let known: HashSet<String> = task.parameter_names().into_iter().collect();
        let mut others: Vec<&String> = known.symmetric_difference(&written).collect();
        others.sort();
        for other in others {
            let is_unread = other == "logit_scale"
                // Deep supervision trains heads at smaller resolutions.
                || (name.starts_with("segment") && other.starts_with("head."))
                // With pooling over patches, CLIP's last norm is not used.
                || (name.starts_with("classify") && other.contains("post_layernorm"))
                || (name.starts_with("video-text") && other.contains("post_layernorm"))
                // Texts have a single segment; the other rows of the segment table are exported with it.
                || (name.starts_with("clip") && other.starts_with("head."));
            assert!(is_unread, "{name}: {other}");
        }
    }
}

#[test]
fn a_file_holds_the_weights_that_the_task_fills_in() {
    let task = classifier("vit-demo");
    let [OnnxFile { program, .. }] = &classify::onnx::programs(&task, Precision::Full).unwrap()[..]
    else {
        panic!("one program");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("classifier.onnx");
    let mut fill = task.weights(7).unwrap();
    program
        .write(&path, &mut |name, values| {
            fill(name, values).map_err(io::Error::other)
        })
        .unwrap();
    let model = ModelProto::decode(std::fs::read(&path).unwrap().as_slice()).unwrap();
    assert_eq!(model.opset_import[0].version, 17);
    let graph = model.graph.unwrap();
    assert_eq!(graph.node, program.graph.node);
    let weight = graph
        .initializer
        .iter()
        .find(|one| one.name == "classifier.weight");
    let weight = weight.unwrap();
    let mut expected = vec![0.0; weight.dims.iter().product::<i64>() as usize];
    task.weights(7).unwrap()("classifier.weight", &mut expected).unwrap();
    let bytes: Vec<u8> = expected
        .iter()
        .flat_map(|value: &f32| value.to_le_bytes())
        .collect();
    assert_eq!(weight.raw_data.as_deref(), Some(bytes.as_slice()));
    let batch = graph.input[0].r#type.clone().unwrap().tensor_type.unwrap();
    let batch = batch.shape.unwrap().dim[0].clone();
    assert_eq!(batch.dim_param.as_deref(), Some("batch"));
}
