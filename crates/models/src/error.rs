//! What can be wrong with a model folder. Every message names its subject, what was expected and
//! what was found, and ends with a hint.

mod mismatch;

use std::io;
use std::path::PathBuf;

use holdall_files::{OverLimit, show_bytes};

pub use mismatch::{Misshaped, TensorMismatch};

/// A model folder, or what was to become one, is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The operating system refused.
    #[error(
        "{}: could not {action}: {cause}\n\
         hint: check that the path exists, that you have the rights to it and that the disk has room",
        path.display()
    )]
    Io {
        /// What was acted on.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// What the system said. Not a `source`: it is already in the message.
        cause: io::Error,
    },

    /// The path of a model folder leads to something else.
    #[error(
        "{}: expected a model folder, found {found}\n\
         hint: name the folder that holds config.json and model.safetensors, not a file in it",
        path.display()
    )]
    NotAFolder {
        /// The path given.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },

    /// The folder has weights, and no config.json.
    #[error(
        "{}: expected a file, found none\n\
         hint: copy the config.json that belongs to these weights beside them",
        file.display()
    )]
    NoConfig {
        /// Where it should be.
        file: PathBuf,
    },

    /// The folder has no weights that can be read.
    #[error(
        "{}: expected model.safetensors or model.safetensors.index.json, found {found}\n\
         hint: point to a folder saved by `save_pretrained`; files ending in .partial are what an \
         interrupted write left",
        folder.display()
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// The files in it.
        found: String,
    },

    /// The weights are pickled.
    #[error(
        "{}: expected safetensors, found a pickle, which runs code when it is read\n\
         hint: if you trust it, these two lines of Python convert it:\n{conversion}",
        file.display()
    )]
    Pickle {
        /// The pickle.
        file: PathBuf,
        /// Two lines of Python.
        conversion: String,
    },

    /// A JSON file larger than any real one.
    #[error(
        "{}: expected at most {limit_bytes} bytes of JSON, found {found_bytes}\n\
         hint: the file was probably overwritten with something else; download it again",
        file.display()
    )]
    JsonTooLarge {
        /// The file.
        file: PathBuf,
        /// The most that is read.
        limit_bytes: u64,
        /// Its size.
        found_bytes: u64,
    },

    /// Text that is not UTF-8.
    #[error(
        "{}: expected UTF-8, found other bytes {valid_bytes} bytes into {part}\n\
         hint: the file is damaged or of another format; copy or download it again",
        file.display()
    )]
    NotUtf8 {
        /// The file.
        file: PathBuf,
        /// Which part of it.
        part: &'static str,
        /// How many bytes of that part are good.
        valid_bytes: usize,
    },

    /// JSON that does not parse, or is of another form.
    #[error(
        "{}: expected {expected}, found {found}\n\
         hint: the file is damaged or was edited by hand; copy or download it again",
        file.display()
    )]
    Json {
        /// The file.
        file: PathBuf,
        /// The form it should have.
        expected: &'static str,
        /// What the parser said, or what stands there instead.
        found: String,
    },

    /// config.json describes a model that Holdall does not build.
    #[error(
        "{}: `model_type` and `architectures` are {found}, expected {expected}\n\
         hint: other architectures have other tensors; save the model as one of those that Holdall trains",
        file.display()
    )]
    Architecture {
        /// The config.json.
        file: PathBuf,
        /// What is supported.
        expected: String,
        /// What it says.
        found: String,
    },

    /// A CLIP model was asked for, and the folder has another.
    #[error(
        "{}: expected CLIPModel, found {found}\n\
         hint: {use_of_it}",
        folder.display()
    )]
    NotClip {
        /// The folder.
        folder: PathBuf,
        /// What it has.
        found: String,
        /// What takes it instead.
        use_of_it: &'static str,
    },

    /// A folder to start from has a model of another kind.
    #[error(
        "{}: expected {expected}, found {found}\n\
         hint: `model` takes a CLIP folder, a folder saved by a video-text run or a preset; `video_text.text_model` takes a BERT folder",
        folder.display()
    )]
    Source {
        /// The folder.
        folder: PathBuf,
        /// What it should have.
        expected: &'static str,
        /// What it has.
        found: String,
    },

    /// A parameter that no rule says how to draw.
    #[error(
        "`{name}`: expected a parameter of {model}, found no rule for what it starts as\n\
         hint: this is a fault in Holdall, not in your files: its graph has a parameter that its initialisation does not know; \
         start from a model folder, and report the name"
    )]
    UnknownParameter {
        /// The architecture.
        model: &'static str,
        /// The parameter.
        name: String,
    },

    /// config.json names a nonlinearity that Holdall does not have.
    #[error(
        "{}: `{key}` is {found}, expected {expected}\n\
         hint: OpenAI's models have \"quick_gelu\", most of OpenCLIP's have \"gelu\"",
        file.display()
    )]
    Activation {
        /// The config.json.
        file: PathBuf,
        /// The key, with its section.
        key: String,
        /// What is supported.
        expected: String,
        /// What it says.
        found: String,
    },

    /// A value of config.json is of the wrong type or out of range.
    #[error(
        "{}: `{key}` is {found}, expected {expected}\n\
         hint: restore the config.json that came with the weights, or correct this key",
        file.display()
    )]
    Setting {
        /// The config.json.
        file: PathBuf,
        /// The key, with its section.
        key: String,
        /// The values that make sense.
        expected: String,
        /// What it says.
        found: String,
    },

    /// A file is not as Holdall wrote it.
    #[error(
        "{}: damaged: {part}: expected {expected}, as Holdall wrote it, found {found}\n\
         hint: the file has changed since: restore it from a backup, or train again; if it was edited on purpose, remove \
         the holdall.json beside it, which has its checksum",
        file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Which part of it.
        part: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },

    /// A safetensors file ends before its own header says.
    #[error(
        "{}: expected {expected_bytes} bytes, as its header says, found {found_bytes}\n\
         hint: the copy or download was cut short; fetch the file again",
        file.display()
    )]
    Truncated {
        /// The safetensors file.
        file: PathBuf,
        /// What length field and header promise. Larger than 64 bits only in a hostile file.
        expected_bytes: u128,
        /// Its size.
        found_bytes: u64,
    },

    /// A safetensors file goes on after its last tensor.
    #[error(
        "{}: expected to end after {expected_bytes} bytes, as its header says, found {found_bytes}\n\
         hint: two files may have been joined; fetch the file again",
        file.display()
    )]
    TrailingBytes {
        /// The safetensors file.
        file: PathBuf,
        /// What length field and header promise.
        expected_bytes: u128,
        /// Its size.
        found_bytes: u64,
    },

    /// The header of a safetensors file takes more than the budget leaves.
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
        /// The file.
        file: PathBuf,
        /// What the length field says.
        header_bytes: u64,
        /// By how much.
        over: OverLimit,
    },

    /// The header of a safetensors file is said to be of an absurd length.
    #[error(
        "{}: expected a header of at most {limit_bytes} bytes, found {found_bytes} in its length field\n\
         hint: this is probably no safetensors file; check what it is and fetch it again",
        file.display()
    )]
    HeaderLength {
        /// The file.
        file: PathBuf,
        /// The most that the format allows.
        limit_bytes: u64,
        /// What the length field says.
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
        /// The safetensors file.
        file: PathBuf,
        /// The tensor that is out of place.
        tensor: String,
        /// Where it should start.
        expected: usize,
        /// Where it does.
        found: usize,
    },

    /// Shape and type of a tensor disagree with its place in the file.
    #[error(
        "{}: `{tensor}` expected {expected}, found room for {found_bytes} bytes\n\
         hint: the header is damaged; fetch the file again, or save the model anew",
        file.display()
    )]
    TensorBytes {
        /// The safetensors file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Bytes that shape and type need.
        expected: String,
        /// Bytes between its offsets.
        found_bytes: i128,
    },

    /// A tensor is of a type that no weight has.
    #[error(
        "{}: `{tensor}` is of type {found}, expected F32, F16, BF16 or F64\n\
         hint: quantised weights cannot be trained; use the model they were made from",
        file.display()
    )]
    TensorType {
        /// The safetensors file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },

    /// One name, two tensors.
    #[error(
        "`{tensor}`: expected once, found in {} and in {}\n\
         hint: shards of two different saves may lie in one folder; save the model anew in an empty one",
        first.display(), second.display()
    )]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// Where it is.
        first: PathBuf,
        /// Where it is again.
        second: PathBuf,
    },

    /// An index points out of its folder, or to something that is not safetensors.
    #[error(
        "{}: names the shard \"{}\", expected a plain file name that ends in .safetensors\n\
         hint: shards lie beside their index; an index that points elsewhere is broken or hostile",
        index.display(), found.escape_debug()
    )]
    ShardName {
        /// The index.
        index: PathBuf,
        /// The name in it.
        found: String,
    },

    /// An index names a shard that is not there.
    #[error(
        "{}: expected a file, as {} names it, found none\n\
         hint: fetch all {num_shards} shards of the model into one folder",
        shard.display(), index.display()
    )]
    ShardMissing {
        /// The index.
        index: PathBuf,
        /// Where the shard should be.
        shard: PathBuf,
        /// How many shards the index names.
        num_shards: usize,
    },

    /// An index promises a tensor that the shard does not have.
    #[error(
        "{}: expected `{tensor}`, as {} says, found {num_found} other tensors\n\
         hint: index and shards come from different saves; fetch them again together",
        shard.display(), index.display()
    )]
    NotInShard {
        /// The index.
        index: PathBuf,
        /// The shard.
        shard: PathBuf,
        /// The tensor.
        tensor: String,
        /// How many tensors the shard has.
        num_found: usize,
    },

    /// The tensors are not those of the configuration.
    #[error(
        "{}: expected the tensors of its configuration, found{mismatch}\nhint: {}",
        folder.display(), mismatch.hint()
    )]
    Tensors {
        /// The folder.
        folder: PathBuf,
        /// How they differ.
        mismatch: TensorMismatch,
    },

    /// A tensor was asked for that the folder does not have.
    #[error(
        "{}: expected a tensor `{tensor}`, found none of that name among {num_found}\n\
         hint: names are those of transformers' state dict, such as `text_projection.weight` of a CLIPModel",
        folder.display()
    )]
    UnknownTensor {
        /// The folder.
        folder: PathBuf,
        /// The name asked for.
        tensor: String,
        /// How many tensors there are.
        num_found: usize,
    },

    /// A slice of values does not have the length of its tensor.
    #[error(
        "`{tensor}`: expected {expected} values, found a slice of {found}\n\
         hint: the slice is as long as the product of the tensor's shape"
    )]
    ValueCount {
        /// The tensor.
        tensor: String,
        /// The product of its shape.
        expected: usize,
        /// The length of the slice.
        found: usize,
    },

    /// A weight is infinite or not a number.
    #[error(
        "{}: tensor `{tensor}` holds {found} at {at:?} ({num_bad} of its {num_values} values {} not finite)\n\
         hint: the run that wrote it diverged, or the file is damaged; use a checkpoint from before, or fetch the file again",
        file.display(), if *num_bad == 1 { "is" } else { "are" }
    )]
    NotFinite {
        /// The safetensors file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The first such value.
        found: f32,
        /// Where it is, an index for each dimension.
        at: Vec<usize>,
        /// How many there are.
        num_bad: usize,
        /// How many values the tensor has.
        num_values: usize,
    },

    /// A classification head is not a linear layer on the projection.
    #[error(
        "{}: expected {expected}, found {found}\n\
         hint: a head belongs to one model; remove the file to start with a fresh head",
        file.display()
    )]
    Head {
        /// The head.safetensors.
        file: PathBuf,
        /// Names and shapes of a head.
        expected: String,
        /// Those there.
        found: String,
    },
}
