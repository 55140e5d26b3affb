//! Sets every element to one number.

use crate::Cost;
use crate::op::undifferentiated;

/// Output: any contiguous value.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    pub value: f64,
}

undifferentiated!(Fill, "fill", |_, node| {
    Cost {
        bytes: node.operand_bytes(),
        ..Cost::default()
    }
});
