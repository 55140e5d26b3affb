//! Packs the pictures or clips of a table into WebDataset shards, resized once. A shard holds a fixed number of table rows and depends on
//! no other shard: a packing that was stopped resumes with the next shard.
//!
//! ```text
//! OUT/cars-000000.tar      000000000.jpg, 000000000.txt (its caption), 000000000.json (all other columns), 000000000.mask.png,
//!                          000000000.fov.png (the field of view)
//!                          for clips 000000000.avi or .npy with the chosen frames
//! OUT/pack.json            the settings, and samples, bytes, checksum and unreadable rows of each shard
//! OUT/skipped.csv          rows whose picture or clip cannot be read
//! ```

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use holdall_files::{Checksum, RunningChecksum};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::Xxh3;

use crate::check::{Outcome, Watch};
use crate::config::{DataConfig, FieldOfViewChoice};
use crate::decode::{
    self, Allowance, ClipPacking, FrameCoding, ReadAs, Scratch, SmallerFormat, SmallerFrames,
};
use crate::error::DataError;
use crate::stored_file::{self, StoredFile, is_url};
use crate::table::{
    Row, Rows, Table, caption_by_name, field_of_view_by_name, image_column, mask_by_name, tar,
    video_column,
};
use crate::words::counted;

/// Input, output and format of a packing.
#[derive(Clone, Debug)]
pub struct PackConfig {
    /// Column names and image folder.
    pub data: DataConfig,
    pub table: PathBuf,
    pub out: PathBuf,
    /// Limit of the shorter side in pixels; `None` copies pictures as they are.
    pub size: Option<u32>,
    /// Pictures or clips, and their output format.
    pub media: PackedMedia,
    pub rows_per_shard: usize,
    /// Threads; `None` for one per core.
    pub num_workers: Option<usize>,
    /// Memory that decoding may take, all threads together.
    pub allowance: Allowance,
}

/// Kind of media that the rows name, with its output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedMedia {
    /// Pictures, and masks where rows name them.
    Pictures(SmallerFormat),
    /// Clips: the frames that `data.frames` and `data.stride` choose, or all frames.
    Clips(FrameCoding),
}

/// A row that could not be read and is in no shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Line number in the table.
    pub row: u32,
    /// Path of the image, as the table has it.
    pub image: String,
    pub reason: String,
}

/// Entry of a shard in `pack.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedShard {
    pub name: String,
    pub samples: usize,
    pub bytes: u64,
    /// Checksum of the whole file.
    pub checksum: String,
    /// Unreadable rows that this shard lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Unpacked>,
}

/// Result of a packing.
#[derive(Clone, Debug, Serialize)]
pub struct Packed {
    pub out: PathBuf,
    /// Rows of the table.
    pub rows: usize,
    /// Samples of all shards.
    pub samples: usize,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Shards that an earlier start wrote and that are intact.
    pub kept_shards: usize,
    pub shards: Vec<PackedShard>,
    /// Rows that are in no shard.
    pub skipped: Vec<Unpacked>,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    holdall: String,
    /// Hash of the table's cells and of the packing's settings.
    key: String,
    shards: Vec<PackedShard>,
}

/// Name of a field of view in a shard: its ending, and its column.
const FIELD_OF_VIEW: &str = "fov";
const MANIFEST: &str = "pack.json";
const SKIPPED: &str = "skipped.csv";
const VERSION: &str = "pack 2";

impl PackedMedia {
    /// Rows per thread that are decoded before they are written.
    fn rows_per_thread(self) -> usize {
        match self {
            PackedMedia::Pictures(_) => 16,
            // A clip may be as large as 16 pictures.
            PackedMedia::Clips(_) => 1,
        }
    }
}

/// Packs a table; resumes where an earlier start was stopped.
pub fn pack(config: &PackConfig, watch: Watch<'_>) -> Result<Outcome<Packed>, DataError> {
    let table = Table::open_separated(&config.table, config.data.separator)?;
    let mut notes = table.notes().to_vec();
    let columns = PackColumns::find(config, &table, &mut notes)?;
    let clips = clip_packing(config)?;
    let (key, num_rows) = key(config, &table)?;
    fs::create_dir_all(&config.out).map_err(|cause| unwritten(&config.out, cause))?;
    let stem = name_of(&config.table);
    let shard_name = |shard: usize| format!("{stem}-{shard:06}.tar");
    let num_shards = num_rows.div_ceil(config.rows_per_shard);
    let mut manifest = match Manifest::open(&config.out, &key)? {
        Some(manifest) => manifest,
        None => Manifest::begin(&config.out, key)?,
    };
    let kept_shards = manifest.shards.len();
    if kept_shards > 0 {
        notes.push(format!("Going on: {} there", counted(kept_shards, "shard")));
    }
    notes.iter().for_each(|note| (watch.on_note)(note));
    (watch.on_start)(num_rows);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(config.num_workers.unwrap_or(0));
    let threads = threads.build().map_err(|cause| DataError::Io {
        path: config.table.clone(),
        action: "start threads for it",
        cause: io::Error::other(cause),
    })?;
    let work = Work {
        config,
        table: &table,
        columns: &columns,
        clips,
        threads: &threads,
        stop: watch.stop,
        on_progress: watch.on_progress,
    };
    let mut rows = table.rows()?;
    let mut at = 0;
    for shard in 0..num_shards {
        let in_shard = config.rows_per_shard.min(num_rows - at);
        if shard < kept_shards {
            for _ in 0..in_shard {
                rows.read()?.ok_or_else(|| table.changed())?;
            }
            manifest.check(&config.out, shard)?;
            (watch.on_progress)(in_shard);
            at += in_shard;
            continue;
        }
        let writer = ShardWriter::create(&config.out, &shard_name(shard))?;
        let Some(packed) = work.pack_shard(writer, &mut rows, at..at + in_shard)? else {
            return Ok(Outcome::Stopped {
                num_done: at,
                num_rows,
                is_kept: true,
            });
        };
        at += in_shard;
        manifest.shards.push(packed);
        manifest.write(&config.out)?;
    }
    let shards = manifest.shards;
    let skipped: Vec<Unpacked> = shards
        .iter()
        .flat_map(|shard| shard.skipped.iter().cloned())
        .collect();
    if !skipped.is_empty() {
        write_skipped(&config.out, &skipped)?;
    }
    Ok(Outcome::Done(Packed {
        out: config.out.clone(),
        rows: num_rows,
        samples: shards.iter().map(|shard| shard.samples).sum(),
        bytes: shards.iter().map(|shard| shard.bytes).sum(),
        kept_shards,
        shards,
        skipped,
    }))
}

/// How clips are packed; `None` for pictures.
fn clip_packing(config: &PackConfig) -> Result<Option<ClipPacking>, DataError> {
    let PackedMedia::Clips(coding) = config.media else {
        return Ok(None);
    };
    let Some(size) = config.size else {
        return Err(DataError::invalid(
            config.table.display(),
            "the size of frames",
            "none: clips are packed as the frames that are seen of them",
            "`--size 256` makes their shorter side 256 pixels",
        ));
    };
    let frames = SmallerFrames { size, coding };
    Ok(Some(ClipPacking::new(&config.data, frames)))
}

/// Hash of all cells and of the settings, and the number of rows.
fn key(config: &PackConfig, table: &Table) -> Result<(String, usize), DataError> {
    let mut hasher = Xxh3::new();
    let asked = format!(
        "{VERSION} {:?} {:?} {:?} {} {:?}",
        config.size,
        config.media,
        clip_packing(config)?,
        config.rows_per_shard,
        table.columns()
    );
    hasher.update(asked.as_bytes());
    let mut num_rows = 0;
    let mut rows = table.rows()?;
    while let Some(row) = rows.read()? {
        for cell in row.cells() {
            hasher.update(cell.as_bytes());
            hasher.update(&[0]);
        }
        num_rows += 1;
    }
    Ok((format!("{:016x}", hasher.digest()), num_rows))
}

/// Positions of the columns that packing reads, and how it reads them.
struct PackColumns {
    image: usize,
    mask: Option<usize>,
    field_of_view: Option<usize>,
    caption: Option<usize>,
    root: PathBuf,
    read_mask_as: ReadAs,
}

struct RowToPack {
    row: u32,
    key: String,
    image: String,
    mask: Option<String>,
    field_of_view: Option<String>,
    caption: Option<String>,
    json: String,
}

/// Names and contents of a sample's files in the tar.
type Files = Vec<(String, Vec<u8>)>;

impl PackColumns {
    fn find(
        config: &PackConfig,
        table: &Table,
        notes: &mut Vec<String>,
    ) -> Result<PackColumns, DataError> {
        let data = &config.data;
        let is_clips = matches!(config.media, PackedMedia::Clips(_));
        let image = if is_clips {
            video_column(data, table, notes)?
        } else {
            image_column(data, table, notes)?
        };
        let mask = match (&data.mask, mask_by_name(table)) {
            _ if is_clips => None,
            (Some(name), _) => Some(table.column("mask", name)?),
            (None, Some(name)) => Some(table.column("mask", name)?),
            (None, None) => None,
        };
        let field_of_view = match (&data.field_of_view, field_of_view_by_name(table)) {
            _ if mask.is_none() => None,
            (FieldOfViewChoice::Named(name), _) => Some(table.column("field_of_view", name)?),
            (FieldOfViewChoice::Auto | FieldOfViewChoice::None, name) => {
                let name = name.map(|name| table.column("field_of_view", name));
                name.transpose()?
            }
        };
        let caption = match (&data.caption, caption_by_name(table)) {
            (Some(name), _) => table.position(name)?,
            (None, Some(name)) => Some(table.column("caption", name)?),
            (None, None) => None,
        };
        Ok(PackColumns {
            image,
            mask,
            field_of_view,
            caption,
            root: match &data.image_root {
                Some(root) if !table.has_own_root() => root.clone(),
                _ => table.folder().to_owned(),
            },
            read_mask_as: if data.colours.list().is_empty() {
                ReadAs::Mask
            } else {
                ReadAs::ColourMask
            },
        })
    }

    fn sample(&self, table: &Table, row: Row<'_>, at: usize) -> Result<RowToPack, DataError> {
        let path = |column: usize| row.cell(column).trim().replace('\\', "/");
        let mut json = Map::new();
        for (column, name) in table.columns().iter().enumerate() {
            let is_packed = column == self.image
                || [self.mask, self.field_of_view].contains(&Some(column))
                || name == "__key__";
            // A listing of class folders keeps its split column, under the name that shards use.
            let name = match table.split_column() {
                Some(split) if split == name => crate::table::SPLIT,
                _ => name,
            };
            if !is_packed && !row.cell(column).is_empty() {
                json.insert(name.to_owned(), Value::from(row.cell(column)));
            }
        }
        Ok(RowToPack {
            row: row.line(),
            key: format!("{at:09}"),
            image: path(self.image),
            mask: self.mask.map(path).filter(|mask| !mask.is_empty()),
            field_of_view: (self.field_of_view.map(path)).filter(|mask| !mask.is_empty()),
            caption: self
                .caption
                .map(|column| row.cell(column).trim().to_owned()),
            json: Value::Object(json).to_string(),
        })
    }
}

/// Decodes, resizes and encodes on all threads.
struct Work<'a> {
    config: &'a PackConfig,
    table: &'a Table,
    columns: &'a PackColumns,
    clips: Option<ClipPacking>,
    threads: &'a rayon::ThreadPool,
    stop: &'a AtomicBool,
    on_progress: &'a (dyn Fn(usize) + Sync),
}

impl Work<'_> {
    /// Packs the next rows into a shard; `numbers` are theirs in the table. `None` if the packing was stopped.
    fn pack_shard(
        &self,
        mut writer: ShardWriter,
        rows: &mut Rows,
        mut numbers: Range<usize>,
    ) -> Result<Option<PackedShard>, DataError> {
        let threads = self.threads.current_num_threads();
        let batch_rows = self.config.media.rows_per_thread() * threads;
        let mut skipped = Vec::new();
        while !numbers.is_empty() {
            let mut batch = Vec::new();
            for number in numbers.by_ref().take(batch_rows) {
                let row = rows.read()?.ok_or_else(|| self.table.changed())?;
                batch.push(self.columns.sample(self.table, row, number)?);
            }
            let Some(files) = self.threads.install(|| self.encode(&batch)) else {
                return Ok(None);
            };
            for (sample, files) in batch.iter().zip(files) {
                match files {
                    Ok(files) => writer.add(sample, &files)?,
                    Err(error) => skipped.push(Unpacked {
                        row: sample.row,
                        image: sample.image.clone(),
                        reason: first_line(&error),
                    }),
                }
            }
        }
        Ok(Some(PackedShard {
            skipped,
            ..writer.finish()?
        }))
    }

    /// The files of each sample, or why the sample has none; `None` if the packing was stopped.
    fn encode(&self, batch: &[RowToPack]) -> Option<Vec<Result<Files, DataError>>> {
        let files = batch.par_iter().map_init(
            || Scratch::within(&self.config.allowance),
            |scratch, sample| {
                if self.stop.load(Ordering::Relaxed) {
                    return None;
                }
                let files = self.files(sample, scratch);
                scratch.free_if_wanted();
                (self.on_progress)(1);
                Some(files)
            },
        );
        files.collect()
    }

    fn files(&self, sample: &RowToPack, scratch: &mut Scratch) -> Result<Files, DataError> {
        if sample.image.is_empty() || is_url(&sample.image) {
            return Err(DataError::PictureMissing {
                path: PathBuf::from(&sample.image),
            });
        }
        let path = self.columns.root.join(&sample.image);
        if let Some(clips) = &self.clips {
            let (ending, bytes) = clips.smaller_clip(&path, scratch)?;
            return Ok(vec![(ending.to_owned(), bytes)]);
        }
        let format = match self.config.media {
            PackedMedia::Pictures(format) => format,
            PackedMedia::Clips(_) => SmallerFormat::default(),
        };
        let mut files = Vec::new();
        let smaller = match self.config.size {
            Some(size) => decode::smaller_picture(&path, size, format, scratch)?,
            // A picture that cannot be decoded is of no use in a shard either.
            None => decode::probe(&path, scratch).map(|_| None)?,
        };
        let original = smaller.as_ref().map(|smaller| smaller.original);
        files.push(match smaller {
            Some(smaller) => (format.extension().to_owned(), smaller.bytes),
            None => (extension(&sample.image), scratch.file().to_vec()),
        });
        let read_mask_as = self.columns.read_mask_as;
        for (column, mask, read_as) in [
            ("mask", &sample.mask, read_mask_as),
            (FIELD_OF_VIEW, &sample.field_of_view, ReadAs::Mask),
        ] {
            let Some(mask) = mask else {
                continue;
            };
            let path = self.columns.root.join(mask);
            let smaller = match self.config.size {
                Some(size) => {
                    let read_as = (read_as, original.as_ref());
                    decode::smaller_mask(&path, size, read_as, scratch)?
                }
                None => None,
            };
            files.push(match smaller {
                Some(bytes) => (format!("{column}.png"), bytes),
                None => (format!("{column}.{}", extension(mask)), whole_file(&path)?),
            });
        }
        Ok(files)
    }
}

/// Extension of a file name; for a member of an archive, the member's extension.
fn extension(name: &str) -> String {
    match stored_file::extension(name) {
        end if crate::media::is_picture(&format!(".{end}")) => end,
        _ => "jpg".to_owned(),
    }
}

fn whole_file(path: &Path) -> Result<Vec<u8>, DataError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut StoredFile::open(path)?, &mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|cause| DataError::Io {
        path: path.to_owned(),
        action: "read the mask",
        cause,
    })
}

/// A tar that is being written under a temporary name beside its final one.
struct ShardWriter {
    path: PathBuf,
    file: BufWriter<File>,
    checksum: RunningChecksum,
    samples: usize,
}

impl ShardWriter {
    fn create(folder: &Path, name: &str) -> Result<ShardWriter, DataError> {
        let path = folder.join(name);
        let file = File::create(holdall_files::partial(&path));
        Ok(ShardWriter {
            file: BufWriter::with_capacity(1 << 20, file.map_err(|cause| unwritten(&path, cause))?),
            path,
            checksum: RunningChecksum::default(),
            samples: 0,
        })
    }

    fn add(&mut self, sample: &RowToPack, files: &Files) -> Result<(), DataError> {
        for (ending, bytes) in files {
            self.member(&format!("{}.{ending}", sample.key), bytes)?;
        }
        if let Some(caption) = &sample.caption {
            self.member(&format!("{}.txt", sample.key), caption.as_bytes())?;
        }
        self.member(&format!("{}.json", sample.key), sample.json.as_bytes())?;
        self.samples += 1;
        Ok(())
    }

    fn member(&mut self, name: &str, bytes: &[u8]) -> Result<(), DataError> {
        const ZEROS: [u8; 512] = [0; 512];
        let header = tar::header(name, bytes.len() as u64).ok_or_else(|| {
            let cause = io::Error::other("a file of more than 8 GiB");
            unwritten(&self.path, cause)
        })?;
        let padding = &ZEROS[..tar::padding(bytes.len() as u64)];
        [&header[..], bytes, padding]
            .iter()
            .try_for_each(|piece| self.write(piece))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.checksum.add(bytes);
        let written = self.file.write_all(bytes);
        written.map_err(|cause| unwritten(&self.path, cause))
    }

    /// Ends the tar and renames it to its final name.
    fn finish(mut self) -> Result<PackedShard, DataError> {
        self.write(&[0; 1024])?;
        let path = self.path.clone();
        let mut finished = || -> io::Result<()> {
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            holdall_files::rename(&holdall_files::partial(&path), &path)?;
            holdall_files::sync_folder(path.parent().unwrap_or(Path::new("")))
        };
        finished().map_err(|cause| unwritten(&self.path, cause))?;
        Ok(PackedShard {
            name: name_with_extension(&self.path),
            samples: self.samples,
            bytes: self.checksum.num_bytes(),
            checksum: self.checksum.value().to_string(),
            skipped: Vec::new(),
        })
    }
}

impl Manifest {
    /// Manifest of an earlier start, if any; an error where the folder holds a packing of something else.
    fn open(folder: &Path, key: &str) -> Result<Option<Manifest>, DataError> {
        let path = folder.join(MANIFEST);
        let bytes = match holdall_files::read_regular(&path, 1 << 30) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => {
                return Err(DataError::Io {
                    path,
                    action: "read it",
                    cause,
                });
            }
        };
        let manifest: Option<Manifest> = serde_json::from_slice(&bytes).ok();
        match manifest.filter(|manifest| manifest.holdall == VERSION && manifest.key == key) {
            Some(manifest) => Ok(Some(manifest)),
            None => Err(DataError::invalid(
                folder.display(),
                "an empty folder, or shards of this table, size and format",
                "shards of something else",
                "name another folder with --out, or remove this one",
            )),
        }
    }

    /// Claims an empty folder: shards that are found in it later were written by this packing, whatever stopped it.
    fn begin(folder: &Path, key: String) -> Result<Manifest, DataError> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // Hidden files such as those of a file manager are in nobody's way.
        let other = names.filter(|name| !name.starts_with('.') && !name.ends_with(".partial"));
        if let Some(name) = other.min() {
            return Err(DataError::invalid(
                folder.display(),
                "an empty folder, or shards of this table, size and format",
                format_args!("`{name}`, which packing did not write"),
                "name another folder with --out",
            ));
        }
        let manifest = Manifest {
            holdall: VERSION.to_owned(),
            key,
            shards: Vec::new(),
        };
        manifest.write(folder)?;
        Ok(manifest)
    }

    fn write(&self, folder: &Path) -> Result<(), DataError> {
        let path = folder.join(MANIFEST);
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        let written = holdall_files::write_whole(&path, text.as_bytes());
        written.map_err(|cause| unwritten(&path, cause))
    }

    /// Checks a shard's checksum and length.
    fn check(&self, folder: &Path, shard: usize) -> Result<(), DataError> {
        let shard = &self.shards[shard];
        let path = folder.join(&shard.name);
        let found = Checksum::of_file(&path).ok();
        let is_same = found.is_some_and(|(checksum, bytes)| {
            checksum.to_string() == shard.checksum && bytes == shard.bytes
        });
        if is_same {
            Ok(())
        } else {
            Err(DataError::invalid(
                path.display(),
                "the shard that was written",
                "another, or none",
                format_args!(
                    "remove {} and its shards, and pack again",
                    folder.join(MANIFEST).display()
                ),
            ))
        }
    }
}

fn write_skipped(folder: &Path, skipped: &[Unpacked]) -> Result<(), DataError> {
    let path = folder.join(SKIPPED);
    let mut rows = csv::Writer::from_writer(Vec::new());
    let write = |rows: &mut csv::Writer<Vec<u8>>| -> Result<(), csv::Error> {
        rows.write_record(["row", "image", "reason"])?;
        for one in skipped {
            rows.write_record([&one.row.to_string(), &one.image, &one.reason])?;
        }
        rows.flush()?;
        Ok(())
    };
    write(&mut rows).map_err(|cause| unwritten(&path, io::Error::other(cause)))?;
    let bytes = rows.into_inner().unwrap_or_default();
    holdall_files::write_whole(&path, &bytes).map_err(|cause| unwritten(&path, cause))
}

/// First line of an error message, without its hint.
fn first_line(error: &DataError) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| {
        if c.is_alphanumeric() || c == '_' || c == '-' {
            c
        } else {
            '_'
        }
    };
    match stem.chars().map(plain).collect::<String>().as_str() {
        "" => "shard".to_owned(),
        name => name.to_owned(),
    }
}

fn name_with_extension(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn unwritten(path: &Path, cause: io::Error) -> DataError {
    DataError::Io {
        path: path.to_owned(),
        action: "write it",
        cause,
    }
}

/// Bytes of all pictures or clips that a table names, as far as the files exist.
pub fn stored_bytes(config: &PackConfig) -> Result<u64, DataError> {
    let table = Table::open_separated(&config.table, config.data.separator)?;
    let columns = PackColumns::find(config, &table, &mut Vec::new())?;
    let mut bytes = 0;
    let mut rows = table.rows()?;
    while let Some(row) = rows.read()? {
        let path = columns
            .root
            .join(row.cell(columns.image).trim().replace('\\', "/"));
        bytes += if path.is_dir() {
            folder_bytes(&path)
        } else {
            stored_file::stamp(&path).map_or(0, |stamp| stamp.num_bytes)
        };
    }
    Ok(bytes)
}

/// Bytes of all files in a folder of frames.
fn folder_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = files.filter_map(|file| file.metadata().ok());
    files
        .filter(fs::Metadata::is_file)
        .map(|file| file.len())
        .sum()
}
