//! Inputs of the ranking: features of both sides, and their pairs.

use std::path::{Path, PathBuf};

use anyhow::Result;
use holdall_data::samples::read_captions;
use holdall_files::{counted, thousands};
use holdall_metrics::features::{
    Element, FeatureFiles, Features, GalleryRows, Meter, gallery_rows, num_different, parted,
};
use holdall_metrics::retrieval::pair_file::{self, Counts};
use holdall_metrics::retrieval::{Pairs, RetrievalError, Side};
use holdall_train::TrainError;

use super::arguments::{RetrievalArguments, UnpairedArgument};
use crate::screen::tell;
use holdall_train::engine::similarity;

/// Features and pairs, read and checked.
pub struct Inputs {
    pub queries: FeatureFiles,
    gallery_files: FeatureFiles,
    /// Gallery rows that are scored; `None` for all.
    chosen: Option<Vec<u32>>,
    pub pairs: Pairs,
    /// Number of unique captions, with `--captions`.
    pub num_texts: Option<usize>,
}

impl Inputs {
    /// Reads the files and prints their contents.
    pub fn read(arguments: &RetrievalArguments) -> Result<Inputs> {
        let queries = FeatureFiles::open(&arguments.queries)?;
        let gallery_files = FeatureFiles::open(&arguments.gallery)?;
        for (name, files) in [("Queries", &queries), ("Gallery", &gallery_files)] {
            tell(&describe(name, files));
        }
        let (expected, found) = (queries.dimension(), gallery_files.dimension());
        if expected != found {
            return Err(config(format!(
                "{}: expected rows of {expected} values as in {}, found {found}\n\
                 hint: both sides come from one model; save the projected features, not the hidden states",
                first(&gallery_files).display(),
                first(&queries).display()
            )));
        }
        let mut inputs = Inputs {
            pairs: Pairs::new(0, 0, Vec::new())?,
            chosen: None,
            num_texts: None,
            queries,
            gallery_files,
        };
        inputs.pairs = match (&arguments.pairs, &arguments.captions) {
            (Some(path), _) => inputs.of_file(path)?,
            (None, Some(path)) => inputs.of_captions(path)?,
            (None, None) => inputs.of_rows()?,
        };
        inputs.check_unpaired(arguments)?;
        Ok(inputs)
    }

    pub fn gallery(&self) -> Features<'_> {
        match &self.chosen {
            Some(rows) => self.gallery_files.chosen(rows),
            None => self.gallery_files.features(),
        }
    }

    pub fn num_gallery(&self) -> usize {
        self.chosen
            .as_ref()
            .map_or(self.gallery_files.num_rows(), Vec::len)
    }

    pub fn num_bytes(&self) -> u64 {
        self.queries.num_bytes() + self.gallery_files.num_bytes()
    }

    /// Drops the pages of mapped files from resident memory; they are read again when needed.
    pub fn give_back(&self) {
        self.queries.give_back();
        self.gallery_files.give_back();
    }

    /// Whether the gallery is at most half of the share for mapped files, so that its pages may stay resident.
    pub fn gallery_stays(&self, mapped_bytes: Option<u64>) -> bool {
        mapped_bytes.is_none_or(|bytes| self.gallery_files.num_bytes() <= bytes / 2)
    }

    /// Counts bytes read from mapped files, so that at most `mapped_bytes` of them are resident. A small gallery
    /// stays resident, because it is read in random order.
    pub fn meter(&self, mapped_bytes: u64) -> Meter<'_> {
        if self.gallery_stays(Some(mapped_bytes)) {
            Meter::new((mapped_bytes - self.gallery_files.num_bytes()) / 2, || {
                self.queries.give_back();
            })
        } else {
            Meter::new(mapped_bytes / 2, || self.give_back())
        }
    }

    fn of_file(&self, path: &Path) -> Result<Pairs> {
        let counts = Counts {
            queries: self.queries.num_rows(),
            gallery: self.gallery_files.num_rows(),
        };
        let pairs = pair_file::read(path, counts)?;
        let pairs = self.numbered(Pairs::new(counts.queries, counts.gallery, pairs))?;
        tell(&format!(
            "Pairs: {} of {}",
            thousands(pairs.len()),
            path.display()
        ));
        Ok(pairs)
    }

    fn of_rows(&self) -> Result<Pairs> {
        let (queries, gallery) = (self.queries.num_rows(), self.gallery_files.num_rows());
        if queries != gallery {
            return Err(config(format!(
                "expected --pairs or --captions, as {} and {} cannot belong to each other row by row, found neither\n\
                 hint: --pairs pairs.csv, with lines `query,gallery`; or --captions captions.txt, one per query",
                counted(queries, "query row"),
                counted(gallery, "gallery row")
            )));
        }
        tell(
            "Pairs: query i belongs to gallery item i, as neither --pairs nor --captions is given",
        );
        let all = u32::try_from(gallery).map_or(Vec::new(), |count| (0..count).collect());
        // Empty if the count exceeds 32 bits, which is refused as such.
        if all.is_empty() {
            return self.numbered(Err(RetrievalError::TooMany { found: gallery }));
        }
        self.numbered(Pairs::one_each(&all, gallery))
    }

    /// Pairs from captions: equal captions are one gallery item.
    fn of_captions(&mut self, named: &Path) -> Result<Pairs> {
        let (path, column) = parted(named, ".csv");
        let list = read_captions(&path, column.as_deref()).map_err(TrainError::from)?;
        for note in &list.notes {
            tell(note);
        }
        tell(&similarity::unique_texts(
            list.num_texts,
            list.text_of.len(),
        ));
        let (queries, gallery) = (self.queries.num_rows(), self.gallery_files.num_rows());
        let rows = gallery_rows(&list.text_of, queries, gallery)
            .map_err(|error| config(format!("{}: {error}", path.display())))?;
        if let GalleryRows::First(firsts) = rows {
            let all = self.gallery_files.features();
            let different = num_different(&all, &list.text_of, &firsts);
            if different > 0 {
                tell(&format!(
                    "Warning: {} unlike the first row of an equal caption, which is the one that is scored\n\
                     hint: check that rows are in the order of the captions",
                    counted(different, "gallery row")
                ));
            }
            self.chosen = Some(firsts);
        }
        self.num_texts = Some(list.num_texts);
        self.numbered(Pairs::one_each(&list.text_of, list.num_texts))
    }

    fn numbered(&self, pairs: Result<Pairs, RetrievalError>) -> Result<Pairs> {
        pairs.map_err(|error| {
            config(format!(
                "{error}\nhint: items are numbered in 32 bits; rank parts of the gallery one by one"
            ))
        })
    }

    /// Applies `--unpaired` to items without a positive.
    fn check_unpaired(&self, arguments: &RetrievalArguments) -> Result<()> {
        for side in [Side::Query, Side::Gallery] {
            let Some((first, count)) = self.pairs.unpaired(side) else {
                continue;
            };
            let noun = match side {
                Side::Query => "query row",
                Side::Gallery => "gallery row",
            };
            let rows = counted(count, noun);
            if arguments.unpaired == UnpairedArgument::Ignore {
                tell(&format!(
                    "{rows} without a positive: no rank, and still a distractor"
                ));
                continue;
            }
            let (path, row) = self.place(side, first);
            return Err(config(format!(
                "{}, row {row}: expected a positive of this {side}, found none; {rows} without one in all\n\
                 hint: add them to the pairs, or --unpaired ignore: no rank, and still a distractor",
                path.display()
            )));
        }
        Ok(())
    }

    /// File and row of an item.
    pub fn place(&self, side: Side, item: usize) -> (&Path, usize) {
        match (side, &self.chosen) {
            (Side::Query, _) => self.queries.place(item),
            (Side::Gallery, Some(rows)) => self.gallery_files.place(rows[item] as usize),
            (Side::Gallery, None) => self.gallery_files.place(item),
        }
    }
}

pub fn config(text: String) -> anyhow::Error {
    TrainError::Config(text).into()
}

fn first(files: &FeatureFiles) -> &Path {
    files.paths().next().unwrap_or(Path::new(""))
}

/// `Queries: 117,120 x 512, f16, images.npy`.
fn describe(name: &str, files: &FeatureFiles) -> String {
    let elements: Vec<&str> = (files.elements().into_iter())
        .map(|element| match element {
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
        })
        .collect();
    let paths: Vec<PathBuf> = files.paths().map(Path::to_owned).collect();
    let more = match paths.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    format!(
        "{name}: {} x {}, {}, {}{more}",
        thousands(files.num_rows()),
        files.dimension(),
        elements.join(" and "),
        first(files).display()
    )
}
