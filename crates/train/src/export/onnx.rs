//! Exports a model's forward programs as ONNX files, with the preprocessing files beside them.
//!
//! ```text
//! FOLDER/image_encoder.onnx, text_encoder.onnx        CLIP
//! FOLDER/classifier.onnx                              classification
//! FOLDER/segmenter.onnx                               segmentation
//! FOLDER/video_encoder.onnx, text_encoder.onnx, decoder.onnx        video-text
//! FOLDER/preprocessor_config.json, tokenizer.json, ...              preprocessing of pictures and texts
//! ```

use std::io;
use std::path::{Path, PathBuf};

use holdall_files::create_folders;
use holdall_onnx::{Precision, Program};

use crate::error::TrainError;
use crate::export::model_copy::{copy_companions, not_written};
use crate::tasks::Saved;

/// A program and the name of its file.
pub(crate) struct OnnxFile {
    name: &'static str,
    program: Program,
}

impl OnnxFile {
    pub fn new(name: &'static str, program: Program) -> OnnxFile {
        OnnxFile { name, program }
    }

    /// Adds a line to the file's metadata.
    pub fn say(&mut self, key: &str, value: String) {
        self.program.metadata.push((key.to_owned(), value));
    }
}

/// An exported file.
#[derive(Debug)]
pub struct WrittenProgram {
    pub path: PathBuf,
    pub weight_bytes: u64,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
}

/// Writes all forward programs of a model into a folder; files of the same names are replaced.
pub fn export(
    saved: &Saved,
    folder: &Path,
    precision: Precision,
) -> Result<Vec<WrittenProgram>, TrainError> {
    let files = saved.onnx(precision)?;
    create_folders(folder).map_err(not_written(folder))?;
    let task = saved.task();
    let mut written = Vec::new();
    for OnnxFile { name, program } in files {
        let path = folder.join(name).with_added_extension("onnx");
        let mut fill = task.weights(0)?;
        // An error of a weight is returned as it is; an I/O error gets the name of the ONNX file.
        let mut unread = None;
        let filled = program.write(&path, &mut |name, values| {
            fill(name, values).map_err(|error| {
                unread = Some(error);
                io::Error::other("a weight could not be read")
            })
        });
        match (filled, unread) {
            (_, Some(error)) => return Err(error),
            (filled, None) => filled.map_err(not_written(&path))?,
        }
        let names = |infos: &[holdall_onnx::proto::ValueInfoProto]| {
            infos.iter().map(|info| info.name.clone()).collect()
        };
        written.push(WrittenProgram {
            weight_bytes: program.weight_bytes(),
            inputs: names(&program.graph.input),
            outputs: names(&program.graph.output),
            path,
        });
    }
    copy_companions(saved.model().path(), folder)?;
    Ok(written)
}

#[cfg(test)]
mod tests;
