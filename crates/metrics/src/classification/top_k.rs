/// Rank of a class, from 0: the number of classes with a higher logit, or an equal logit and a lower index. `None` where a
/// logit is NaN.
pub fn rank_of(logits: &[f32], class: usize) -> Option<usize> {
    let own = logits[class];
    let mut ahead = 0;
    for (other, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        ahead += usize::from(logit > own || (logit == own && other < class));
    }
    Some(ahead)
}

/// The `k` classes of the highest logits with their softmax probabilities, best first; of equal logits the first comes first.
pub fn top_k<T: Copy + Into<f64>>(logits: &[T], k: usize) -> Vec<(usize, f64)> {
    let logit = |class: usize| -> f64 { logits[class].into() };
    let mut classes: Vec<usize> = (0..logits.len()).collect();
    classes.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)));
    let Some(&first) = classes.first() else {
        return Vec::new();
    };
    let weight = |class: usize| (logit(class) - logit(first)).exp();
    let total: f64 = (0..logits.len()).map(weight).sum();
    classes.truncate(k);
    let probability = |class| (class, weight(class) / total);
    classes.into_iter().map(probability).collect()
}
