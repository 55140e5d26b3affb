//! `skipped.csv` lists unreadable pictures and invalid rows, each once; a run with too many of them stops.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use holdall_data::DataError;
use holdall_data::Side;
use holdall_data::config::{BadPictures, DataConfig};
use holdall_data::loader::Skipped;
use holdall_data::samples::{BadRow, Samples};
use serde::{Deserialize, Serialize};

use crate::config::Subset;
use crate::error::TrainError;
use crate::run_folder::appended_file::{AppendedFile, Prefix};
use crate::run_folder::folder::failed;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedLine {
    /// Subset of the sample.
    pub part: Subset,
    /// Line number in the CSV.
    pub row: u32,
    /// Text in the CSV.
    pub image: String,
    pub reason: String,
}

impl SkippedLine {
    pub fn new(part: Subset, samples: &Samples, skipped: &Skipped) -> SkippedLine {
        let sample = skipped.sample as usize;
        SkippedLine {
            part,
            row: samples.row(sample),
            image: samples.image(sample).to_owned(),
            reason: reason(&samples.image_path(sample), &skipped.error),
        }
    }
}

/// A skipped picture, as sent between processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedPicture {
    pub line: SkippedLine,
    /// The complete error with its hint.
    pub error: String,
}

impl SkippedPicture {
    pub fn new(part: Subset, samples: &Samples, skipped: &Skipped) -> SkippedPicture {
        SkippedPicture {
            line: SkippedLine::new(part, samples, skipped),
            error: skipped.error.to_string(),
        }
    }
}

/// The first line of an error, without the path of the picture.
pub fn reason(path: &Path, error: &DataError) -> String {
    let error = error.to_string();
    let first = error.lines().next().unwrap_or_default();
    let named = format!("{}: ", path.display());
    first.strip_prefix(&named).unwrap_or(first).to_owned()
}

/// The pictures skipped so far, in this process and in earlier ones.
pub(crate) struct SkippedFile {
    path: PathBuf,
    /// `None` if another process writes the file.
    file: Option<AppendedFile>,
    known: HashSet<(Subset, u32)>,
}

impl SkippedFile {
    /// Opens the file behind the prefix of the checkpoint; later lines are cut off, because the resumed run finds those
    /// pictures again.
    pub fn open(path: &Path, prefix: &Prefix) -> Result<SkippedFile, TrainError> {
        let mut list = SkippedFile::read_only(path, prefix)?;
        list.file = Some(AppendedFile::open(path, prefix)?);
        Ok(list)
    }

    /// An empty list, for processes that do not write the file.
    pub fn of_first_process(path: &Path) -> SkippedFile {
        SkippedFile {
            path: path.to_owned(),
            file: None,
            known: HashSet::new(),
        }
    }

    /// Like [`SkippedFile::open`], for processes that do not write the file.
    pub fn read_only(path: &Path, prefix: &Prefix) -> Result<SkippedFile, TrainError> {
        let mut known = HashSet::new();
        let mut bytes = match std::fs::read(path) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => Vec::new(),
            read => read.map_err(failed(path, "read"))?,
        };
        prefix.check(path)?;
        bytes.truncate(prefix.bytes as usize);
        let mut reader = csv::Reader::from_reader(bytes.as_slice());
        for line in reader.deserialize() {
            let line: SkippedLine = line.map_err(|cause| {
                TrainError::Run(format!(
                    "{}: expected part,row,image,reason, found {cause}\n\
                     hint: the file was changed; remove it to go on",
                    path.display()
                ))
            })?;
            known.insert((line.part, line.row));
        }
        Ok(SkippedFile {
            path: path.to_owned(),
            file: None,
            known,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        match &mut self.file {
            Some(file) => file.add(bytes),
            None => Ok(()),
        }
    }

    /// Flushes the file to disk and returns the prefix for a checkpoint.
    pub fn sync(&mut self) -> Result<Prefix, TrainError> {
        match &mut self.file {
            Some(file) => file.sync(),
            None => Ok(Prefix::default()),
        }
    }

    /// Samples of a subset that are listed.
    pub fn samples(&self, part: Subset, samples: &Samples) -> Vec<u32> {
        let is_known = |&sample: &u32| self.is_known(part, samples.row(sample as usize));
        (0..samples.len() as u32).filter(is_known).collect()
    }

    pub fn is_known(&self, part: Subset, row: u32) -> bool {
        self.known.contains(&(part, row))
    }

    pub fn total(&self) -> usize {
        self.known.len()
    }

    /// Adds a picture; returns whether it is new.
    pub fn add(&mut self, line: &SkippedLine) -> Result<bool, TrainError> {
        let name = (line.part, line.row);
        if self.known.contains(&name) {
            return Ok(false);
        }
        self.write(&written(line, self.known.is_empty()))?;
        Ok(self.known.insert(name))
    }

    /// Adds the invalid rows that are not listed yet.
    pub fn add_rows(&mut self, rows: &[BadRow]) -> Result<(), TrainError> {
        let (mut bytes, mut added) = (Vec::new(), Vec::new());
        // A run does not read test rows.
        for bad in rows.iter().filter(|bad| bad.side != Side::Test) {
            let line = SkippedLine {
                part: match bad.side {
                    Side::Train => Subset::Train,
                    Side::Validation | Side::Test => Subset::Validation,
                },
                row: bad.row,
                image: bad.image.clone(),
                reason: bad.fault.to_string(),
            };
            if !self.is_known(line.part, line.row) {
                let is_first = self.known.is_empty() && added.is_empty();
                bytes.extend(written(&line, is_first));
                added.push((line.part, line.row));
            }
        }
        if !bytes.is_empty() {
            self.write(&bytes)?;
        }
        self.known.extend(added);
        Ok(())
    }

    /// Checks that not too many of all `all` rows are skipped.
    pub fn check(&self, csv: &Path, all: usize, policy: &DataConfig) -> Result<(), TrainError> {
        let left_out = self.total();
        let most = policy.max_skipped.get();
        if left_out as f64 <= most * all as f64 {
            return Ok(());
        }
        Err(TrainError::Config(format!(
            "{}: {left_out} of {all} pictures cannot be read, expected at most {:.0}%; {} names them\n\
             hint: `holdall data check {0}` finds all of them, `holdall data clean {0}` writes a list without them; \
             `data: {{max_skipped: 50%}}` allows more",
            csv.display(),
            100.0 * most,
            self.path.display(),
        )))
    }
}

/// A line of the file; the first one includes the header.
fn written(line: &SkippedLine, is_first: bool) -> Vec<u8> {
    let mut writer = csv::WriterBuilder::new()
        .has_headers(is_first)
        .from_writer(Vec::new());
    writer.serialize(line).expect("a line is plain text");
    writer.into_inner().expect("memory does not fail")
}

/// Error for a skipped picture if the config allows none; it names the row.
pub fn refused(csv: &Path, skipped: &[SkippedPicture], policy: &DataConfig) -> Option<TrainError> {
    let first = skipped
        .first()
        .filter(|_| policy.bad_pictures == BadPictures::Fail)?;
    Some(TrainError::Config(format!(
        "{}, row {}: {}",
        csv.display(),
        first.line.row,
        first.error
    )))
}

#[cfg(test)]
mod tests {
    use holdall_data::samples::SamplesBuilder;

    use super::*;

    fn samples() -> Samples {
        let mut builder = SamplesBuilder::new(PathBuf::from("root"));
        for row in 0..20 {
            builder.push(&format!("{row},\"x\".jpg"), Some("x"), row + 2);
        }
        builder.finish(Vec::new())
    }

    fn missing(part: Subset, samples: &Samples, sample: u32) -> SkippedLine {
        let path = samples.image_path(sample as usize);
        let error = DataError::PictureMissing { path };
        SkippedLine::new(part, samples, &Skipped { sample, error })
    }

    #[test]
    fn every_picture_is_listed_once_whatever_happens_in_between() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("skipped.csv");
        let samples = samples();
        let mut file = SkippedFile::open(&path, &Prefix::default()).unwrap();
        let line = missing(Subset::Train, &samples, 3);
        assert_eq!(line.reason, "expected a picture, found no file");
        assert!(file.add(&line).unwrap());
        assert!(!file.add(&line).unwrap());
        assert!(file.add(&missing(Subset::Validation, &samples, 3)).unwrap());
        let remembered = file.sync().unwrap();
        // The process was killed in the middle of a line, after a line that no checkpoint contains.
        file.write(b"train,9,x.jpg,gone\ntrain,7,\"4").unwrap();
        let mut file = SkippedFile::open(&path, &remembered).unwrap();
        assert_eq!(file.total(), 2);
        assert_eq!(file.samples(Subset::Train, &samples), [3]);
        assert!(file.add(&missing(Subset::Train, &samples, 4)).unwrap());
        let others = SkippedFile::read_only(&path, &file.sync().unwrap()).unwrap();
        assert_eq!(others.samples(Subset::Train, &samples), [3, 4]);
        let lines: Vec<SkippedLine> = csv::Reader::from_path(&path)
            .unwrap()
            .deserialize()
            .map(Result::unwrap)
            .collect();
        let rows: Vec<(Subset, u32, &str)> = lines
            .iter()
            .map(|line| (line.part, line.row, line.image.as_str()))
            .collect();
        assert_eq!(
            rows,
            [
                (Subset::Train, 5, "3,\"x\".jpg"),
                (Subset::Validation, 5, "3,\"x\".jpg"),
                (Subset::Train, 6, "4,\"x\".jpg")
            ]
        );
    }

    #[test]
    fn a_first_line_that_was_cut_off_leaves_one_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("skipped.csv");
        let samples = samples();
        std::fs::write(&path, "part,row,image,reason\ntrain,5,\"3").unwrap();
        let mut file = SkippedFile::open(&path, &Prefix::default()).unwrap();
        assert!(file.add(&missing(Subset::Train, &samples, 3)).unwrap());
        let remembered = file.sync().unwrap();
        assert_eq!(SkippedFile::open(&path, &remembered).unwrap().total(), 1);
    }

    #[test]
    fn too_many_stop_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let samples = samples();
        let mut file =
            SkippedFile::open(&folder.path().join("skipped.csv"), &Prefix::default()).unwrap();
        let policy = DataConfig::default();
        let check = |file: &SkippedFile| file.check(Path::new("cars.csv"), 20, &policy);
        for sample in 0..2 {
            file.add(&missing(Subset::Train, &samples, sample)).unwrap();
            assert!(check(&file).is_ok());
        }
        file.add(&missing(Subset::Train, &samples, 2)).unwrap();
        let error = check(&file).unwrap_err().to_string();
        assert!(
            error.contains("3 of 20 pictures cannot be read, expected at most 10%"),
            "{error}"
        );
    }
}
