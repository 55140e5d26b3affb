//! The most likely next tokens of every row and its log-sum-exp: decoding reads these back instead of the logits.
//!
//! Tokens are in descending order of their logits, equal logits in ascending order of id. Tokens among `banned` are left out, and so are
//! logits that are NaN or minus infinity. If fewer than `c` tokens are left, the remaining entries have the value minus infinity and
//! the id -1. `lse = logsumexp(logits)` is over all tokens, banned ones included.
//!
//! Legend: `r` rows, `v` vocabulary, `m` banned tokens, `c` tokens per row of the result.

use crate::op::undifferentiated;
use crate::{Cost, DType, Graph, ValueId};

/// Inputs `logits_rv, banned_rm` (-1: none); outputs `values_rc, ids_rc, lse_r`. Ids are whole numbers in a floating-point format, so
/// that all results of a program are read in the same way: a vocabulary has less than 2^24 tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TopTokens {
    /// Number of tokens per row of the result.
    pub count: usize,
}

impl Graph {
    /// Writes the largest logits of every row, their tokens and the row's log-sum-exp to given values; `values_rc` has one column per
    /// token.
    pub fn top_tokens_into(
        &mut self,
        name: &str,
        logits_rv: ValueId,
        banned_rm: ValueId,
        [values_rc, ids_rc, lse_r]: [ValueId; 3],
    ) {
        let [logits, banned] = [logits_rv, banned_rm].map(|id| self.shape(id));
        let [values, ids, lse] = [values_rc, ids_rc, lse_r].map(|id| self.shape(id));
        let (rows, count) = (logits.rows(), values.width());
        assert!(
            count > 0 && count <= logits.width() && logits.width() < 1 << 24,
            "top tokens {name}: {count} of logits {logits:?}"
        );
        assert_eq!(
            (values.rows(), ids.rows(), ids.width(), lse.num_elements()),
            (rows, rows, count, rows),
            "top tokens {name}: logits {logits:?}, values {values:?}, ids {ids:?}, lse {lse:?}"
        );
        assert_eq!(
            (self.dtype(banned_rm), banned.rows()),
            (DType::I64, rows),
            "top tokens {name}: banned {banned:?}"
        );
        for value in [logits_rv, values_rc, ids_rc, lse_r] {
            assert_eq!(self.dtype(value), self.full(), "top tokens {name}");
        }
        self.push_new(
            TopTokens { count },
            vec![logits_rv, banned_rm],
            &[values_rc, ids_rc, lse_r],
        );
    }
}

undifferentiated!(TopTokens, "top tokens", |_, node| Cost {
    product_flops: 0,
    element_flops: node.input(0).num_elements() as u64 * 14,
    bytes: node.operand_bytes(),
});
