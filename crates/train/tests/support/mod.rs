//! Steps for tests.

pub mod caption_case;
pub mod parts_case;
pub mod video_text_case;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdall_data::config::Mixing;
use holdall_data::samples::{Target, TargetKind};
use holdall_device::cpu::Cpu;
use holdall_device::{Device, HostRow};
use holdall_graph::DType;
use holdall_graph::ops::activation::Activation;
use holdall_models::clip::config::{TextConfig, TextPooling};
use holdall_models::clip::init;
use holdall_models::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_models::unet::config::{Norm, UnetConfig, UnetKind};
use holdall_models::video_text::config::{
    BertConfig, DecoderConfig, Pooling, TemporalInput, TextTower, VideoTextConfig,
};
use holdall_models::vit::config::{VisionConfig, VisionTransformerConfig};
use holdall_plan::{HostState, Recompute, Request, StepShape, plan};
use holdall_train::config::SameText;
use holdall_train::engine::batch::{Batch, IGNORED, Values};
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::{StepConfig, write_step};
use holdall_train::engine::task::Task;
use holdall_train::tasks::classify::{self, ClassifyTask, Head};
use holdall_train::tasks::clip::{ClipTask, Encoder, batch_of};
use holdall_train::tasks::video_text::{self, Texts, VideoTextTask};

pub fn on_cpu(num_threads: usize) -> Device {
    Device::on_cpu(Cpu::new(Some(num_threads)))
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// The same random cases every time. Of a thousand of clips or masks about one has a gradient that is the small difference of large numbers (of
/// `logit_scale`, or of a single bias) and few samples, so that putting these into another order rounds less than another split does: up to
/// 2.3e-5 was left (docs/decisions/0032).
pub fn same_cases(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        rng_seed: proptest::test_runner::RngSeed::Fixed(17),
        ..proptest::test_runner::Config::with_cases(cases)
    }
}

/// A plan's open choices, closed.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    pub batch_size: usize,
    pub kept: usize,
    pub recompute: Recompute,
}

pub fn step(device: &Device, config: &StepConfig, effective: usize, split: Split) -> Step {
    step_with_host_state(device, config, effective, split, HostState::Nothing)
}

/// The same with some of its state in host memory.
pub fn step_with_host_state(
    device: &Device,
    config: &StepConfig,
    effective: usize,
    split: Split,
    host_state: HostState,
) -> Step {
    let request = Request {
        effective_batch: Some(effective),
        batch_size: Some(split.batch_size),
        recompute: Some(split.recompute),
        kept: Some(split.kept),
        host_state: Some(host_state),
        ..Request::default()
    };
    let target = device.target(config.arithmetic, 0).unwrap();
    let build = |shape: &StepShape| write_step(config, shape);
    let plan = plan(&request, &build, &*target).unwrap();
    Step::new(
        device,
        config.clone(),
        plan.step,
        plan.chosen.choice.batch_size,
    )
    .unwrap()
}

/// A step of CLIP, everything trained.
pub fn config_of(task: &ClipTask) -> StepConfig {
    StepConfig::new(Arc::new(task.clone()))
}

/// Features of the last batch: pictures, captions; rows as in the batch.
pub fn features(step: &Step) -> [Vec<f32>; 2] {
    ["image features", "text features"].map(|name| step.endpoint(name).unwrap().into_owned())
}

pub fn draw_weights(device: &Device, step: &mut Step, config: &ClipConfig, seed: u64) {
    step.set_weights(device, |name, values| {
        init::fill(config, seed, name, values)
    })
    .unwrap();
}

pub fn read_weights(device: &Device, step: &mut Step, folder: &ModelFolder) {
    let head = folder.read_head().unwrap();
    step.set_weights(device, |name, values| {
        match (name, &head) {
            ("head.weight", Some(head)) => values.copy_from_slice(&head.weight),
            ("head.bias", Some(head)) => values.copy_from_slice(&head.bias),
            _ => folder.read_f32(name, values)?,
        }
        Ok::<(), holdall_models::ModelError>(())
    })
    .unwrap();
}

/// Tensors of a safetensors file, as f64.
pub fn read_tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |tensor: &safetensors::tensor::TensorView<'_>| -> Vec<f64> {
        let data = tensor.data();
        match tensor.dtype() {
            safetensors::Dtype::F32 => data
                .chunks(4)
                .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            safetensors::Dtype::F64 => data
                .chunks(8)
                .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            safetensors::Dtype::U8 => data.iter().map(|&byte| f64::from(byte)).collect(),
            safetensors::Dtype::I64 => data
                .chunks(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64)
                .collect(),
            other => panic!("{other:?} in a fixture"),
        }
    };
    file.tensors()
        .iter()
        .map(|(name, tensor)| (name.clone(), (tensor.shape().to_vec(), numbers(tensor))))
        .collect()
}

/// Tensors by name: shape and numbers.
pub type Tensors = HashMap<String, (Vec<usize>, Vec<f64>)>;

/// The fixture's pictures: channels first on disk, last in a batch.
pub fn golden_pixels(golden: &Tensors) -> Vec<f32> {
    let (shape, pixels) = &golden["pixel_values"];
    let [samples, channels, height, width] = shape[..] else {
        panic!("pixel_values {shape:?}");
    };
    let mut floats = Vec::with_capacity(pixels.len());
    for sample in 0..samples {
        for place in 0..height * width {
            for channel in 0..channels {
                floats.push(pixels[(sample * channels + channel) * height * width + place] as f32);
            }
        }
    }
    floats
}

/// The fixture's batch.
pub fn golden_batch(config: &ClipConfig, golden: &Tensors) -> (ClipTask, Batch) {
    let floats = golden_pixels(golden);
    let whole = |name: &str| {
        golden[name]
            .1
            .iter()
            .map(|&id| id as i64)
            .collect::<Vec<_>>()
    };
    let tokens = golden["input_ids"].0[1];
    let labels = golden["grad.head.bias"].1.len();
    let mut task = ClipTask::new(config.clone(), Some(labels));
    task.pixels = DType::F32;
    task.num_tokens = tokens;
    let batch = batch_of(
        &task,
        Values::Floats(floats),
        whole("input_ids"),
        whole("labels"),
    );
    (task, batch)
}

/// Features of all pictures and captions of a batch, and the logits, through the evaluation programs.
pub fn evaluated(
    task: &ClipTask,
    step: &mut Step,
    device: &Device,
    batch: &Batch,
) -> [Vec<f32>; 3] {
    let mut encoder = Encoder::new(task, step.forward(device));
    let (size, tokens) = (encoder.batch(), encoder.num_tokens());
    let pixels = pixels(batch);
    let each = pixels.len() / batch.num_samples;
    let [mut pictures, mut captions, mut logits] = [Vec::new(), Vec::new(), Vec::new()];
    for chosen in pixels.chunks(size * each) {
        let rows: Vec<HostRow> = chosen.chunks(each).map(HostRow::from).collect();
        let encoded = encoder.pictures(&rows).unwrap();
        pictures.extend_from_slice(&encoded.features);
        logits.extend_from_slice(&encoded.logits.unwrap());
    }
    for chosen in batch.read_indices("ids").chunks(size * tokens) {
        captions.extend_from_slice(&encoder.captions(chosen).unwrap());
    }
    [pictures, captions, logits]
}

/// The pictures of a random batch.
pub fn pixels(batch: &Batch) -> &[u8] {
    let found = batch.columns.iter().find(|one| one.endpoint == "pixels");
    match found.map(|one| &one.values) {
        Some(Values::Bytes(pixels)) => pixels,
        other => panic!("random batches are bytes: {other:?}"),
    }
}

/// Takes the label from every third sample: the label loss has a count of its own.
pub fn without_some_labels(task: &ClipTask, batch: Batch) -> Batch {
    if task.num_labels.is_none() {
        return batch;
    }
    let mut labels = batch.read_indices("labels").to_vec();
    labels
        .iter_mut()
        .step_by(3)
        .for_each(|label| *label = IGNORED);
    let ids = batch.read_indices("ids").to_vec();
    batch_of(task, Values::Bytes(pixels(&batch).to_vec()), ids, labels)
}

/// A vision transformer that trains in milliseconds: a preset's family, smaller.
pub fn tiny_vit(preset: &str) -> VisionTransformerConfig {
    let mut config = VisionTransformerConfig::preset(preset).unwrap();
    config.vision.image_size = 16;
    config.vision.patch_size = 8;
    config.vision.hidden_size = 32;
    config.vision.intermediate_size = 64;
    config.vision.num_layers = 3;
    config.vision.num_heads = 4;
    config
}

/// A U-Net that trains in milliseconds, with deep supervision.
pub fn tiny_unet(kind: UnetKind) -> UnetConfig {
    let preset = match kind {
        UnetKind::Plain => "unet-demo",
        UnetKind::ResidualEncoder => "nnunet-resenc",
    };
    UnetConfig {
        channels: vec![4, 8, 8, 8],
        encoder_blocks: vec![1, 2, 1, 1],
        decoder_blocks: 1,
        norm: Norm::Group { groups: 4 },
        deep_supervision: true,
        ..UnetConfig::preset(preset).unwrap()
    }
}

/// A head of this name.
pub fn head(name: &str, kind: TargetKind) -> Head {
    Head::new(&Target {
        name: name.to_owned(),
        kind,
    })
}

pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("label {number}")).collect()
}

/// One label, several labels and a number, with weights and smoothing; pictures mixed, dropout and stochastic depth on.
pub fn mixed_task(backbone: VisionTransformerConfig, seed: u64) -> ClassifyTask {
    let mut make = head("make", TargetKind::Class { names: names(5) });
    make.class_weights = vec![0.5, 1.0, 2.0, 1.25, 0.75];
    make.smoothing = 0.1;
    let mut colour = head("colour", TargetKind::Class { names: names(3) });
    colour.class_weights = vec![2.0, 0.5, 1.0];
    let mut tags = head("tags", TargetKind::Classes { names: names(4) });
    tags.class_weights = vec![1.0, 3.0, 0.25, 1.0];
    tags.weight = 0.5;
    let mut age = head(
        "age",
        TargetKind::Number {
            mean: 30.0,
            std: 10.0,
        },
    );
    age.weight = 0.25;
    let mut task = ClassifyTask::new(backbone, vec![make, colour, tags, age]);
    task.mixing = Mixing {
        mixup: 0.4,
        cutmix: 1.0,
        ..Mixing::default()
    };
    task.dropout = 0.1;
    task.stochastic_depth = 0.3;
    task.seed = seed;
    task
}

/// Random samples of [`mixed_task`]; every third label of the first head and every fifth number of the others is not known.
pub fn mixed_batch(task: &ClassifyTask, samples: usize, seed: u64) -> Batch {
    let mut bits = holdall_models::init::Draw::new(seed, "targets");
    let bytes =
        holdall_train::engine::batch::random_bytes(&mut bits, samples * task.picture_bytes());
    let mut below = |limit: u64| bits.bits() % limit;
    let labels: Vec<i64> = (0..samples)
        .map(|row| match row % 3 {
            2 => IGNORED,
            _ => below(5) as i64,
        })
        .collect();
    let colours: Vec<i64> = (0..samples).map(|_| below(3) as i64).collect();
    let unknown = |index: usize, value: f32| match index % 5 {
        3 => f32::NAN,
        _ => value,
    };
    let tags: Vec<f32> = (0..4 * samples)
        .map(|index| unknown(index, below(2) as f32))
        .collect();
    let ages: Vec<f32> = (0..samples)
        .map(|index| unknown(index, 15.0 + below(30) as f32))
        .collect();
    let targets = [
        classify::Targets::Class(&labels),
        classify::Targets::Class(&colours),
        classify::Targets::Numbers(&tags),
        classify::Targets::Numbers(&ages),
    ];
    classify::batch_of(task, Values::Bytes(bytes), &targets)
}

/// Fills a classifier's weights as a run from nothing does.
pub fn draw_classifier(device: &Device, step: &mut Step, task: &ClassifyTask, seed: u64) {
    let fill = task.weights(seed).unwrap();
    step.set_weights(device, fill).unwrap();
}

/// Outputs of a classifier for pictures, through the evaluation program.
pub fn logits(step: &mut Step, device: &Device, pictures: &[HostRow]) -> Vec<f32> {
    let mut forward = step.forward(device);
    let size = forward.rows("classifier/pixels");
    let mut logits = Vec::new();
    for chosen in pictures.chunks(size) {
        forward.feed_pictures("classifier/pixels", chosen);
        forward.run("classifier").unwrap();
        let outputs = forward.read_rows("classifier/logits", chosen.len());
        logits.extend_from_slice(&outputs.unwrap());
    }
    logits
}

/// Outputs of a classifier in a step, picture by picture: half the gradient of its bias, where all of them are to be zero.
pub fn logits_of_step(
    device: &Device,
    task: &ClassifyTask,
    fill: impl FnOnce(&mut Step),
    pixels: &[f32],
    num_pictures: usize,
) -> Vec<f32> {
    let number = TargetKind::Number {
        mean: 0.0,
        std: 1.0,
    };
    let outputs = task.model.labels.iter();
    let heads = outputs.map(|name| head(name, number.clone())).collect();
    let mut numbers = ClassifyTask::new(task.model.backbone.clone(), heads);
    numbers.pixels = DType::F32;
    let split = Split {
        batch_size: 1,
        kept: 0,
        recompute: Recompute::None,
    };
    let config = StepConfig::new(Arc::new(numbers.clone()));
    let mut step = step(device, &config, 1, split);
    fill(&mut step);
    let targets: Vec<_> = (0..task.model.labels.len())
        .map(|_| classify::Targets::Numbers(&[0.0]))
        .collect();
    let mut logits = Vec::new();
    for picture in pixels.chunks(pixels.len() / num_pictures) {
        let batch = classify::batch_of(&numbers, Values::Floats(picture.to_vec()), &targets);
        step.gradients(device, &batch, 1.0).unwrap();
        let mut parameters = step.parameters().iter();
        let bias = parameters.find(|one| one.name == "classifier.bias");
        let gradient = step.gradient(bias.unwrap()).unwrap().unwrap();
        logits.extend(gradient.iter().map(|value| value / 2.0));
    }
    logits
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Errors of gradients as the design defines them: |g - r| / max(|r|, 1e-3 |r_all| / sqrt(P)).
pub fn gradient_errors(pairs: &[(String, Vec<f64>, Vec<f64>)]) -> Vec<(String, f64)> {
    let all = norm(
        pairs
            .iter()
            .flat_map(|(_, _, reference)| reference.iter().copied()),
    );
    let floor = 1e-3 * all / (pairs.len() as f64).sqrt();
    pairs
        .iter()
        .map(|(name, found, reference)| {
            let difference = norm(found.iter().zip(reference).map(|(a, b)| a - b));
            let scale = norm(reference.iter().copied()).max(floor);
            (name.clone(), difference / scale)
        })
        .collect()
}

/// What a tiny video-text model is made of.
#[derive(Clone, Copy, Debug)]
pub struct VideoTextParts {
    pub pooling: &'static str,
    pub has_bert: bool,
    pub has_decoder: bool,
    pub is_tied: bool,
    pub num_videos: usize,
}

/// A video-text task of a few thousand parameters with everything on that its parts allow.
pub fn tiny_video_text(parts: VideoTextParts, seed: u64) -> VideoTextTask {
    let small = ClipConfig::preset("small").unwrap();
    let text = TextConfig {
        hidden_size: 16,
        intermediate_size: 24,
        num_layers: 1,
        num_heads: 2,
        vocab_size: 31,
        max_positions: 36,
        pooling: TextPooling::FirstEos(30),
        ..small.text
    };
    // Of random weights, the class token of a narrower one hardly depends on its text: features of two texts differ by little more than
    // rounding, and so does what is left of the gradient of `logit_scale`.
    let bert = BertConfig {
        hidden_size: 48,
        intermediate_size: 20,
        num_layers: 1,
        num_heads: 3,
        vocab_size: 29,
        max_positions: 34,
        num_types: 2,
        activation: Activation::Gelu,
        layer_norm_eps: 1e-12,
        hidden_dropout: 0.1,
        attention_dropout: 0.1,
    };
    let vision = VisionConfig {
        hidden_size: 16,
        intermediate_size: 24,
        num_layers: 1,
        num_heads: 2,
        image_size: 16,
        patch_size: 8,
        ..small.vision
    };
    let clip = ClipConfig {
        text,
        vision,
        projection_dim: 16,
        ..small
    };
    let mut model = VideoTextConfig::of_clip(&clip, 2);
    model.num_videos = parts.num_videos;
    if parts.has_bert {
        model.text = TextTower::Bert(bert);
    }
    model.pooling = match parts.pooling {
        "mean" => Pooling::Mean,
        "projected" => Pooling::Temporal {
            layers: 1,
            heads: 2,
            inner: 20,
            place: TemporalInput::Projected,
        },
        "hidden" => Pooling::Temporal {
            layers: 1,
            heads: 2,
            inner: 20,
            place: TemporalInput::Hidden,
        },
        _ => Pooling::Attention {
            queries: 3,
            heads: 2,
        },
    };
    model.decoder = parts.has_decoder.then(|| DecoderConfig {
        layers: 1,
        width: 12,
        heads: 2,
        inner: 18,
        tied: parts.is_tied,
        ..DecoderConfig::new(23, 33, [21, 22, 0])
    });
    let kinds = [
        TargetKind::Class { names: names(3) },
        TargetKind::Number {
            mean: 1.0,
            std: 2.0,
        },
    ];
    let heads = ["make", "age"].iter().zip(kinds);
    let heads = heads.map(|(name, kind)| head(name, kind)).collect();
    let mut task = VideoTextTask::new(model, heads);
    task.loss.caption_smoothing = 0.1;
    task.masks_frames = true;
    task.loss.same_text = SameText::Positive;
    task.loss.token_weights = (0..23)
        .map(|id| if id % 5 == 0 { 5.0 } else { 1.0 })
        .collect();
    task.loss.contrastive_tile = 5;
    task.loss.vocabulary_tile = 7;
    task.sorted_ids = seed & 1 == 1;
    task.dropout = if parts.has_bert { 0.1 } else { 0.0 };
    task.seed = seed;
    task
}

/// Clips with texts and captions of every length, some of them equal; targets that are not always known.
pub fn varied_clips(task: &VideoTextTask, num_samples: usize, seed: u64) -> Batch {
    let mut draw = holdall_models::init::Draw::new(seed, "clips");
    let mut below = |bound: usize| (draw.bits() % bound as u64) as usize;
    // Each clip has its own light. Of two clips of mere noise with one text, the two samples' gradients of the text tower nearly cancel:
    // features have the same bits under both splits, sums of gradients differ by 4e-7, and that was 1.9e-5 of what was left.
    let mut pixels = Vec::with_capacity(num_samples * task.picture_bytes());
    for _ in 0..num_samples {
        let lights = [0; 3].map(|_| 1 + below(255));
        let bytes = (0..task.picture_bytes()).map(|at| (below(256) * lights[at % 3] / 255) as u8);
        pixels.extend(bytes);
    }
    let frames = task.model.frames();
    let frame_counts: Vec<i64> = (0..num_samples).map(|_| 1 + below(frames) as i64).collect();
    let (width, vocabulary) = (task.num_text_tokens, task.model.text_vocab_size());
    let mut texts = Texts {
        ids: Vec::new(),
        lengths: Vec::new(),
        caption_ids: Vec::new(),
        caption_labels: Vec::new(),
        groups: Vec::new(),
    };
    for sample in 0..num_samples {
        let length = 2 + below(width - 1);
        for position in 0..width {
            texts.ids.push(match position + 1 {
                at if at >= length => vocabulary as i64 - 1,
                _ => below(vocabulary - 1) as i64,
            });
        }
        texts.lengths.push(length as i64);
        // Some texts are equal, never all of them.
        let is_repeated = sample > 1 && below(3) == 0;
        texts
            .groups
            .push((sample - usize::from(is_repeated)) as i64);
        if let Some(decoder) = task.decoder() {
            let tokens = task.num_caption_tokens;
            let length = 1 + below(tokens);
            for position in 0..tokens {
                texts.caption_ids.push(below(decoder.vocab_size) as i64);
                let is_said = position < length;
                let id = below(decoder.vocab_size) as i64;
                texts
                    .caption_labels
                    .push(if is_said { id } else { IGNORED });
            }
        }
    }
    let labels: Vec<i64> = (0..num_samples).map(|_| below(4) as i64 - 1).collect();
    let numbers: Vec<f32> = (0..num_samples)
        .map(|_| {
            if below(3) == 0 {
                f32::NAN
            } else {
                below(9) as f32
            }
        })
        .collect();
    let targets = [
        classify::Targets::Class(&labels),
        classify::Targets::Numbers(&numbers),
    ];
    video_text::batch_of(task, &pixels, &frame_counts, &texts, &targets)
}
