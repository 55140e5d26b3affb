//! Clips as folders of frames: one folder a clip, one picture a frame, both in natural order.
//!
//! Of a clip's `M` frames, `N` are chosen from the middles of `N` equal stretches: frame `i` is number
//! `floor((2 i + 1) M / (2 N))`. They are evenly spaced, neither end is favoured, and a clip with fewer frames than asked
//! for shows some of them several times.

use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::folder::{folders, pictures, stem};
use crate::natural_order;
use crate::packed_strings::PackedStrings;

/// Clips and their frames, in little memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clips {
    root: PathBuf,
    clips: PackedStrings,
    frames: PackedStrings,
    /// Past each clip's last frame.
    ends: Vec<usize>,
}

impl Clips {
    /// Lists the clips of a folder.
    pub fn open(root: &Path) -> Result<Clips, DataError> {
        let mut clips = Clips {
            root: root.to_owned(),
            clips: PackedStrings::default(),
            frames: PackedStrings::default(),
            ends: Vec::new(),
        };
        let mut num_frames = 0;
        for clip in folders(root)? {
            let frames = frames(&root.join(&clip))?;
            num_frames += frames.len();
            for frame in &frames {
                clips.frames.push(frame);
            }
            clips.clips.push(&clip);
            clips.ends.push(num_frames);
        }
        if clips.ends.is_empty() {
            return Err(DataError::invalid(
                root.display(),
                "a folder for each clip",
                "no folders",
                "frames of a clip are pictures in a folder of its own: clips/0001/frame_1.jpg",
            ));
        }
        Ok(clips)
    }

    /// How many there are; never none.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// A clip's name: that of its folder.
    pub fn name(&self, clip: usize) -> &str {
        self.clips.get(clip)
    }

    /// Frames of a clip; never none.
    pub fn num_frames(&self, clip: usize) -> usize {
        self.ends[clip] - self.start(clip)
    }

    /// Where a clip's frame is.
    ///
    /// # Panics
    /// If the clip has no such frame.
    pub fn frame_path(&self, clip: usize, frame: usize) -> PathBuf {
        assert!(
            frame < self.num_frames(clip),
            "frame {frame} of clip {clip}"
        );
        let name = self.frames.get(self.start(clip) + frame);
        self.root.join(self.name(clip)).join(name)
    }

    fn start(&self, clip: usize) -> usize {
        clip.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

/// Which of `num_frames` frames stand for a clip: `num_chosen` of them, evenly spaced.
pub fn evenly_spaced(num_frames: usize, num_chosen: usize) -> impl Iterator<Item = usize> {
    (0..num_chosen).map(move |at| (2 * at + 1) * num_frames / (2 * num_chosen))
}

/// A clip's frames: at least one, and none twice.
fn frames(clip: &Path) -> Result<Vec<String>, DataError> {
    let names = pictures(clip)?;
    if names.is_empty() {
        return Err(DataError::no_pictures(
            clip,
            "frames of a clip",
            "; remove the folder if it is no clip",
        ));
    }
    // In natural order the two stand side by side.
    for pair in names.windows(2) {
        if natural_order::is_same(stem(&pair[0]), stem(&pair[1])) {
            return Err(DataError::invalid(
                clip.display(),
                "each frame once",
                format_args!("{} and {}", pair[0], pair[1]),
                "frames are ordered by the numbers in their names; remove one of the two",
            ));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn clip_of(root: &Path, name: &str, files: &[&str]) {
        fs::create_dir_all(root.join(name)).unwrap();
        for file in files {
            fs::write(root.join(name).join(file), b"").unwrap();
        }
    }

    #[test]
    fn clips_and_frames_are_counted_as_people_count() {
        let root = tempfile::tempdir().unwrap();
        clip_of(
            root.path(),
            "clip10",
            &["frame_10.jpg", "frame_2.jpg", "notes.txt"],
        );
        clip_of(root.path(), "clip9", &["a.png"]);
        fs::write(root.path().join("captions.csv"), b"").unwrap();
        let clips = Clips::open(root.path()).unwrap();
        assert_eq!(
            (clips.len(), clips.name(0), clips.name(1)),
            (2, "clip9", "clip10")
        );
        assert_eq!((clips.num_frames(0), clips.num_frames(1)), (1, 2));
        assert!(clips.frame_path(1, 0).ends_with("clip10/frame_2.jpg"));
        assert!(clips.frame_path(1, 1).ends_with("clip10/frame_10.jpg"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = |root: &Path| Clips::open(root).unwrap_err().to_string();
        assert!(error(root.path()).contains("expected a folder for each clip"));
        clip_of(root.path(), "a", &["notes.txt"]);
        assert!(error(root.path()).contains("a: expected frames"));
        clip_of(
            root.path(),
            "a",
            &["frame_2.jpg", "frame_02.jpg", "frame_20.jpg"],
        );
        assert!(error(root.path()).contains("found frame_02.jpg and frame_2.jpg"));
    }

    #[test]
    fn frames_are_from_the_middles_of_equal_stretches() {
        let chosen = |m, n| evenly_spaced(m, n).collect::<Vec<_>>();
        assert_eq!(chosen(10, 1), [5]);
        assert_eq!(chosen(8, 4), [1, 3, 5, 7]);
        assert_eq!(chosen(3, 3), [0, 1, 2]);
        assert_eq!(chosen(2, 4), [0, 0, 1, 1]);
        assert_eq!(chosen(5, 0), [0; 0]);
    }

    proptest! {
        #[test]
        fn choices_are_inside_and_evenly_spaced(num_frames in 1usize..500, num_chosen in 1usize..50) {
            let chosen: Vec<usize> = evenly_spaced(num_frames, num_chosen).collect();
            prop_assert_eq!(chosen.len(), num_chosen);
            prop_assert!(chosen.iter().all(|at| *at < num_frames));
            let gaps: Vec<usize> = chosen.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let (least, most) = (gaps.iter().min(), gaps.iter().max());
            prop_assert!(most.unwrap_or(&0) - least.unwrap_or(&0) <= 1);
        }
    }
}
