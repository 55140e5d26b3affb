//! Lengths that texts and captions are padded to: those of a micro-batch to the shortest that holds all of them.

/// Lengths where neither texts nor captions are longer, their own aside.
const LENGTHS: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// The lengths of texts of up to `longest` tokens, ascending; the last is `longest`. One that is nearly as long is left out: each has
/// programs of its own.
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
