//! Scratch, products, kernels and time that each operation takes besides its operands. One match answers for every operation.

use holdall_graph::ops::contrastive::ContrastiveGrad;
use holdall_graph::ops::linear::{Linear, LinearInputGrad, LinearWeightGrad};
use holdall_graph::ops::vocabulary_loss::VocabularyLossGrad;
use holdall_graph::{Op, Shape};

use super::launch::{conv, images};
use super::target::ALIGNMENT;

/// Scratch, products and launches of one operation.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// Scratch of its own kernels; the workspace of its products follows it. A convolution's depends on strides too:
    /// `conv::workspace_bytes`.
    pub scratch_bytes: u64,
    /// Products by the library, as `[rows, outputs, inner]`.
    pub products: Vec<[usize; 3]>,
    /// Input whose format decides the rate of the products.
    pub product_operand: usize,
    /// Kernels besides the products, by the time of their launches: neighbours that share a launch count a fraction.
    pub kernels: f64,
    /// Launches that a captured graph holds. A convolution's depend on strides too: `conv::launches`.
    pub launches: u64,
    pub own_time: OwnTime,
}

/// How long an operation's own kernels take besides their launches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OwnTime {
    /// One pass over all operands.
    OnePass,
    /// Results of products are read again: `bytes`, `elements` of the compute format, and further launches.
    AfterProducts {
        bytes: f64,
        elements: f64,
        launches: f64,
    },
    /// Memory, and arithmetic at a quarter of the card's rate.
    Attention,
    /// Memory or arithmetic, whichever takes longer.
    Convolution,
}

impl OwnTime {
    fn elements_again(elements: usize) -> OwnTime {
        OwnTime::AfterProducts {
            bytes: 0.0,
            elements: elements as f64,
            launches: 0.0,
        }
    }
}

impl Demand {
    /// One kernel that reads and writes its operands once.
    fn one_kernel() -> Demand {
        Demand {
            scratch_bytes: 0,
            products: Vec::new(),
            product_operand: 0,
            kernels: 1.0,
            launches: 1,
            own_time: OwnTime::OnePass,
        }
    }

    /// So many kernels, with scratch between them.
    fn kernels(kernels: f64, scratch_bytes: usize) -> Demand {
        Demand {
            kernels,
            ..Demand::one_kernel().with_scratch(scratch_bytes)
        }
    }

    /// Products, and so many kernels before or after them.
    fn products(products: Vec<[usize; 3]>, kernels: f64) -> Demand {
        Demand {
            products,
            kernels,
            ..Demand::one_kernel()
        }
    }

    fn with_scratch(self, bytes: usize) -> Demand {
        Demand {
            scratch_bytes: (bytes as u64).next_multiple_of(ALIGNMENT),
            ..self
        }
    }

    fn with_own_time(self, own_time: OwnTime) -> Demand {
        Demand { own_time, ..self }
    }

    /// The demand of an operation with these inputs on a card of so many multiprocessors.
    pub fn of(
        op: &Op,
        input: &dyn Fn(usize) -> Shape,
        num_inputs: usize,
        processors: usize,
    ) -> Demand {
        match op {
            Op::Linear(op) => Demand::of_linear(op, input),
            Op::LinearInputGrad(op) => Demand::of_linear_input_grad(op, [input(0), input(1)]),
            Op::LinearWeightGrad(op) => Demand::of_linear_weight_grad(op, [input(0), input(1)]),
            // The kernels of attention multiply without the product library.
            Op::Attention(_) | Op::AttentionGrad(_) => {
                Demand::one_kernel().with_own_time(OwnTime::Attention)
            }
            Op::LayerNormGrad(_) => {
                let dy = input(0);
                Demand::kernels(2.0, norm_parts(dy.rows(), processors) * 2 * dy.width() * 4)
            }
            Op::EmbeddingGrad(_) => {
                let dx = input(0);
                Demand::kernels(
                    2.0,
                    dx.rows().div_ceil(EMBEDDING_CHUNK) * 2 * dx.width() * 4,
                )
            }
            Op::ClassTokenGrad(_) => Demand::kernels(2.0, 0),
            Op::CrossEntropy(_) | Op::PointwiseLoss(_) => Demand::kernels(2.0, input(0).rows() * 4),
            Op::ScaleColumnsGrad(op) if op.gamma => {
                let dy = input(0);
                Demand::kernels(2.0, norm_parts(dy.rows(), processors) * dy.width() * 4)
            }
            Op::AddPositionsGrad(op) if op.repeat > 1 => {
                let dy = input(0);
                Demand::kernels(2.0, dy.dims()[1] * dy.width() * 4)
            }
            Op::GradientNorm(_) => {
                let chunks = |index| input(index).num_elements().div_ceil(UPDATE_CHUNK);
                Demand::kernels(2.0, (0..num_inputs).map(chunks).sum::<usize>() * 8)
            }
            Op::Contrastive(op) => {
                let image = input(0);
                let rows = image.rows();
                let tile = contrastive_tile(rows, op.tile);
                Demand::products(vec![[rows, rows, image.width()]], 4.0)
                    .with_scratch((tile * tile + 5 * rows) * 4)
            }
            Op::ContrastiveGrad(op) => Demand::of_contrastive_grad(op, input(1)),
            Op::VocabularyLoss(op) => {
                let (x, weight) = (input(0), input(1));
                let tiles = VocabularyTiles::new(x.rows(), weight.rows(), op.tile);
                let products = vec![[x.rows(), weight.rows(), x.width()]];
                // Kernels of the tiles are counted with their products.
                Demand::products(products, 1.0)
                    .with_scratch((tiles.rows * tiles.pitch + x.rows()) * 4)
                    .with_tiles(tiles, 0, 0)
            }
            // The first input is the seed.
            Op::VocabularyLossGrad(op) => Demand::of_vocabulary_loss_grad(op, [input(1), input(2)]),
            Op::Conv2d(_)
            | Op::Conv2dInputGrad(_)
            | Op::Conv2dWeightGrad(_)
            | Op::TransposedConv2d(_)
            | Op::TransposedConv2dInputGrad(_)
            | Op::TransposedConv2dWeightGrad(_) => {
                Demand::kernels(conv::kernels(op), 0).with_own_time(OwnTime::Convolution)
            }
            Op::GroupStatistics(_) => Demand::kernels(2.0, images::statistics_bytes(input(0))),
            Op::GroupNormGrad(op) => {
                Demand::kernels(4.0, images::gradient_bytes(input(0), op.groups))
            }
            Op::PixelLoss(_) => Demand::kernels(2.0, images::pixel_loss_bytes(input(0))),
            Op::OverlapSums(_) => Demand::kernels(2.0, images::overlap_bytes(input(0))),
            // Neighbouring gradients are cleared by one launch.
            Op::Fill(_) => Demand {
                launches: 0,
                ..Demand::kernels(0.05, 0)
            },
            // `Cuda::exchange_bytes` counts exchanges.
            Op::Collective(_) => Demand {
                launches: 0,
                ..Demand::kernels(0.0, 0)
            },
            plain_operations!()
            | Op::CrossEntropyGrad(_)
            | Op::PointwiseLossGrad(_)
            | Op::ScaleColumnsGrad(_)
            | Op::AddPositionsGrad(_)
            | Op::RepeatGrad(_)
            | Op::CachedAttention(_)
            | Op::TopTokens(_)
            | Op::OverlapLoss(_)
            | Op::OverlapLossGrad(_) => Demand::one_kernel(),
        }
    }

    fn of_linear(op: &Linear, input: &dyn Fn(usize) -> Shape) -> Demand {
        let (x, weight) = (input(0), input(1));
        let mut products = vec![[x.rows(), weight.rows(), x.width()]];
        products.extend(op.low_rank_terms().map(|(columns, h)| {
            let h = input(h);
            [h.rows(), columns.len(), h.width()]
        }));
        let again = if op.activation.is_some() { 2 } else { 0 };
        Demand {
            launches: products.len() as u64,
            ..Demand::products(products, kernel_if(op.activation.is_some()))
                .with_own_time(OwnTime::elements_again(again * x.rows() * weight.rows()))
        }
    }

    fn of_linear_input_grad(op: &LinearInputGrad, [dz, weight]: [Shape; 2]) -> Demand {
        let products = vec![[dz.rows(), weight.width(), dz.width()]];
        let has_activation = op.activation.is_some();
        let (again, sums) = if has_activation {
            (3, activation_parts(dz.rows()) * weight.width())
        } else {
            (0, 0)
        };
        Demand::products(products, kernel_if(has_activation))
            .with_scratch(sums * 4)
            .with_own_time(OwnTime::elements_again(again * dz.rows() * weight.width()))
    }

    fn of_linear_weight_grad(op: &LinearWeightGrad, [dz, x]: [Shape; 2]) -> Demand {
        let products = if op.weight {
            vec![[dz.width(), x.width(), dz.rows()]]
        } else {
            Vec::new()
        };
        let (kernels, sums, again) = if op.bias {
            (1.5, column_parts(dz.rows()) * dz.width(), dz.num_elements())
        } else {
            (0.0, 0, 0)
        };
        Demand::products(products, kernels)
            .with_scratch(sums * 4)
            .with_own_time(OwnTime::elements_again(again))
    }

    fn of_contrastive_grad(op: &ContrastiveGrad, image: Shape) -> Demand {
        let (rows, width) = (image.rows(), image.width());
        let tile = contrastive_tile(rows, op.tile);
        // Tiles are cut at the borders of each process's rows, and one extra tile is allocated.
        let processes = op.processes.count;
        let along = rows.div_ceil(tile) + if processes > 1 { 2 } else { 0 };
        let tiles = along * along + usize::from(processes > 1);
        let sums = tiles * tile.div_ceil(8) * tile.div_ceil(128);
        let forward = [rows, rows, width];
        let back = [rows, width, rows];
        Demand::products(vec![forward, back, back], 1.0).with_scratch((tile * tile + sums) * 4)
    }

    fn of_vocabulary_loss_grad(op: &VocabularyLossGrad, [x, weight]: [Shape; 2]) -> Demand {
        let tiles = VocabularyTiles::new(x.rows(), weight.rows(), op.tile);
        let [rows, vocabulary, width] = [x.rows(), weight.rows(), x.width()];
        let mut products = vec![[rows, vocabulary, width]];
        if op.x {
            products.push([rows, width, vocabulary]);
        }
        if op.weight {
            products.push([vocabulary, width, rows]);
        }
        let dweight = if op.weight { weight.num_elements() } else { 0 };
        let again = products.len();
        Demand {
            product_operand: 1,
            ..Demand::products(products, 0.0)
                .with_scratch(tiles.rows * tiles.pitch * 4)
                .with_tiles(tiles, again, dweight)
        }
    }

    /// Logits are written and read tile by tile as floats, and `again` times in the compute format; a weight gradient is read and
    /// written for every tile.
    fn with_tiles(
        mut self,
        tiles: VocabularyTiles,
        again: usize,
        dweight_elements: usize,
    ) -> Demand {
        let num_tiles = tiles.iter().count();
        self.launches = ((self.products.len() + 1) * num_tiles) as u64;
        let logits = (tiles.num_rows * tiles.pitch) as f64;
        self.own_time = OwnTime::AfterProducts {
            bytes: logits * 8.0 + (num_tiles * dweight_elements * 8) as f64,
            elements: logits * again as f64,
            launches: self.launches as f64,
        };
        self
    }

    pub fn is_convolution(&self) -> bool {
        self.own_time == OwnTime::Convolution
    }
}

fn kernel_if(there_is_one: bool) -> f64 {
    f64::from(u8::from(there_is_one))
}

/// Minimum rows and columns of a tile of the contrastive loss: a card needs more work at a time than a CPU.
const LEAST_TILE: usize = 2048;

/// Number of partial sums of a layer norm's parameter gradients.
pub(super) fn norm_parts(rows: usize, processors: usize) -> usize {
    rows.div_ceil(8).clamp(1, 2 * processors)
}

/// Number of partial sums of a bias gradient; one: a single launch computes it. Measured on an H200 at widths of 2304 and 3072:
/// one launch is faster up to 6,400 rows, 64 parts reach the memory's bandwidth at 51,200.
pub(super) fn column_parts(rows: usize) -> usize {
    match rows {
        0..=8192 => 1,
        _ => 64,
    }
}

/// Number of partial sums of a bias gradient that is summed in the backward pass of an activation; a single one adds to the gradient
/// directly.
pub(super) fn activation_parts(rows: usize) -> usize {
    match rows {
        0..=1024 => 1,
        1025..=16_384 => 8,
        _ => 32,
    }
}

pub(super) fn contrastive_tile(rows: usize, asked: usize) -> usize {
    asked.max(LEAST_TILE).min(rows)
}

/// Tiles of the logits of a loss over a vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct VocabularyTiles {
    num_rows: usize,
    /// Rows per tile.
    pub rows: usize,
    /// Floats between consecutive rows of logits.
    pub pitch: usize,
}

impl VocabularyTiles {
    pub fn new(num_rows: usize, vocabulary: usize, tile: usize) -> VocabularyTiles {
        VocabularyTiles {
            num_rows,
            rows: tile.min(num_rows),
            pitch: vocabulary.next_multiple_of(ALIGNMENT as usize / 4),
        }
    }

    /// First row and number of rows of every tile.
    pub fn iter(self) -> impl Iterator<Item = (usize, usize)> {
        let starts = (0..self.num_rows).step_by(self.rows.max(1));
        starts.map(move |first| (first, self.rows.min(self.num_rows - first)))
    }
}

/// Elements per block of the update.
pub(super) const UPDATE_CHUNK: usize = 8192;

/// Entries of an embedding's order per block.
pub(super) const EMBEDDING_CHUNK: usize = 64;
