//! Greedy search and sampling: a row per sample.

use holdall_files::{GOLDEN, SplitMix64, mix};

use super::bans::Bans;
use super::{Asked, BestByRow, DecoderTokens, Generated, Generation, Logits, Method, NextToken};
use crate::error::TrainError;

pub(super) fn search(
    forward: &mut dyn NextToken,
    settings: &Generation,
    special: &DecoderTokens,
    samples: &[u64],
) -> Result<Vec<Generated>, TrainError> {
    let rows = samples.len();
    let mut sequences: Vec<Vec<i64>> = vec![Vec::new(); rows];
    let mut is_finished = vec![false; rows];
    let mut ids = vec![special.bos; rows];
    let mut bans = Bans::new(settings, special, rows);
    let mut row_candidates = Vec::new();
    for position in 0..settings.num_steps(special) {
        for (row, tokens) in sequences.iter().enumerate() {
            bans.find(row, tokens);
        }
        let candidates = forward.next(&Asked {
            position,
            ids: &ids,
            ancestors: None,
            banned: bans.of_all_rows(),
        })?;
        for (row, tokens) in sequences.iter_mut().enumerate() {
            if is_finished[row] {
                // A finished row still runs with the others; its result is ignored.
                ids[row] = special.pad;
                continue;
            }
            row_candidates.clear();
            match &candidates.logits {
                Logits::Best(flat) => {
                    let best = BestByRow::of(flat, candidates.rows);
                    row_candidates.extend(best.row(row).filter(|&(_, id)| id >= 0));
                }
                Logits::All(logits) => {
                    let width = logits.len() / candidates.rows;
                    let logits = logits[row * width..][..width].iter().copied();
                    row_candidates.extend(logits.zip(0..));
                    let banned = bans.of_row(row);
                    row_candidates.retain(|(_, id)| !banned.contains(id));
                    row_candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
                }
            }
            if row_candidates.is_empty() {
                // All tokens are banned: the sequence ends here.
                is_finished[row] = true;
                continue;
            }
            let token = match settings.method {
                Method::Sample => {
                    let likely = likely_tokens(&row_candidates, settings);
                    draw(&likely, uniform(settings.seed, samples[row], position))
                }
                Method::Greedy | Method::Beam => row_candidates[0].1,
            };
            tokens.push(token);
            ids[row] = token;
            is_finished[row] = special.eos.contains(&token);
        }
        if is_finished.iter().all(|&is| is) {
            break;
        }
    }
    Ok(sequences
        .into_iter()
        .map(|tokens| Generated {
            tokens,
            score: None,
        })
        .collect())
}

/// Tokens that may be drawn, with their probabilities up to a common factor. `candidates` are in descending order.
pub(super) fn likely_tokens(candidates: &[(f32, i64)], settings: &Generation) -> Vec<(f64, i64)> {
    let best = f64::from(candidates[0].0);
    // Tokens with the same logit as the k-th stay, as in transformers.
    let most = match settings.top_k {
        0 => candidates.len(),
        top_k => top_k.min(candidates.len()),
    };
    let least = candidates[most - 1].0;
    let mut likely: Vec<(f64, i64)> = candidates
        .iter()
        .filter(|(logit, _)| *logit >= least)
        .map(|&(logit, id)| (((f64::from(logit) - best) / settings.temperature).exp(), id))
        .collect();
    // The least likely tokens are dropped while their total probability is at most 1 - top_p.
    let total: f64 = likely.iter().map(|(share, _)| share).sum();
    let mut gone = 0.0;
    while settings.top_p < 1.0 && likely.len() > 1 {
        gone += likely[likely.len() - 1].0 / total;
        if gone > 1.0 - settings.top_p {
            break;
        }
        likely.pop();
    }
    likely
}

/// The token at a point `at` in `[0, 1)` of the cumulative distribution.
fn draw(likely: &[(f64, i64)], at: f64) -> i64 {
    let total: f64 = likely.iter().map(|(share, _)| share).sum();
    let mut left = at * total;
    for &(share, id) in likely {
        if left < share {
            return id;
        }
        left -= share;
    }
    likely[likely.len() - 1].1
}

/// Random number in `[0, 1)` from seed, sample and position alone: batches and other samples do not change it.
fn uniform(seed: u64, sample: u64, position: usize) -> f64 {
    let mut random = SplitMix64(mix(mix(seed.wrapping_add(GOLDEN)) ^ sample));
    random.skip(position as u64);
    random.unit()
}
