//! Errors in features and pairs. Every message names the file, the row if there is one, the expected and the found value, and ends
//! with a hint.

use std::io;
use std::path::PathBuf;

use holdall_files::{OverLimit, show_bytes};

use crate::side::Side;

/// Invalid input.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A failed file operation.
    #[error(
        "{}: could not {action}: {cause}\nhint: check that the path exists and that you may read it",
        path.display()
    )]
    Io {
        path: PathBuf,
        action: &'static str,
        /// The system's error. Not a `source`, because the message contains it.
        cause: io::Error,
    },

    #[error(
        "{}: expected rows, found an empty file\nhint: check whether the program that writes it came to its end",
        path.display()
    )]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },

    /// A header without data.
    #[error(
        "{}: expected at least one {what}, found a shape of {}\n\
         hint: leave the file out, or check whether the program that writes it came to its end",
        path.display(),
        shape_text(shape)
    )]
    NoRows {
        path: PathBuf,
        /// `row` or `value`.
        what: &'static str,
        shape: Vec<usize>,
    },

    /// A file name that does not tell the format.
    #[error("{}: expected {expected}, found a name that ends otherwise\nhint: {hint}", path.display())]
    Kind {
        path: PathBuf,
        expected: &'static str,
        hint: &'static str,
    },

    /// A file that lacks the signature of its format.
    #[error(
        "{}: expected a .npy file, which begins with \\x93NUMPY, found `{found}`\n\
         hint: write it with np.save(\"features.npy\", array)",
        path.display()
    )]
    NotNpy {
        path: PathBuf,
        /// First bytes of the file.
        found: String,
    },

    /// An unknown version of the `.npy` format.
    #[error(
        "{}: expected .npy format 1, 2 or 3, found {found}\nhint: write it again with np.save",
        path.display()
    )]
    NpyVersion {
        path: PathBuf,
        /// Major version.
        found: u8,
    },

    /// A `.npy` header that `np.save` does not write.
    #[error(
        "{}: in the .npy header, expected {expected}, found {found}\nhint: write it again with np.save",
        path.display()
    )]
    NpyHeader {
        path: PathBuf,
        expected: &'static str,
        found: String,
    },

    /// Pickled Python objects.
    #[error(
        "{}: expected numbers, found Python objects, which cannot be read without running what they say\n\
         hint: np.save(\"features.npy\", np.stack(list(array)).astype(np.float32))",
        path.display()
    )]
    Objects {
        /// The file.
        path: PathBuf,
    },

    /// An unsupported number format.
    #[error("{}: expected {expected}, found {found}\nhint: {hint}", path.display())]
    Element {
        path: PathBuf,
        expected: &'static str,
        found: String,
        hint: &'static str,
    },

    /// Columns one after another, instead of rows.
    #[error(
        "{}: expected rows one after another, found columns (`fortran_order`)\n\
         hint: np.save(\"features.npy\", np.ascontiguousarray(array))",
        path.display()
    )]
    ColumnsFirst {
        /// The file.
        path: PathBuf,
    },

    /// An array that is not a table.
    #[error(
        "{}: expected {expected}, found a shape of {}\nhint: {hint}",
        path.display(),
        shape_text(found)
    )]
    Shape {
        path: PathBuf,
        expected: &'static str,
        found: Vec<usize>,
        hint: &'static str,
    },

    /// A truncated file, or one with extra bytes.
    #[error(
        "{}: expected {expected_bytes} bytes, found {found_bytes}\nhint: {}",
        path.display(),
        if *expected_bytes > u128::from(*found_bytes) { "the file was cut short: copy or write it again" } else { "something was written behind the array: write the file again" }
    )]
    Length {
        path: PathBuf,
        /// According to the header.
        expected_bytes: u128,
        found_bytes: u64,
    },

    /// A header that needs more memory than the budget leaves.
    #[error(
        "{}: its header of {} takes {} to read, and the budget leaves {}\n\
         hint: check what it is, or --memory {}MiB",
        path.display(),
        show_bytes(*header_bytes),
        show_bytes(over.needed_bytes),
        show_bytes(over.left_bytes),
        over.total_bytes.div_ceil(1 << 20)
    )]
    HeaderOverBudget {
        path: PathBuf,
        header_bytes: u64,
        over: OverLimit,
    },

    /// A file that lacks the signature of its format.
    #[error(
        "{}: expected a safetensors header, found {found}\n\
         hint: write it with safetensors.torch.save_file({{\"features\": features}}, \"features.safetensors\")",
        path.display()
    )]
    TensorHeader {
        path: PathBuf,
        /// The parser's error.
        found: String,
    },

    /// A tensor whose offsets do not match its shape.
    #[error(
        "{}, tensor `{tensor}`: expected {expected_bytes} bytes for its shape, found offsets {start} to {end}\n\
         hint: write the file again",
        path.display()
    )]
    TensorPlace {
        path: PathBuf,
        tensor: String,
        /// Bytes that its shape and type need.
        expected_bytes: u128,
        start: usize,
        end: usize,
    },

    /// No tensor of the wanted name, or several candidates.
    #[error(
        "{}: expected {}, found {}\nhint: {}",
        path.display(),
        match wanted {
            Some(wanted) => format!("a tensor `{wanted}`"),
            None => "one table of numbers".to_owned(),
        },
        listed(tensors),
        match tensors.first() {
            Some(first) => format!("name one: {}:{first}", path.display()),
            None => "write the file again".to_owned(),
        }
    )]
    Tensor {
        path: PathBuf,
        wanted: Option<String>,
        /// All tensors of the file, or the candidates.
        tensors: Vec<String>,
    },

    /// Shards with different row lengths.
    #[error(
        "{}: expected rows of {expected} values as in {}, found {found}\n\
         hint: shards of one side come from one model; check that these files belong together",
        path.display(),
        first.display()
    )]
    Dimension {
        path: PathBuf,
        /// First shard, which sets the row length.
        first: PathBuf,
        /// Row length of the first shard.
        expected: usize,
        /// Row length of this shard.
        found: usize,
    },

    /// An invalid row in a pair file.
    #[error("{}, {place}: expected {expected}, found {found}\nhint: {hint}", path.display())]
    Pair {
        path: PathBuf,
        /// Line or row number.
        place: String,
        expected: &'static str,
        found: String,
        hint: &'static str,
    },

    /// A pair with an index out of range.
    #[error(
        "{}, {place}: expected a {side} from 0 to {}, found {found}\n\
         hint: rows are counted from 0; check that the pairs belong to these features",
        path.display(),
        count.saturating_sub(1)
    )]
    PairRange {
        path: PathBuf,
        /// Line or row number.
        place: String,
        side: Side,
        /// The index.
        found: i128,
        /// Number of items.
        count: usize,
    },

    /// Numbers of captions and queries differ.
    #[error(
        "expected one caption per query, found {captions} captions and {queries} queries\n\
         hint: line i is the caption of query i; check that both come from the same list"
    )]
    CaptionPerQuery {
        captions: usize,
        /// Rows of queries.
        queries: usize,
    },

    /// The number of gallery rows fits neither the captions nor the unique texts.
    #[error(
        "expected {captions} gallery rows, one per caption, or {unique}, one per unique text, found {gallery}\n\
         hint: unique texts are in the order in which they first appear"
    )]
    CaptionPerRow {
        captions: usize,
        /// Unique texts.
        unique: usize,
        gallery: usize,
    },

    /// Two shards hold features of one sample.
    #[error(
        "sample {sample}: expected its features once, found them twice\n\
         hint: shards of several processes may not overlap; check how samples are dealt out"
    )]
    SampleTwice {
        /// Counted from 0.
        sample: u32,
    },

    /// No shard holds features of a sample.
    #[error(
        "sample {first}: expected its features, found none; {count} are missing in all\n\
         hint: merge the shards of all processes"
    )]
    SampleMissing {
        first: u32,
        /// Number of missing samples.
        count: usize,
    },

    /// A sample number out of range.
    #[error(
        "sample {sample}: expected one of {count}, counted from 0\nhint: check that all shards are of one data set"
    )]
    SampleUnknown {
        sample: u32,
        /// Number of items.
        count: usize,
    },

    /// Shards of different data sets or models.
    #[error(
        "expected a shard of {} samples and {} values each, found {} and {}\n\
         hint: all processes evaluate one model on one data set",
        expected[0], expected[1], found[0], found[1]
    )]
    Shard {
        /// Number of samples, values per sample.
        expected: [usize; 2],
        /// Number of samples, values per sample.
        found: [usize; 2],
    },
}

/// A shape in Python notation: `(3, 512)`.
fn shape_text(shape: &[usize]) -> String {
    match shape {
        [only] => format!("({only},)"),
        sizes => {
            const MOST: usize = 8;
            let first = sizes.iter().take(MOST).map(usize::to_string);
            let first: Vec<String> = first.collect();
            let more = match sizes.len().checked_sub(MOST) {
                None | Some(0) => String::new(),
                Some(_) => format!(", ...: {} dimensions", sizes.len()),
            };
            format!("({}{more})", first.join(", "))
        }
    }
}

/// A list of names for a message, at most 20.
fn listed(names: &[String]) -> String {
    const MOST: usize = 20;
    if names.is_empty() {
        return "none".to_owned();
    }
    let mut text = names[..names.len().min(MOST)].join(", ");
    if names.len() > MOST {
        text += &format!(" and {} more", names.len() - MOST);
    }
    text
}
