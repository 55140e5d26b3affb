//! Names and shapes of a model's tensors, as in its state dict.

/// Name and shape of each tensor, in the order of the state dict.
pub(crate) struct TensorList(pub Vec<(String, Vec<usize>)>);

impl TensorList {
    pub fn add(&mut self, name: &str, shape: &[usize]) {
        self.0.push((name.to_string(), shape.to_vec()));
    }

    /// The bias has the size of the weight's first dimension.
    pub fn add_weight_and_bias(&mut self, module: &str, weight: &[usize]) {
        self.add(&format!("{module}.weight"), weight);
        self.add(&format!("{module}.bias"), &weight[..1]);
    }
}

/// Number of values of a shape, or `None` on overflow.
pub(crate) fn num_values(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |count, &size| count.checked_mul(size))
}
