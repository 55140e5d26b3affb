//! Attention of one new token over the tokens before it, whose keys and values are in a cache: one step of decoding.
//!
//! Row `i` writes its key and value to `[i, position]` of the caches, then attends over the steps `0..=position`. Step
//! `u < position` is read from row `ancestors[i, u]`: beams with a common prefix share its keys, and nothing is moved when a
//! beam continues another. `o[i] = softmax over u of (scale * q[i] . keys[ancestor, u]) values[ancestor, u]`, per head.
//!
//! Legend: `r` rows (samples x beams), `l` maximum length of a text, `d` width (heads side by side).

use crate::op::undifferentiated;
use crate::{Cost, DType, Graph, Output, ValueId};

/// Inputs `q_r1d, k_r1d, v_r1d, ancestors_rl, position_1`; outputs `o_r1d`, and `keys_rld, values_rld`, of which earlier steps are
/// read and one step is written. Entries of `ancestors` from `position` on are not read.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedAttention {
    pub num_heads: usize,
    /// Factor of the scores.
    pub scale: f64,
}

impl Graph {
    /// Adds an endpoint in the compute format that outlives programs.
    pub fn cache(&mut self, name: &str, dims: &[usize]) -> ValueId {
        let compute = self.compute();
        let value = self.tensor(name, dims, compute, crate::Role::Feature);
        self.name_endpoint(name, value);
        value
    }

    /// Attention of one new token per row over the cache and itself; its key and value are added to the cache.
    pub fn cached_attention(
        &mut self,
        name: &str,
        [q_r1d, k_r1d, v_r1d]: [ValueId; 3],
        ancestors_rl: ValueId,
        position_1: ValueId,
        [keys_rld, values_rld]: [ValueId; 2],
        num_heads: usize,
    ) -> ValueId {
        let [q, k, v] = [q_r1d, k_r1d, v_r1d].map(|id| self.shape(id));
        let [rows, 1, width] = *q.dims() else {
            panic!("cached attention {name}: queries {q:?}, expected [rows, 1, width]");
        };
        assert_eq!([k, v], [q, q], "cached attention {name}");
        let (ancestors, position) = (self.shape(ancestors_rl), self.shape(position_1));
        let longest = ancestors.width();
        for cache in [keys_rld, values_rld] {
            let cache = self.shape(cache);
            assert_eq!(
                cache.dims(),
                [rows, longest, width],
                "cached attention {name}: a cache {cache:?} for queries {q:?}, ancestors {ancestors:?}"
            );
        }
        assert_eq!(
            (ancestors.rows(), position.num_elements()),
            (rows, 1),
            "cached attention {name}: ancestors {ancestors:?}, position {position:?}"
        );
        for indices in [ancestors_rl, position_1] {
            assert_eq!(self.dtype(indices), DType::I64, "cached attention {name}");
        }
        assert_eq!(
            width % num_heads,
            0,
            "cached attention {name}: width {width} in {num_heads} heads"
        );
        let o_r1d = self.activation(name, q.dims());
        let op = CachedAttention {
            num_heads,
            scale: 1.0 / ((width / num_heads) as f64).sqrt(),
        };
        self.push(
            op,
            vec![q_r1d, k_r1d, v_r1d, ancestors_rl, position_1],
            vec![
                Output::overwrite(o_r1d),
                Output::accumulate(keys_rld),
                Output::accumulate(values_rld),
            ],
        );
        o_r1d
    }
}

undifferentiated!(CachedAttention, "cached attention", |op, node| {
    let pairs = node.input(3).num_elements() as u64;
    Cost {
        product_flops: 4 * pairs * node.input(0).width() as u64,
        element_flops: pairs * op.num_heads as u64 * 16,
        bytes: node.operand_bytes(),
    }
});
