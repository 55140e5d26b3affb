//! Attention: tensor cores if the format and the head's size allow them, otherwise plain arithmetic, as for one token of decoding.

use holdall_graph::ops::attention::Attention;
use holdall_graph::ops::cached_attention::CachedAttention;
use holdall_graph::ops::dropout::Dropout;
use holdall_graph::{DType, Write};

use super::super::driver::Argument;
use super::{Matrix, Operands};
use crate::DeviceError;

/// Kernels that compute an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernels {
    /// One block per sample and head, with this many warps.
    Small(usize),
    /// Tiles of queries against tiles of keys.
    Tiled,
    /// Tiles for few queries and enough parallel work: each tile of keys is read once for all gradients.
    Few,
    /// Without tensor cores: f32, odd sizes, single queries.
    Plain,
}

const TILE: usize = 64;

struct AttentionSizes {
    samples: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    head: usize,
}

impl AttentionSizes {
    fn new(op: &Attention, q: &holdall_plan::Place, k: &holdall_plan::Place) -> AttentionSizes {
        let (q, k) = (q.shape, k.shape);
        AttentionSizes {
            samples: q.dims()[0],
            heads: op.num_heads,
            queries: q.dims()[1],
            keys: k.dims()[1],
            head: q.width() / op.num_heads,
        }
    }

    fn kind(&self, capability: u32, operands: &[Matrix], drops: bool) -> Kernels {
        let aligned = operands
            .iter()
            .all(|matrix| matrix.address % 16 == 0 && matrix.stride % 8 == 0);
        let dtype = operands[0].dtype;
        let has_cores = match dtype {
            DType::F16 => true,
            DType::Bf16 => capability >= 80,
            _ => false,
        };
        if !has_cores || !aligned || self.queries == 1 || ![32, 64].contains(&self.head) {
            return Kernels::Plain;
        }
        match self.queries.max(self.keys) {
            _ if drops => Kernels::Tiled,
            0..=64 => Kernels::Small(4),
            65..=80 => Kernels::Small(5),
            _ => Kernels::Tiled,
        }
    }

    /// Kernels for the gradients. One block per sample and head is enough if the queries fit into a tile and there are blocks for the
    /// whole card.
    fn backward_kind(&self, kind: Kernels, processors: usize, drops: bool) -> Kernels {
        let fills = self.samples * self.heads >= 2 * processors;
        match kind {
            Kernels::Tiled if self.queries <= TILE && fills && !drops => Kernels::Few,
            kind => kind,
        }
    }

    fn arguments(&self) -> [Argument; 4] {
        [self.samples, self.heads, self.queries, self.keys].map(|size| (size as i32).into())
    }

    /// Grid of one warp per row of every head, in blocks of 128 threads.
    fn plain_grid(&self, rows: usize) -> [usize; 3] {
        [(self.samples * self.heads * rows).div_ceil(4), 1, 1]
    }

    fn tiled_grid(&self, rows: usize) -> [usize; 3] {
        [rows.div_ceil(TILE), self.heads, self.samples]
    }

    fn small_grid(&self) -> [usize; 3] {
        [self.heads, self.samples, 1]
    }
}

/// Name of the kernel for a head size and number of warps.
fn small(of: [&'static str; 4], head: usize, warps: usize) -> &'static str {
    match (head, warps) {
        (32, 4) => of[0],
        (32, _) => of[1],
        (_, 4) => of[2],
        _ => of[3],
    }
}

/// Kernel arguments of dropout; `first` is the index of the sample ids among the inputs. Empty without dropout.
fn mask(dropout: Option<&Dropout>, o: &Operands<'_, '_>, first: usize) -> Vec<Argument> {
    let Some(dropout) = dropout else {
        return Vec::new();
    };
    let (samples, stream) = (o.moving(first), o.input(first + 1));
    vec![
        samples.address.into(),
        stream.address.into(),
        o.issuer.tables.micro().into(),
        (samples.micro as i64).into(),
        (dropout.layer as i64).into(),
        (dropout.threshold() as i32).into(),
        (dropout.scale() as f32).into(),
    ]
}

pub(super) fn forward(op: &Attention, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let [q, k, v] = [0, 1, 2].map(|index| o.input(index));
    let lengths = op.key_lengths.then(|| o.input(3).address);
    let (out, _) = o.result(0);
    let sizes = AttentionSizes::new(op, o.input_place(0), o.input_place(1));
    assert_eq!(k.stride, v.stride, "keys and values lie alike");
    let drops = op.dropout.is_some();
    let mask = mask(op.dropout.as_ref(), o, 3 + usize::from(op.key_lengths));
    let kind = sizes.kind(o.issuer.cuda.capability, &[q, k, v, out], drops);
    let mut arguments: Vec<Argument> = vec![
        q.address.into(),
        k.address.into(),
        v.address.into(),
        lengths.into(),
        out.address.into(),
        o.output_address(1).into(),
    ];
    arguments.extend(sizes.arguments());
    arguments.extend([
        Argument::from(q.stride as i64),
        (k.stride as i64).into(),
        (out.stride as i64).into(),
        (op.scale as f32).into(),
        i32::from(op.causal).into(),
    ]);
    match kind {
        Kernels::Small(warps) => {
            let names = [
                "attention_forward_small_32_4",
                "attention_forward_small_32_5",
                "attention_forward_small_64_4",
                "attention_forward_small_64_5",
            ];
            let name = small(names, sizes.head, warps);
            o.issuer
                .launch(name, sizes.small_grid(), 32 * warps, &arguments)
        }
        Kernels::Tiled | Kernels::Few => {
            let name = match (sizes.head, drops) {
                (32, false) => "attention_forward_32",
                (_, false) => "attention_forward_64",
                (32, true) => "attention_forward_dropping_32",
                (_, true) => "attention_forward_dropping_64",
            };
            arguments.extend(mask);
            o.issuer
                .launch(name, sizes.tiled_grid(sizes.queries), 128, &arguments)
        }
        Kernels::Plain => {
            let name = if !drops {
                "attention_plain_forward"
            } else {
                "attention_plain_forward_dropping"
            };
            arguments.push((sizes.head as i32).into());
            arguments.extend(mask);
            let grid = sizes.plain_grid(sizes.queries);
            o.issuer.launch(name, grid, 128, &arguments)
        }
    }
}

pub(super) fn backward(op: &Attention, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let [dout, q, k, v, out, lse] = [0, 1, 2, 3, 4, 5].map(|index| o.input(index));
    let lengths = op.key_lengths.then(|| o.input(6).address);
    let [(dq, dq_mode), (dk, dk_mode), (dv, dv_mode)] = [0, 1, 2].map(|index| o.result(index));
    let sizes = AttentionSizes::new(op, o.input_place(1), o.input_place(2));
    assert_eq!(k.stride, v.stride, "keys and values lie alike");
    assert_eq!(dk.stride, dv.stride, "their gradients lie alike");
    let drops = op.dropout.is_some();
    let mask = mask(op.dropout.as_ref(), o, 6 + usize::from(op.key_lengths));
    let operands = [q, k, v, out, dout, dq, dk, dv];
    let kind = sizes.kind(o.issuer.cuda.capability, &operands, drops);
    let kind = sizes.backward_kind(kind, o.issuer.cuda.num_processors, drops);
    let bit = |mode: Write, index: i32| i32::from(mode == Write::Accumulate) << index;
    let accumulate = bit(dq_mode, 0) | bit(dk_mode, 1) | bit(dv_mode, 2);
    let mut arguments: Vec<Argument> = vec![
        dout.address.into(),
        q.address.into(),
        k.address.into(),
        v.address.into(),
        out.address.into(),
        lse.address.into(),
        lengths.into(),
        dq.address.into(),
        dk.address.into(),
        dv.address.into(),
    ];
    arguments.extend(sizes.arguments());
    arguments.extend([dout, q, k, out, dq, dk].map(|matrix| Argument::from(matrix.stride as i64)));
    arguments.extend([
        Argument::from(op.scale as f32),
        i32::from(op.causal).into(),
        accumulate.into(),
    ]);
    let issuer = o.issuer;
    match kind {
        Kernels::Small(warps) => {
            let names = [
                "attention_backward_small_32_4",
                "attention_backward_small_32_5",
                "attention_backward_small_64_4",
                "attention_backward_small_64_5",
            ];
            let name = small(names, sizes.head, warps);
            issuer.launch(name, sizes.small_grid(), 32 * warps, &arguments)
        }
        Kernels::Few => {
            let name = match sizes.head {
                32 => "attention_backward_few_32",
                _ => "attention_backward_few_64",
            };
            issuer.launch(name, sizes.small_grid(), 128, &arguments)
        }
        Kernels::Tiled => {
            let [to_queries, to_keys] = match (sizes.head, drops) {
                (32, false) => ["attention_backward_dq_32", "attention_backward_dkv_32"],
                (_, false) => ["attention_backward_dq_64", "attention_backward_dkv_64"],
                (32, true) => [
                    "attention_backward_dq_dropping_32",
                    "attention_backward_dkv_dropping_32",
                ],
                (_, true) => [
                    "attention_backward_dq_dropping_64",
                    "attention_backward_dkv_dropping_64",
                ],
            };
            arguments.extend(mask);
            issuer.launch(to_queries, sizes.tiled_grid(sizes.queries), 128, &arguments)?;
            issuer.launch(to_keys, sizes.tiled_grid(sizes.keys), 128, &arguments)
        }
        Kernels::Plain => {
            let [to_queries, to_keys] = if !drops {
                [
                    "attention_plain_backward_dq",
                    "attention_plain_backward_dkv",
                ]
            } else {
                [
                    "attention_plain_backward_dq_dropping",
                    "attention_plain_backward_dkv_dropping",
                ]
            };
            arguments.push((sizes.head as i32).into());
            arguments.extend(mask);
            let (queries, keys) = (
                sizes.plain_grid(sizes.queries),
                sizes.plain_grid(sizes.keys),
            );
            issuer.launch(to_queries, queries, 128, &arguments)?;
            issuer.launch(to_keys, keys, 128, &arguments)
        }
    }
}

/// Attention of one token per row over a cache, to which its key and value are added. A block per head of a row.
pub(super) fn cached(op: &CachedAttention, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let [q, k, v, ancestors, position] = [0, 1, 2, 3, 4].map(|index| o.input(index));
    let [(out, _), (keys, keys_mode), (values, values_mode)] =
        [0, 1, 2].map(|index| o.result(index));
    assert_eq!(
        [keys_mode, values_mode],
        [Write::Accumulate; 2],
        "steps before this one are read"
    );
    for matrix in [ancestors, keys, values] {
        assert!(matrix.is_contiguous(), "steps of a row follow each other");
    }
    let arguments = arguments![
        q.address,
        k.address,
        v.address,
        ancestors.address,
        position.address,
        out.address,
        keys.address,
        values.address,
        q.rows as i32,
        ancestors.width as i32,
        q.stride as i64,
        k.stride as i64,
        v.stride as i64,
        out.stride as i64,
        keys.width as i64,
        op.scale as f32,
        (q.width / op.num_heads) as i32,
    ];
    let grid = [op.num_heads, q.rows, 1];
    o.issuer.launch("cached_attention", grid, 128, arguments)
}
