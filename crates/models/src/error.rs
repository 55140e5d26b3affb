//! Errors of model folders. Every message names its subject, the expected and the found value, and ends with a hint.

mod mismatch;

use std::io;
use std::path::PathBuf;

use holdall_files::{OverLimit, show_bytes};

pub use mismatch::{Misshaped, TensorMismatch};

/// A model folder cannot be read or written, or its contents are wrong.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A system call failed.
    #[error(
        "{}: could not {action}: {cause}\n\
         hint: check that the path exists, that you have the rights to it and that the disk has room",
        path.display()
    )]
    Io {
        path: PathBuf,
        /// The attempted action, in words.
        action: &'static str,
        /// Not a `source`, because the message already contains it.
        cause: io::Error,
    },

    /// The path of a model folder is something else.
    #[error(
        "{}: expected a model folder, found {found}\n\
         hint: name the folder that holds config.json and model.safetensors, not a file in it",
        path.display()
    )]
    NotAFolder {
        path: PathBuf,
        /// Kind of the file at this path.
        found: &'static str,
    },

    /// The folder has weights but no config.json.
    #[error(
        "{}: expected a file, found none\n\
         hint: copy the config.json that belongs to these weights beside them",
        file.display()
    )]
    NoConfig {
        /// Expected path of the config.json.
        file: PathBuf,
    },

    /// The folder has no weights in a supported format.
    #[error(
        "{}: expected model.safetensors or model.safetensors.index.json, found {found}\n\
         hint: point to a folder saved by `save_pretrained`; files ending in .partial are what an \
         interrupted write left",
        folder.display()
    )]
    NoWeights {
        folder: PathBuf,
        /// Names of the files in the folder.
        found: String,
    },

    /// The weights are a pickle.
    #[error(
        "{}: expected safetensors, found a pickle, which runs code when it is read\n\
         hint: if you trust it, these two lines of Python convert it:\n{conversion}",
        file.display()
    )]
    Pickle {
        file: PathBuf,
        /// Two lines of Python that convert it.
        conversion: String,
    },

    /// A JSON file exceeds the size limit.
    #[error(
        "{}: expected at most {limit_bytes} bytes of JSON, found {found_bytes}\n\
         hint: the file was probably overwritten with something else; download it again",
        file.display()
    )]
    JsonTooLarge {
        file: PathBuf,
        limit_bytes: u64,
        found_bytes: u64,
    },

    #[error(
        "{}: expected UTF-8, found other bytes {valid_bytes} bytes into {part}\n\
         hint: the file is damaged or of another format; copy or download it again",
        file.display()
    )]
    NotUtf8 {
        file: PathBuf,
        /// Part of the file, in words.
        part: &'static str,
        /// Valid bytes at the beginning of that part.
        valid_bytes: usize,
    },

    /// JSON that does not parse or has another structure.
    #[error(
        "{}: expected {expected}, found {found}\n\
         hint: the file is damaged or was edited by hand; copy or download it again",
        file.display()
    )]
    Json {
        file: PathBuf,
        /// The expected structure.
        expected: &'static str,
        /// The parser's message, or the value found.
        found: String,
    },

    /// config.json describes an architecture that is not supported.
    #[error(
        "{}: `model_type` and `architectures` are {found}, expected {expected}\n\
         hint: other architectures have other tensors; save the model as one of those that Holdall trains",
        file.display()
    )]
    Architecture {
        /// Path of the config.json.
        file: PathBuf,
        /// Supported architectures.
        expected: String,
        /// Architecture in the file.
        found: String,
    },

    /// A CLIP model is required, and the folder has another model.
    #[error(
        "{}: expected CLIPModel, found {found}\n\
         hint: {use_of_it}",
        folder.display()
    )]
    NotClip {
        folder: PathBuf,
        /// Architecture in the folder.
        found: String,
        /// Hint about the commands that take this architecture.
        use_of_it: &'static str,
    },

    /// A folder to start training from has a model of the wrong kind.
    #[error(
        "{}: expected {expected}, found {found}\n\
         hint: `model` takes a CLIP folder, a folder saved by a video-text run or a preset; `video_text.text_model` takes a BERT folder",
        folder.display()
    )]
    Source {
        folder: PathBuf,
        /// Expected kind of model.
        expected: &'static str,
        /// Kind of model in the folder.
        found: String,
    },

    /// A parameter of the graph without an initialisation rule.
    #[error(
        "`{name}`: expected a parameter of {model}, found no rule for what it starts as\n\
         hint: this is a fault in Holdall, not in your files: its graph has a parameter that its initialisation does not know; \
         start from a model folder, and report the name"
    )]
    UnknownParameter {
        /// Architecture.
        model: &'static str,
        /// Name of the parameter.
        name: String,
    },

    /// config.json names an unsupported activation function.
    #[error(
        "{}: `{key}` is {found}, expected {expected}\n\
         hint: OpenAI's models have \"quick_gelu\", most of OpenCLIP's have \"gelu\"",
        file.display()
    )]
    Activation {
        /// Path of the config.json.
        file: PathBuf,
        /// Key with its section.
        key: String,
        /// Supported values.
        expected: String,
        /// Value in the file.
        found: String,
    },

    /// A value in config.json has the wrong type or is out of range.
    #[error(
        "{}: `{key}` is {found}, expected {expected}\n\
         hint: restore the config.json that came with the weights, or correct this key",
        file.display()
    )]
    Setting {
        /// Path of the config.json.
        file: PathBuf,
        /// Key with its section.
        key: String,
        /// Valid values.
        expected: String,
        /// Value in the file.
        found: String,
    },

    /// A file differs from its checksum.
    #[error(
        "{}: damaged: {part}: expected {expected}, as Holdall wrote it, found {found}\n\
         hint: the file has changed since: restore it from a backup, or train again; if it was edited on purpose, remove \
         the holdall.json beside it, which has its checksum",
        file.display()
    )]
    Damaged {
        file: PathBuf,
        /// Part of the file, in words.
        part: String,
        /// Recorded contents or checksum.
        expected: String,
        /// Contents or checksum found.
        found: String,
    },

    /// A safetensors file is shorter than its header says.
    #[error(
        "{}: expected {expected_bytes} bytes, as its header says, found {found_bytes}\n\
         hint: the copy or download was cut short; fetch the file again",
        file.display()
    )]
    Truncated {
        file: PathBuf,
        /// Size by length field and header. Larger than 64 bits only in a hostile file.
        expected_bytes: u128,
        /// Actual size.
        found_bytes: u64,
    },

    /// A safetensors file continues after its last tensor.
    #[error(
        "{}: expected to end after {expected_bytes} bytes, as its header says, found {found_bytes}\n\
         hint: two files may have been joined; fetch the file again",
        file.display()
    )]
    TrailingBytes {
        file: PathBuf,
        /// Size by length field and header.
        expected_bytes: u128,
        /// Actual size.
        found_bytes: u64,
    },

    /// Parsing the header of a safetensors file takes more memory than the budget leaves.
    #[error(
        "{}: its header of {} takes {} to read, and the budget leaves {}\n\
         hint: check what it is, or --memory {}MiB",
        file.display(),
        show_bytes(*header_bytes),
        show_bytes(over.needed_bytes),
        show_bytes(over.left_bytes),
        over.total_bytes.div_ceil(1 << 20)
    )]
    HeaderOverBudget {
        file: PathBuf,
        /// Value of the length field.
        header_bytes: u64,
        over: OverLimit,
    },

    /// The length field of a safetensors file exceeds the format's limit.
    #[error(
        "{}: expected a header of at most {limit_bytes} bytes, found {found_bytes} in its length field\n\
         hint: this is probably no safetensors file; check what it is and fetch it again",
        file.display()
    )]
    HeaderLength {
        file: PathBuf,
        /// Limit of the format.
        limit_bytes: u64,
        /// Value of the length field.
        found_bytes: u64,
    },

    /// Tensors in a safetensors file leave a gap or overlap.
    #[error(
        "{}: `{tensor}` expected at byte {expected} of the data, where the tensor before it ends, \
         found at {found}\n\
         hint: the header is damaged; fetch the file again, or save the model anew",
        file.display()
    )]
    Placement {
        file: PathBuf,
        /// Name of the misplaced tensor.
        tensor: String,
        /// Offset where the tensor should start.
        expected: usize,
        /// Offset where it starts.
        found: usize,
    },

    /// Shape and type of a tensor do not match its byte range.
    #[error(
        "{}: `{tensor}` expected {expected}, found room for {found_bytes} bytes\n\
         hint: the header is damaged; fetch the file again, or save the model anew",
        file.display()
    )]
    TensorBytes {
        file: PathBuf,
        tensor: String,
        /// Bytes needed for shape and type.
        expected: String,
        /// Bytes between the tensor's offsets.
        found_bytes: i128,
    },

    /// A tensor has a number format that is not supported for weights.
    #[error(
        "{}: `{tensor}` is of type {found}, expected F32, F16, BF16 or F64\n\
         hint: quantised weights cannot be trained; use the model they were made from",
        file.display()
    )]
    TensorType {
        file: PathBuf,
        tensor: String,
        /// Number format in the header.
        found: String,
    },

    /// Two tensors of the same name.
    #[error(
        "`{tensor}`: expected once, found in {} and in {}\n\
         hint: shards of two different saves may lie in one folder; save the model anew in an empty one",
        first.display(), second.display()
    )]
    DuplicateTensor {
        tensor: String,
        /// File of the first one.
        first: PathBuf,
        /// File of the second one.
        second: PathBuf,
    },

    /// An index names a shard outside its folder, or a file that is not safetensors.
    #[error(
        "{}: names the shard \"{}\", expected a plain file name that ends in .safetensors\n\
         hint: shards lie beside their index; an index that points elsewhere is broken or hostile",
        index.display(), found.escape_debug()
    )]
    ShardName {
        index: PathBuf,
        /// Name in the index.
        found: String,
    },

    /// A shard that the index names does not exist.
    #[error(
        "{}: expected a file, as {} names it, found none\n\
         hint: fetch all {num_shards} shards of the model into one folder",
        shard.display(), index.display()
    )]
    ShardMissing {
        index: PathBuf,
        /// Expected path of the shard.
        shard: PathBuf,
        /// Number of shards in the index.
        num_shards: usize,
    },

    /// A shard lacks a tensor that the index assigns to it.
    #[error(
        "{}: expected `{tensor}`, as {} says, found {num_found} other tensors\n\
         hint: index and shards come from different saves; fetch them again together",
        shard.display(), index.display()
    )]
    NotInShard {
        index: PathBuf,
        shard: PathBuf,
        tensor: String,
        /// Number of tensors in the shard.
        num_found: usize,
    },

    /// The tensors do not match the configuration.
    #[error(
        "{}: expected the tensors of its configuration, found{mismatch}\nhint: {}",
        folder.display(), mismatch.hint()
    )]
    Tensors {
        folder: PathBuf,
        mismatch: TensorMismatch,
    },

    /// The folder has no tensor of the requested name.
    #[error(
        "{}: expected a tensor `{tensor}`, found none of that name among {num_found}\n\
         hint: names are those of transformers' state dict, such as `text_projection.weight` of a CLIPModel",
        folder.display()
    )]
    UnknownTensor {
        folder: PathBuf,
        /// The requested name.
        tensor: String,
        /// Number of tensors in the folder.
        num_found: usize,
    },

    #[error(
        "`{tensor}`: expected {expected} values, found a slice of {found}\n\
         hint: the slice is as long as the product of the tensor's shape"
    )]
    ValueCount {
        tensor: String,
        /// Product of the tensor's shape.
        expected: usize,
        /// Length of the slice.
        found: usize,
    },

    #[error(
        "{}: tensor `{tensor}` holds {found} at {at:?} ({num_bad} of its {num_values} values {} not finite)\n\
         hint: the run that wrote it diverged, or the file is damaged; use a checkpoint from before, or fetch the file again",
        file.display(), if *num_bad == 1 { "is" } else { "are" }
    )]
    NotFinite {
        file: PathBuf,
        tensor: String,
        /// The first value that is not finite.
        found: f32,
        /// Index of that value, one number per dimension.
        at: Vec<usize>,
        /// Number of such values.
        num_bad: usize,
        /// Number of all values of the tensor.
        num_values: usize,
    },

    /// A label head is not a linear layer on the projection.
    #[error(
        "{}: expected {expected}, found {found}\n\
         hint: a head belongs to one model; remove the file to start with a fresh head",
        file.display()
    )]
    Head {
        /// Path of the head.safetensors.
        file: PathBuf,
        /// Names and shapes of a valid head.
        expected: String,
        /// Names and shapes in the file.
        found: String,
    },
}
