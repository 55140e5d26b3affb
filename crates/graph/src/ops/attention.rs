//! `o = softmax(scale * q k^T + mask) v`, per sample and head, with memory linear in the number of tokens.
//!
//! The backward pass needs `o` and, per query, the logarithm of the softmax sum, `lse`. It recomputes the scores from
//! `q` and `k`. With `p = exp(s - lse)`:
//! `dv = p^T do`, `dp = do v^T`, `ds = p * (dp - sum(p dp))`, `dq = scale * ds k`, `dk = scale * ds^T q`.
//!
//! With dropout, `o = (p m / (1 - rate)) v`. Like the mask of [`Dropout`], the mask `m` is a function of (seed, epoch, sample,
//! layer, head, query, key): the same bits on every device, and no mask is stored. `lse` includes the dropped scores. Backward,
//! `dv` takes `p m / (1 - rate)` for `p`, and `dp` becomes `m dp / (1 - rate)`.
//!
//! ```text
//! m = the upper 32 bits of mix(key ^ (head << 40 | query << 20 | key's place)) >= rate * 2^32      key, mix: those of Dropout
//! ```
//!
//! Legend: `b` samples, `t` queries, `s` keys, `d` width (heads side by side), `h` heads.

use crate::op::{RecomputeRule, undifferentiated};
use crate::ops::dropout::{Dropout, DropoutMode};
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, ValueId};

/// Forward. Inputs `q_btd, k_bsd, v_bsd, [key_lengths_b], [sample_ids_b, stream_2]`; outputs `o_btd, lse_bht`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub num_heads: usize,
    /// Query `t` sees keys `0..=t`.
    pub causal: bool,
    /// Factor of the scores.
    pub scale: f64,
    /// The fourth input is the number of keys of each sample.
    pub key_lengths: bool,
    /// The last two inputs seed the masks of the probabilities. Elements are dropped one by one.
    pub dropout: Option<Dropout>,
}

/// Index of a head, query and key in a sample's mask. It does not depend on shapes, so that texts of another padded length have
/// the same mask.
#[inline(always)]
pub fn mask_index(head: usize, query: usize, key: usize) -> u64 {
    (head as u64) << 40 | (query as u64) << 20 | key as u64
}

/// Limit of queries and keys: [`mask_index`] has 20 bits for each.
const MOST_TOKENS: usize = 1 << 20;

/// Inputs `do, q, k, v, o, lse, [key_lengths], [sample_ids, stream]`; outputs `dq, dk, dv`.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionGrad {
    pub forward: Attention,
}

impl Graph {
    /// Attention of `q` over `k` and `v`: self-attention, causal attention or cross-attention.
    pub fn attention(
        &mut self,
        name: &str,
        [q_btd, k_bsd, v_bsd]: [ValueId; 3],
        key_lengths_b: Option<ValueId>,
        num_heads: usize,
        causal: bool,
    ) -> ValueId {
        let parts = [q_btd, k_bsd, v_bsd];
        self.attention_dropped(name, parts, key_lengths_b, num_heads, causal, None)
    }

    /// Like [`Graph::attention`], with dropout of the probabilities: its settings, the samples' ids and `[seed, epoch]`.
    pub fn attention_dropped(
        &mut self,
        name: &str,
        [q_btd, k_bsd, v_bsd]: [ValueId; 3],
        key_lengths_b: Option<ValueId>,
        num_heads: usize,
        causal: bool,
        dropout: Option<(Dropout, [ValueId; 2])>,
    ) -> ValueId {
        let (q, k, v) = (self.shape(q_btd), self.shape(k_bsd), self.shape(v_bsd));
        assert_eq!(k, v, "attention {name}: keys {k:?} against values {v:?}");
        assert_eq!(
            (q.dims()[0], q.width()),
            (k.dims()[0], k.width()),
            "attention {name}: queries {q:?} against keys {k:?}"
        );
        assert_eq!(
            q.width() % num_heads,
            0,
            "attention {name}: width {} in {num_heads} heads",
            q.width()
        );
        if let Some(lengths) = key_lengths_b {
            assert_eq!(
                self.dtype(lengths),
                DType::I64,
                "attention {name}: lengths are indices"
            );
        }
        if let Some((op, [sample_ids_b, stream_2])) = &dropout {
            assert!(
                (0.0..1.0).contains(&op.rate) && op.mode == DropoutMode::Element,
                "attention {name}: {op:?}, expected a rate of 0 or more and less than 1, of elements"
            );
            assert!(
                q.dims()[1] < MOST_TOKENS && k.dims()[1] < MOST_TOKENS,
                "attention {name}: queries {q:?} against keys {k:?} with dropout"
            );
            let ids = self.shape(*sample_ids_b).num_elements();
            let formats = [*sample_ids_b, *stream_2].map(|indices| self.dtype(indices));
            assert_eq!(
                (ids, self.shape(*stream_2).num_elements(), formats),
                (q.dims()[0], 2, [DType::I64; 2]),
                "attention {name}: queries {q:?}, {ids} samples"
            );
        }
        // The gradients are written side by side: one view cannot receive two of them.
        let [q_view, k_view, v_view] = [q_btd, k_bsd, v_bsd].map(|id| *self.value(id));
        assert!(
            q_view != k_view && k_view != v_view && q_view != v_view,
            "attention {name}: queries, keys and values are three different views"
        );
        let o_btd = self.activation(name, q.dims());
        let lse_bht = self.statistic(
            &format!("{name}.lse"),
            &[q.dims()[0], num_heads, q.dims()[1]],
        );
        let op = Attention {
            num_heads,
            causal,
            scale: 1.0 / ((q.width() / num_heads) as f64).sqrt(),
            key_lengths: key_lengths_b.is_some(),
            dropout: dropout.as_ref().map(|(op, _)| op.clone()),
        };
        let mut inputs = vec![q_btd, k_bsd, v_bsd];
        inputs.extend(key_lengths_b);
        inputs.extend(dropout.into_iter().flat_map(|(_, stream)| stream));
        self.push_new(op, inputs, &[o_btd, lse_bht]);
        o_btd
    }
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(do_btd) = pass.reached(node, 0) else {
            return;
        };
        let mut inputs = vec![do_btd];
        inputs.extend(&node.inputs[..3]);
        inputs.extend(node.outputs.iter().map(|output| output.value));
        inputs.extend(&node.inputs[3..]);
        let outputs = node.inputs[..3]
            .iter()
            .map(|&input| pass.target(input))
            .collect();
        let op = AttentionGrad {
            forward: self.clone(),
        };
        pass.graph().push(op, inputs, outputs);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        scores(node, node.input(0), node.input(1), self, 2)
    }

    fn skippable(&self, output: usize) -> bool {
        output == 1
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(AttentionGrad, "attention gradient", |op, node| scores(
    node,
    node.input(1),
    node.input(2),
    &op.forward,
    5
));

fn scores(
    node: NodeView<'_>,
    q: crate::Shape,
    k: crate::Shape,
    op: &Attention,
    num_products: u64,
) -> Cost {
    let pairs = (q.rows() * k.dims()[1]) as u64;
    let mask = if op.dropout.is_some() { 12 } else { 0 };
    Cost {
        product_flops: num_products * 2 * pairs * q.width() as u64,
        element_flops: pairs * op.num_heads as u64 * (8 * num_products + mask),
        bytes: node.operand_bytes(),
    }
}
