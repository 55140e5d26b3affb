//! What a run goes through: an image, a caption and perhaps a label each, in little memory.

use std::path::{Path, PathBuf};

use crate::strings::Strings;
use crate::unique_texts::UniqueTexts;

/// Samples in the order of their file. Equal captions are held once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    root: PathBuf,
    images: Strings,
    caption_of: Vec<u32>,
    captions: Vec<String>,
    label_of: Vec<i32>,
    rows: Vec<u32>,
}

impl Samples {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Where image paths start.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// An image's path as its file has it, with `/` for `\`.
    pub fn image(&self, sample: usize) -> &str {
        self.images.get(sample)
    }

    /// Where an image is.
    pub fn image_path(&self, sample: usize) -> PathBuf {
        self.root.join(self.image(sample))
    }

    /// Writes where an image is over what `path` held, so that a loop allocates once.
    pub fn image_path_into(&self, sample: usize, path: &mut PathBuf) {
        path.clear();
        path.push(&self.root);
        path.push(self.image(sample));
    }

    /// A sample's caption.
    pub fn caption(&self, sample: usize) -> &str {
        &self.captions[self.caption_of[sample] as usize]
    }

    /// Which of [`Samples::captions`] a sample has: equal for equal texts.
    pub fn caption_id(&self, sample: usize) -> u32 {
        self.caption_of[sample]
    }

    /// Which of [`Samples::captions`] each sample has.
    pub fn caption_ids(&self) -> &[u32] {
        &self.caption_of
    }

    /// Every caption once, in order of appearance.
    pub fn captions(&self) -> &[String] {
        &self.captions
    }

    /// A sample's label, -1 for none.
    pub fn label(&self, sample: usize) -> i32 {
        self.label_of[sample]
    }

    /// All labels, -1 for none.
    pub fn labels(&self) -> &[i32] {
        &self.label_of
    }

    /// The line of the CSV that a sample comes from.
    pub fn row(&self, sample: usize) -> u32 {
        self.rows[sample]
    }
}

/// Samples as they come in.
#[derive(Debug)]
pub struct SamplesBuilder {
    samples: Samples,
    texts: UniqueTexts,
}

impl SamplesBuilder {
    /// No samples, of images under `root`.
    pub fn new(root: PathBuf) -> SamplesBuilder {
        SamplesBuilder {
            samples: Samples {
                root,
                images: Strings::default(),
                caption_of: Vec::new(),
                captions: Vec::new(),
                label_of: Vec::new(),
                rows: Vec::new(),
            },
            texts: UniqueTexts::default(),
        }
    }

    /// One more, from this line of its file; label -1 for none.
    pub fn push(&mut self, image: &str, caption: &str, label: i32, row: u32) {
        self.samples.images.push(image);
        self.samples.caption_of.push(self.texts.number(caption));
        self.samples.label_of.push(label);
        self.samples.rows.push(row);
    }

    /// All that were pushed.
    pub fn finish(self) -> Samples {
        let mut samples = self.samples;
        samples.captions = self.texts.into_list();
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_captions_are_held_once_in_order_of_appearance() {
        let mut builder = SamplesBuilder::new(PathBuf::from("root"));
        builder.push("a.jpg", "red", 1, 2);
        builder.push("b/b.jpg", "blue", -1, 3);
        builder.push("c.jpg", "red", 0, 5);
        let samples = builder.finish();
        assert_eq!(samples.len(), 3);
        assert_eq!(samples.captions(), ["red", "blue"]);
        assert_eq!(samples.caption(2), "red");
        assert_eq!(samples.caption_id(2), 0);
        assert_eq!(samples.labels(), [1, -1, 0]);
        assert_eq!(samples.row(2), 5);
        assert_eq!(samples.image_path(1), Path::new("root/b/b.jpg"));
        let mut path = PathBuf::from("/left/over");
        samples.image_path_into(1, &mut path);
        assert_eq!(path, Path::new("root/b/b.jpg"));
    }
}
