//! PNG files of masks, probabilities and overlays.

use png::{BitDepth, ColorType, Encoder, EncodingError};

/// Pixels of one format, rows from the top.
pub enum Pixels<'a> {
    /// 8 bits per pixel.
    Grey(&'a [u8]),
    /// 16 bits per pixel.
    Grey16(&'a [u16]),
    /// Red, green, blue; 8 bits each.
    Colour(&'a [u8]),
}

/// Encodes a PNG file.
///
/// # Panics
/// If the number of pixels does not match the size.
pub fn encode(pixels: &Pixels<'_>, [height, width]: [usize; 2]) -> Vec<u8> {
    let mut file = Vec::new();
    let written = write(&mut file, pixels, [height, width]);
    written.expect("memory takes what is written, and sizes are those of the pixels");
    file
}

fn write(
    file: &mut Vec<u8>,
    pixels: &Pixels<'_>,
    [height, width]: [usize; 2],
) -> Result<(), EncodingError> {
    let mut encoder = Encoder::new(file, width as u32, height as u32);
    let (colour, depth) = match pixels {
        Pixels::Grey(_) => (ColorType::Grayscale, BitDepth::Eight),
        Pixels::Grey16(_) => (ColorType::Grayscale, BitDepth::Sixteen),
        Pixels::Colour(_) => (ColorType::Rgb, BitDepth::Eight),
    };
    encoder.set_color(colour);
    encoder.set_depth(depth);
    let mut writer = encoder.write_header()?;
    match pixels {
        Pixels::Grey(bytes) | Pixels::Colour(bytes) => writer.write_image_data(bytes)?,
        Pixels::Grey16(values) => {
            // PNG stores the high byte first.
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_be_bytes())
                .collect();
            writer.write_image_data(&bytes)?;
        }
    }
    writer.finish()
}
