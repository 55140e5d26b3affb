//! Samples whose files another list has too: by their paths, or by what is in them.
//!
//! A million files that were trained on are passed one by one and not kept. Of a file with another path its size is looked up, and only
//! where a sample has a file of the same size are both read.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::samples::Samples;
use crate::stored_file::{self, StoredFile};

/// How many samples have a file of the other list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// Under the same path.
    pub by_path: usize,
    /// Under another path, with the same bytes.
    pub by_contents: usize,
}

impl Overlap {
    /// All of them.
    pub fn count(&self) -> usize {
        self.by_path + self.by_contents
    }
}

/// Compares files with those of samples.
pub struct OverlapSearch {
    /// Samples by the hash of a file's absolute path.
    by_path: HashMap<u64, Vec<u32>>,
    /// Files of samples by their size.
    by_size: HashMap<u64, Vec<SampleFile>>,
    found: Vec<Option<FoundBy>>,
}

/// A file of a sample, and the hash of its bytes once it was asked for.
struct SampleFile {
    sample: u32,
    path: PathBuf,
    contents: Option<u128>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FoundBy {
    Path,
    Contents,
}

impl OverlapSearch {
    /// Remembers paths and sizes of the samples' files.
    pub fn new(samples: &Samples) -> OverlapSearch {
        let mut search = OverlapSearch {
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
                if let Some(stamp) = stored_file::stamp(&path) {
                    let of_size = search.by_size.entry(stamp.num_bytes).or_default();
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

    /// Compares one more file.
    pub fn add(&mut self, path: &Path) {
        if let Some(samples) = self.by_path.get(&hash_of(path)) {
            for sample in samples {
                self.found[*sample as usize] = Some(FoundBy::Path);
            }
            return;
        }
        let size = stored_file::stamp(path).map(|stamp| stamp.num_bytes);
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

    /// How many samples were found.
    pub fn finish(self) -> Overlap {
        let count = |by: FoundBy| {
            self.found
                .iter()
                .filter(|found| **found == Some(by))
                .count()
        };
        Overlap {
            by_path: count(FoundBy::Path),
            by_contents: count(FoundBy::Contents),
        }
    }
}

fn hash_of(path: &Path) -> u64 {
    let absolute = std::path::absolute(path);
    let path = absolute.as_deref().unwrap_or(path);
    xxh3_64(path.as_os_str().as_encoded_bytes())
}

fn contents_of(path: &Path) -> io::Result<u128> {
    let mut file = StoredFile::open(path)?;
    let mut hasher = Xxh3::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.digest128()),
            length => hasher.update(&piece[..length]),
        }
    }
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
        let mut search = OverlapSearch::new(&samples);
        for name in ["as long as b", "a", "copy of b", "gone"] {
            search.add(&root.join(name));
        }
        let overlap = search.finish();
        assert_eq!((overlap.by_path, overlap.by_contents), (1, 1));
        assert_eq!(overlap.count(), 2);
    }
}
