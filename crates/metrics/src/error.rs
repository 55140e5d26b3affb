//! What can be wrong with features and pairs. Every message names the file, the row where there is one, what was expected and
//! what was found, and ends with a hint.

use std::io;
use std::path::PathBuf;

use holdall_files::{OverLimit, show_bytes};

use crate::retrieval::Side;

/// Input is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The operating system refused.
    #[error(
        "{}: could not {action}: {cause}\nhint: check that the path exists and that you may read it",
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

    /// No bytes.
    #[error(
        "{}: expected rows, found an empty file\nhint: check whether the program that writes it came to its end",
        path.display()
    )]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },

    /// A header, and nothing behind it.
    #[error(
        "{}: expected at least one {what}, found a shape of {}\n\
         hint: leave the file out, or check whether the program that writes it came to its end",
        path.display(),
        shape_text(shape)
    )]
    NoRows {
        /// The file.
        path: PathBuf,
        /// Row or value.
        what: &'static str,
        /// Sizes.
        shape: Vec<usize>,
    },

    /// A name that says nothing of what is in the file.
    #[error("{}: expected {expected}, found a name that ends otherwise\nhint: {hint}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// Names that are read.
        expected: &'static str,
        /// How to write one.
        hint: &'static str,
    },

    /// Not what its name says.
    #[error(
        "{}: expected a .npy file, which begins with \\x93NUMPY, found `{found}`\n\
         hint: write it with np.save(\"features.npy\", array)",
        path.display()
    )]
    NotNpy {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        found: String,
    },

    /// A version from the future.
    #[error(
        "{}: expected .npy format 1, 2 or 3, found {found}\nhint: write it again with np.save",
        path.display()
    )]
    NpyVersion {
        /// The file.
        path: PathBuf,
        /// Its major version.
        found: u8,
    },

    /// What `np.save` does not write.
    #[error(
        "{}: in the .npy header, expected {expected}, found {found}\nhint: write it again with np.save",
        path.display()
    )]
    NpyHeader {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
        /// What is.
        found: String,
    },

    /// A pickle.
    #[error(
        "{}: expected numbers, found Python objects, which cannot be read without running what they say\n\
         hint: np.save(\"features.npy\", np.stack(list(array)).astype(np.float32))",
        path.display()
    )]
    Objects {
        /// The file.
        path: PathBuf,
    },

    /// A number format that is not read.
    #[error("{}: expected {expected}, found {found}\nhint: {hint}", path.display())]
    Element {
        /// The file.
        path: PathBuf,
        /// What is read.
        expected: &'static str,
        /// What is there.
        found: String,
        /// How to convert it.
        hint: &'static str,
    },

    /// Columns one after another, not rows.
    #[error(
        "{}: expected rows one after another, found columns (`fortran_order`)\n\
         hint: np.save(\"features.npy\", np.ascontiguousarray(array))",
        path.display()
    )]
    ColumnsFirst {
        /// The file.
        path: PathBuf,
    },

    /// Not a table of numbers.
    #[error(
        "{}: expected {expected}, found a shape of {}\nhint: {hint}",
        path.display(),
        shape_text(found)
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// What is read.
        expected: &'static str,
        /// Sizes.
        found: Vec<usize>,
        /// How to make it so.
        hint: &'static str,
    },

    /// Cut short, or with something behind.
    #[error(
        "{}: expected {expected_bytes} bytes, found {found_bytes}\nhint: {}",
        path.display(),
        if *expected_bytes > u128::from(*found_bytes) { "the file was cut short: copy or write it again" } else { "something was written behind the array: write the file again" }
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// By its header.
        expected_bytes: u128,
        /// On the disk.
        found_bytes: u64,
    },

    /// A header that takes more than the budget leaves.
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
        /// The file.
        path: PathBuf,
        /// Bytes of the header.
        header_bytes: u64,
        /// By how much.
        over: OverLimit,
    },

    /// Not what its name says.
    #[error(
        "{}: expected a safetensors header, found {found}\n\
         hint: write it with safetensors.torch.save_file({{\"features\": features}}, \"features.safetensors\")",
        path.display()
    )]
    TensorHeader {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        found: String,
    },

    /// A tensor that does not lie where it should.
    #[error(
        "{}, tensor `{tensor}`: expected {expected_bytes} bytes for its shape, found offsets {start} to {end}\n\
         hint: write the file again",
        path.display()
    )]
    TensorPlace {
        /// The file.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// What its shape and type need.
        expected_bytes: u128,
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
    },

    /// No tensor of that name, or several to choose from.
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
        /// The file.
        path: PathBuf,
        /// The one that was asked for.
        wanted: Option<String>,
        /// Those that are there, or could be meant.
        tensors: Vec<String>,
    },

    /// Shards of different width.
    #[error(
        "{}: expected rows of {expected} values as in {}, found {found}\n\
         hint: shards of one side come from one model; check that these files belong together",
        path.display(),
        first.display()
    )]
    Dimension {
        /// The file.
        path: PathBuf,
        /// The one that it is compared with.
        first: PathBuf,
        /// Values of its rows.
        expected: usize,
        /// Values of these.
        found: usize,
    },

    /// A row of pairs that is none.
    #[error("{}, {place}: expected {expected}, found {found}\nhint: {hint}", path.display())]
    Pair {
        /// The file.
        path: PathBuf,
        /// Line or row.
        place: String,
        /// What is read.
        expected: &'static str,
        /// What is there.
        found: String,
        /// How to write it.
        hint: &'static str,
    },

    /// A pair names what is not there.
    #[error(
        "{}, {place}: expected a {side} from 0 to {}, found {found}\n\
         hint: rows are counted from 0; check that the pairs belong to these features",
        path.display(),
        count.saturating_sub(1)
    )]
    PairRange {
        /// The file.
        path: PathBuf,
        /// Line or row.
        place: String,
        /// Of which set.
        side: Side,
        /// What it names.
        found: i128,
        /// How many there are.
        count: usize,
    },

    /// Captions of other features.
    #[error(
        "expected one caption per query, found {captions} captions and {queries} queries\n\
         hint: line i is the caption of query i; check that both come from the same list"
    )]
    CaptionPerQuery {
        /// Captions.
        captions: usize,
        /// Rows of queries.
        queries: usize,
    },

    /// Captions of another gallery.
    #[error(
        "expected {captions} gallery rows, one per caption, or {unique}, one per unique text, found {gallery}\n\
         hint: unique texts are in the order in which they first appear"
    )]
    CaptionPerRow {
        /// Captions.
        captions: usize,
        /// Different ones.
        unique: usize,
        /// Rows of the gallery.
        gallery: usize,
    },

    /// A sample that was there before.
    #[error(
        "sample {sample}: expected its features once, found them twice\n\
         hint: shards of several processes may not overlap; check how samples are dealt out"
    )]
    SampleTwice {
        /// Counted from 0.
        sample: u32,
    },

    /// A sample that nobody had.
    #[error(
        "sample {first}: expected its features, found none; {count} are missing in all\n\
         hint: merge the shards of all processes"
    )]
    SampleMissing {
        /// Counted from 0.
        first: u32,
        /// How many.
        count: usize,
    },

    /// A sample beyond the last.
    #[error(
        "sample {sample}: expected one of {count}, counted from 0\nhint: check that all shards are of one data set"
    )]
    SampleUnknown {
        /// Its number.
        sample: u32,
        /// How many there are.
        count: usize,
    },

    /// Shards of different data or models.
    #[error(
        "expected a shard of {} samples and {} values each, found {} and {}\n\
         hint: all processes evaluate one model on one data set",
        expected[0], expected[1], found[0], found[1]
    )]
    Shard {
        /// Samples and values.
        expected: [usize; 2],
        /// Samples and values.
        found: [usize; 2],
    },
}

/// `(3, 512)`, as Python writes it.
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

/// Names in a message, never more than fit on a few lines.
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
