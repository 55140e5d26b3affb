use super::*;

fn picture(width: usize, height: usize, channels: usize, depth: PixelDepth) -> WholePicture {
    let num_bytes = width * height * channels * depth.bytes();
    WholePicture {
        width,
        height,
        channels,
        depth,
        pixels: (0..num_bytes).map(|at| (at * 7 % 251) as u8).collect(),
        ..WholePicture::default()
    }
}

fn resized(picture: &WholePicture, width: usize, height: usize) -> Vec<u8> {
    let shape = RowShape {
        height,
        width,
        channels: picture.channels,
        depth: picture.depth,
    };
    let mut out = vec![0; shape.pixels().len()];
    resize_pixels(picture, shape, &mut Resizer::new(), &mut out);
    out
}

/// Several channels, of either depth, give the same values as each channel alone.
#[test]
fn channels_do_not_see_each_other() {
    for (channels, depth) in [
        (3, PixelDepth::Eight),
        (5, PixelDepth::Eight),
        (2, PixelDepth::Sixteen),
    ] {
        let all = picture(20, 14, channels, depth);
        let out = resized(&all, 9, 11);
        let bytes = depth.bytes();
        for channel in 0..channels {
            let only = |pixels: &[u8]| -> Vec<u8> {
                let pixels = pixels.chunks_exact(channels * bytes);
                pixels
                    .flat_map(|pixel| pixel[channel * bytes..][..bytes].to_vec())
                    .collect()
            };
            let alone = WholePicture {
                channels: 1,
                pixels: only(&all.pixels),
                ..all.clone()
            };
            assert_eq!(
                only(&out),
                resized(&alone, 9, 11),
                "{channel} of {channels}"
            );
        }
    }
}

#[test]
fn a_half_is_the_mean_weighted_by_the_triangle() {
    let mut row = picture(8, 1, 1, PixelDepth::Eight);
    row.pixels = vec![0, 0, 0, 80, 80, 0, 0, 0];
    // Weights 1/8, 3/8, 3/8, 1/8.
    assert_eq!(resized(&row, 4, 1), [0, 40, 40, 0]);
}

#[test]
fn masks_take_the_pixel_under_the_middle() {
    let mut out = [9; 4];
    resize_mask(&[0, 1, 2, 3, 4, 5, 6, 7], (8, 1), (4, 1), &mut out);
    assert_eq!(out, [1, 3, 5, 7]);
    let mut out = [9; 6];
    resize_mask(&[1, 2, 3], (3, 1), (6, 1), &mut out);
    assert_eq!(out, [1, 1, 2, 2, 3, 3]);
}

#[test]
fn probabilities_go_back_bilinear() {
    let grown = probabilities_to_native(&[0.0, 1.0], 1, (2, 1), (4, 1), &mut Resizer::new());
    assert_eq!(grown, [0.0, 0.25, 0.75, 1.0]);
    let both = probabilities_to_native(
        &[0.0, 1.0, 1.0, 0.0],
        2,
        (2, 1),
        (4, 1),
        &mut Resizer::new(),
    );
    assert_eq!(both, [0.0, 1.0, 0.25, 0.75, 0.75, 0.25, 1.0, 0.0]);
}
