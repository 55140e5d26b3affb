//! Merges equal captions into one gallery item: encoded once, scored once.

use crate::error::InputError;
use crate::features::Features;

/// The gallery rows that are scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GalleryRows {
    /// One row per unique text: all rows.
    All,
    /// One row per caption: the first row of each text, in order.
    First(Vec<u32>),
}

/// The gallery rows that represent the captions' texts. `text_of` numbers the text of each query's caption, in the order in which texts
/// first appear, from 0.
///
/// # Errors
/// If there is not one caption per query, or the gallery has neither a row per caption nor one per text.
pub fn gallery_rows(
    text_of: &[u32],
    num_queries: usize,
    num_gallery: usize,
) -> Result<GalleryRows, InputError> {
    let captions = text_of.len();
    if captions != num_queries {
        return Err(InputError::CaptionPerQuery {
            captions,
            queries: num_queries,
        });
    }
    let mut firsts = Vec::new();
    for (row, &text) in (0..).zip(text_of) {
        if text as usize == firsts.len() {
            firsts.push(row);
        }
    }
    match num_gallery {
        _ if num_gallery == firsts.len() => Ok(GalleryRows::All),
        _ if num_gallery == captions => Ok(GalleryRows::First(firsts)),
        gallery => Err(InputError::CaptionPerRow {
            captions,
            unique: firsts.len(),
            gallery,
        }),
    }
}

/// Number of rows that differ from the first row of their text, for a gallery with one row per caption. They should be equal, unless the
/// model has dropout or the rows are in another order than the captions.
pub fn num_different(gallery: &Features<'_>, text_of: &[u32], firsts: &[u32]) -> usize {
    let mut scratch = [
        vec![0.0; gallery.dimension()],
        vec![0.0; gallery.dimension()],
    ];
    let [a, b] = &mut scratch;
    let rows = text_of.iter().enumerate().filter(|&(row, &text)| {
        let first = firsts[text as usize] as usize;
        row != first && gallery.row(row, a) != gallery.row(first, b)
    });
    rows.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_per_text_or_the_first_of_a_row_per_caption() {
        let text_of = [0, 1, 0, 2, 1];
        assert_eq!(gallery_rows(&text_of, 5, 3).unwrap(), GalleryRows::All);
        let first = gallery_rows(&text_of, 5, 5).unwrap();
        assert_eq!(first, GalleryRows::First(vec![0, 1, 3]));
        assert_eq!(gallery_rows(&[0, 1], 2, 2).unwrap(), GalleryRows::All);
        let error = gallery_rows(&text_of, 5, 4).unwrap_err().to_string();
        assert!(
            error.contains("5 gallery rows, one per caption, or 3"),
            "{error}"
        );
        let error = gallery_rows(&text_of, 4, 3).unwrap_err().to_string();
        assert!(error.contains("5 captions and 4 queries"), "{error}");
    }

    #[test]
    fn rows_that_should_be_equal_and_are_not_are_counted() {
        let rows = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 5.0, 6.0, 3.0, 4.5];
        let gallery = Features::of(&rows, 2);
        assert_eq!(num_different(&gallery, &[0, 1, 0, 2, 1], &[0, 1, 3]), 1);
    }
}
