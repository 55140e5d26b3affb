//! Choice of the frames of a clip.
//!
//! ```text
//! spread     frame i is number floor(i (t - 1) / (f - 1)): linspace(0, t - 1, f), rounded down
//! stride s   frame i is number start + i s, as long as the clip has that frame
//! ```
//!
//! `t` frames of the clip, `f` frames that are sampled.

use crate::config::{ClipStart, ShortClips, Stride};
use crate::decode::picture::Occasion;
use crate::random::{DrawPurpose, Random};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameChoice {
    pub frames: usize,
    pub stride: Stride,
    pub start: ClipStart,
    pub padding: ShortClips,
}

impl FrameChoice {
    /// Numbers of the sampled frames of a clip of `num_frames`, ascending: `frames` numbers, or fewer for a short clip that is masked or
    /// strided.
    ///
    /// `video` is the clip's index in its sample. Evaluation has no occasion and takes the middle.
    pub(crate) fn of(
        &self,
        num_frames: usize,
        occasion: Option<Occasion>,
        video: usize,
    ) -> Vec<usize> {
        let (frames, last) = (self.frames, num_frames.saturating_sub(1));
        match self.stride {
            // A masked clip must not repeat a frame.
            Stride::Spread if num_frames < frames && self.padding == ShortClips::Mask => {
                (0..num_frames).collect()
            }
            Stride::Spread => (0..frames)
                .map(|at| at * last / (frames - 1).max(1))
                .collect(),
            Stride::Every(stride) => {
                let stride = stride as usize;
                let span = (frames - 1) * stride + 1;
                let spare = num_frames.saturating_sub(span);
                let start = match (self.start, occasion) {
                    (ClipStart::Random, Some(occasion)) => start(occasion, video, spare),
                    _ => spare / 2,
                };
                let numbers = (0..frames).map(|at| start + at * stride);
                numbers.take_while(|number| *number < num_frames).collect()
            }
        }
    }
}

fn start(occasion: Occasion, video: usize, spare: usize) -> usize {
    let Occasion {
        seed,
        epoch,
        sample,
    } = occasion;
    Random::new(DrawPurpose::ClipStart, &[seed, epoch, sample, video as u64]).below(spare + 1)
}

/// Indices of the clips that a sample shows of its `num_there`: all, or `num_videos` of them in ascending order; evaluation takes the
/// first.
pub(crate) fn chosen_videos(
    num_there: usize,
    num_videos: usize,
    occasion: Option<Occasion>,
) -> Vec<usize> {
    let mut all: Vec<usize> = (0..num_there).collect();
    if num_there > num_videos {
        if let Some(Occasion {
            seed,
            epoch,
            sample,
        }) = occasion
        {
            Random::new(DrawPurpose::ClipVideos, &[seed, epoch, sample]).shuffle(&mut all);
        }
        all.truncate(num_videos);
        all.sort_unstable();
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OCCASION: Occasion = Occasion {
        seed: 3,
        epoch: 1,
        sample: 7,
    };

    fn choice(frames: usize, stride: Stride) -> FrameChoice {
        FrameChoice {
            frames,
            stride,
            start: ClipStart::Random,
            padding: ShortClips::Repeat,
        }
    }

    /// Like `numpy.linspace(0, t - 1, f).astype(int)`.
    #[test]
    fn frames_are_spread_as_linspace_spreads_them() {
        let spread = |t, f| choice(f, Stride::Spread).of(t, None, 0);
        assert_eq!(spread(30, 8), [0, 4, 8, 12, 16, 20, 24, 29]);
        assert_eq!(spread(16, 4), [0, 5, 10, 15]);
        assert_eq!(spread(3, 5), [0, 0, 1, 1, 2]);
        assert_eq!(spread(1, 3), [0, 0, 0]);
        assert_eq!(spread(9, 1), [0]);
        let masked = FrameChoice {
            padding: ShortClips::Mask,
            ..choice(5, Stride::Spread)
        };
        assert_eq!(masked.of(3, None, 0), [0, 1, 2]);
    }

    #[test]
    fn evaluation_takes_the_middle_and_short_clips_end_early() {
        let every = |t, f, stride| choice(f, Stride::Every(stride)).of(t, None, 0);
        assert_eq!(every(10, 4, 1), [3, 4, 5, 6]);
        assert_eq!(every(10, 4, 2), [1, 3, 5, 7]);
        assert_eq!(every(7, 4, 2), [0, 2, 4, 6]);
        assert_eq!(every(5, 4, 2), [0, 2, 4]);
        assert_eq!(every(1, 4, 2), [0]);
    }

    #[test]
    fn every_start_comes_up_and_depends_on_the_occasion_alone() {
        let random = choice(4, Stride::Every(2));
        let starts: std::collections::BTreeSet<usize> = (0..200)
            .map(|epoch| random.of(10, Some(Occasion { epoch, ..OCCASION }), 0)[0])
            .collect();
        assert_eq!(starts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(
            random.of(10, Some(OCCASION), 0),
            random.of(10, Some(OCCASION), 0)
        );
    }

    #[test]
    fn a_sample_shows_as_many_clips_as_it_may_in_their_order() {
        assert_eq!(chosen_videos(2, 4, Some(OCCASION)), [0, 1]);
        assert_eq!(chosen_videos(5, 3, None), [0, 1, 2]);
        let mut seen = [0; 5];
        for epoch in 0..100 {
            let chosen = chosen_videos(5, 3, Some(Occasion { epoch, ..OCCASION }));
            assert!(chosen.is_sorted() && chosen.len() == 3);
            chosen.iter().for_each(|video| seen[*video] += 1);
        }
        assert!(seen.iter().all(|count| *count > 30), "{seen:?}");
    }

    proptest! {
        #[test]
        fn numbers_are_there_and_ascend(t in 1usize..300, f in 1usize..40, stride in 0u32..6, epoch: u64, is_masked: bool) {
            let choice = FrameChoice {
                padding: if is_masked { ShortClips::Mask } else { ShortClips::Repeat },
                ..choice(f, if stride == 0 { Stride::Spread } else { Stride::Every(stride) })
            };
            let numbers = choice.of(t, Some(Occasion { epoch, ..OCCASION }), 1);
            prop_assert!(!numbers.is_empty() && numbers.len() <= f);
            prop_assert!(numbers.iter().all(|number| *number < t) && numbers.is_sorted());
        }
    }
}
