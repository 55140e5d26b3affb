//! Pictures to patches, class token, embeddings, and picking one token of each sample.
//!
//! Legend: `b` samples, `t` tokens, `n` patches, `v` vocabulary, `d` width.

use holdall_graph::ops::patchify::Normalization;
use holdall_graph::{DType, ValueId};

use super::harness::{ALL, F32, FORMATS, Gpu, Settings, Sketch};
use super::step::{Contents, NORMALIZATION};

/// Places sorted by id, and after them -1 for places beyond their sample's end.
pub fn sorted_places(ids_bt: &[i64], ends_b: &[usize], tokens: usize) -> Vec<i64> {
    let within = |place: usize| place % tokens <= ends_b[place / tokens];
    let mut order_bt: Vec<i64> = (0..ids_bt.len())
        .filter(|&place| within(place))
        .map(|place| place as i64)
        .collect();
    order_bt.sort_by_key(|&place| (ids_bt[place as usize], place));
    order_bt.resize(ids_bt.len(), -1);
    order_bt
}

/// An embedding whose gradient is zero beyond the samples' ends.
fn embedding(
    s: &mut Sketch,
    ids_bt: &[i64],
    ends_b: &[usize],
    [vocabulary, width]: [usize; 2],
) -> ValueId {
    let (samples, tokens) = (ends_b.len(), ids_bt.len() / ends_b.len());
    let order_bt = sorted_places(ids_bt, ends_b, tokens);
    let dims = [samples, tokens];
    let (ids, order) = (s.indices(&dims, ids_bt), s.indices(&dims, &order_bt));
    let (table_vd, all_positions) = (
        s.parameter(&[vocabulary, width]),
        s.parameter(&[tokens + 3, width]),
    );
    let positions_td = s.graph.rows(all_positions, 0, tokens);
    let x_btd = s
        .graph
        .embedding("x", ids, table_vd, positions_td, Some(order));
    let mut seed = s.numbers(samples * tokens * width, 1.0);
    for (place, row) in seed.chunks_mut(width).enumerate() {
        if place % tokens > ends_b[place / tokens] {
            row.fill(0.0);
        }
    }
    s.seed(x_btd, seed);
    x_btd
}

/// Which ids stand where.
#[derive(Clone, Copy, Debug)]
enum Ids {
    /// One id in half of all places, as padding is.
    HalfTheSame,
    Same,
    Any,
}

impl Ids {
    fn at(self, place: usize, drawn: usize) -> i64 {
        let id = match self {
            Ids::HalfTheSame if place.is_multiple_of(2) => 3,
            Ids::Same => 5,
            _ => drawn,
        };
        id as i64
    }
}

#[test]
fn embedding_of_ids_that_repeat_hundreds_of_times() {
    let Some(gpu) = Gpu::open() else { return };
    const TOKENS: usize = 77;
    for kind in [Ids::HalfTheSame, Ids::Same, Ids::Any] {
        for width in [64, 520] {
            for ends in [[76; 8], [76, 0, 12, 40, 5, 76, 30, 2]] {
                let what = format!("embedding {width} wide, ids {kind:?}, ends {ends:?}");
                gpu.compare(&what, FORMATS, |s| {
                    let ids: Vec<i64> = (0..ends.len() * TOKENS)
                        .map(|place| kind.at(place, s.random.below(50)))
                        .collect();
                    vec![embedding(s, &ids, &ends, [50, width])]
                });
            }
        }
    }
}

#[test]
fn embedding_of_runs_that_end_where_a_block_does() {
    let Some(gpu) = Gpu::open() else { return };
    // Runs of 63, 64, 65, 128 and 192 places among blocks of 64.
    let runs = [64, 63, 1, 128, 65, 63, 192, 1, 1, 62];
    let ids = runs.iter().enumerate();
    let ids: Vec<i64> = ids
        .flat_map(|(id, &count)| vec![id as i64; count])
        .collect();
    gpu.compare("embedding of runs that meet blocks", FORMATS, |s| {
        let ends = [ids.len() / 10 - 1; 10];
        vec![embedding(s, &ids, &ends, [runs.len(), 24])]
    });
}

#[test]
fn embedding_of_one_id_in_more_blocks_than_a_block_has_threads() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).long_sums();
    gpu.compare_with("embedding of 34034 equal ids", settings, |s| {
        let ids = vec![2; 442 * 77];
        vec![embedding(s, &ids, &[76; 442], [3, 8])]
    });
}

#[test]
fn embedding_of_odd_widths() {
    let Some(gpu) = Gpu::open() else { return };
    for width in [1, 37, 131] {
        gpu.compare(&format!("embedding {width} wide"), FORMATS, |s| {
            let ids: Vec<i64> = (0..3 * 50).map(|_| s.random.below(7) as i64).collect();
            vec![embedding(s, &ids, &[49, 20, 0], [7, width])]
        });
    }
}

/// Two by three patches, in a few samples.
fn pixels(patch: usize) -> [usize; 4] {
    [3, 2 * patch, 3 * patch, 3]
}

#[test]
fn patchify_of_bytes_and_of_numbers() {
    let Some(gpu) = Gpu::open() else { return };
    for patch in [2, 8, 14, 16, 32] {
        let dims = pixels(patch);
        let count: usize = dims.iter().product();
        gpu.compare(&format!("patches of {patch}, bytes"), FORMATS, |s| {
            let bytes = (0..count).map(|_| s.random.below(256) as u8).collect();
            let pixels_bhwc = s.given(&dims, DType::U8, Contents::Bytes(bytes));
            let normalization = match patch {
                2 | 8 => Normalization {
                    mean: [0.5, 0.25, 0.0],
                    std: [0.5, 0.125, 1.0],
                },
                _ => NORMALIZATION,
            };
            vec![
                s.graph
                    .patchify("patches", pixels_bhwc, patch, normalization),
            ]
        });
        gpu.compare(&format!("patches of {patch}, numbers"), FORMATS, |s| {
            let values = s.numbers(count, 2.0);
            let pixels_bhwc = s.full_constant(&dims, &values);
            vec![
                s.graph
                    .patchify("patches", pixels_bhwc, patch, NORMALIZATION),
            ]
        });
    }
}

#[test]
fn pictures_to_tokens() {
    let Some(gpu) = Gpu::open() else { return };
    for patch in [8, 32] {
        gpu.compare(
            &format!("pictures to tokens, patches of {patch}"),
            ALL,
            |s| {
                let dims = pixels(patch);
                let count = dims.iter().product();
                let bytes = (0..count).map(|_| s.random.below(256) as u8).collect();
                let pixels_bhwc = s.given(&dims, DType::U8, Contents::Bytes(bytes));
                let patches = s
                    .graph
                    .patchify("patches", pixels_bhwc, patch, NORMALIZATION);
                let weight = s.parameter(&[64, 3 * patch * patch]);
                let embedded = s.graph.linear("embedded", patches, weight, None, None);
                let (class_d, positions_td) = (s.parameter(&[64]), s.parameter(&[7, 64]));
                vec![s.graph.class_token("x", embedded, class_d, positions_td)]
            },
        );
    }
}

#[test]
fn class_token_trained_and_frozen() {
    let Some(gpu) = Gpu::open() else { return };
    for frozen in [false, true] {
        for [samples, patches, width] in [[5, 49, 64], [130, 3, 72], [1, 1, 768]] {
            let what = format!("class token of {samples}, {patches}, {width}, frozen {frozen}");
            gpu.compare(&what, FORMATS, |s| {
                let patches_bnd = s.input(&[samples, patches, width]);
                let class_d = s.parameter(&[width]);
                let positions_td = s.parameter(&[patches + 1, width]);
                if frozen {
                    s.freeze(class_d);
                    s.freeze(positions_td);
                }
                vec![s.graph.class_token("x", patches_bnd, class_d, positions_td)]
            });
        }
    }
}

#[test]
fn class_token_of_odd_widths_and_without_a_gradient() {
    let Some(gpu) = Gpu::open() else { return };
    for width in [1, 37, 70] {
        gpu.compare(&format!("class token {width} wide"), FORMATS, |s| {
            let patches_bnd = s.input(&[5, 9, width]);
            let (class_d, positions_td) = (s.parameter(&[width]), s.parameter(&[10, width]));
            vec![s.graph.class_token("x", patches_bnd, class_d, positions_td)]
        });
    }
    gpu.compare("class token before constants", FORMATS, |s| {
        let patches_bnd = s.constant(&[5, 9, 64]);
        let (class_d, positions_td) = (s.parameter(&[64]), s.parameter(&[10, 64]));
        vec![s.graph.class_token("x", patches_bnd, class_d, positions_td)]
    });
}

#[test]
fn class_token_adds_to_a_gradient_that_is_there() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("class token beside another reader", ALL, |s| {
        let patches_bnd = s.input(&[5, 9, 64]);
        let (class_d, positions_td) = (s.parameter(&[64]), s.parameter(&[10, 64]));
        let x_btd = s.graph.class_token("x", patches_bnd, class_d, positions_td);
        let weight = s.parameter(&[32, 64]);
        vec![x_btd, s.graph.linear("z", patches_bnd, weight, None, None)]
    });
}

#[test]
fn gather_rows_alone() {
    let Some(gpu) = Gpu::open() else { return };
    for (width, arithmetics) in [(64, FORMATS), (768, FORMATS), (37, FORMATS), (1, F32)] {
        gpu.compare(&format!("gather rows {width} wide"), arithmetics, |s| {
            let x_btd = s.input(&[9, 7, width]);
            let index_b = s.indices(&[9], &[0, 6, 1, 2, 2, 5, 3, 4, 6]);
            vec![s.graph.gather_rows("y", x_btd, index_b)]
        });
    }
}

#[test]
fn gather_rows_beside_another_reader() {
    let Some(gpu) = Gpu::open() else { return };
    for gather_first in [true, false] {
        let what = format!("gather rows beside a product, first {gather_first}");
        gpu.compare(&what, ALL, |s| {
            let x_btd = s.input(&[4, 7, 64]);
            let index_b = s.indices(&[4], &[0, 6, 1, 2]);
            let weight = s.parameter(&[32, 64]);
            if gather_first {
                let gathered = s.graph.gather_rows("y", x_btd, index_b);
                vec![gathered, s.graph.linear("z", x_btd, weight, None, None)]
            } else {
                let z = s.graph.linear("z", x_btd, weight, None, None);
                vec![z, s.graph.gather_rows("y", x_btd, index_b)]
            }
        });
    }
}

#[test]
fn two_tokens_before_the_patches() {
    let Some(gpu) = Gpu::open() else { return };
    for [samples, patches, width] in [[5, 49, 64], [130, 3, 72], [3, 1, 37]] {
        gpu.compare(
            &format!("two tokens before {patches} patches"),
            FORMATS,
            |s| {
                let patches_bnd = s.input(&[samples, patches, width]);
                let class_kd = s.parameter(&[2, width]);
                let positions_td = s.parameter(&[patches + 2, width]);
                vec![
                    s.graph
                        .class_token("x", patches_bnd, class_kd, positions_td),
                ]
            },
        );
    }
}

#[test]
fn mean_tokens_alone_and_beside_another_reader() {
    let Some(gpu) = Gpu::open() else { return };
    for [samples, tokens, width] in [[5, 50, 64], [130, 7, 37], [2, 257, 768], [3, 2, 1]] {
        for first in [0, 1] {
            let what = format!("mean of tokens {first} to {tokens}, {samples} x {width}");
            gpu.compare(&what, FORMATS, |s| {
                let x_btd = s.input(&[samples, tokens, width]);
                vec![s.graph.mean_tokens("y", x_btd, first, None)]
            });
        }
    }
    gpu.compare("mean of tokens beside a product", ALL, |s| {
        let x_btd = s.input(&[4, 7, 64]);
        let mean = s.graph.mean_tokens("y", x_btd, 2, None);
        let weight = s.parameter(&[32, 64]);
        vec![mean, s.graph.linear("z", x_btd, weight, None, None)]
    });
}

#[test]
fn mixed_pictures_to_patches() {
    let Some(gpu) = Gpu::open() else { return };
    for patch in [2, 8] {
        gpu.compare(
            &format!("mixed pictures, patches of {patch}"),
            FORMATS,
            |s| {
                let dims = pixels(patch);
                let [own, partner] = [(); 2].map(|()| {
                    let bytes = (0..dims.iter().product()).map(|_| s.random.below(256) as u8);
                    let bytes = bytes.collect();
                    s.given(&dims, DType::U8, Contents::Bytes(bytes))
                });
                let mix = [
                    [0.25, 0.0, 0.0, 0.0, 0.0],
                    [1.0, 1.0, 2.0, 3.0, 99.0],
                    [1.0, 0.0, 0.0, 0.0, 0.0],
                ];
                let mix_b5 = s.full_constant(&[3, 5], &mix.concat());
                let mixed = s
                    .graph
                    .mix_pictures("mixed", own, partner, mix_b5, NORMALIZATION);
                s.seen = vec![mixed];
                vec![s.graph.patchify("patches", mixed, patch, NORMALIZATION)]
            },
        );
    }
}
