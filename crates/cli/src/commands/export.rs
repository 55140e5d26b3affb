//! `holdall export`: converts a trained model for other programs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_files::show_bytes;
use holdall_onnx::{OPSET, Precision};
use holdall_train::TrainError;
use holdall_train::export::model_copy::{WeightFormat, copy_model};
use holdall_train::export::onnx::{self, WrittenProgram};
use holdall_train::export::saved_model::open_folder;
use holdall_train::tasks::Saved;
use serde::Serialize;

use crate::options::{OutputOptions, OverwriteOption};
use crate::screen::{print_json, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall export runs/cars --onnx\n  \
                  holdall export runs/cars --onnx --half --out cars-onnx\n  \
                  holdall export runs/cars --half --out cars-f16\n  \
                  holdall export openai/clip-vit-base-patch32 --merge runs/cars/model/adapter --out cars-merged\n\n\
                  ONNX files have opset 17, any batch size, and inputs and outputs in f32: pixel_values (normalised, channels first) and\n\
                  input_ids in; image_embeds, text_embeds, video_embeds and logits out. The files that turn pictures and texts\n\
                  into inputs are copied beside them.")]
pub struct ExportArguments {
    /// The folder of a run, a model folder, or a name in the local Hugging Face cache
    #[arg(value_name = "RUN|MODEL")]
    pub model: String,
    /// Forward programs as ONNX files: encoders, classifier, segmentation model, decoder
    #[arg(long)]
    pub onnx: bool,
    /// Weights in half precision; of ONNX files, what is computed too, but for norms
    #[arg(long, aliases = ["fp16", "f16"])]
    pub half: bool,
    /// Merges a LoRA adapter that peft or a run wrote into the model's weights; a run's own is merged in RUN/model already
    #[arg(long, value_name = "ADAPTER", conflicts_with = "onnx")]
    pub merge: Option<PathBuf>,
    /// Where it goes: an empty folder, or a new one; a model folder always a new one [default: RUN/onnx for ONNX files]
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: OverwriteOption,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Serialize)]
struct ExportJson<'a> {
    model: &'a Path,
    folder: &'a Path,
    precision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    opset: Option<i64>,
    files: Vec<FileJson<'a>>,
}

#[derive(Serialize)]
struct FileJson<'a> {
    path: &'a Path,
    weight_bytes: u64,
    inputs: &'a [String],
    outputs: &'a [String],
}

/// Memory limit for opening a tokenizer, which is only checked here.
const ROOM_TO_OPEN: u64 = 1 << 32;

pub fn run(arguments: ExportArguments) -> Result<ExitCode> {
    if arguments.onnx {
        export_onnx(&arguments)
    } else {
        export_folder(&arguments)
    }
}

fn precision_name(half: bool) -> &'static str {
    if half { "f16" } else { "f32" }
}

fn export_onnx(arguments: &ExportArguments) -> Result<ExitCode> {
    let saved = Saved::open(&arguments.model, ROOM_TO_OPEN)?;
    let (folder, option) = match &arguments.out {
        Some(out) => (out.clone(), "--out "),
        None => (beside(&arguments.model)?, ""),
    };
    let checked = arguments.overwrite.existing().check_folder(&folder);
    checked.map_err(|occupied| TrainError::Config(format!("{option}{occupied}")))?;
    let precision = if arguments.half {
        Precision::Half
    } else {
        Precision::Full
    };
    let written = onnx::export(&saved, &folder, precision)?;
    if arguments.output.json {
        print_json(&ExportJson {
            model: saved.model().path(),
            folder: &folder,
            precision: precision_name(arguments.half),
            opset: Some(OPSET),
            files: written.iter().map(as_json).collect(),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    for one in &written {
        tell(&format!(
            "{}: {} -> {} ({})",
            one.path.display(),
            one.inputs.join(", "),
            one.outputs.join(", "),
            show_bytes(one.weight_bytes)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The `onnx` folder inside a run; models elsewhere need an explicit output folder.
fn beside(model: &str) -> Result<PathBuf, TrainError> {
    let run = Path::new(model);
    if run.join("config.yml").is_file() {
        Ok(run.join("onnx"))
    } else {
        Err(TrainError::Config(format!(
            "{model}: is no run, and --out is not given\nhint: --out FOLDER says where the files go"
        )))
    }
}

fn export_folder(arguments: &ExportArguments) -> Result<ExitCode> {
    let Some(out) = &arguments.out else {
        return Err(TrainError::Config(
            "--out: where should the model go?\nhint: --out FOLDER, or --onnx for ONNX files beside the run".to_owned(),
        )
        .into());
    };
    let model = open_folder(&arguments.model)?;
    let format = if arguments.half {
        WeightFormat::F16
    } else {
        WeightFormat::F32
    };
    let merge = arguments.merge.as_deref();
    stop::whole(|| copy_model(&model, out, format, merge))?;
    let precision = precision_name(arguments.half);
    if arguments.output.json {
        print_json(&ExportJson {
            model: model.path(),
            folder: out,
            precision,
            opset: None,
            files: Vec::new(),
        })?;
    } else {
        tell(&format!(
            "{}: {precision} weights of {}",
            out.display(),
            model.path().display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(one: &WrittenProgram) -> FileJson<'_> {
    FileJson {
        path: &one.path,
        weight_bytes: one.weight_bytes,
        inputs: &one.inputs,
        outputs: &one.outputs,
    }
}
