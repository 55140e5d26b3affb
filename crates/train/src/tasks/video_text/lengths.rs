//! Padded lengths of texts and captions: a micro-batch is padded to the shortest length that holds all its texts.

/// Padded lengths below a run's longest text.
const LENGTHS: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// Padded lengths for texts of up to `longest` tokens, ascending; the last is `longest`. A length close to `longest` is left out,
/// because each length has its own programs.
pub(super) fn lengths(longest: usize) -> Vec<usize> {
    let shorter = LENGTHS
        .into_iter()
        .filter(|&length| 9 * length <= 8 * longest);
    shorter.chain([longest]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_length_is_the_longest_texts() {
        assert_eq!(lengths(77), [16, 32, 64, 77]);
        assert_eq!(lengths(64), [16, 32, 64]);
        assert_eq!(lengths(33), [16, 33]);
        assert_eq!(lengths(12), [12]);
    }
}
