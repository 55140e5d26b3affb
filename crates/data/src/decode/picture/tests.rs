use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/pictures")
        .join(name)
}

fn evaluated(path: &Path, size: u32) -> Result<Vec<u8>, DataError> {
    let mut out = vec![0; (size * size) as usize * CHANNELS];
    evaluated_into(path, Framing::clip(size), &mut Scratch::default(), &mut out)?;
    Ok(out)
}

fn augmented(augment: Augment, epoch: u64, sample: u64) -> Vec<u8> {
    let occasion = Occasion {
        seed: 5,
        epoch,
        sample,
    };
    let mut out = vec![0; 24 * 24 * CHANNELS];
    let path = fixture("rgb.png");
    augmented_into(
        &path,
        Framing::clip(24),
        (augment, Decode::Full),
        occasion,
        &mut Scratch::default(),
        &mut out,
    )
    .unwrap();
    out
}

fn fails(name: &str, bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    evaluated(&path, 8).unwrap_err().to_string()
}

/// `tests/fixtures/make_pictures.py` wrote the pixels of Pillow and `transformers` for each picture.
#[test]
fn pixels_are_those_of_transformers() {
    let cases = fs::read_to_string(fixture("expected.json")).unwrap();
    let cases: Value = serde_json::from_str(&cases).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() >= 50);
    let mut scratch = Scratch::default();
    let mut wrong = Vec::new();
    for case in cases {
        let name = case["file"].as_str().unwrap();
        let size = case["size"].as_u64().unwrap() as u32;
        let expected = fs::read(fixture(case["expected"].as_str().unwrap())).unwrap();
        let mut out = vec![0; expected.len()];
        let framing = Framing::clip(size);
        if let Err(error) = evaluated_into(&fixture(name), framing, &mut scratch, &mut out) {
            wrong.push(error.to_string());
            continue;
        }
        let differences = out.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
        let worst = differences.clone().max().unwrap();
        let mean = differences.map(f64::from).sum::<f64>() / expected.len() as f64;
        println!("{name} at {size}: worst {worst}, mean {mean:.3}");
        let tolerance = case["tolerance"].as_u64().unwrap();
        let mean_tolerance = case["mean_tolerance"].as_f64().unwrap();
        if u64::from(worst) > tolerance || mean > mean_tolerance {
            wrong.push(format!(
                "{name} at {size}: worst {worst} (at most {tolerance}), mean {mean:.3} (at most {mean_tolerance})"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn augmenting_depends_on_the_occasion_alone() {
    let augment = Augment {
        crop: 0.3,
        flip: true,
        brightness: 0.4,
        contrast: 0.4,
        saturation: 0.4,
        hue: 0.1,
    };
    assert_eq!(augmented(augment, 0, 0), augmented(augment, 0, 0));
    assert_ne!(augmented(augment, 0, 0), augmented(augment, 1, 0));
    assert_ne!(augmented(augment, 0, 0), augmented(augment, 0, 1));
}

/// Jitter changes the colours of the same crop: it moves neither crop nor mirror.
#[test]
fn jitter_changes_colours_alone() {
    let plain = Augment {
        crop: 0.5,
        flip: true,
        ..Augment::default()
    };
    let bright = Augment {
        brightness: 0.5,
        ..plain
    };
    for sample in 0..20 {
        let (before, after) = (augmented(plain, 0, sample), augmented(bright, 0, sample));
        assert_ne!(before, after);
        // A factor keeps the order of values until they are clamped.
        for (a, b) in before
            .iter()
            .zip(&after)
            .zip(before.iter().zip(&after).skip(1))
        {
            assert!(
                (a.0 <= b.0) == (a.1 <= b.1) || a.1 == b.1,
                "sample {sample}"
            );
        }
    }
}

#[test]
fn a_mirrored_picture_is_the_mirror_of_the_same_part() {
    let plain = Augment {
        crop: 0.5,
        ..Augment::default()
    };
    let flip = Augment {
        flip: true,
        ..plain
    };
    let mut num_mirrored = 0;
    for sample in 0..40 {
        let (mut before, after) = (augmented(plain, 0, sample), augmented(flip, 0, sample));
        if before != after {
            mirror::<CHANNELS>(&mut before, 24);
            assert_eq!(before, after);
            num_mirrored += 1;
        }
    }
    assert!((10..=30).contains(&num_mirrored), "{num_mirrored}");
}

#[test]
fn a_used_scratch_changes_nothing() {
    let mut scratch = Scratch::default();
    for name in ["rgb.png", "grey16.png", "rgba.png", "rgb.png", "tiny.png"] {
        let mut out = vec![0; 16 * 16 * CHANNELS];
        evaluated_into(&fixture(name), Framing::clip(16), &mut scratch, &mut out).unwrap();
        assert_eq!(out, evaluated(&fixture(name), 16).unwrap(), "{name}");
    }
}

#[test]
fn what_is_no_picture_is_named() {
    let missing = evaluated(Path::new("/nowhere/1.jpg"), 8).unwrap_err();
    assert!(matches!(missing, DataError::PictureMissing { .. }));
    assert!(fails("1.jpg", b"").contains("1.jpg: expected a picture, found an empty file"));
    assert!(fails("1.jpg", b"<!DOCTYPE html>").contains("begins with `<!DOCTYPE html>`"));
    let png = fs::read(fixture("rgb.png")).unwrap();
    assert!(fails("1.png", &png[..png.len() / 2]).contains("expected a whole picture"));
    assert!(fails("1.png", &png[..10]).contains("1.png"));
    let jpeg = fs::read(fixture("turned.jpg")).unwrap();
    for share in [0.3, 0.6, 0.99] {
        let cut = &jpeg[..(jpeg.len() as f64 * share) as usize];
        assert!(
            fails("1.jpg", cut).contains("expected a whole picture"),
            "{share}"
        );
    }
    let mut trailing = jpeg.clone();
    trailing.extend(b"\xff\xdamore");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.jpg");
    fs::write(&path, trailing).unwrap();
    evaluated(&path, 8).unwrap();
}

#[test]
fn sizes_are_checked_before_memory_is_set_aside() {
    // A BMP header alone; width and height are the signed words at 18 and 22.
    let bmp = |width: i32, height: i32| {
        let mut bytes = vec![0; 54];
        bytes[..2].copy_from_slice(b"BM");
        bytes[10] = 54;
        bytes[14] = 40;
        bytes[18..22].copy_from_slice(&width.to_le_bytes());
        bytes[22..26].copy_from_slice(&height.to_le_bytes());
        bytes[26] = 1;
        bytes[28] = 24;
        fails("1.bmp", &bytes)
    };
    let large = bmp(20_000, 20_000);
    assert!(large.contains("found 20000 x 20000"), "{large}");
    assert!(bmp(0, 10).contains("1.bmp"));
}

fn readable() -> Vec<PathBuf> {
    let files = fs::read_dir(fixture("")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let is_picture = |path: &PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        matches!(
            extension,
            Some("png" | "jpg" | "webp" | "bmp" | "tif" | "gif" | "ppm" | "pgm" | "pbm")
        )
    };
    let mut pictures: Vec<PathBuf> = files.filter(is_picture).collect();
    pictures.sort();
    assert!(pictures.len() >= 50, "{}", pictures.len());
    pictures
}

/// Grey in place of missing pixels would be trained on as if it were the picture.
#[test]
fn a_picture_that_is_cut_short_is_an_error_or_whole() {
    let size = 16;
    let mut scratch = Scratch::default();
    for path in readable() {
        let bytes = fs::read(&path).unwrap();
        let whole = evaluated(&path, size).unwrap();
        let last = bytes.len().saturating_sub(40);
        let lengths = (0..last).step_by(last / 150 + 1).chain(last..bytes.len());
        for length in lengths {
            let mut out = vec![0; whole.len()];
            if evaluated_from(
                &path,
                &bytes[..length],
                Framing::clip(size),
                &mut scratch,
                &mut out,
            )
            .is_ok()
            {
                let of = bytes.len();
                assert_eq!(out, whole, "{}: {length} of {of} bytes", path.display());
            }
        }
    }
}

#[test]
fn kinds_that_are_not_read_are_refused_by_name() {
    for (name, found) in [
        ("plain.avif", "found an AVIF\n"),
        ("plain.jp2", "found a JPEG 2000\n"),
        ("plain.ico", "found an icon (ICO)\n"),
        ("palette.tif", "found a TIFF with a palette\n"),
        ("float.tif", "found a TIFF of floating-point numbers\n"),
        ("arithmetic.jpg", "found an arithmetic-coded JPEG\n"),
        ("lossless.jpg", "found a lossless JPEG\n"),
        ("bits12.jpg", "found a JPEG with 12 bits per colour\n"),
    ] {
        let path = fixture("refused").join(name);
        let error = evaluated(&path, 8).unwrap_err().to_string();
        assert!(error.contains(found), "{name}: {error}");
    }
}

#[test]
fn a_decoder_that_panics_is_contained() {
    let path = Path::new("1.jpg");
    let attempt = || -> Result<(), DataError> { panic!("row {} of {}", 3, 2) };
    let error = decode::contained(path, attempt).unwrap_err().to_string();
    assert!(
        error.contains("1.jpg") && error.contains("(row 3 of 2)"),
        "{error}"
    );
    let attempt = || -> Result<(), DataError> { panic!("no rows") };
    let error = decode::contained(path, attempt).unwrap_err().to_string();
    assert!(error.contains("(no rows)"), "{error}");
}

#[test]
fn limits_are_named() {
    let limits = Limits {
        most_pixels: 4000,
        most_file_bytes: 1 << 20,
    };
    let mut scratch = Scratch::with_limits(limits);
    let mut out = vec![0; 8 * 8 * CHANNELS];
    let path = fixture("rgb.png");
    let error = evaluated_into(&path, Framing::clip(8), &mut scratch, &mut out).unwrap_err();
    assert!(error.to_string().contains("found 83 x 57"), "{error}");
    evaluated_into(
        &fixture("high.png"),
        Framing::clip(8),
        &mut scratch,
        &mut out,
    )
    .unwrap();
    scratch.limits.most_file_bytes = 1000;
    let error = evaluated_into(&path, Framing::clip(8), &mut scratch, &mut out).unwrap_err();
    assert!(error.to_string().contains("a larger file"), "{error}");
}

#[test]
fn fast_is_near_full_and_only_where_enough_pixels_are_left() {
    let part = |least, size| Needed::Part { least, size };
    assert_eq!(part(0.9, 224).divisor(4000, 3000), 8);
    assert_eq!(part(0.9, 224).divisor(1024, 768), 2);
    assert_eq!(part(0.1, 224).divisor(1024, 768), 1);
    assert_eq!(part(0.9, 224).divisor(300, 4000), 1);
    assert_eq!(Needed::All.divisor(4000, 3000), 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("waves.jpg");
    let wave =
        |x: u32, y: u32| (128.0 + 100.0 * (x as f64 / 37.0).sin() * (y as f64 / 23.0).cos()) as u8;
    image::RgbImage::from_fn(401, 263, |x, y| image::Rgb([wave(x, y), wave(y, x), 60]))
        .save(&path)
        .unwrap();
    let augment = Augment::default();
    let occasion = Occasion {
        seed: 1,
        epoch: 2,
        sample: 3,
    };
    let read = |decode| {
        let mut out = vec![0; 32 * 32 * CHANNELS];
        let mut scratch = Scratch::default();
        augmented_into(
            &path,
            Framing::clip(32),
            (augment, decode),
            occasion,
            &mut scratch,
            &mut out,
        )
        .unwrap();
        (out, scratch.rgb.len())
    };
    let ((full, all), (fast, fewer)) = (read(Decode::Full), read(Decode::Fast));
    assert_eq!((all, fewer), (401 * 263 * 3, 51 * 33 * 3));
    let difference = |(a, b): (&u8, &u8)| f64::from(a.abs_diff(*b));
    let mean = full.iter().zip(&fast).map(difference).sum::<f64>() / full.len() as f64;
    assert!(mean < 4.0, "{mean}");
}

/// Rows below the crop are not decoded, and the result is the same byte for byte.
#[test]
fn rows_below_the_crop_change_nothing() {
    use libjpeg_turbo_rs::{PixelFormat, Subsampling, compress};
    let folder = tempfile::tempdir().unwrap();
    let (width, height) = (150_usize, 330_usize);
    let mut random = crate::random::Random::new(crate::random::DrawPurpose::Augment, &[3]);
    let pixels: Vec<u8> = (0..width * height * CHANNELS)
        .map(|at| (at / 40 % 200) as u8 + random.below(50) as u8)
        .collect();
    let samplings = [
        Subsampling::S444,
        Subsampling::S422,
        Subsampling::S420,
        Subsampling::S440,
        Subsampling::S411,
        Subsampling::S441,
    ];
    let mut num_cut = 0;
    for (number, sampling) in samplings.into_iter().enumerate() {
        let jpeg = compress(&pixels, width, height, PixelFormat::Rgb, 85, sampling).unwrap();
        let path = folder.path().join(format!("{number}.jpg"));
        fs::write(&path, &jpeg).unwrap();
        for filter in [Filter::Bicubic, Filter::Lanczos, Filter::Nearest] {
            for sample in 0..40 {
                let framing = Framing {
                    filter,
                    ..Framing::clip(40)
                };
                let augment = Augment {
                    crop: 0.05,
                    ..Augment::default()
                };
                let occasion = Occasion {
                    seed: 1,
                    epoch: 2,
                    sample,
                };
                let [mut cut, mut whole] = [(); 2].map(|()| vec![0; 40 * 40 * CHANNELS]);
                let options = (augment, Decode::Full);
                let mut scratch = Scratch::default();
                augmented_into(&path, framing, options, occasion, &mut scratch, &mut cut).unwrap();
                num_cut += usize::from(scratch.take_num_pixels() < (width * height) as u64);
                assert_eq!(scratch.file(), jpeg);
                let size = probe(&path, &mut scratch).unwrap();
                let draw = Draw::new(size, augment, occasion);
                draw_into(&path, size, draw, framing, &mut scratch, &mut whole).unwrap();
                assert!(cut == whole, "{sampling:?} {filter:?} sample {sample}");
            }
        }
    }
    assert!(num_cut > 300, "{num_cut} of 720 were cut");
}
