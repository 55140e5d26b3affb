//! ONNX export of a video-text model.
//!
//! ```text
//! video_encoder   frames -> features; outputs of the heads; with a decoder, the frame tokens that it reads
//! text_encoder    texts -> features
//! decoder         frame tokens and the words so far -> logits of every next word
//! ```
//!
//! All frames of a clip must exist. The decoder has no cache: decoding runs it once per word.

use holdall_graph::{DType, Graph};
use holdall_models::video_text::config::TextTower;
use holdall_models::video_text::{self, CaptionInputs, Clips, TextInputs};
use holdall_models::vit;
use holdall_onnx::{BATCH, OnnxError, PictureSize, Precision, Program, Writer};

use super::super::clip::onnx::end_token;
use super::VideoTextTask;
use crate::export::onnx::OnnxFile;

/// Input of the decoder's cross-attention, by its name in transformers.
const FRAME_TOKENS: &str = "encoder_hidden_states";

pub(crate) fn programs(
    task: &VideoTextTask,
    precision: Precision,
) -> Result<Vec<OnnxFile>, OnnxError> {
    let mut files = vec![
        OnnxFile::new("video_encoder", video_encoder(task, precision)?),
        OnnxFile::new("text_encoder", text_encoder(task, precision)?),
    ];
    if let Some(own) = task.decoder() {
        let mut file = OnnxFile::new("decoder", decoder(task, precision)?);
        for (name, token) in [("bos", own.bos), ("eos", own.eos), ("pad", own.pad)] {
            file.say(&format!("{name}_token_id"), token.to_string());
        }
        files.push(file);
    }
    Ok(files)
}

fn video_encoder(task: &VideoTextTask, precision: Precision) -> Result<Program, OnnxError> {
    let (model, size) = (&task.model, task.model.vision.image_size);
    let mut graph = Graph::new(DType::F32);
    let dims = [BATCH, model.frames(), size, size, 3];
    let pixels = graph.input("pixels", &dims, DType::F32);
    let features = graph.output("features", &[BATCH, model.projection_dim]);
    let clips = Clips::Pixels(pixels);
    let frame_tokens = video_text::video(&mut graph, model, clips, None, features);
    let num_outputs = task.num_outputs();
    let logits = (num_outputs > 0).then(|| vit::classifier(&mut graph, features, num_outputs));
    let mut writer = Writer::new(&graph, precision);
    writer.pictures("pixel_values", pixels, PictureSize::Fixed);
    writer.write_nodes()?;
    writer.output("video_embeds", features, PictureSize::Fixed)?;
    let others = [("logits", logits), (FRAME_TOKENS, frame_tokens)];
    for (name, value) in others {
        if let Some(value) = value {
            writer.output(name, value, PictureSize::Fixed)?;
        }
    }
    Ok(writer.finish("video encoder"))
}

fn text_encoder(task: &VideoTextTask, precision: Precision) -> Result<Program, OnnxError> {
    let (model, tokens) = (&task.model, task.model.max_text_tokens());
    let mut graph = Graph::new(DType::F32);
    let [end, lengths] = ["end", "lengths"].map(|name| graph.input(name, &[BATCH], DType::I64));
    let inputs = TextInputs {
        ids: graph.input("ids", &[BATCH, tokens], DType::I64),
        lengths,
        end: matches!(model.text, TextTower::Clip(_)).then_some(end),
        order: None,
    };
    let features = graph.output("features", &[BATCH, model.projection_dim]);
    video_text::text(&mut graph, model, &inputs, features, None);
    let mut writer = Writer::new(&graph, precision);
    writer.indices("input_ids", inputs.ids);
    match &model.text {
        TextTower::Clip(text) => {
            writer.ends(inputs.ids, end_token(text.pooling), end, lengths)?;
        }
        TextTower::Bert(_) => writer.mask("attention_mask", tokens, lengths),
    }
    writer.write_nodes()?;
    writer.output("text_embeds", features, PictureSize::Fixed)?;
    Ok(writer.finish("text encoder"))
}

fn decoder(task: &VideoTextTask, precision: Precision) -> Result<Program, OnnxError> {
    let model = &task.model;
    let own = task.decoder().expect("asked for where there is one");
    let mut graph = Graph::new(DType::F32);
    let ids = graph.input("ids", &[BATCH, own.max_positions], DType::I64);
    let tokens = model.frames() * model.tokens_per_frame();
    let frame_tokens = graph.input("frames", &[BATCH, tokens, own.width], DType::F32);
    let captions = CaptionInputs {
        ids_bt: ids,
        order_bt: None,
    };
    let states = video_text::caption_states(&mut graph, model, frame_tokens, None, &captions);
    let head = video_text::head_weight(&mut graph, model);
    let logits = graph.linear("logits", states, head, None, None);
    let mut writer = Writer::new(&graph, precision);
    writer.indices("input_ids", ids);
    writer.numbers(FRAME_TOKENS, frame_tokens);
    writer.write_nodes()?;
    writer.output("logits", logits, PictureSize::Fixed)?;
    Ok(writer.finish("decoder"))
}
