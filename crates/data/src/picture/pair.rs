//! An image and its mask, transformed as one: the same window and the same mirror for both; the image by the bicubic
//! filter and in other colours, the mask by its nearest pixels and in its own classes.

use std::path::Path;

use super::augment::{Draw, mirror};
use super::framing::Framing;
use super::geometry;
use super::mask::{Binarize, mask_into};
use super::{Occasion, Scratch, check_length, decode, draw_into, evaluate, nearest_into};
use crate::config::Augment;
use crate::error::DataError;

/// Where an image and its mask are, and how the mask is read.
#[derive(Clone, Copy, Debug)]
pub struct PairFiles<'a> {
    /// The image.
    pub image: &'a Path,
    /// Its mask.
    pub mask: &'a Path,
    /// Which values of the mask are which class.
    pub binarize: Binarize,
}

/// Writes a pair as training sees it on this occasion: `size` x `size` x 3 bytes of the image, `size` x `size` classes
/// of the mask.
///
/// # Panics
/// If an output has another length.
pub fn augmented_pair_into(
    files: PairFiles,
    size: u32,
    augment: Augment,
    occasion: Occasion,
    scratch: &mut Scratch,
    image_out: &mut [u8],
    mask_out: &mut [u8],
) -> Result<(), DataError> {
    check_lengths(image_out, mask_out, size);
    let decoded = decode_pair(files, size, scratch)?;
    let draw = Draw::new(decoded, augment, occasion);
    let framing = Framing::clip(size);
    draw_into(files.image, decoded, draw, framing, scratch, image_out)?;
    nearest_into::<1>(&scratch.classes, decoded, draw.window, size, mask_out);
    if draw.is_mirrored {
        mirror::<1>(mask_out, size);
    }
    Ok(())
}

/// Writes a pair as evaluation sees it: the middle, as [`super::evaluated_into`] cuts it out.
///
/// # Panics
/// If an output has another length.
pub fn evaluated_pair_into(
    files: PairFiles,
    size: u32,
    scratch: &mut Scratch,
    image_out: &mut [u8],
    mask_out: &mut [u8],
) -> Result<(), DataError> {
    check_lengths(image_out, mask_out, size);
    let decoded = decode_pair(files, size, scratch)?;
    let framing = Framing::clip(size);
    evaluate(files.image, decoded, framing, scratch, image_out)?;
    let window = geometry::middle(decoded.0, decoded.1, framing);
    nearest_into::<1>(&scratch.classes, decoded, window, size, mask_out);
    Ok(())
}

/// The image into `scratch.rgb`, the mask into `scratch.classes`.
fn decode_pair(
    files: PairFiles,
    size: u32,
    scratch: &mut Scratch,
) -> Result<(u32, u32), DataError> {
    let mut classes = std::mem::take(&mut scratch.classes);
    let mask_size = mask_into(files.mask, files.binarize, scratch, &mut classes);
    scratch.classes = classes;
    let mask_size = mask_size?;
    let image_size = decode::decode(files.image, Some(Framing::clip(size)), scratch)?;
    if image_size != mask_size {
        let text = |(width, height): (u32, u32)| format!("{width} x {height}");
        return Err(DataError::invalid(
            files.mask.display(),
            format_args!(
                "the {} pixels of its image {}",
                text(image_size),
                files.image.display()
            ),
            text(mask_size),
            "export the mask at the size of its image, without scaling",
        ));
    }
    Ok(image_size)
}

fn check_lengths(image: &[u8], mask: &[u8], size: u32) {
    check_length(image, size);
    let expected = size as usize * size as usize;
    assert_eq!(mask.len(), expected, "classes of a mask of {size} x {size}");
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use image::{GrayImage, RgbImage};
    use proptest::prelude::*;

    use super::*;

    const WIDTH: u32 = 96;
    const HEIGHT: u32 = 64;
    const BLOCK: u32 = 16;
    const SIZE: u32 = 24;

    fn occasion(sample: u64) -> Occasion {
        Occasion {
            seed: 3,
            epoch: 1,
            sample,
        }
    }

    struct Pair {
        _folder: tempfile::TempDir,
        image: PathBuf,
        mask: PathBuf,
    }

    impl Pair {
        /// Black and white blocks, and the mask of the white ones.
        fn painted(blocks: u64) -> Pair {
            let folder = tempfile::tempdir().unwrap();
            let (image, mask) = (folder.path().join("7.png"), folder.path().join("7m.png"));
            let value = |x: u32, y: u32| {
                let block = x / BLOCK + y / BLOCK * (WIDTH / BLOCK);
                if blocks >> block & 1 == 1 { 255 } else { 0 }
            };
            RgbImage::from_fn(WIDTH, HEIGHT, |x, y| image::Rgb([value(x, y); 3]))
                .save(&image)
                .unwrap();
            GrayImage::from_fn(WIDTH, HEIGHT, |x, y| image::Luma([value(x, y)]))
                .save(&mask)
                .unwrap();
            Pair {
                _folder: folder,
                image,
                mask,
            }
        }

        fn files(&self) -> PairFiles<'_> {
            PairFiles {
                image: &self.image,
                mask: &self.mask,
                binarize: Binarize::Never,
            }
        }

        fn augmented(&self, augment: Augment, sample: u64) -> (Vec<u8>, Vec<u8>) {
            let (mut image, mut mask) = outputs();
            let scratch = &mut Scratch::default();
            let files = self.files();
            augmented_pair_into(
                files,
                SIZE,
                augment,
                occasion(sample),
                scratch,
                &mut image,
                &mut mask,
            )
            .unwrap();
            (image, mask)
        }
    }

    fn outputs() -> (Vec<u8>, Vec<u8>) {
        let pixels = (SIZE * SIZE) as usize;
        (vec![0; pixels * 3], vec![7; pixels])
    }

    /// Between black and white a filter may say anything; where it is sure, the mask must agree.
    fn assert_aligned(image: &[u8], mask: &[u8]) {
        let mut num_sure = 0;
        for (pixel, class) in image.as_chunks::<3>().0.iter().zip(mask) {
            match pixel[0] {
                0..=16 => assert_eq!(*class, 0),
                239..=255 => assert_eq!(*class, 1),
                _ => continue,
            }
            num_sure += 1;
        }
        assert!(num_sure > mask.len() / 2, "{num_sure}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_mask_stays_on_its_image(blocks in any::<u64>(), sample in any::<u64>(), crop in 0.2f64..=1.0) {
            let pair = Pair::painted(blocks);
            let augment = Augment { crop, flip: true, ..Augment::default() };
            let (image, mask) = pair.augmented(augment, sample);
            assert_aligned(&image, &mask);
            let (mut image, mut mask) = outputs();
            evaluated_pair_into(pair.files(), SIZE, &mut Scratch::default(), &mut image, &mut mask).unwrap();
            assert_aligned(&image, &mask);
        }
    }

    #[test]
    fn the_image_of_a_pair_is_the_image_alone() {
        let pair = Pair::painted(0x5a5a_5a5a);
        let augment = Augment {
            crop: 0.4,
            flip: true,
            brightness: 0.5,
            ..Augment::default()
        };
        for sample in 0..10 {
            let (image, mask) = pair.augmented(augment, sample);
            let mut alone = outputs().0;
            let scratch = &mut Scratch::default();
            super::super::augmented_into(
                &pair.image,
                Framing::clip(SIZE),
                (augment, crate::config::Decode::Full),
                occasion(sample),
                scratch,
                &mut alone,
            )
            .unwrap();
            assert_eq!(image, alone);
            let plain = Augment {
                brightness: 0.0,
                ..augment
            };
            assert_eq!(mask, pair.augmented(plain, sample).1);
        }
    }

    #[test]
    fn sizes_must_be_equal() {
        let pair = Pair::painted(1);
        GrayImage::new(4, 5).save(&pair.mask).unwrap();
        let (mut image, mut mask) = outputs();
        let error = evaluated_pair_into(
            pair.files(),
            SIZE,
            &mut Scratch::default(),
            &mut image,
            &mut mask,
        );
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("96 x 64") && error.contains("7m.png") && error.contains("4 x 5"),
            "{error}"
        );
    }
}
