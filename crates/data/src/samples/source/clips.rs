//! Clips of a config: samples like those of pictures, with clip files; several files per sample where rows are grouped.

use std::path::Path;

use super::{Captions, DataSet, Media, TrainedTargets, read_source};
use crate::config::DataConfig;
use crate::decode::find_ffmpeg;
use crate::error::DataError;
use crate::media::needs_ffmpeg;
use crate::samples::Samples;
use crate::stored_file;
use crate::words::{counted, thousands};

/// Reads the config's data with a clip in each row. The seed decides which rows are held out.
pub fn read_clips(
    config: &DataConfig,
    captions: Captions,
    seed: u64,
) -> Result<DataSet, DataError> {
    read(config, captions, None, seed)
}

/// Like [`read_clips`], with the targets of a trained model, see [`super::read_with_targets`].
pub fn read_clips_with_targets(
    config: &DataConfig,
    captions: Captions,
    trained: TrainedTargets<'_>,
    seed: u64,
) -> Result<DataSet, DataError> {
    read(config, captions, Some(trained), seed)
}

fn read(
    config: &DataConfig,
    captions: Captions,
    trained: Option<TrainedTargets<'_>>,
    seed: u64,
) -> Result<DataSet, DataError> {
    let mut data = read_source(config, (Media::Clips, captions), trained, seed)?;
    // Checked before the first step, not when training reaches the clip.
    let lists = [
        Some(&data.train),
        data.validation.as_ref(),
        data.test.as_ref(),
    ];
    for samples in lists.into_iter().flatten() {
        let mut all = (0..samples.len()).flat_map(|sample| samples.clip_paths(sample));
        let is_video = |path: &Path| needs_ffmpeg(&path.to_string_lossy());
        if let Some(path) = all.find(|path| is_video(path) && stored_file::stamp(path).is_some()) {
            find_ffmpeg(&path)?;
        }
    }
    if config.augment.flip {
        data.notes.push(
            "Careful: `augment.flip` mirrors clips: what moves left in the caption moves right in the clip".to_owned(),
        );
    }
    Ok(data)
}

/// Note on the number of clips per sample.
pub(super) fn note_on_groups(config: &DataConfig, train: &Samples, validation: &Samples) -> String {
    let group = config.group.as_deref().unwrap_or_default();
    let num_videos = config.num_videos();
    let lists = [train, validation];
    let all = || {
        let samples = lists
            .iter()
            .flat_map(|list| (0..list.len()).map(move |at| (list, at)));
        samples.map(|(list, sample)| list.clip_paths(sample).count())
    };
    let (num_clips, most) = (all().sum::<usize>(), all().max().unwrap_or(0));
    let num_over = all().filter(|clips| *clips > num_videos).count();
    let mut note = format!(
        "Samples: {} of `{group}` with {}, at most {most} in one; {num_videos} are seen at a time",
        counted(train.len() + validation.len(), "group"),
        counted(num_clips, "clip"),
    );
    if num_over > 0 {
        note += &format!(
            " (of {} with more, training draws other ones each epoch)",
            thousands(num_over)
        );
    }
    note
}
