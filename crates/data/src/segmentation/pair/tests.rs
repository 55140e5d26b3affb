use std::fs;
use std::path::Path;

use image::{GrayImage, Luma, RgbImage};

use super::*;
use crate::decode::test_tiff::grey_pages;
use crate::samples::{Companions, SamplesBuilder};
use crate::segmentation::PixelDepth;

const WIDTH: u32 = 40;
const HEIGHT: u32 = 24;

/// A picture whose red codes the class of each pixel; `fov.png` leaves the lower half out.
fn pair(folder: &Path, has_field_of_view: bool) -> Samples {
    let class = |x: u32, y: u32| u8::from((x / 4 + y / 4).is_multiple_of(3));
    let image = RgbImage::from_fn(WIDTH, HEIGHT, |x, y| {
        image::Rgb([200 * class(x, y), x as u8, y as u8])
    });
    image.save(folder.join("image.png")).unwrap();
    let mask = GrayImage::from_fn(WIDTH, HEIGHT, |x, y| Luma([255 * class(x, y)]));
    mask.save(folder.join("mask.png")).unwrap();
    let field = GrayImage::from_fn(WIDTH, HEIGHT, |_, y| {
        Luma([if y < HEIGHT / 2 { 255 } else { 0 }])
    });
    field.save(folder.join("fov.png")).unwrap();
    let mut builder = SamplesBuilder::new(folder.to_owned());
    let companions = Companions {
        mask: Some("mask.png"),
        field_of_view: has_field_of_view.then_some("fov.png"),
        further_images: &[],
    };
    builder.push_with("image.png", &companions, 1);
    builder.finish(Vec::new())
}

fn framing(width: usize, height: usize, fit: Fit) -> PairFraming {
    PairFraming {
        shape: RowShape {
            height,
            width,
            channels: 3,
            depth: PixelDepth::Eight,
        },
        fit,
        coding: Arc::new(MaskCoding::pair(255)),
        augment: PairAugment::NONE,
    }
}

fn row(framing: &PairFraming, samples: &Samples, occasion: Option<Occasion>) -> Vec<u8> {
    let mut row = vec![7; framing.shape.row_bytes()];
    let mut scratch = Scratch::default();
    framing
        .write_row(samples, 0, occasion, &mut scratch, &mut row)
        .unwrap();
    row
}

fn occasion(sample: u64) -> Occasion {
    Occasion {
        seed: 3,
        epoch: 1,
        sample,
    }
}

/// Asserts that mask and red agree where red is unambiguous.
fn assert_aligned(framing: &PairFraming, row: &[u8]) {
    let (pixels, _) = row[framing.shape.pixels()].as_chunks::<3>();
    let mut num_sure = 0;
    for (pixel, class) in pixels.iter().zip(&row[framing.shape.mask()]) {
        match (pixel[0], *class) {
            (_, IGNORED) => continue,
            (0, class) => assert_eq!(class, 0),
            (200, class) => assert_eq!(class, 1),
            _ => continue,
        }
        num_sure += 1;
    }
    assert!(num_sure > 50, "{num_sure}");
}

#[test]
fn whole_pictures_keep_their_size_and_go_on_as_mirror_images() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pair(folder.path(), true);
    let framing = framing(48, 32, Fit::Pad);
    let row = row(&framing, &samples, None);
    let shape = framing.shape;
    let mask = &row[shape.mask()];
    // Green is x and blue is y.
    assert_eq!((row[3 + 1], row[3 * 48 + 2]), (1, 1));
    let pixel = |x: usize, y: usize| &row[3 * (48 * y + x)..][1..3];
    assert_eq!((pixel(40, 3), pixel(47, 3)), (&[39, 3][..], &[32, 3][..]));
    assert_eq!((pixel(5, 24), pixel(5, 31)), (&[5, 23][..], &[5, 16][..]));
    assert!(mask[40..48].iter().all(|class| *class == IGNORED));
    // The field of view ends in the middle.
    assert!(mask[12 * 48..].iter().all(|class| *class == IGNORED));
    let inside = shape.count(&row, 0) + shape.count(&row, 1);
    assert_eq!(inside, WIDTH * HEIGHT / 2);
    assert_eq!(shape.count(&row, IGNORED), 48 * 32 - inside);
}

#[test]
fn resized_pairs_stay_aligned() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pair(folder.path(), false);
    for (width, height) in [(20, 12), (80, 48), (30, 40), (40, 24)] {
        let framing = framing(width, height, Fit::Resize);
        let row = row(&framing, &samples, None);
        if width != 20 {
            assert_aligned(&framing, &row);
        }
        let mut scratch = Scratch::default();
        let coding = Some(&*framing.coding);
        let whole =
            super::super::read_whole(&samples, 0, 3, PixelDepth::Eight, coding, &mut scratch)
                .unwrap();
        let mut pixels = vec![0; framing.shape.pixels().len()];
        resize_pixels(&whole, framing.shape, &mut scratch.resizer, &mut pixels);
        assert_eq!(row[framing.shape.pixels()], pixels);
    }
}

#[test]
fn patches_are_parts_and_foreground_is_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pair(folder.path(), false);
    // A single foreground pixel: every foreground patch contains it.
    let mask = GrayImage::from_fn(WIDTH, HEIGHT, |x, y| {
        Luma([if (x, y) == (33, 20) { 255 } else { 0 }])
    });
    mask.save(folder.path().join("mask.png")).unwrap();
    let foreground = framing(8, 8, Fit::Patch { foreground: 1.0 });
    let anywhere = framing(8, 8, Fit::Patch { foreground: 0.0 });
    let mut num_hits = 0;
    let mut starts = std::collections::HashSet::new();
    for sample in 0..40 {
        let part = row(&foreground, &samples, Some(occasion(sample)));
        assert_eq!(foreground.shape.count(&part, 1), 1);
        assert_eq!(part, row(&foreground, &samples, Some(occasion(sample))));
        let part = row(&anywhere, &samples, Some(occasion(sample)));
        num_hits += anywhere.shape.count(&part, 1);
        starts.insert((part[1], part[2]));
    }
    assert!(num_hits < 20 && starts.len() > 20, "{num_hits} {starts:?}");
    let large = framing(64, 64, Fit::Patch { foreground: 1.0 });
    let padded = row(&large, &samples, Some(occasion(0)));
    assert_eq!(
        large.shape.count(&padded, IGNORED),
        64 * 64 - WIDTH * HEIGHT
    );
}

#[test]
fn sizes_must_be_equal_and_within_the_allowance() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pair(folder.path(), false);
    let framing = framing(40, 24, Fit::Resize);
    let mut out = vec![0; framing.shape.row_bytes()];
    let allowed = framing.cost(&samples, 0).unwrap().bytes;
    for (bytes, fits) in [(allowed, true), (allowed - 1, false)] {
        let allowance = crate::decode::Allowance::new(bytes);
        let mut scratch = Scratch::within(&allowance);
        for _ in 0..2 {
            let read = framing.write_row(&samples, 0, None, &mut scratch, &mut out);
            assert_eq!(read.is_ok(), fits, "{read:?}");
        }
    }
    GrayImage::new(4, 5)
        .save(folder.path().join("mask.png"))
        .unwrap();
    let read = framing.write_row(&samples, 0, None, &mut Scratch::default(), &mut out);
    let error = read.unwrap_err().to_string();
    for part in [
        "mask.png: expected the 40 x 24 pixels",
        "image.png",
        "found 4 x 5",
    ] {
        assert!(error.contains(part), "{error}");
    }
    fs::remove_file(folder.path().join("mask.png")).unwrap();
    let read = framing.write_row(&samples, 0, None, &mut Scratch::default(), &mut out);
    assert!(
        read.unwrap_err()
            .to_string()
            .contains("mask.png: expected a picture, found no file")
    );
}

#[test]
fn channels_come_from_several_files_and_bits_are_widened() {
    let folder = tempfile::tempdir().unwrap();
    for (name, value) in [("0.png", 10_u16), ("1.png", 3000)] {
        let picture = image::ImageBuffer::from_pixel(4, 4, Luma([value]));
        picture.save(folder.path().join(name)).unwrap();
    }
    GrayImage::from_pixel(4, 4, Luma([7]))
        .save(folder.path().join("2.png"))
        .unwrap();
    let mut builder = SamplesBuilder::new(folder.path().to_owned());
    let further = ["1.png".to_owned(), "2.png".to_owned()];
    let companions = Companions {
        further_images: &further,
        ..Companions::default()
    };
    builder.push_with("0.png", &companions, 1);
    let samples = builder.finish(Vec::new());
    let mut framing = framing(4, 4, Fit::Resize);
    framing.shape.depth = PixelDepth::Sixteen;
    let row = row(&framing, &samples, None);
    let values: Vec<u16> = row[..6]
        .as_chunks::<2>()
        .0
        .iter()
        .map(|two| u16::from_le_bytes(*two))
        .collect();
    assert_eq!(values, [10, 3000, 7 * 257]);
    assert_eq!(framing.shape.count(&row, IGNORED), 16);
}

/// All augmentations together: the same occasion gives the same row, another occasion another row, and the mask stays aligned with its
/// picture under the geometric ones.
#[test]
fn augmented_pairs_are_a_function_of_the_occasion_and_stay_aligned() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pair(folder.path(), false);
    let all = PairFraming {
        augment: PairAugment {
            noise: crate::config::Spread::always(0.1),
            blur: crate::config::Spread::always(2.0),
            low_resolution: crate::config::Spread::always(1.0),
            ..PairAugment::default()
        },
        ..framing(32, 32, Fit::Resize)
    };
    let first = row(&all, &samples, Some(occasion(0)));
    assert_eq!(first, row(&all, &samples, Some(occasion(0))));
    assert_ne!(first, row(&all, &samples, Some(occasion(1))));
    assert_ne!(first, row(&all, &samples, None));
    for sample in 0..20 {
        for fit in [Fit::Resize, Fit::Pad, Fit::Patch { foreground: 0.5 }] {
            let moved = PairFraming {
                augment: PairAugment {
                    flip: true,
                    vertical_flip: true,
                    quarter_turns: true,
                    rotation: crate::config::Spread::sometimes(180.0, 0.5),
                    scale: crate::config::Spread::sometimes(0.4, 0.5),
                    ..PairAugment::NONE
                },
                ..framing(48, 48, fit)
            };
            assert_aligned(&moved, &row(&moved, &samples, Some(occasion(sample))));
        }
    }
}

/// The same classes from every mask format of published sets.
#[test]
fn masks_of_every_format_give_the_same_classes() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let expected = row(
        &framing(40, 24, Fit::Resize),
        &pair(folder.path(), false),
        None,
    );
    let place = |name: &str| folder.path().join(name);
    let mask = image::open(place("mask.png")).unwrap();
    let image = image::open(place("image.png")).unwrap();
    for name in ["mask.bmp", "mask.tif"] {
        mask.save(place(name)).unwrap();
    }
    mask.to_rgb8().save(place("mask.gif")).unwrap();
    // Written by hand: the encoder writes PAM.
    let write = |name: &str, kind: &str, pixels: &[u8]| {
        let header = format!("{kind}\n# drawn\n{WIDTH} {HEIGHT}\n255\n");
        fs::write(place(name), [header.as_bytes(), pixels].concat()).unwrap();
    };
    write("mask.pgm", "P5", mask.to_luma8().as_raw());
    write("mask.ppm", "P6", mask.to_rgb8().as_raw());
    write("image.ppm", "P6", image.to_rgb8().as_raw());
    for name in ["mask.ppm", "image.ppm"] {
        let file = fs::File::create(place(&format!("{name}.gz"))).unwrap();
        let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::default());
        packed.write_all(&fs::read(place(name)).unwrap()).unwrap();
        packed.finish().unwrap();
    }
    for (image, mask) in [
        ("image.png", "mask.bmp"),
        ("image.png", "mask.tif"),
        ("image.png", "mask.pgm"),
        ("image.png", "mask.gif"),
        ("image.ppm", "mask.ppm"),
        ("image.ppm.gz", "mask.ppm.gz"),
    ] {
        let mut builder = SamplesBuilder::new(folder.path().to_owned());
        let companions = Companions {
            mask: Some(mask),
            ..Companions::default()
        };
        builder.push_with(image, &companions, 1);
        let found = row(
            &framing(40, 24, Fit::Resize),
            &builder.finish(Vec::new()),
            None,
        );
        assert!(found == expected, "{image} {mask}");
    }
}

/// A turned picture and a mask of the file's size are turned alike; a mask that was drawn on the turned picture stays.
#[test]
fn masks_are_turned_with_their_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (width, height) in [(4_u16, 4_u16), (6, 4)] {
        // White in one corner only, so that every turn shows.
        let corner: Vec<u8> = (0..width * height)
            .map(|at| 255 * u8::from(at % width < 2 && at / width < 1))
            .collect();
        let upright = grey_pages((width, height), 1, 0, &[&corner]);
        fs::write(path("mask.tif"), upright).unwrap();
        fs::write(
            path("fov.tif"),
            grey_pages((width, height), 1, 0, &[&corner]),
        )
        .unwrap();
        for orientation in 1..=8 {
            let turned = grey_pages((width, height), orientation, 0, &[&corner]);
            fs::write(path("image.tif"), turned).unwrap();
            for field_of_view in [None, Some("fov.tif")] {
                let mut builder = SamplesBuilder::new(folder.path().to_owned());
                let companions = Companions {
                    mask: Some("mask.tif"),
                    field_of_view,
                    further_images: &[],
                };
                builder.push_with("image.tif", &companions, 1);
                let samples = builder.finish(Vec::new());
                let coding = MaskCoding::pair(255);
                let mut scratch = Scratch::default();
                let whole = super::super::read_whole(
                    &samples,
                    0,
                    1,
                    PixelDepth::Eight,
                    Some(&coding),
                    &mut scratch,
                )
                .unwrap();
                let is_on_its_side = orientation > 4;
                let expected = if is_on_its_side {
                    (height, width)
                } else {
                    (width, height)
                };
                assert_eq!((whole.width as u16, whole.height as u16), expected);
                let mask = whole.mask.unwrap();
                for (pixel, class) in whole.pixels.iter().zip(mask) {
                    match field_of_view {
                        Some(_) if *pixel == 0 => assert_eq!(class, IGNORED, "{orientation}"),
                        _ => assert_eq!(class, pixel / 255, "{orientation}"),
                    }
                }
            }
        }
    }
    // The file has 6 x 4 pixels; the mask is drawn on the upright 4 x 6.
    let drawn: Vec<u8> = (0..24).map(|at| 255 * u8::from(at == 0)).collect();
    fs::write(path("mask.tif"), grey_pages((4, 6), 1, 0, &[&drawn])).unwrap();
    let mut builder = SamplesBuilder::new(folder.path().to_owned());
    let companions = Companions {
        mask: Some("mask.tif"),
        ..Companions::default()
    };
    builder.push_with("image.tif", &companions, 1);
    let samples = builder.finish(Vec::new());
    let coding = MaskCoding::pair(255);
    let depth = PixelDepth::Eight;
    let whole = super::super::read_whole(
        &samples,
        0,
        1,
        depth,
        Some(&coding),
        &mut Scratch::default(),
    );
    let mask = whole.unwrap().mask.unwrap();
    assert_eq!(
        (
            mask[0],
            mask.iter().map(|class| u32::from(*class)).sum::<u32>()
        ),
        (1, 1)
    );
}
