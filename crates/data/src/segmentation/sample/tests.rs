use std::f64::consts::FRAC_PI_2;

use proptest::prelude::*;

use super::*;

/// Red is x, green is y, and the class is their sum.
fn picture(width: usize, height: usize) -> WholePicture {
    let places = || (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    WholePicture {
        width,
        height,
        channels: 3,
        depth: PixelDepth::Eight,
        pixels: places().flat_map(|(x, y)| [x as u8, y as u8, 9]).collect(),
        mask: Some(places().map(|(x, y)| ((x + y) % 200) as u8).collect()),
        ..WholePicture::default()
    }
}

fn shape(width: usize, height: usize) -> RowShape {
    RowShape {
        height,
        width,
        channels: 3,
        depth: PixelDepth::Eight,
    }
}

fn sampled(source: &WholePicture, shape: RowShape, map: Map) -> (Vec<[u8; 3]>, Vec<u8>) {
    let mut pixels = vec![1; shape.pixels().len()];
    let mut mask = vec![1; shape.num_pixels()];
    let mut target = RowBuffers {
        shape,
        pixels: &mut pixels,
        mask: &mut mask,
    };
    sample(source, map, None, &mut target);
    (pixels.as_chunks::<3>().0.to_vec(), mask)
}

/// All eight orientations of a square, for even and odd sides.
#[test]
fn mirrors_and_quarter_turns_copy_every_pixel_once() {
    for side in [8, 7, 70] {
        let source = picture(side, side);
        let mut seen = std::collections::HashSet::new();
        for number in 0..16 {
            let draw = PairDraw {
                is_mirrored: number & 1 == 1,
                is_upside_down: number & 2 == 2,
                num_turns: number >> 2,
                ..PairDraw::NONE
            };
            let map = Map::new(&draw, shape(side, side), (0, 0));
            assert!(map.is_exact(), "{map:?}");
            let (pixels, mask) = sampled(&source, shape(side, side), map);
            for (pixel, class) in pixels.iter().zip(&mask) {
                assert_eq!(
                    (u32::from(pixel[0]) + u32::from(pixel[1])) % 200,
                    u32::from(*class)
                );
            }
            let places: std::collections::HashSet<_> = pixels.iter().collect();
            assert_eq!(places.len(), side * side);
            seen.insert(pixels);
        }
        assert_eq!(seen.len(), 8);
    }
    let draw = PairDraw {
        is_mirrored: true,
        ..PairDraw::NONE
    };
    let (pixels, _) = sampled(
        &picture(5, 3),
        shape(5, 3),
        Map::new(&draw, shape(5, 3), (0, 0)),
    );
    assert_eq!((pixels[0], pixels[14]), ([4, 0, 9], [0, 2, 9]));
}

#[test]
fn a_quarter_turn_by_angle_is_the_quarter_turn() {
    let source = picture(16, 16);
    let draw = |angle: f64, num_turns| PairDraw {
        angle,
        num_turns,
        ..PairDraw::NONE
    };
    let by_turns = sampled(
        &source,
        shape(16, 16),
        Map::new(&draw(0.0, 1), shape(16, 16), (0, 0)),
    );
    let by_angle = sampled(
        &source,
        shape(16, 16),
        Map::new(&draw(FRAC_PI_2, 0), shape(16, 16), (0, 0)),
    );
    assert_eq!(by_turns, by_angle);
}

#[test]
fn beyond_its_edges_a_picture_is_mirrored_and_does_not_count() {
    let (pixels, mask) = sampled(
        &picture(4, 4),
        shape(3, 3),
        Map::new(&PairDraw::NONE, shape(3, 3), (2, 3)),
    );
    assert_eq!(pixels[..3], [[2, 3, 9], [3, 3, 9], [3, 3, 9]]);
    assert_eq!(pixels[3..6], [[2, 3, 9], [3, 3, 9], [3, 3, 9]]);
    assert_eq!(mask[..4], [5, 6, IGNORED, IGNORED]);
    // Mirrored repeatedly, so that each pixel appears equally often.
    let places: Vec<usize> = (-4..8).map(|at| mirrored(at, 2)).collect();
    assert_eq!(places, [0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]);
    assert_eq!((mirrored(-7, 1), mirrored(9, 1)), (0, 0));
}

#[test]
fn enlarging_is_bilinear() {
    let draw = PairDraw {
        zoom: 2.0,
        ..PairDraw::NONE
    };
    // The middle 4 x 4 of 8 x 8, twice as large: sampled a quarter of a pixel off each middle.
    let (pixels, _) = sampled(
        &picture(8, 8),
        shape(8, 8),
        Map::new(&draw, shape(8, 8), (0, 0)),
    );
    let reds: Vec<u8> = pixels[..8].iter().map(|pixel| pixel[0]).collect();
    assert_eq!(reds, [2, 2, 3, 3, 4, 4, 5, 5]);
}

#[test]
fn fewer_pixels_are_steps_smoothed() {
    let shape = RowShape {
        channels: 1,
        ..shape(8, 2)
    };
    let mut pixels = [0, 0, 80, 80, 160, 160, 240, 240].repeat(2);
    coarsen(shape, 2.0, &mut pixels, &mut Vec::new());
    assert_eq!(pixels[..8], [0, 20, 60, 100, 140, 180, 220, 240]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any rotation and scale: a pixel inside the source shows its own position, its class is that of an adjacent pixel, and 16 bits and
    /// any number of channels give the same.
    #[test]
    fn pixels_and_classes_come_from_one_place(
        angle in -3.2f64..3.2, zoom in 0.5f64..2.0, is_mirrored in any::<bool>(), width in 20usize..40, height in 20usize..40,
    ) {
        let source = picture(width, height);
        let draw = PairDraw { angle, zoom, is_mirrored, ..PairDraw::NONE };
        let shape = shape(24, 30);
        let map = Map::new(&draw, shape, ((width - 20) / 2, (height - 20) / 2));
        let (pixels, mask) = sampled(&source, shape, map);
        for (pixel, class) in pixels.iter().zip(&mask) {
            prop_assert!(usize::from(pixel[0]) < width && usize::from(pixel[1]) < height);
            if *class == IGNORED {
                continue;
            }
            let place = i32::from(pixel[0]) + i32::from(pixel[1]);
            prop_assert!((place - i32::from(*class)).abs() <= 2, "{:?} {}", pixel, class);
        }
        let deep = WholePicture {
            depth: PixelDepth::Sixteen,
            pixels: source.pixels.iter().flat_map(|value| [0, *value]).collect(),
            ..source.clone()
        };
        let deep_shape = RowShape { depth: PixelDepth::Sixteen, ..shape };
        let mut deep_pixels = vec![1; deep_shape.pixels().len()];
        let mut deep_mask = vec![1; shape.num_pixels()];
        let mut target = RowBuffers {
            shape: deep_shape,
            pixels: &mut deep_pixels,
            mask: &mut deep_mask,
        };
        sample(&deep, map, None, &mut target);
        prop_assert_eq!(&deep_mask, &mask);
        for (deep, value) in deep_pixels.as_chunks::<2>().0.iter().zip(pixels.as_flattened()) {
            let deep = f64::from(u16::from_le_bytes(*deep)) / 256.0;
            prop_assert!((deep - f64::from(*value)).abs() <= 0.5 + 1e-9, "{} {}", deep, value);
        }
    }
}
