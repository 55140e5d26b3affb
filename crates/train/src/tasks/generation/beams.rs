//! Beam search: follows the sequences of each sample with the highest sums of log-probabilities.
//!
//! ```text
//! candidates   the best tokens of every beam, by the sum of log-probabilities
//! running      the best unfinished candidates: the beams of the next step
//! finished     the best finished sequences, by sum / length^penalty; only the first `beams` candidates may finish
//! ```
//!
//! Sums are f32 and -1e9 marks an excluded candidate, as in transformers: sequences and scores are the same.

use super::bans::Bans;
use super::{
    Asked, BestByRow, DecoderTokens, EarlyStopping, Generated, Generation, Logits, NextToken,
};
use crate::error::TrainError;

const NEVER: f32 = -1e9;

#[derive(Clone)]
struct Beam {
    tokens: Vec<i64>,
    score: f32,
}

/// A token that may extend a beam.
struct Candidate {
    /// Sum of log-probabilities.
    sum: f32,
    beam: usize,
    token: i64,
    ends: bool,
}

struct BeamSample {
    running: Vec<Beam>,
    finished: Vec<Beam>,
    is_finished: Vec<bool>,
    can_improve: bool,
}

pub(super) fn search(
    forward: &mut dyn NextToken,
    settings: &Generation,
    special: &DecoderTokens,
    num_samples: usize,
) -> Result<Vec<Generated>, TrainError> {
    let (beams, steps) = (settings.beams, settings.num_steps(special));
    let rows = num_samples * beams;
    let num_candidates = settings.candidates(special);
    let num_candidates = num_candidates.expect("a beam search has a number of candidates");
    let mut samples: Vec<BeamSample> = (0..num_samples).map(|_| BeamSample::new(beams)).collect();
    let mut ids = vec![special.bos; rows];
    let mut ancestors: Vec<i64> = (0..rows as i64)
        .flat_map(|row| std::iter::repeat_n(row, steps))
        .collect();
    let mut bans = Bans::new(settings, special, rows);
    for position in 0..steps {
        let running = samples.iter().flat_map(|sample| &sample.running);
        for (row, beam) in running.enumerate() {
            bans.find(row, &beam.tokens);
        }
        let found = forward.next(&Asked {
            position,
            ids: &ids,
            ancestors: Some(&ancestors),
            banned: bans.of_all_rows(),
        })?;
        let Logits::Best(flat) = &found.logits else {
            unreachable!("a beam search asks for the best tokens")
        };
        let best = BestByRow::of(flat, found.rows);
        let mut all_end = true;
        for (index, sample) in samples.iter_mut().enumerate() {
            let first = index * beams;
            let candidates = sample.candidates(&best, first, num_candidates, |token| {
                special.eos.contains(&token) || position + 1 == steps
            });
            all_end &= candidates.iter().all(|candidate| candidate.ends);
            sample.finish(&candidates, settings, position + 1);
            let parents = sample.go_on(&candidates);
            sample.update_can_improve(settings, position + 1, steps);
            for (beam, running) in sample.running.iter().enumerate() {
                // With too few tokens left, a beam has no token: its sum is minus infinity, and its input does not matter.
                ids[first + beam] = match running.tokens[position] {
                    token if token >= 0 => token,
                    _ => special.pad,
                };
            }
            inherit(
                &mut ancestors[first * steps..][..beams * steps],
                &parents,
                first,
                position,
            );
        }
        let is_full = |sample: &BeamSample| sample.is_finished.iter().all(|&is| is);
        let stops_when_full = settings.early_stopping == EarlyStopping::WhenFull;
        if all_end
            || !samples.iter().any(|sample| sample.can_improve)
            || (stops_when_full && samples.iter().all(is_full))
        {
            break;
        }
    }
    Ok(samples
        .into_iter()
        .map(|mut sample| {
            let best = sample.finished.swap_remove(0);
            Generated {
                tokens: best.tokens,
                score: Some(best.score),
            }
        })
        .collect())
}

/// Updates the ancestors of every beam: the past of a beam is that of its parent row, which was fed the token of this
/// position.
fn inherit(ancestors: &mut [i64], parents: &[usize], first_row: usize, position: usize) {
    let steps = ancestors.len() / parents.len();
    let before = ancestors.to_vec();
    for (beam, &parent) in parents.iter().enumerate() {
        let row = &mut ancestors[beam * steps..][..steps];
        row[..position].copy_from_slice(&before[parent * steps..][..position]);
        row[position] = (first_row + parent) as i64;
    }
}

impl BeamSample {
    fn new(beams: usize) -> BeamSample {
        let beam = |score: f32| Beam {
            tokens: Vec::new(),
            score,
        };
        // All beams start equal: only the first counts.
        let running = (0..beams).map(|index| beam(if index == 0 { 0.0 } else { NEVER }));
        BeamSample {
            running: running.collect(),
            finished: vec![beam(NEVER); beams],
            is_finished: vec![false; beams],
            can_improve: true,
        }
    }

    /// The best continuations of all beams, in descending order.
    fn candidates(
        &self,
        best: &BestByRow<'_>,
        first_row: usize,
        count: usize,
        ends: impl Fn(i64) -> bool,
    ) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = Vec::with_capacity(self.running.len() * count);
        for (beam, running) in self.running.iter().enumerate() {
            let lse = best.lse[first_row + beam];
            let tokens = best.row(first_row + beam);
            candidates.extend(tokens.map(|(logit, token)| Candidate {
                sum: (logit - lse) + running.score,
                beam,
                token,
                ends: ends(token),
            }));
        }
        candidates.sort_by(|a, b| b.sum.total_cmp(&a.sum));
        candidates.truncate(count);
        candidates
    }

    fn continued(&self, candidate: &Candidate) -> Vec<i64> {
        let before = &self.running[candidate.beam].tokens;
        before.iter().copied().chain([candidate.token]).collect()
    }

    /// Adds finished sequences of `length` tokens if they are better than the earlier ones.
    fn finish(&mut self, candidates: &[Candidate], settings: &Generation, length: usize) {
        let beams = self.running.len();
        let by_length = penalty(length, settings);
        let is_full = settings.early_stopping == EarlyStopping::WhenFull
            && self.is_finished.iter().all(|&is| is);
        let mut merged: Vec<(Beam, bool)> = Vec::with_capacity(beams + candidates.len());
        let finished = std::mem::take(&mut self.finished).into_iter();
        merged.extend(finished.zip(self.is_finished.iter().copied()));
        for (place, candidate) in candidates.iter().enumerate() {
            let ended = candidate.ends && place < beams;
            let mut score = candidate.sum / by_length;
            for is_out in [is_full, !self.can_improve, !ended] {
                score += if is_out { NEVER } else { 0.0 };
            }
            let tokens = self.continued(candidate);
            merged.push((Beam { tokens, score }, ended));
        }
        merged.sort_by(|(a, _), (b, _)| b.score.total_cmp(&a.score));
        merged.truncate(beams);
        (self.finished, self.is_finished) = merged.into_iter().unzip();
    }

    /// Makes the best unfinished candidates the next beams. Returns the parent beam of each.
    fn go_on(&mut self, candidates: &[Candidate]) -> Vec<usize> {
        let beams = self.running.len();
        let mut next: Vec<(f32, &Candidate)> = candidates
            .iter()
            .map(|candidate| {
                let out = if candidate.ends { NEVER } else { 0.0 };
                (candidate.sum + out, candidate)
            })
            .collect();
        next.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        next.truncate(beams);
        let running = next.iter().map(|&(score, candidate)| Beam {
            tokens: self.continued(candidate),
            score,
        });
        self.running = running.collect();
        next.iter().map(|(_, candidate)| candidate.beam).collect()
    }

    /// Updates whether an open sequence, now of `length` tokens, may still beat the worst finished one.
    fn update_can_improve(&mut self, settings: &Generation, length: usize, longest: usize) {
        let hoped =
            settings.early_stopping == EarlyStopping::Never && settings.length_penalty > 0.0;
        let length = if hoped { longest } else { length };
        let possible = self.running[0].score / penalty(length, settings);
        let scores = self.finished.iter().map(|beam| beam.score);
        let worst = scores.fold(f32::INFINITY, f32::min);
        let mut finished = self.is_finished.iter();
        self.can_improve &= finished.any(|&is| possible > if is { worst } else { NEVER });
    }
}

fn penalty(length: usize, settings: &Generation) -> f32 {
    (length as f64).powf(settings.length_penalty) as f32
}
