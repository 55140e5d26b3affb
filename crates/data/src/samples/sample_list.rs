//! A list of samples in little memory: an image each, and perhaps a caption, labels, numbers and a mask.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::samples::packed_strings::PackedStrings;
use crate::samples::target::TargetValues;
use crate::samples::unique_texts::UniqueTexts;
use crate::stored_file::stamp;

/// Samples in the order of their file. Equal captions are stored once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    root: PathBuf,
    images: PackedStrings,
    /// Companion files of each image (mask, field of view, further channels); as many entries as images, or none.
    companions: PackedStrings,
    caption_of: Vec<u32>,
    captions: Vec<String>,
    targets: Vec<TargetValues>,
    /// Target that balanced sampling uses, where it is not the first that has labels.
    balanced_by: Option<usize>,
    rows: Vec<u32>,
}

impl Samples {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Folder that image paths are relative to.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of an image as the table has it, with `/` for `\`.
    pub fn image(&self, sample: usize) -> &str {
        self.images.get(sample)
    }

    pub fn image_path(&self, sample: usize) -> PathBuf {
        self.root.join(self.image(sample))
    }

    /// Writes the path of an image into `path`, so that a loop allocates once.
    pub fn image_path_into(&self, sample: usize, path: &mut PathBuf) {
        path.clear();
        path.push(&self.root);
        path.push(self.image(sample));
    }

    /// Current size of a sample's files together, mask and further channels included; `None` where one of them is no file.
    pub fn file_bytes(&self, sample: usize) -> Option<u64> {
        let paths = std::iter::once(self.image_path(sample)).chain(self.companion_paths(sample));
        paths
            .map(|path| stamp(&path).map(|stamp| stamp.num_bytes))
            .sum()
    }

    pub fn mask_path(&self, sample: usize) -> Option<PathBuf> {
        self.companion(sample, Companion::MASK)
    }

    pub fn field_of_view_path(&self, sample: usize) -> Option<PathBuf> {
        self.companion(sample, Companion::FIELD_OF_VIEW)
    }

    /// Paths of the further channels of a sample's image, in order.
    pub fn further_image_paths(&self, sample: usize) -> impl Iterator<Item = PathBuf> {
        let further = Companion::FIRST_FURTHER..;
        further.map_while(move |part| self.companion(sample, part))
    }

    /// Paths of a sample's clips: one, or those of its group.
    pub fn clip_paths(&self, sample: usize) -> impl Iterator<Item = PathBuf> {
        let first = self.image_path(sample);
        std::iter::once(first).chain(self.further_image_paths(sample))
    }

    /// Paths of a sample's companion files: mask, field of view and further channels.
    pub(crate) fn companion_paths(&self, sample: usize) -> impl Iterator<Item = PathBuf> {
        let own = [self.mask_path(sample), self.field_of_view_path(sample)];
        own.into_iter()
            .flatten()
            .chain(self.further_image_paths(sample))
    }

    /// Path of a sample's mask as the table has it.
    pub fn mask(&self, sample: usize) -> Option<&str> {
        self.companion_name(sample, Companion::MASK)
    }

    fn companion(&self, sample: usize, part: usize) -> Option<PathBuf> {
        let name = self.companion_name(sample, part)?;
        Some(self.root.join(name))
    }

    fn companion_name(&self, sample: usize, part: usize) -> Option<&str> {
        if self.companions.is_empty() {
            return None;
        }
        let mut names = self.companions.get(sample).split(Companion::SEPARATOR);
        names.nth(part).filter(|name| !name.is_empty())
    }

    /// Caption of a sample.
    ///
    /// # Panics
    /// If the samples were read without captions.
    pub fn caption(&self, sample: usize) -> &str {
        &self.captions[self.caption_of[sample] as usize]
    }

    /// Index of a sample's caption in [`Samples::captions`]: equal for equal texts.
    pub fn caption_id(&self, sample: usize) -> u32 {
        self.caption_of[sample]
    }

    /// Index of each sample's caption in [`Samples::captions`].
    pub fn caption_ids(&self) -> &[u32] {
        &self.caption_of
    }

    /// Distinct captions, in order of appearance.
    pub fn captions(&self) -> &[String] {
        &self.captions
    }

    /// Labels and numbers, in the order of [`crate::samples::DataSet::targets`].
    pub fn targets(&self) -> &[TargetValues] {
        &self.targets
    }

    /// Label of a sample in the first target with one label per picture, -1 for none.
    pub fn label(&self, sample: usize) -> i32 {
        self.labels().get(sample).copied().unwrap_or(-1)
    }

    /// All labels of the first target with one label per picture, -1 for none; empty without such a target.
    pub fn labels(&self) -> &[i32] {
        let labels = self.targets.iter().find_map(|values| match values {
            TargetValues::Class(labels) => Some(labels.as_slice()),
            _ => None,
        });
        labels.unwrap_or(&[])
    }

    /// Balances sampling by this target, an index into [`Samples::targets`].
    pub fn balance_by(&mut self, target: usize) {
        self.balanced_by = Some(target);
    }

    /// Target that balanced sampling uses: the one chosen, or the first with one label, or the first with several.
    pub fn balanced_target(&self) -> Option<&TargetValues> {
        let first = |wanted: fn(&&TargetValues) -> bool| self.targets.iter().find(wanted);
        match self.balanced_by {
            Some(target) => self.targets.get(target),
            None => first(|values| matches!(values, TargetValues::Class(_)))
                .or_else(|| first(|values| matches!(values, TargetValues::Classes(_)))),
        }
    }

    /// Line of the CSV that a sample comes from; for class folders, the position in the list of files, from 1.
    pub fn row(&self, sample: usize) -> u32 {
        self.rows[sample]
    }
}

impl Samples {
    /// Merges the samples of each group into one: it has the images of all, in order, and the caption and targets of the first. Groups are
    /// in the order of their first sample.
    pub(crate) fn grouped(&self, group_of: &[u32]) -> Samples {
        let mut at_of: HashMap<u32, usize> = HashMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        for (sample, group) in group_of.iter().enumerate() {
            let at = *at_of.entry(*group).or_insert(members.len());
            match members.get_mut(at) {
                Some(group) => group.push(sample),
                None => members.push(vec![sample]),
            }
        }
        let mut builder = SamplesBuilder::new(self.root.clone());
        for group in &members {
            let (first, others) = (group[0], &group[1..]);
            let further: Vec<String> = others.iter().map(|s| self.image(*s).to_owned()).collect();
            let companions = Companions {
                further_images: &further,
                ..Companions::default()
            };
            let caption = (!self.caption_of.is_empty()).then(|| self.caption(first));
            builder.push_captioned(self.image(first), caption, &companions, self.row(first));
        }
        let firsts: Vec<usize> = members.iter().map(|group| group[0]).collect();
        let targets = self.targets.iter().map(|values| values.of(&firsts));
        let mut grouped = builder.finish(targets.collect());
        grouped.balanced_by = self.balanced_by;
        grouped
    }
}

/// Companion files of an image: paths from the same root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Companions<'a> {
    /// Mask with the class of each pixel.
    pub mask: Option<&'a str>,
    /// Mask of the pixels that the image shows.
    pub field_of_view: Option<&'a str>,
    /// Files of the further channels.
    pub further_images: &'a [String],
}

/// Positions of the companions within one packed string.
struct Companion;

impl Companion {
    const MASK: usize = 0;
    const FIELD_OF_VIEW: usize = 1;
    const FIRST_FURTHER: usize = 2;
    /// A line break: `folder.rs` refuses it in names.
    const SEPARATOR: char = '\n';
}

#[derive(Debug)]
pub struct SamplesBuilder {
    samples: Samples,
    texts: UniqueTexts,
}

impl SamplesBuilder {
    /// An empty list of images under `root`.
    pub fn new(root: PathBuf) -> SamplesBuilder {
        SamplesBuilder {
            samples: Samples {
                root,
                ..Samples::default()
            },
            texts: UniqueTexts::default(),
        }
    }

    /// Adds a sample from this line of its file. Either all samples have a caption, or none.
    pub fn push(&mut self, image: &str, caption: Option<&str>, row: u32) {
        self.samples.images.push(image);
        if let Some(caption) = caption {
            self.samples.caption_of.push(self.texts.number(caption));
        }
        self.samples.rows.push(row);
    }

    /// Adds a sample with its companion files; a builder takes only this or only [`SamplesBuilder::push`].
    pub fn push_with(&mut self, image: &str, companions: &Companions<'_>, row: u32) {
        self.push_captioned(image, None, companions, row);
    }

    fn push_captioned(
        &mut self,
        image: &str,
        caption: Option<&str>,
        companions: &Companions<'_>,
        row: u32,
    ) {
        self.push(image, caption, row);
        let own = [companions.mask, companions.field_of_view];
        let mut names: Vec<&str> = own.map(Option::unwrap_or_default).to_vec();
        names.extend(companions.further_images.iter().map(String::as_str));
        let names = names.join("\n");
        self.samples.companions.push(&names);
    }

    pub fn finish(self, targets: Vec<TargetValues>) -> Samples {
        let mut samples = self.samples;
        samples.captions = self.texts.into_list();
        samples.targets = targets;
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_are_those_of_their_image() {
        let mut builder = SamplesBuilder::new(PathBuf::from("root"));
        let further = ["a_1.png".to_owned(), "a_2.png".to_owned()];
        let companions = Companions {
            mask: Some("m/a.png"),
            field_of_view: None,
            further_images: &further,
        };
        builder.push_with("a.png", &companions, 1);
        builder.push_with("b.png", &Companions::default(), 2);
        let samples = builder.finish(Vec::new());
        assert_eq!(samples.mask(0), Some("m/a.png"));
        assert_eq!(samples.field_of_view_path(0), None);
        let further: Vec<PathBuf> = samples.further_image_paths(0).collect();
        assert_eq!(
            further,
            [Path::new("root/a_1.png"), Path::new("root/a_2.png")]
        );
        assert_eq!(samples.mask_path(1), None);
        assert_eq!(samples.further_image_paths(1).count(), 0);
    }

    #[test]
    fn a_group_shows_all_and_says_what_its_first_says() {
        let mut builder = SamplesBuilder::new(PathBuf::from("root"));
        for (at, caption) in ["one", "two", "three", "four"].iter().enumerate() {
            builder.push(&format!("{at}.avi"), Some(caption), at as u32 + 2);
        }
        let samples = builder.finish(vec![TargetValues::Class(vec![4, 5, 6, 7])]);
        let grouped = samples.grouped(&[9, 3, 9, 9]);
        assert_eq!((grouped.len(), grouped.row(1)), (2, 3));
        let clips: Vec<PathBuf> = grouped.clip_paths(0).collect();
        assert_eq!(
            clips,
            ["root/0.avi", "root/2.avi", "root/3.avi"].map(Path::new)
        );
        assert_eq!(grouped.clip_paths(1).count(), 1);
        assert_eq!((grouped.caption(0), grouped.caption(1)), ("one", "two"));
        assert_eq!(grouped.labels(), [4, 5]);
    }

    #[test]
    fn equal_captions_are_stored_once_in_order_of_appearance() {
        let mut builder = SamplesBuilder::new(PathBuf::from("root"));
        builder.push("a.jpg", Some("red"), 2);
        builder.push("b/b.jpg", Some("blue"), 3);
        builder.push("c.jpg", Some("red"), 5);
        let samples = builder.finish(vec![TargetValues::Class(vec![1, -1, 0])]);
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
