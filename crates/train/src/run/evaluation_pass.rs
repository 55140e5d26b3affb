//! The part of an evaluation that all tasks share: a process reads its share of the samples, reports progress, and the outputs of all
//! processes come together.
//!
//! ```text
//! read      this process's samples -> forward programs -> AllOutputs::add, a batch at a time
//! finish    one process has scored every batch by then; several exchange their outputs, and each scores all of them
//! gather    rows that are computed of something else than samples, such as features of texts
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::loader::{Course, Loaded, Loader, Share, Skipped};
use holdall_data::samples::Samples;
use holdall_device::HostRow;
use holdall_processes::Group;

use super::shared_evaluation::{PartReader, PartWriter, exchange};
use crate::engine::forward::Forward;
use crate::engine::task::{Evaluation, Unfinished};
use crate::planning::loader_budget::read_course;
use crate::planning::processes::share_of;

/// An evaluation in progress, in stages: each goes through one list, of which this process has a share.
pub(crate) struct EvaluationPass<'a> {
    pub group: &'a Group,
    pub share: Share,
    pub samples: &'a Arc<Samples>,
    pictures: &'a mut Loader<HostRow>,
    stop: &'a AtomicBool,
    is_wanted: &'a (dyn Fn() -> bool + Sync),
    tell: &'a mut dyn FnMut(usize, usize),
    /// This process's share of the lists of the stages to come, first one last.
    stages: Vec<usize>,
    done: usize,
    total: usize,
}

impl<'a> EvaluationPass<'a> {
    /// A pass in stages over lists of these lengths, and the forward programs for it.
    pub fn new<const STAGES: usize>(
        evaluation: Evaluation<'a>,
        lengths: [usize; STAGES],
    ) -> (EvaluationPass<'a>, Forward<'a>) {
        let group = evaluation.device.group();
        let share = share_of(group);
        let own = lengths.map(|length| share.of(length).len());
        let pass = EvaluationPass {
            group,
            share,
            samples: evaluation.samples,
            pictures: evaluation.pictures,
            stop: evaluation.stop,
            is_wanted: evaluation.is_wanted,
            tell: evaluation.tell,
            stages: own.into_iter().rev().collect(),
            done: 0,
            total: own.iter().sum(),
        };
        (pass, evaluation.forward)
    }

    /// The stage of reading every sample once; see [`EvaluationPass::read`].
    pub fn read_once(
        &mut self,
        program_rows: usize,
        each: impl FnMut(&Loaded<HostRow>) -> Result<(), Unfinished>,
    ) -> Result<Vec<Skipped>, Unfinished> {
        self.read(Course::Once(self.share), program_rows, each)
    }

    /// The stage of reading samples, at most `program_rows` at a time. Returns the unreadable ones.
    pub fn read(
        &mut self,
        course: Course,
        program_rows: usize,
        mut each: impl FnMut(&Loaded<HostRow>) -> Result<(), Unfinished>,
    ) -> Result<Vec<Skipped>, Unfinished> {
        let batch = program_rows.min(self.pictures.num_rows());
        let course = (self.samples, course);
        let mut done = self.done;
        let _progressing = self.group.expect_progress();
        let read = read_course(self.pictures, course, batch, self.stop, |loaded| {
            each(loaded)?;
            done += loaded.rows.len();
            (self.tell)(done, self.total);
            Ok::<bool, Unfinished>((self.is_wanted)())
        })?;
        self.end_stage();
        read.ok_or(Unfinished::Stopped)
    }

    /// The stage of computing rows: `compute` returns those of this process's share, and calls its argument with the number of rows
    /// that are done, which says whether to continue. Returns the rows of all processes, in order.
    pub fn gather(
        &mut self,
        compute: impl FnOnce(&mut dyn FnMut(usize) -> bool) -> Result<Vec<f32>, Unfinished>,
    ) -> Result<Vec<f32>, Unfinished> {
        let progressing = self.group.expect_progress();
        let computed = compute(&mut |done| {
            (self.tell)(self.done + done, self.total);
            (self.is_wanted)()
        });
        drop(progressing);
        self.end_stage();
        if self.group.size() == 1 {
            return computed;
        }
        let (computed, own) = match computed {
            Ok(rows) => (Ok(()), rows),
            Err(error) => (Err(error), Vec::new()),
        };
        let mut all = Vec::new();
        let write_own = || PartWriter::default().numbers(&own);
        exchange(self.group, computed, write_own, |mut part| {
            all.extend(part.numbers::<f32>()?);
            Some(())
        })?;
        Ok(all)
    }

    fn end_stage(&mut self) {
        self.done += self.stages.pop().unwrap_or(0);
    }
}

/// Brings the outputs for all samples to `score`, which gets samples, their features and their logits. Features or logits are empty
/// where the model has none.
pub(crate) struct AllOutputs<'g, Score> {
    group: &'g Group,
    /// This process's outputs, as long as those of the others are missing.
    own: SampleOutputs,
    score: Score,
}

#[derive(Default)]
struct SampleOutputs {
    samples: Vec<u32>,
    features: Vec<f32>,
    logits: Vec<f32>,
}

impl<'g, Score: FnMut(&[u32], &[f32], &[f32])> AllOutputs<'g, Score> {
    pub fn new(group: &'g Group, score: Score) -> AllOutputs<'g, Score> {
        AllOutputs {
            group,
            own: SampleOutputs::default(),
            score,
        }
    }

    /// Adds the outputs for a batch of samples: scores them at once if no other process takes part.
    pub fn add(&mut self, samples: &[u32], features: &[f32], logits: &[f32]) {
        if self.group.size() == 1 {
            (self.score)(samples, features, logits);
        } else {
            self.own.samples.extend(samples);
            self.own.features.extend(features);
            self.own.logits.extend(logits);
        }
    }

    /// Ends the stage: with several processes, all exchange their outputs, and every process scores all of them in the order of
    /// samples. `write_more` and `take_more` carry what else a process found. `read` is the result of reading.
    pub fn finish<T>(
        self,
        read: Result<T, Unfinished>,
        write_more: impl FnOnce(PartWriter) -> PartWriter,
        mut take_more: impl FnMut(PartReader<'_>) -> Option<()>,
    ) -> Result<T, Unfinished> {
        let AllOutputs {
            group,
            own,
            mut score,
        } = self;
        let write_own = || {
            let part = PartWriter::default().numbers(&own.samples);
            write_more(part.numbers(&own.features).numbers(&own.logits))
        };
        exchange(group, read, write_own, |mut part| {
            let samples: Vec<u32> = part.numbers()?;
            let features: Vec<f32> = part.numbers()?;
            score(&samples, &features, &part.numbers::<f32>()?);
            take_more(part)
        })
    }
}
