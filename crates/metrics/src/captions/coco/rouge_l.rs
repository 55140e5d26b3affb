//! `ROUGE-L = (1 + b^2) P R / (R + b^2 P)`, `b = 1.2`: `P` and `R` are the longest common subsequence over the number of words of the
//! candidate and of the reference, each maximised over the references, which may be different ones.

const BETA: f64 = 1.2;

/// ROUGE-L of one candidate. A caption without tokens counts as one empty token, as in the original: two empty captions agree.
pub fn rouge_l(candidate: &[String], references: &[Vec<String>]) -> f64 {
    let candidate = filled(candidate);
    let (mut precision, mut recall) = (0.0_f64, 0.0_f64);
    for reference in references {
        let reference = filled(reference);
        let common = common_subsequence(reference, candidate) as f64;
        precision = precision.max(common / candidate.len() as f64);
        recall = recall.max(common / reference.len() as f64);
    }
    if precision == 0.0 || recall == 0.0 {
        return 0.0;
    }
    (1.0 + BETA.powi(2)) * precision * recall / (recall + BETA.powi(2) * precision)
}

fn filled(tokens: &[String]) -> &[String] {
    const EMPTY: &[String] = &[String::new()];
    match tokens {
        [] => EMPTY,
        tokens => tokens,
    }
}

/// Length of the longest sequence that both have in this order.
pub fn common_subsequence<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y {
                diagonal + 1
            } else {
                above.max(row[j])
            };
            diagonal = above;
        }
    }
    row[b.len()]
}
