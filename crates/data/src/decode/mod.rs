//! Files -> pixels: pictures, clips, the settings of a model's image processor, and the memory that decoding may take.

mod allowance;
mod clips;
mod fingerprint;
mod image_processor;
mod pair_buffers;
mod picture;
mod whole_picture;

pub use allowance::Allowance;
pub(crate) use clips::{
    ClipFile, ClipPacking, FrameChoice, chosen_videos, contents_of, find_ffmpeg, first_bytes,
};
pub use clips::{avi, npy, size_and_time};
pub(crate) use fingerprint::{Fingerprint, Marks, near_pairs};
pub use fingerprint::{MAX_BITS, MAX_COLOUR_DIFFERENCE};
pub use image_processor::{FILE_NAME as PROCESSOR_FILE, ImageProcessor};
pub(crate) use pair_buffers::{PairBuffers, PairCost};
#[cfg(test)]
pub(crate) use picture::test_tiff;
pub use picture::{
    CHANNELS, FrameCoding, Framing, Limits, Occasion, PictureCost, PixelDepth, Scratch,
    SmallerFormat, cost, cost_from, evaluated_from, evaluated_into, probe, thumbnail,
};
pub(crate) use picture::{
    FrameView, Native, NativeCost, ReadAs, SmallerFrames, augmented_into, decode_native,
    native_cost, read_native, refused_kind, resizer_bytes, smaller_mask, smaller_picture, turned,
};
pub use whole_picture::WholePicture;
