//! What pictures cost, against what decoding them really takes: never more, and not much less.

use std::io::Cursor;
use std::sync::Arc;

use holdall_data::config::PairAugment;
use holdall_data::decode::{self, Framing, Occasion, Scratch};
use holdall_data::samples::{Companions, SamplesBuilder};
use holdall_data::segmentation::{Fit, MaskCoding, PairFraming, PixelDepth, RowShape};
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{DynamicImage, ImageEncoder, ImageFormat};
use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling};

use crate::counting::peak_of;

const SIZE: u32 = 224;

struct Case {
    name: String,
    bytes: Vec<u8>,
}
fn gradient(width: u32, height: u32) -> DynamicImage {
    let picture = image::RgbImage::from_fn(width, height, |x, y| {
        image::Rgb([(x / 16) as u8, (y / 16) as u8, ((x * y) >> 12) as u8])
    });
    DynamicImage::from(picture)
}

fn drawn(width: u32, height: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    let picture = gradient(width, height);
    let mut add = |name: &str, bytes: Vec<u8>| {
        let name = format!("{name} {width} x {height}");
        cases.push(Case { name, bytes });
    };
    for (name, picture) in [
        ("grey", DynamicImage::from(picture.to_luma8())),
        ("grey alpha", DynamicImage::from(picture.to_luma_alpha8())),
        ("rgb", picture.clone()),
        ("rgba", DynamicImage::from(picture.to_rgba8())),
        ("rgb16", DynamicImage::from(picture.to_rgb16())),
        ("rgba16", DynamicImage::from(picture.to_rgba16())),
    ] {
        let encoded = |format: ImageFormat| {
            let mut bytes = Cursor::new(Vec::new());
            let written = picture.write_to(&mut bytes, format);
            written.ok().map(|()| bytes.into_inner())
        };
        let mut png = Vec::new();
        PngEncoder::new_with_quality(&mut png, CompressionType::Fast, FilterType::NoFilter)
            .write_image(picture.as_bytes(), width, height, picture.color().into())
            .unwrap();
        add(&format!("{name} png"), png);
        for (format, ending) in [
            (ImageFormat::WebP, "lossless webp"),
            (ImageFormat::Bmp, "bmp"),
            (ImageFormat::Tiff, "tiff"),
        ] {
            if let Some(bytes) = encoded(format) {
                add(&format!("{name} {ending}"), bytes);
            }
        }
    }
    let rgb = picture.to_rgb8();
    let grey = picture.to_luma8();
    let jpeg = |pixels: &[u8], format, subsampling, is_progressive| {
        Encoder::new(pixels, width as usize, height as usize, format)
            .subsampling(subsampling)
            .progressive(is_progressive)
            .encode()
            .ok()
    };
    for is_progressive in [false, true] {
        let kind = if is_progressive {
            "progressive"
        } else {
            "baseline"
        };
        for subsampling in [
            Subsampling::S444,
            Subsampling::S422,
            Subsampling::S420,
            Subsampling::S440,
            Subsampling::S411,
        ] {
            let bytes = jpeg(&rgb, PixelFormat::Rgb, subsampling, is_progressive);
            add(&format!("{kind} {subsampling:?} jpeg"), bytes.unwrap());
        }
        let bytes = jpeg(
            &grey,
            PixelFormat::Grayscale,
            Subsampling::S444,
            is_progressive,
        );
        add(&format!("{kind} grey jpeg"), bytes.unwrap());
    }
    cases
}

/// What reading it takes, and what its header says that it does.
fn peak_and_cost(name: &str, bytes: &[u8]) -> (u64, u64) {
    let mut out = vec![0; (SIZE * SIZE * 3) as usize];
    let path = std::path::Path::new(name);
    let cost = decode::cost_from(bytes, Framing::clip(SIZE));
    let (read, peak) = peak_of(|| {
        let file = bytes.to_vec();
        let scratch = &mut Scratch::default();
        decode::evaluated_from(path, &file, Framing::clip(SIZE), scratch, &mut out)
    });
    read.unwrap();
    let share = 100.0 * peak as f64 / cost as f64;
    println!("{name}: {peak} of {cost} bytes, {share:.0}%");
    (peak, cost)
}

/// Of every kind that can be drawn here: at most what the header says, and at least two thirds of it.
#[test]
fn no_decoder_takes_more_than_its_picture_costs() {
    let mut failures = Vec::new();
    for (width, height) in [(1280, 960), (1601, 903), (97, 1200)] {
        for Case { name, bytes } in drawn(width, height) {
            let (peak, cost) = peak_and_cost(&name, &bytes);
            let is_large = width * height > 1_000_000;
            if peak > cost || is_large && 3 * peak < 2 * cost {
                failures.push(format!("{name}: {peak} bytes, {cost} expected"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Those of other writers: CMYK, turned, interlaced, in tiles and planes, animated.
#[test]
fn no_fixture_takes_more_than_it_costs() {
    let mut failures = Vec::new();
    for folder in ["pictures", "pictures/large"] {
        for file in std::fs::read_dir(crate::fixtures().join(folder)).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let endings = [".jpg", ".png", ".webp", ".bmp", ".tif"];
            if !endings.iter().any(|ending| name.ends_with(ending)) {
                continue;
            }
            let (peak, cost) = peak_and_cost(&name, &std::fs::read(&path).unwrap());
            if peak > cost {
                failures.push(format!("{name}: {peak} bytes, {cost} expected"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Pairs whose images are of every kind that can be drawn here, resized and at their own size: at most what headers say, and not much less.
#[test]
fn no_pair_takes_more_than_it_costs() {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = SamplesBuilder::new(folder.path().to_owned());
    let (width, height) = (1280, 960);
    let cases = drawn(width, height);
    let mask = image::GrayImage::from_fn(width, height, |x, _| {
        image::Luma([if x < 99 { 255 } else { 0 }])
    });
    mask.save(folder.path().join("mask.png")).unwrap();
    for (at, case) in cases.iter().enumerate() {
        let name = format!("{at}");
        std::fs::write(folder.path().join(&name), &case.bytes).unwrap();
        let companions = Companions {
            mask: Some("mask.png"),
            field_of_view: Some("mask.png"),
            further_images: &[],
        };
        builder.push_with(&name, &companions, 1);
    }
    let samples = builder.finish(Vec::new());
    let mut failures = Vec::new();
    for fit in [Fit::Resize, Fit::Patch { foreground: 1.0 }] {
        for depth in [PixelDepth::Eight, PixelDepth::Sixteen] {
            let framing = PairFraming {
                shape: RowShape {
                    height: 400,
                    width: 512,
                    channels: 3,
                    depth,
                },
                fit,
                coding: Arc::new(MaskCoding::pair(255)),
                augment: PairAugment::NNUNET,
            };
            let mut row = vec![0; framing.shape.row_bytes()];
            for (at, case) in cases.iter().enumerate() {
                let cost = framing.cost(&samples, at).unwrap().bytes;
                let occasion = Occasion {
                    seed: 0,
                    epoch: 0,
                    sample: at as u64,
                };
                let (read, peak) = peak_of(|| {
                    framing.write_row(
                        &samples,
                        at,
                        Some(occasion),
                        &mut Scratch::default(),
                        &mut row,
                    )
                });
                read.unwrap();
                println!("{} {fit:?} {depth:?}: {peak} of {cost} bytes", case.name);
                if peak > cost || 3 * peak < cost {
                    failures.push(format!(
                        "{} {fit:?} {depth:?}: {peak} bytes, {cost} expected",
                        case.name
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Of clips of every format: at most what their headers say.
#[test]
fn no_clip_takes_more_than_it_costs() {
    use holdall_data::config::DataConfig;
    use holdall_data::loader::ClipFraming;
    use holdall_sample_data::moving_shapes::{self, ClipFormat, MovingShapesConfig};

    let folder = tempfile::tempdir().unwrap();
    let mut clips = Vec::new();
    for (name, format, end) in [
        ("frames", ClipFormat::Frames, ""),
        ("gif", ClipFormat::Gif, ".gif"),
        ("avi", ClipFormat::Avi, ".avi"),
        ("npy", ClipFormat::Npy, ".npy"),
    ] {
        let config = MovingShapesConfig {
            count: 1,
            size: 400,
            frames: 6,
            seed: 1,
            format,
        };
        moving_shapes::write(&folder.path().join(name), &config, |_| true).unwrap();
        clips.push(folder.path().join(name).join(format!("clips/000000{end}")));
    }
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clips");
    for name in [
        "lossless.webp",
        "lossy.webp",
        "parts.gif",
        "greys.npy",
        "sound.avi",
    ] {
        clips.push(fixtures.join(name));
    }
    let framing = ClipFraming::new(&DataConfig::default(), Framing::clip(SIZE), 4);
    let mut row = vec![0; framing.row_bytes()];
    for clip in clips {
        let mut builder = SamplesBuilder::new(std::path::PathBuf::new());
        builder.push(&clip.to_string_lossy(), None, 2);
        let samples = builder.finish(Vec::new());
        let cost = framing.cost(&samples, 0).unwrap().bytes;
        for occasion in [
            None,
            Some(Occasion {
                seed: 1,
                epoch: 0,
                sample: 0,
            }),
        ] {
            let (read, peak) = peak_of(|| {
                let scratch = &mut Scratch::default();
                framing.write_row(&samples, 0, occasion, scratch, &mut row)
            });
            read.unwrap();
            println!("{}: {peak} of {cost} bytes", clip.display());
            // And what a list of files and chunks takes.
            assert!(
                peak <= cost + (80 << 10),
                "{}: {peak} of {cost}",
                clip.display()
            );
        }
    }
}
