//! Evaluations shared by several processes: each runs the forward programs on its part of the samples, all exchange the
//! outputs, and the first process computes the scores and sends them to the others. A sample's outputs do not depend on the
//! process, so the scores are those of a single process.

use bytemuck::Pod;
use holdall_processes::Group;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::task::Unfinished;
use crate::error::TrainError;
use crate::planning::processes::{from_first, name_of, share};

/// Serialises a process's part: arrays of numbers, texts and pictures, one after another.
#[derive(Default)]
pub(crate) struct PartWriter(Vec<u8>);

impl PartWriter {
    pub fn numbers<T: Pod>(mut self, numbers: &[T]) -> PartWriter {
        self.put(bytemuck::cast_slice(numbers));
        self
    }

    /// Adds any value as JSON; floats in it may lose a last digit.
    pub fn plain<T: Serialize>(mut self, value: &T) -> PartWriter {
        self.put(&serde_json::to_vec(value).expect("what is shown is plain data"));
        self
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend((bytes.len() as u64).to_le_bytes());
        self.0.extend(bytes);
    }
}

/// Reads a serialised part in the order of writing. Methods return `None` for data of another shape.
pub(crate) struct PartReader<'a>(&'a [u8]);

impl PartReader<'_> {
    pub fn numbers<T: Pod>(&mut self) -> Option<Vec<T>> {
        let bytes = self.take()?;
        bytes
            .len()
            .is_multiple_of(size_of::<T>())
            .then(|| bytemuck::pod_collect_to_vec(bytes))
    }

    pub fn plain<T: DeserializeOwned>(&mut self) -> Option<T> {
        serde_json::from_slice(self.take()?).ok()
    }

    fn take(&mut self) -> Option<&[u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (bytes, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// How a process's part of an evaluation ended, as sent to the others.
#[derive(Serialize, Deserialize)]
enum PartEnd {
    Done,
    Stopped,
    NotFinite(String),
    Failed(String),
}

/// Passes the part of every process to `take`, in rank order, which is the order of samples. `read` is the result of reading
/// this process's part; an error of one process ends the exchange on all of them with the same reason. A single process
/// exchanges nothing.
pub(crate) fn exchange<T>(
    group: &Group,
    read: Result<T, Unfinished>,
    own: impl FnOnce() -> PartWriter,
    mut take: impl FnMut(PartReader<'_>) -> Option<()>,
) -> Result<T, Unfinished> {
    if group.size() == 1 {
        return read;
    }
    let (done, own) = match read {
        Ok(done) => (Some(done), Ok(own().0)),
        Err(error) => (None, Err(error)),
    };
    for (rank, part) in gather_parts(group, own)?.iter().enumerate() {
        take(PartReader(part)).ok_or_else(|| {
            TrainError::Run(format!(
                "the part of {} cannot be read\nhint: this is a bug; please report it",
                name_of(group, rank)
            ))
        })?;
    }
    Ok(done.expect("without it there are no parts"))
}

/// Parts of all processes in rank order, or the reason why one has none.
fn gather_parts(
    group: &Group,
    own: Result<Vec<u8>, Unfinished>,
) -> Result<Vec<Vec<u8>>, Unfinished> {
    let end = match &own {
        Ok(_) => PartEnd::Done,
        Err(Unfinished::Stopped) => PartEnd::Stopped,
        Err(Unfinished::NotFinite(found)) => PartEnd::NotFinite(found.clone()),
        Err(Unfinished::Failed(error)) => PartEnd::Failed(error.to_string()),
    };
    let ends: Vec<PartEnd> = share(group, &end)?;
    let bytes = own?;
    for (rank, end) in ends.into_iter().enumerate() {
        match end {
            PartEnd::Done => {}
            PartEnd::Stopped => return Err(Unfinished::Stopped),
            PartEnd::NotFinite(found) => return Err(Unfinished::NotFinite(found)),
            PartEnd::Failed(text) => {
                let name = name_of(group, rank);
                return Err(TrainError::Run(format!("{name}: {text}")).into());
            }
        }
    }
    group.gather_bytes(&bytes).map_err(Unfinished::from)
}

/// Result of rank 0, or its error.
pub(crate) fn result_of_first<T: Serialize + DeserializeOwned>(
    group: &Group,
    evaluate: impl FnOnce() -> Result<T, Unfinished>,
) -> Result<T, Unfinished> {
    if group.size() == 1 {
        return evaluate();
    }
    let mut own = None;
    let (found, end): (Option<T>, PartEnd) = from_first(group, || {
        Ok(match evaluate() {
            Ok(found) => (Some(found), PartEnd::Done),
            Err(Unfinished::Stopped) => (None, PartEnd::Stopped),
            Err(Unfinished::NotFinite(found)) => (None, PartEnd::NotFinite(found)),
            Err(Unfinished::Failed(error)) => {
                let text = error.to_string();
                own = Some(error);
                (None, PartEnd::Failed(text))
            }
        })
    })?;
    match (found, end) {
        (Some(found), _) => Ok(found),
        (None, PartEnd::NotFinite(found)) => Err(Unfinished::NotFinite(found)),
        (None, PartEnd::Failed(text)) => Err(Unfinished::Failed(own.unwrap_or_else(|| {
            let name = name_of(group, 0);
            Box::new(TrainError::Run(format!("{name}: {text}")))
        }))),
        (None, _) => Err(Unfinished::Stopped),
    }
}

#[cfg(test)]
mod tests {
    use holdall_processes::testing::loopback;

    use super::*;

    #[test]
    fn parts_are_read_as_they_were_written_and_nothing_else_is() {
        let written = PartWriter::default()
            .numbers(&[1.5_f32, f32::MIN_POSITIVE])
            .plain(&("a", 7))
            .numbers::<u32>(&[]);
        let mut part = PartReader(&written.0);
        assert_eq!(part.numbers(), Some(vec![1.5_f32, f32::MIN_POSITIVE]));
        assert_eq!(part.plain(), Some(("a".to_owned(), 7)));
        assert_eq!(part.numbers::<u32>(), Some(Vec::new()));
        assert_eq!(part.numbers::<u32>(), None);
        let cut = &written.0[..written.0.len() - 9];
        let mut part = PartReader(cut);
        assert!(part.numbers::<u32>().is_some());
        assert_eq!(part.plain::<(String, u32)>(), None);
    }

    /// Runs one closure per process, each on a thread.
    fn on_each<T: Send>(size: usize, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
        std::thread::scope(|threads| {
            let groups = loopback(size).into_iter();
            let started: Vec<_> = groups.map(|group| threads.spawn(|| work(group))).collect();
            let joined = started.into_iter().map(|one| one.join().unwrap());
            joined.collect()
        })
    }

    #[test]
    fn every_process_takes_all_parts_in_order() {
        let taken = on_each(3, |group| {
            let own = group.rank() as u32;
            let mut all = Vec::new();
            let part = || PartWriter::default().numbers(&vec![own; own as usize]);
            let done = exchange(&group, Ok(own), part, |mut part| {
                all.extend(part.numbers::<u32>()?);
                Some(())
            });
            assert_eq!(done.unwrap(), own);
            all
        });
        assert_eq!(taken, vec![vec![1, 2, 2]; 3]);
    }

    #[test]
    fn what_ends_one_part_ends_all_for_the_same_reason() {
        let failed = || TrainError::Run("no room".to_owned());
        type IsEnd = fn(Unfinished) -> bool;
        let ends: [(IsEnd, _); 3] = [
            (|end| matches!(end, Unfinished::Stopped), 0),
            (
                |end| matches!(end, Unfinished::NotFinite(text) if text == "NaN"),
                1,
            ),
            (|end| end.into_error().to_string().ends_with("no room"), 2),
        ];
        for (is_end, kind) in ends {
            let found = on_each(3, |group| {
                let read = match (group.rank(), kind) {
                    (1, 0) => Err(Unfinished::Stopped),
                    (1, 1) => Err(Unfinished::NotFinite("NaN".to_owned())),
                    (1, _) => Err(Unfinished::from(failed())),
                    _ => Ok(()),
                };
                let ended = exchange(&group, read, PartWriter::default, |_| Some(()));
                is_end(ended.unwrap_err())
            });
            assert_eq!(found, [true; 3], "{kind}");
        }
    }

    #[test]
    fn the_first_tells_what_it_found_or_why_not() {
        let found = on_each(2, |group| {
            result_of_first(&group, || {
                assert_eq!(group.rank(), 0);
                Ok("0.5".to_owned())
            })
            .ok()
        });
        assert_eq!(found, vec![Some("0.5".to_owned()); 2]);
        let found = on_each(2, |group| {
            let failed = || Err::<String, _>(TrainError::Config("odd".to_owned()).into());
            result_of_first(&group, failed).unwrap_err().into_error()
        });
        assert!(matches!(&found[0], TrainError::Config(text) if text == "odd"));
        assert!(found[1].to_string().contains("rank 0"), "{}", found[1]);
    }
}
