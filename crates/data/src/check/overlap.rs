//! Overlap of two sample lists: files that both have, found by path, by bytes, or by what pictures show.
//!
//! The files of the list that was trained on, perhaps a million, stream through and are not kept. A file with an unknown path is compared
//! by size, and both files are read only where a sample has a file of the same size. Pictures are decoded, for the hash of their pixels and
//! their perceptual hash, as long as all of them together have at most [`MOST_BYTES`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::decode::{
    self, Fingerprint, Framing, Marks, Scratch, contents_of, first_bytes, near_pairs,
};
use crate::samples::Samples;

/// Number of samples whose file is in the other list too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// The same path.
    pub by_path: usize,
    /// Another path, the same bytes.
    pub by_contents: usize,
    /// Other bytes, the same pixels; `None` where pictures were not decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_pixels: Option<usize>,
    /// Encoded again or resized, found by the perceptual hash. [`Overlap::count`] leaves them out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near_copies: Option<usize>,
}

/// Limit of picture bytes that are decoded for the comparison: some seconds on a core.
pub const MOST_BYTES: u64 = 256 << 20;
/// Memory limit for decoding one picture, on each core; larger pictures are not compared.
pub const MOST_DECODE_BYTES: u64 = 96 << 20;

/// Whether pictures are decoded for the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareBy {
    /// Paths and bytes alone: clips.
    Files,
    /// Paths, bytes and decoded pixels.
    Pictures,
}

impl Overlap {
    /// Samples that certainly overlap: all but the near copies.
    pub fn count(&self) -> usize {
        self.by_path + self.by_contents + self.by_pixels.unwrap_or(0)
    }
}

/// Compares the files of another list with those of the samples.
pub struct OverlapSearch {
    /// Sample numbers by the hash of their file's absolute path.
    by_path: HashMap<u64, Vec<u32>>,
    /// The samples' files by size, folders of frames by that of their first.
    by_size: HashMap<u64, Vec<SampleFile>>,
    found: Vec<Option<FoundBy>>,
    /// Pictures of both lists that are still to be decoded; `None` where nothing is decoded, or they are too many.
    pictures: Option<SoughtPictures>,
}

/// Pictures that [`OverlapSearch::finish`] decodes, each once.
#[derive(Default)]
struct SoughtPictures {
    num_bytes: u64,
    of_samples: BTreeMap<PathBuf, Vec<u32>>,
    others: BTreeSet<PathBuf>,
}

/// File of a sample, and the hash of its bytes once computed.
struct SampleFile {
    sample: u32,
    path: PathBuf,
    contents: Option<u128>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FoundBy {
    Path,
    Contents,
    Pixels,
    NearCopy,
}

impl OverlapSearch {
    pub fn new(samples: &Samples, by: CompareBy) -> OverlapSearch {
        let mut search = OverlapSearch {
            pictures: (by == CompareBy::Pictures).then(SoughtPictures::default),
            by_path: HashMap::new(),
            by_size: HashMap::new(),
            found: vec![None; samples.len()],
        };
        for sample in 0..samples.len() {
            for path in samples.clip_paths(sample) {
                let number = sample as u32;
                search
                    .by_path
                    .entry(hash_of(&path))
                    .or_default()
                    .push(number);
                if let Some(num_bytes) = first_bytes(&path) {
                    search.keep(num_bytes, |pictures| {
                        let samples = pictures.of_samples.entry(path.clone()).or_default();
                        samples.push(number);
                        samples.len() == 1
                    });
                    let of_size = search.by_size.entry(num_bytes).or_default();
                    of_size.push(SampleFile {
                        sample: number,
                        path,
                        contents: None,
                    });
                }
            }
        }
        search
    }

    /// Keeps a picture for decoding; gives up decoding once all pictures together exceed [`MOST_BYTES`].
    fn keep(&mut self, num_bytes: u64, is_new: impl FnOnce(&mut SoughtPictures) -> bool) {
        if let Some(pictures) = &mut self.pictures {
            if is_new(pictures) {
                pictures.num_bytes += num_bytes;
            }
            if pictures.num_bytes > MOST_BYTES {
                self.pictures = None;
            }
        }
    }

    /// Compares one more file of the other list.
    pub fn add(&mut self, path: &Path) {
        let size = first_bytes(path);
        if let Some(size) = size {
            self.keep(size, |pictures| pictures.others.insert(path.to_owned()));
        }
        if let Some(samples) = self.by_path.get(&hash_of(path)) {
            for sample in samples {
                self.found[*sample as usize] = Some(FoundBy::Path);
            }
            return;
        }
        let Some(files) = size.and_then(|size| self.by_size.get_mut(&size)) else {
            return;
        };
        let Ok(contents) = contents_of(path) else {
            return;
        };
        for file in files {
            let found = &mut self.found[file.sample as usize];
            if found.is_some() {
                continue;
            }
            if file.contents.is_none() {
                file.contents = contents_of(&file.path).ok();
            }
            if file.contents == Some(contents) {
                *found = Some(FoundBy::Contents);
            }
        }
    }

    /// Decodes the kept pictures and counts the samples found.
    pub fn finish(mut self) -> Overlap {
        let is_compared = self.compare_pictures();
        let count = |by: FoundBy| {
            self.found
                .iter()
                .filter(|found| **found == Some(by))
                .count()
        };
        Overlap {
            by_path: count(FoundBy::Path),
            by_contents: count(FoundBy::Contents),
            by_pixels: is_compared.then(|| count(FoundBy::Pixels)),
            near_copies: is_compared.then(|| count(FoundBy::NearCopy)),
        }
    }

    /// Decodes the samples not found yet and the other list; returns whether pictures were compared.
    fn compare_pictures(&mut self) -> bool {
        let Some(SoughtPictures {
            mut of_samples,
            others,
            ..
        }) = self.pictures.take()
        else {
            return false;
        };
        for samples in of_samples.values_mut() {
            samples.retain(|sample| self.found[*sample as usize].is_none());
        }
        of_samples.retain(|_, samples| !samples.is_empty());
        if of_samples.is_empty() {
            return true;
        }
        let others: Vec<Marks> = others
            .par_iter()
            .map_init(Scratch::default, |scratch, path| marks_of(path, scratch))
            .flatten()
            .collect();
        let own: Vec<(Vec<u32>, Marks)> = of_samples
            .into_par_iter()
            .map_init(Scratch::default, |scratch, (path, samples)| {
                Some((samples, marks_of(&path, scratch)?))
            })
            .flatten()
            .collect();
        let pixels: HashSet<u128> = others.iter().map(|marks| marks.pixels).collect();
        let mut fingerprints: Vec<Fingerprint> = others
            .iter()
            .filter_map(|marks| marks.fingerprint)
            .collect();
        let num_others = fingerprints.len();
        let mut samples_of: Vec<&[u32]> = Vec::new();
        for (samples, marks) in &own {
            if pixels.contains(&marks.pixels) {
                self.mark(samples, FoundBy::Pixels);
            } else if let Some(fingerprint) = marks.fingerprint {
                fingerprints.push(fingerprint);
                samples_of.push(samples);
            }
        }
        for (first, later) in near_pairs(&fingerprints) {
            if let (true, Some(own)) = (
                (first as usize) < num_others,
                (later as usize).checked_sub(num_others),
            ) {
                self.mark(samples_of[own], FoundBy::NearCopy);
            }
        }
        true
    }

    fn mark(&mut self, samples: &[u32], by: FoundBy) {
        for sample in samples {
            self.found[*sample as usize].get_or_insert(by);
        }
    }
}

/// Decodes and hashes a picture; `None` where that takes more than [`MOST_DECODE_BYTES`].
fn marks_of(path: &Path, scratch: &mut Scratch) -> Option<Marks> {
    let cost = decode::cost(path, Framing::clip(1)).ok()?;
    (cost.bytes <= MOST_DECODE_BYTES).then(|| Marks::of(path, scratch))?
}

fn hash_of(path: &Path) -> u64 {
    let absolute = std::path::absolute(path);
    let path = absolute.as_deref().unwrap_or(path);
    xxh3_64(path.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::samples::SamplesBuilder;

    #[test]
    fn samples_are_found_by_path_and_by_contents() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (name, bytes) in [
            ("a", "first"),
            ("b", "other"),
            ("c", "third!"),
            ("copy of b", "other"),
            ("as long as b", "OTHER"),
        ] {
            fs::write(root.join(name), bytes).unwrap();
        }
        let mut builder = SamplesBuilder::new(root.to_owned());
        for (name, row) in [("a", 2), ("b", 3), ("c", 4), ("nowhere", 5)] {
            builder.push(name, None, row);
        }
        let samples = builder.finish(Vec::new());
        let mut search = OverlapSearch::new(&samples, CompareBy::Files);
        for name in ["as long as b", "a", "copy of b", "gone"] {
            search.add(&root.join(name));
        }
        let overlap = search.finish();
        assert_eq!((overlap.by_path, overlap.by_contents), (1, 1));
        assert_eq!(overlap.count(), 2);
    }

    #[test]
    fn a_copied_folder_of_frames_is_found_by_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, frames) in [
            ("clip", ["first", "second"]),
            ("copy", ["first", "second"]),
            ("other", ["first", "SECOND"]),
        ] {
            fs::create_dir(path(name)).unwrap();
            for (number, bytes) in frames.iter().enumerate() {
                fs::write(path(name).join(format!("{number}.png")), bytes).unwrap();
            }
        }
        let mut builder = SamplesBuilder::new(folder.path().to_owned());
        builder.push("copy", None, 2);
        builder.push("other", None, 3);
        let samples = builder.finish(Vec::new());
        let mut search = OverlapSearch::new(&samples, CompareBy::Files);
        search.add(&path("clip"));
        let overlap = search.finish();
        assert_eq!((overlap.by_path, overlap.by_contents), (0, 1));
    }

    #[test]
    fn pictures_are_found_by_their_pixels_and_as_near_copies() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // Smooth shapes, like those of photographs: noise would not survive JPEG.
        let picture = |seed: u32| {
            image::RgbImage::from_fn(96, 64, |x, y| {
                let wave = |at: u32| ((at * (seed + 2)) as f32 / 17.0).sin() * 110.0 + 128.0;
                image::Rgb([wave(x) as u8, wave(y + seed) as u8, wave(x + y) as u8])
            })
        };
        for seed in 0..3 {
            picture(seed).save(path(&format!("{seed}.png"))).unwrap();
        }
        picture(0).save(path("same.bmp")).unwrap();
        picture(1).save(path("near.jpg")).unwrap();
        picture(7).save(path("other.png")).unwrap();
        let mut builder = SamplesBuilder::new(folder.path().to_owned());
        for (name, row) in [
            ("same.bmp", 2),
            ("near.jpg", 3),
            ("other.png", 4),
            ("2.png", 5),
        ] {
            builder.push(name, None, row);
        }
        let samples = builder.finish(Vec::new());
        let overlap = |by: CompareBy| {
            let mut search = OverlapSearch::new(&samples, by);
            (0..3).for_each(|seed| search.add(&path(&format!("{seed}.png"))));
            search.finish()
        };
        let by_files = Overlap {
            by_path: 1,
            ..Overlap::default()
        };
        assert_eq!(overlap(CompareBy::Files), by_files);
        let by_pictures = Overlap {
            by_pixels: Some(1),
            near_copies: Some(1),
            ..by_files
        };
        assert_eq!(overlap(CompareBy::Pictures), by_pictures);
    }
}
