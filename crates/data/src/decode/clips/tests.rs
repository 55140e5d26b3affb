use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::config::{Augment, ClipStart, DataConfig, Decode, ShortClips, Stride, Validation};
use crate::decode::allowance::Allowance;
use crate::decode::picture::{
    CHANNELS, FrameCoding, FrameView, Framing, Limits, Occasion, Scratch, SmallerFrames,
};
use crate::error::DataError;
use crate::loader::ClipFraming;
use crate::loader::{Course, Loaded, Loader, RowFormat, Share, View, Workers};
use crate::samples::{Captions, Samples, SamplesBuilder, read_clips};
use crate::stored_file::part_path;
use holdall_sample_data::moving_shapes::{self, ClipFormat, MovingShapesConfig};

const SIZE: u32 = 16;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/clips")
        .join(name)
}

fn view() -> FrameView {
    FrameView::evaluated(Framing::clip(SIZE))
}

fn frames_of(path: &Path, numbers: &[usize]) -> Result<Vec<u8>, DataError> {
    let mut out = vec![7; numbers.len() * view().frame_bytes()];
    ClipFile::open(path)?.read(numbers, &view(), &mut Scratch::default(), &mut out)?;
    Ok(out)
}

fn has_ffmpeg() -> bool {
    find_ffmpeg(Path::new("x.mp4")).is_ok()
}

/// `tests/fixtures/make_clips.py` wrote the frames that Pillow, numpy and ffmpeg decode from each clip.
#[test]
fn frames_are_those_that_others_see() {
    let cases = fs::read_to_string(fixture("expected.json")).unwrap();
    let cases: Value = serde_json::from_str(&cases).unwrap();
    let mut num_read = 0;
    for case in cases["cases"].as_array().unwrap() {
        let name = case["file"].as_str().unwrap();
        if name.ends_with("mp4") && !has_ffmpeg() {
            continue;
        }
        let side = |at: usize| case["shape"][at].as_u64().unwrap() as usize;
        let (num_frames, height, width) = (side(0), side(1), side(2));
        let expected = fs::read(fixture(case["expected"].as_str().unwrap())).unwrap();
        assert_eq!(
            ClipFile::open(&fixture(name)).unwrap().num_frames(),
            num_frames,
            "{name}"
        );
        // Some frames twice, some not at all.
        let numbers: Vec<usize> = [0, 2, 2, 3, num_frames - 1, num_frames - 1].to_vec();
        let found = frames_of(&fixture(name), &numbers).unwrap();
        let mut scratch = Scratch::default();
        for (number, found) in numbers.iter().zip(found.chunks(view().frame_bytes())) {
            let frame_bytes = height * width * CHANNELS;
            let pixels = &expected[number * frame_bytes..][..frame_bytes];
            scratch.pixel_buffer(frame_bytes).copy_from_slice(pixels);
            let mut out = vec![0; found.len()];
            let size = (width as u32, height as u32);
            view()
                .pixels_into(Path::new("expected"), size, &mut scratch, &mut out)
                .unwrap();
            let worst = out
                .iter()
                .zip(found)
                .map(|(a, b)| a.abs_diff(*b))
                .max()
                .unwrap();
            let allowed = case["worst"].as_u64().unwrap();
            assert!(
                u64::from(worst) <= allowed,
                "{name}, frame {number}: {worst}"
            );
        }
        num_read += 1;
    }
    assert!(num_read >= 8);
}

fn sample_set(count: usize, frames: usize, format: ClipFormat) -> (TempDir, MovingShapesConfig) {
    let folder = tempfile::tempdir().unwrap();
    let config = MovingShapesConfig {
        count,
        size: 32,
        frames,
        seed: 3,
        format,
    };
    moving_shapes::write(folder.path(), &config, |_| true).unwrap();
    (folder, config)
}

#[test]
fn every_format_shows_the_frames_that_were_drawn() {
    // GIF palettes and JPEG colours are near the drawn ones, all other formats are equal.
    for (format, end, worst) in [
        (ClipFormat::Frames, "", 60),
        (ClipFormat::Avi, ".avi", 60),
        (ClipFormat::Gif, ".gif", 60),
        (ClipFormat::Npy, ".npy", 0),
    ] {
        let (folder, config) = sample_set(1, 5, format);
        let path = folder.path().join(format!("clips/000000{end}"));
        assert_eq!(ClipFile::open(&path).unwrap().num_frames(), 5);
        let found = frames_of(&path, &[1, 4]).unwrap();
        let drawn = moving_shapes::draw(0, &config);
        let mut scratch = Scratch::default();
        for (number, found) in [1, 4].iter().zip(found.chunks(view().frame_bytes())) {
            let pixels = &drawn[*number];
            scratch.pixel_buffer(pixels.len()).copy_from_slice(pixels);
            let mut out = vec![0; found.len()];
            view()
                .pixels_into(&path, (32, 32), &mut scratch, &mut out)
                .unwrap();
            let apart = out.iter().zip(found).map(|(a, b)| a.abs_diff(*b));
            let mean = apart.clone().map(f64::from).sum::<f64>() / out.len() as f64;
            assert!(apart.max().unwrap() <= worst && mean < 6.0, "{end}: {mean}");
        }
    }
}

/// Frames of cameras have no Huffman tables, since all would have the same.
#[test]
fn motion_jpeg_without_tables_is_read_as_with_them() {
    let (folder, _) = sample_set(1, 3, ClipFormat::Avi);
    let path = folder.path().join("clips/000000.avi");
    let with = fs::read(&path).unwrap();
    let expected = frames_of(&path, &[0, 1, 2]).unwrap();
    // The table segments become comment segments, so that no offset changes.
    let mut without = with.clone();
    let mut num_tables = 0;
    for at in 0..without.len() - 1 {
        if without[at..at + 2] == [0xff, 0xc4] {
            without[at + 1] = 0xfe;
            num_tables += 1;
        }
    }
    assert!(num_tables >= 3);
    fs::write(&path, without).unwrap();
    assert_eq!(frames_of(&path, &[0, 1, 2]).unwrap(), expected);
}

#[test]
fn an_empty_chunk_shows_the_frame_before() {
    let (folder, _) = sample_set(1, 2, ClipFormat::Avi);
    let path = folder.path().join("clips/000000.avi");
    let mut bytes = fs::read(&path).unwrap();
    let index = bytes.windows(4).position(|name| name == b"idx1").unwrap();
    bytes.splice(index..index, *b"00dc\0\0\0\0");
    // The list is one chunk longer.
    let movie = bytes.windows(4).position(|name| name == b"movi").unwrap() - 4;
    let size = u32::from_le_bytes(*bytes[movie..].first_chunk().unwrap()) + 8;
    bytes[movie..movie + 4].copy_from_slice(&size.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    assert_eq!(ClipFile::open(&path).unwrap().num_frames(), 3);
    let frames = frames_of(&path, &[1, 2]).unwrap();
    let (second, third) = frames.split_at(frames.len() / 2);
    assert_eq!(second, third);
}

#[test]
fn what_is_no_clip_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let text = frames_of(&path, &[0]).unwrap_err().to_string();
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        assert!(text.contains("\nhint: "), "{text}");
        text
    };
    assert!(error("a.gif", b"").contains("found an empty file"));
    assert!(error("a.avi", b"<html>").contains("begins with `<html>`"));
    assert!(error("a.jpg", b"\xff\xd8\xff\xe0").contains("found a picture"));
    assert!(error("a.npz", b"PK\x03\x04....").contains("npz"));
    let gif = fs::read(fixture("whole.gif")).unwrap();
    assert!(error("b.gif", &gif[..gif.len() / 2]).contains("cut short"));
    let avi = fs::read(fixture("mjpeg.avi")).unwrap();
    assert!(error("b.avi", &avi[..avi.len() / 2]).contains("cut short"));
    let npy = |header: &str, num_bytes: usize| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(vec![0; num_bytes]);
        bytes
    };
    let header = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n")
    };
    let usual = |shape: &str| header("|u1", "False", shape);
    assert!(error("c.npy", &npy(&usual("(2, 4, 4, 3)"), 95)).contains("cut short"));
    assert!(error("d.npy", &npy(&header("<f4", "False", "(2, 4, 4, 3)"), 999)).contains("`<f4`"));
    assert!(error("e.npy", &npy(&header("|u1", "True", "(2, 4, 4, 3)"), 999)).contains("Fortran"));
    assert!(error("f.npy", &npy(&usual("(2, 3, 4, 4)"), 999)).contains("transpose"));
    assert!(error("g.npy", &npy(&usual("(4, 4, 3)"), 999)).contains("[4, 4, 3]"));
    assert!(error("h.npy", &npy(&usual("(2, 9999999, 9999999, 3)"), 9)).contains("cut short"));
    assert!(frames_of(&folder.path().join("none"), &[0]).is_err());
    fs::create_dir(folder.path().join("empty")).unwrap();
    let text = frames_of(&folder.path().join("empty"), &[0]).unwrap_err();
    assert!(text.to_string().contains("expected frames of a clip"));
}

/// With a path that looks like an option, and with bytes that are no video.
#[test]
fn videos_are_read_by_ffmpeg_where_it_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("-i concat:x|y.mp4");
    fs::copy(fixture("video.mp4"), &path).unwrap();
    let broken = folder.path().join("broken.mp4");
    fs::write(&broken, b"\0\0\0\x18ftypmp42 and nothing else").unwrap();
    if has_ffmpeg() {
        let expected = frames_of(&fixture("video.mp4"), &[0, 6]).unwrap();
        assert_eq!(frames_of(&path, &[0, 6]).unwrap(), expected);
        let text = frames_of(&broken, &[0]).unwrap_err().to_string();
        assert!(text.contains("a clip that can be decoded"), "{text}");
    } else {
        let text = frames_of(&broken, &[0]).unwrap_err().to_string();
        assert!(text.contains("apt install ffmpeg"), "{text}");
    }
}

fn samples_of(folder: &Path, clips: &[&str]) -> Arc<Samples> {
    let mut builder = SamplesBuilder::new(folder.to_owned());
    for (at, clip) in clips.iter().enumerate() {
        builder.push(clip, Some("a clip"), at as u32 + 2);
    }
    Arc::new(builder.finish(Vec::new()))
}

fn framing(frames: usize) -> ClipFraming {
    ClipFraming {
        framing: Framing::clip(SIZE),
        frames,
        stride: Stride::Every(1),
        start: ClipStart::Random,
        num_videos: 1,
        padding: ShortClips::Repeat,
        augment: Augment {
            crop: 0.5,
            flip: true,
            brightness: 0.4,
            ..Augment::default()
        },
        decode: Decode::Full,
    }
}

fn row(framing: &ClipFraming, samples: &Samples, epoch: Option<u64>) -> (Vec<u8>, u32) {
    let mut row = vec![9; framing.row_bytes()];
    let occasion = epoch.map(|epoch| Occasion {
        seed: 1,
        epoch,
        sample: 0,
    });
    let scratch = &mut Scratch::default();
    let count = framing.write_row(samples, 0, occasion, scratch, &mut row);
    (row, count.unwrap())
}

#[test]
fn short_clips_repeat_or_mask_their_end() {
    let (folder, _) = sample_set(1, 3, ClipFormat::Npy);
    let samples = samples_of(folder.path(), &["clips/000000.npy"]);
    let (repeated, count) = row(&framing(5), &samples, None);
    assert_eq!(count, 5);
    let frames: Vec<&[u8]> = repeated.chunks(framing(5).frame_bytes()).collect();
    assert!(frames[0] != frames[1] && frames[1] != frames[2]);
    assert!(frames[2] == frames[3] && frames[3] == frames[4]);
    let masked = ClipFraming {
        padding: ShortClips::Mask,
        ..framing(5)
    };
    let (again, count) = row(&masked, &samples, None);
    assert_eq!((again, count), (repeated, 3));
}

/// A clip of equal frames stays so under augmentation: crop, mirror and colours are drawn once per clip.
#[test]
fn all_frames_of_a_clip_are_augmented_alike() {
    let (folder, config) = sample_set(1, 4, ClipFormat::Frames);
    let first = folder.path().join("clips/000000/00.jpg");
    for number in 1..config.frames {
        fs::copy(
            &first,
            folder.path().join(format!("clips/000000/{number:02}.jpg")),
        )
        .unwrap();
    }
    let samples = samples_of(folder.path(), &["clips/000000"]);
    let (plain, _) = row(&framing(4), &samples, None);
    let mut rows = Vec::new();
    for epoch in 0..4 {
        let (drawn, _) = row(&framing(4), &samples, Some(epoch));
        let frames: Vec<&[u8]> = drawn.chunks(framing(4).frame_bytes()).collect();
        assert!(
            frames.iter().all(|frame| *frame == frames[0]),
            "epoch {epoch}"
        );
        assert_ne!(drawn, plain);
        assert!(!rows.contains(&drawn));
        assert_eq!(drawn, row(&framing(4), &samples, Some(epoch)).0);
        rows.push(drawn);
    }
}

#[test]
fn clips_of_a_group_are_one_row() {
    let (folder, _) = sample_set(3, 4, ClipFormat::Npy);
    let csv = "video,caption,study\nclips/000000.npy,one,a\nclips/000001.npy,two,b\nclips/000002.npy,three,a\n";
    fs::write(folder.path().join("clips.csv"), csv).unwrap();
    let config = DataConfig {
        train: Some(folder.path().join("clips.csv")),
        group: Some("study".to_owned()),
        num_videos: Some(3),
        validation: Validation::None,
        ..DataConfig::default()
    };
    let data = read_clips(&config, Captions::Required, 0).unwrap();
    assert_eq!((data.train.len(), data.train.caption(0)), (2, "one"));
    let note = "Samples: 2 groups of `study` with 3 clips, at most 2 in one; 3 are seen at a time";
    assert!(
        data.notes.iter().any(|found| found == note),
        "{:?}",
        data.notes
    );
    let several = ClipFraming {
        num_videos: 3,
        ..framing(2)
    };
    let (found, count) = row(&several, &data.train, None);
    let (video_bytes, one) = (2 * several.frame_bytes(), framing(2));
    let first = row(
        &one,
        &samples_of(folder.path(), &["clips/000000.npy"]),
        None,
    )
    .0;
    let second = row(
        &one,
        &samples_of(folder.path(), &["clips/000002.npy"]),
        None,
    )
    .0;
    assert_eq!(count, 6);
    assert_eq!(found[..video_bytes], first);
    assert_eq!(found[video_bytes..2 * video_bytes], second);
    // The clips that exist, repeated.
    assert_eq!(found[2 * video_bytes..], first);
    let masked = ClipFraming {
        padding: ShortClips::Mask,
        ..several
    };
    assert_eq!(row(&masked, &data.train, None).1, 4);
}

#[test]
fn the_loader_counts_frames_and_skips_broken_clips() {
    let (folder, _) = sample_set(4, 3, ClipFormat::Frames);
    fs::write(folder.path().join("clips/000001/01.jpg"), b"no picture").unwrap();
    let clips = ["clips/000000", "clips/000001", "clips/000002", "gone"];
    let samples = samples_of(folder.path(), &clips);
    let masked = ClipFraming {
        padding: ShortClips::Mask,
        ..framing(5)
    };
    let cost = masked.cost(&samples, 0).unwrap();
    assert_eq!((cost.width, cost.height), (32, 32));
    assert!(masked.cost(&samples, 3).is_err());
    let rows = vec![vec![0; masked.row_bytes()]; 4];
    let allowance = Allowance::new(2 * cost.bytes);
    let format = RowFormat::from(masked.clone());
    let mut loader = Loader::new(rows, format, Workers::exactly(2, 2), allowance.clone()).unwrap();
    loader.begin(
        Arc::clone(&samples),
        Course::Once(Share::default()),
        View::Evaluation,
    );
    let mut batch = Loaded::default();
    loader.next(4, &mut batch);
    assert_eq!(batch.samples, [0, 2]);
    assert_eq!(batch.frame_counts, [3, 3]);
    assert_eq!(batch.rows[0], row(&masked, &samples, None).0);
    let skipped: Vec<u32> = batch.skipped.iter().map(|skipped| skipped.sample).collect();
    assert_eq!(skipped, [1, 3]);
    let error = batch.skipped[0].error.to_string();
    assert!(
        error.contains("000001") && error.contains("01.jpg"),
        "{error}"
    );
    assert!(allowance.most_claimed_bytes() <= 2 * cost.bytes);
    loader.release(&mut batch);
    assert!(batch.frame_counts.is_empty());
}

#[test]
fn a_clip_over_the_budget_is_refused_by_name() {
    let path = fixture("whole.gif");
    let cost = ClipFile::open(&path)
        .unwrap()
        .cost(Framing::clip(SIZE))
        .unwrap();
    let read = |bytes: u64| {
        let mut scratch = Scratch::within(&Allowance::new(bytes));
        let mut out = vec![0; view().frame_bytes()];
        let mut clip = ClipFile::open(&path).unwrap();
        clip.read(&[0], &view(), &mut scratch, &mut out)
    };
    assert!(read(cost.bytes).is_ok());
    let error = read(cost.bytes - 1).unwrap_err();
    assert!(
        matches!(error, DataError::PictureOverBudget { .. }),
        "{error}"
    );
}

#[test]
fn a_gif_of_many_large_frames_is_refused() {
    let limits = Limits {
        most_pixels: 40 * 24,
        ..Limits::default()
    };
    let path = fixture("whole.gif");
    let mut clip = ClipFile::open_within(&path, limits).unwrap();
    let mut out = vec![0; view().frame_bytes()];
    let mut read =
        |clip: &mut ClipFile| clip.read(&[0], &view(), &mut Scratch::default(), &mut out);
    assert!(read(&mut clip).is_ok());
    let gif = fs::read(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.gif");
    // The same blocks many times, without the end block.
    let start = 13 + 3 * (2 << (gif[10] & 7));
    let blocks = &gif[start..gif.len() - 1];
    let many = [&gif[..start], &blocks.repeat(20), &[0x3b][..]].concat();
    fs::write(&path, many).unwrap();
    let mut clip = ClipFile::open_within(&path, limits).unwrap();
    assert_eq!(clip.num_frames(), 140);
    let error = read(&mut clip).unwrap_err().to_string();
    assert!(error.contains("140 frames of 960 pixels"), "{error}");
}

/// A clip's packed file, as a part of a larger file.
fn packed(clip: &Path, frames: Option<u32>, size: u32, coding: FrameCoding) -> (TempDir, PathBuf) {
    let data = DataConfig {
        frames,
        ..DataConfig::default()
    };
    let packing = ClipPacking::new(&data, SmallerFrames { size, coding });
    let (ending, bytes) = packing.smaller_clip(clip, &mut Scratch::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = [&[9; 700][..], &bytes, &[9; 300]].concat();
    fs::write(folder.path().join("a.tar"), file).unwrap();
    let member = format!("7.{ending}");
    let part = folder
        .path()
        .join(part_path("a.tar", &member, 700, bytes.len() as u64));
    (folder, part)
}

/// The frames that training samples from a clip, as pixels.
fn seen(clip: &Path, frames: usize) -> Vec<u8> {
    let choice = sampling::FrameChoice {
        frames,
        stride: Stride::Spread,
        start: ClipStart::Random,
        padding: ShortClips::Repeat,
    };
    let num_frames = ClipFile::open(clip).unwrap().num_frames();
    frames_of(clip, &choice.of(num_frames, None, 0)).unwrap()
}

#[test]
fn a_packed_clip_shows_the_frames_that_are_seen_of_it() {
    for format in [
        ClipFormat::Frames,
        ClipFormat::Avi,
        ClipFormat::Gif,
        ClipFormat::Npy,
    ] {
        let (folder, _) = sample_set(1, 11, format);
        let clip = fs::read_dir(folder.path().join("clips")).unwrap();
        let clip = clip.last().unwrap().unwrap().path();
        // Fewer than the clip has, all, and more.
        for frames in [1, 4, 11, 16] {
            let (_folder, part) = packed(&clip, Some(frames), 32, FrameCoding::Pixels);
            let num_frames = ClipFile::open(&part).unwrap().num_frames();
            assert_eq!(num_frames, frames.min(11) as usize);
            let frames = frames as usize;
            assert_eq!(
                seen(&part, frames),
                seen(&clip, frames),
                "{format:?}, {frames}"
            );
        }
        let (_folder, part) = packed(&clip, None, 32, FrameCoding::Jpeg);
        assert_eq!(ClipFile::open(&part).unwrap().num_frames(), 11);
        let (found, expected) = (seen(&part, 11), seen(&clip, 11));
        let apart = found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
        let mean = apart.map(f64::from).sum::<f64>() / found.len() as f64;
        assert!(mean < 2.0, "{format:?}: {mean}");
    }
}

#[test]
fn packed_frames_are_as_small_as_asked() {
    let framing = Framing::clip(SIZE);
    for coding in [FrameCoding::Jpeg, FrameCoding::Pixels] {
        let (_folder, part) = packed(&fixture("whole.gif"), Some(3), 10, coding);
        let cost = ClipFile::open(&part).unwrap().cost(framing).unwrap();
        assert_eq!(cost.width.min(cost.height), 10);
    }
}

/// A video within a shard is read in place, too.
#[test]
fn a_video_in_a_shard_is_read_by_ffmpeg() {
    if !has_ffmpeg() {
        return;
    }
    let bytes = fs::read(fixture("video.mp4")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = [&[0; 512][..], &bytes, &[7; 4096]].concat();
    fs::write(folder.path().join("a b,c.tar"), file).unwrap();
    let part = part_path("a b,c.tar", "7.mp4", 512, bytes.len() as u64);
    let part = folder.path().join(part);
    assert_eq!(seen(&part, 3), seen(&fixture("video.mp4"), 3));
}
