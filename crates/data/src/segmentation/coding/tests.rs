use image::{GrayImage, Luma, Rgb, RgbImage};

use super::*;
use crate::decode::{Scratch, read_native};

fn encoded(path: &Path, coding: &MaskCoding) -> Result<Vec<u8>, DataError> {
    let mut pixels = Vec::new();
    let native = read_native(path, coding.read_as(), &mut Scratch::default(), &mut pixels)?;
    let mut classes = vec![9; native.num_pixels()];
    coding.encode(path, &pixels, native, &mut classes)?;
    Ok(classes)
}

#[test]
fn a_grey_pixel_is_named_with_the_values_of_its_mask_or_binarized() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7.png");
    let mut mask = GrayImage::from_fn(50, 9, |x, _| Luma([if x < 20 { 0 } else { 255 }]));
    mask.save(&path).unwrap();
    let pair = MaskCoding::pair(255);
    let classes = encoded(&path, &pair).unwrap();
    assert_eq!(classes[..50].iter().map(|c| u32::from(*c)).sum::<u32>(), 30);
    mask.put_pixel(40, 7, Luma([12]));
    mask.save(&path).unwrap();
    let error = encoded(&path, &pair).unwrap_err().to_string();
    for part in [
        "7.png: pixel value 12 at (40, 7), expected 0 or 255; the mask holds 255 (59.78%), 0 (40%), 12 (0.22%)",
        "hint: `data: {binarize: 128}`",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let classes = encoded(&path, &MaskCoding::threshold(128)).unwrap();
    assert_eq!((classes[7 * 50 + 40], classes[7 * 50 + 41]), (0, 1));
    assert_eq!(
        encoded(&path, &MaskCoding::threshold(12)).unwrap()[7 * 50 + 40],
        1
    );
    let ignoring = MaskCoding::pair(255).ignoring(Some(12));
    assert_eq!(encoded(&path, &ignoring).unwrap()[7 * 50 + 40], IGNORED);
}

#[test]
fn sixteen_bits_are_taken_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7.png");
    let save = |values: [u16; 3]| {
        let picture = image::ImageBuffer::from_fn(3, 1, |x, _| Luma([values[x as usize]]));
        picture.save(&path).unwrap();
    };
    save([0, 65535, 0]);
    assert_eq!(encoded(&path, &MaskCoding::pair(65535)).unwrap(), [0, 1, 0]);
    save([0, 255, 0]);
    let error = encoded(&path, &MaskCoding::pair(65535))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("pixel value 255 at (1, 0), expected 0 or 65535"),
        "{error}"
    );
    save([2, 1, 0]);
    let names = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(
        encoded(&path, &MaskCoding::numbers(names)).unwrap(),
        [2, 1, 0]
    );
}

#[test]
fn three_equal_channels_are_grey_and_colours_need_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7.png");
    let mut mask = RgbImage::from_pixel(3, 2, Rgb([255; 3]));
    mask.save(&path).unwrap();
    assert_eq!(encoded(&path, &MaskCoding::pair(255)).unwrap(), [1; 6]);
    mask.put_pixel(2, 1, Rgb([255, 0, 0]));
    mask.save(&path).unwrap();
    let error = encoded(&path, &MaskCoding::threshold(128))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("colour #ff0000 at (2, 1), expected grey"),
        "{error}"
    );
    let named = |colour| (format!("{colour:?}"), colour);
    let colours = MaskCoding::colours(vec![named([255; 3]), named([255, 0, 0])]);
    assert_eq!(encoded(&path, &colours).unwrap(), [0, 0, 0, 0, 0, 1]);
    mask.put_pixel(0, 0, Rgb([1, 2, 3]));
    mask.save(&path).unwrap();
    let error = encoded(&path, &colours).unwrap_err().to_string();
    assert!(
        error.contains("colour #010203 at (0, 0), expected one of #ffffff, #ff0000"),
        "{error}"
    );
}

/// VOC's masks: the palette index is the class, whatever its colour.
#[test]
fn indices_of_a_coloured_palette_are_class_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7.png");
    let save = |palette: &[u8], bits: png::BitDepth, data: &[u8]| {
        let mut encoder = png::Encoder::new(std::fs::File::create(&path).unwrap(), 3, 1);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(bits);
        encoder.set_palette(palette.to_vec());
        encoder
            .write_header()
            .unwrap()
            .write_image_data(data)
            .unwrap();
    };
    let coloured = [0, 0, 0, 128, 0, 0, 0, 128, 0];
    let names = || ["a", "b", "c"].map(str::to_owned).to_vec();
    save(&coloured, png::BitDepth::Eight, &[2, 1, 0]);
    assert_eq!(
        encoded(&path, &MaskCoding::numbers(names())).unwrap(),
        [2, 1, 0]
    );
    save(&coloured, png::BitDepth::Two, &[0b10_01_00_00]);
    assert_eq!(
        encoded(&path, &MaskCoding::numbers(names())).unwrap(),
        [2, 1, 0]
    );
    let named = |colour| (format!("{colour:?}"), colour);
    let colours = vec![named([128, 0, 0]), named([0, 128, 0]), named([0; 3])];
    assert_eq!(
        encoded(&path, &MaskCoding::colours(colours)).unwrap(),
        [1, 0, 2]
    );
    save(
        &[0, 0, 0, 255, 255, 255],
        png::BitDepth::One,
        &[0b0100_0000],
    );
    assert_eq!(encoded(&path, &MaskCoding::pair(255)).unwrap(), [0, 1, 0]);
}

#[test]
fn what_masks_hold_is_decided_by_their_values() {
    let decided = |values: &[u8], asked: Asked| {
        let mut histogram = Histogram::default();
        let native = Native::upright(values.len() as u32, 1, 1, PixelDepth::Eight);
        histogram.add(values, native);
        decide(&asked, Path::new("set"), &histogram, 1)
    };
    let nothing = Asked::default;
    let coloured = |pixels: &[u8]| {
        let mut histogram = Histogram::default();
        histogram.add(
            pixels,
            Native::upright(pixels.len() as u32 / 3, 1, 3, PixelDepth::Eight),
        );
        decide(&nothing(), Path::new("set"), &histogram, 1)
            .unwrap_err()
            .to_string()
    };
    let colours = coloured(&[0, 0, 0, 128, 0, 0, 0, 128, 0]);
    let hint =
        "`data: {colours: {background: \"#000000\", class1: \"#800000\", class2: \"#008000\"}}`";
    assert!(colours.contains(hint), "{colours}");
    assert_eq!(
        decided(&[0, 255], nothing()).unwrap(),
        MaskCoding::pair(255)
    );
    assert_eq!(decided(&[0, 1, 1], nothing()).unwrap(), MaskCoding::pair(1));
    assert_eq!(decided(&[0], nothing()).unwrap(), MaskCoding::pair(255));
    let error = |values: &[u8], asked| decided(values, asked).unwrap_err().to_string();
    let grey = error(&[0, 0, 0, 7, 255], nothing());
    assert!(
        grey.contains("found 0 (60%), 7 (20%), 255 (20%) in the first 1 masks")
            && grey.contains("binarize: 128"),
        "{grey}"
    );
    assert!(
        error(&[0, 1, 2], nothing())
            .contains("hint: `data: {classes: [background, class1, class2]}` names")
    );
    // Palette indices are class numbers, not greys to threshold.
    let indexed = |values: &[u8], asked: &Asked| {
        let mut histogram = Histogram::default();
        let native = Native::upright(values.len() as u32, 1, 1, PixelDepth::Eight);
        let native = Native {
            is_indexed: true,
            ..native
        };
        histogram.add(values, native);
        decide(asked, Path::new("set"), &histogram, 1)
    };
    let binarized = |least| Asked {
        binarize: Some(least),
        ..Asked::default()
    };
    for asked in [nothing(), binarized(128)] {
        let palette = indexed(&[0, 15, 255], &asked).unwrap_err().to_string();
        let hint = "hint: `data: {classes: [background, ...], ignore: 255}` names the classes in the order of their numbers, 0 to 15";
        assert!(palette.contains(hint), "{palette}");
    }
    assert_eq!(indexed(&[0, 1], &nothing()).unwrap(), MaskCoding::pair(1));
    let merged = indexed(&[0, 1, 2], &binarized(1)).unwrap();
    assert_eq!(merged, MaskCoding::threshold(1));
    assert!(error(&[0, 1, 255], nothing()).contains("hint: `data: {ignore: 255}`"));
    let ignore = Asked {
        ignore: Some(255),
        ..nothing()
    };
    assert_eq!(
        decided(&[0, 1, 255], ignore).unwrap(),
        MaskCoding::pair(1).ignoring(Some(255))
    );
    let names = |count: usize| (0..count).map(|at| format!("c{at}")).collect::<Vec<_>>();
    let three = Asked {
        classes: names(3),
        ..nothing()
    };
    assert_eq!(
        decided(&[0, 2], three.clone()).unwrap(),
        MaskCoding::numbers(names(3))
    );
    assert!(error(&[0, 3], three).contains("class numbers from 0 to 2"));
    let two = Asked {
        classes: names(2),
        ..nothing()
    };
    assert_eq!(decided(&[0, 255], two).unwrap().classes(), names(2));
    let binarized = Asked {
        binarize: Some(99),
        ..nothing()
    };
    assert_eq!(
        decided(&[0, 7, 255], binarized).unwrap(),
        MaskCoding::threshold(99)
    );
}
