//! Comparison with tokens from transformers, for a model that hashes the prefix.

use std::borrow::Cow;
use std::collections::BTreeMap;

use holdall_files::{GOLDEN, mix};
use serde::Deserialize;

use super::one_row::likely_tokens;
use super::*;

const BOS: i64 = 1;
const PAD: i64 = 2;

#[derive(Deserialize)]
struct Case {
    seed: u64,
    vocab: usize,
    samples: usize,
    beams: usize,
    eos: Vec<i64>,
    eos_bias: f32,
    scale: f32,
    max_tokens: usize,
    min_tokens: usize,
    no_repeat_ngram: usize,
    length_penalty: f64,
    early_stopping: EarlyStopping,
    results: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    tokens: Vec<i64>,
    score: Option<f32>,
}

impl Case {
    fn settings(&self) -> Generation {
        Generation {
            method: match self.beams {
                1 => Method::Greedy,
                _ => Method::Beam,
            },
            beams: self.beams,
            max_tokens: Some(self.max_tokens),
            min_tokens: self.min_tokens,
            length_penalty: self.length_penalty,
            early_stopping: self.early_stopping,
            no_repeat_ngram: self.no_repeat_ngram,
            ..Generation::default()
        }
    }

    fn special(&self) -> DecoderTokens {
        DecoderTokens {
            bos: BOS,
            eos: self.eos.clone(),
            pad: PAD,
            longest: 16,
        }
    }
}

/// A model whose logits are a hash of a row's whole prefix, which it looks up through the row's ancestors.
struct HashModel<'a> {
    case: &'a Case,
    count: Option<usize>,
    /// Tokens that each row was fed, by position.
    fed: Vec<Vec<i64>>,
}

impl HashModel<'_> {
    fn logits(&self, row: usize, prefix: &[i64]) -> Vec<f32> {
        let case = self.case;
        let sample = (row / case.beams) as u64;
        let mut state = mix(case.seed.wrapping_add((sample + 1).wrapping_mul(GOLDEN)));
        for &token in prefix {
            state = mix(state ^ (token as u64 + 1).wrapping_mul(GOLDEN));
        }
        let logit = |token: usize| {
            let bits = mix(state.wrapping_add((token as u64 + 1).wrapping_mul(GOLDEN))) >> 44;
            let bias = if case.eos.contains(&(token as i64)) {
                case.eos_bias
            } else {
                0.0
            };
            (bits as f32 / 131_072.0 + bias) * case.scale
        };
        (0..case.vocab).map(logit).collect()
    }
}

impl NextToken for HashModel<'_> {
    fn next(&mut self, asked: &Asked<'_>) -> Result<Candidates<'_>, TrainError> {
        assert_eq!(self.fed.len(), asked.position);
        self.fed.push(asked.ids.to_vec());
        let rows = asked.ids.len();
        let [mut values, mut ids, mut sums, mut all] = [const { Vec::new() }; 4];
        for row in 0..rows {
            let mut prefix: Vec<i64> = (0..asked.position)
                .map(|step| match asked.ancestors {
                    Some(ancestors) => {
                        let width = ancestors.len() / rows;
                        self.fed[step][ancestors[row * width + step] as usize]
                    }
                    None => self.fed[step][row],
                })
                .collect();
            prefix.push(asked.ids[row]);
            let logits = self.logits(row, &prefix);
            let largest = logits.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            sums.push(largest + sum.ln());
            all.extend_from_slice(&logits);
            let banned = asked.banned.map_or(&[][..], |banned| {
                let width = banned.len() / rows;
                &banned[row * width..][..width]
            });
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.retain(|&id| !banned.contains(&(id as i64)));
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            for place in 0..self.count.unwrap_or(0) {
                let id = order.get(place);
                values.push(id.map_or(f32::NEG_INFINITY, |&id| logits[id]));
                ids.push(id.map_or(-1.0, |&id| id as f32));
            }
        }
        if self.count.is_none() {
            let logits = Logits::All(Cow::Owned(all));
            return Ok(Candidates { rows, logits });
        }
        let logits = Logits::Best(Cow::Owned([values, ids, sums].concat()));
        Ok(Candidates { rows, logits })
    }
}

fn generate(case: &Case, settings: &Generation) -> Vec<Generated> {
    let special = case.special();
    let mut model = HashModel {
        case,
        count: settings.candidates(&special),
        fed: Vec::new(),
    };
    let samples: Vec<u64> = (0..case.samples as u64).collect();
    search(&mut model, settings, &special, &samples).expect("a hash cannot fail")
}

fn cases() -> Vec<Case> {
    let file = include_str!("../../../tests/fixtures/generation.json");
    serde_json::from_str(file).expect("the fixture is as its script writes it")
}

#[test]
fn greedy_and_beam_search_give_the_tokens_of_transformers() {
    let cases = cases();
    assert!(cases.len() >= 400);
    for case in &cases {
        let found = generate(case, &case.settings());
        assert_eq!(found.len(), case.results.len());
        for (sample, (found, expected)) in found.iter().zip(&case.results).enumerate() {
            let at = format!("case {} sample {sample}", case.seed);
            assert_eq!(found.tokens, expected.tokens, "{at}");
            if let (Some(found), Some(expected)) = (found.score, expected.score) {
                let error = (found - expected).abs() / expected.abs().max(1.0);
                assert!(error < 1e-5, "{at}: score {found}, expected {expected}");
            }
        }
    }
}

#[test]
fn one_beam_that_stops_at_its_first_end_is_greedy_search() {
    for case in cases().iter().filter(|case| case.beams == 1) {
        let beam = Generation {
            method: Method::Beam,
            early_stopping: EarlyStopping::WhenFull,
            ..case.settings()
        };
        let tokens = |settings| -> Vec<Vec<i64>> {
            let found = generate(case, settings).into_iter();
            found.map(|found| found.tokens).collect()
        };
        assert_eq!(tokens(&beam), tokens(&case.settings()), "{}", case.seed);
    }
}

/// The order of transformers' warpers: temperature, then top k, then top p (expected shares computed by hand).
#[test]
fn sampling_draws_among_the_tokens_that_top_k_and_top_p_leave() {
    let logits = |probabilities: &[f64]| -> Vec<(f32, i64)> {
        let logits = probabilities.iter().map(|share| share.ln() as f32);
        logits.zip(10..).collect()
    };
    let left = |candidates: &[(f32, i64)], settings: &Generation| -> Vec<(i64, u32)> {
        let likely = likely_tokens(candidates, settings);
        let total: f64 = likely.iter().map(|(share, _)| share).sum();
        let percent = |share: f64| (100.0 * share / total).round() as u32;
        let likely = likely.into_iter();
        likely.map(|(share, id)| (id, percent(share))).collect()
    };
    let settings = |top_k, top_p, temperature| Generation {
        method: Method::Sample,
        top_k,
        top_p,
        temperature,
        ..Generation::default()
    };
    let five = logits(&[0.5, 0.2, 0.15, 0.1, 0.05]);
    assert_eq!(left(&five, &settings(2, 1.0, 1.0)), [(10, 71), (11, 29)]);
    // 0.05 + 0.1 is at most 1 - 0.8; with 0.15 the sum is larger.
    let expected = [(10, 59), (11, 24), (12, 18)];
    assert_eq!(left(&five, &settings(0, 0.8, 1.0)), expected);
    // Top p uses the shares after top k: 0.59, 0.24, 0.18.
    assert_eq!(left(&five, &settings(3, 0.8, 1.0)), [(10, 71), (11, 29)]);
    // At least one token stays.
    assert_eq!(left(&five, &settings(0, 0.01, 1.0)), [(10, 100)]);
    // A temperature of 0.5 squares the probabilities.
    let halves = settings(0, 1.0, 0.5);
    assert_eq!(
        left(&logits(&[0.6, 0.3, 0.1]), &halves),
        [(10, 78), (11, 20), (12, 2)]
    );
    // Tokens with the same logit as the k-th stay.
    let equal = logits(&[0.4, 0.2, 0.2, 0.2]);
    assert_eq!(left(&equal, &settings(2, 1.0, 1.0)).len(), 4);
}

/// The first token of many samples follows the probabilities; a sample's tokens depend only on the seed and its number.
#[test]
fn sampling_follows_probabilities_and_repeats_itself() {
    let case = &cases()[0];
    let settings = Generation {
        method: Method::Sample,
        top_k: 0,
        max_tokens: Some(1),
        ..Generation::default()
    };
    let special = case.special();
    let draw = |samples: &[u64], settings: &Generation| -> Vec<Vec<i64>> {
        let mut model = HashModel {
            case,
            count: settings.candidates(&special),
            fed: Vec::new(),
        };
        let found = search(&mut model, settings, &special, samples).expect("a hash cannot fail");
        found.into_iter().map(|found| found.tokens).collect()
    };
    let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
    const DRAWS: u64 = 4000;
    for sample in 0..DRAWS {
        *counts.entry(draw(&[sample], &settings)[0][0]).or_default() += 1;
    }
    let model = HashModel {
        case,
        count: None,
        fed: Vec::new(),
    };
    let logits = model.logits(0, &[BOS]);
    let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    for (id, logit) in (0..).zip(logits) {
        let share = f64::from(logit).exp() / total;
        let found = counts.get(&id).copied().unwrap_or(0) as f64 / DRAWS as f64;
        let deviation = (share * (1.0 - share) / DRAWS as f64).sqrt();
        assert!(
            (found - share).abs() < 5.0 * deviation,
            "{id}: {found} of {share}"
        );
    }
    let long = Generation {
        max_tokens: Some(8),
        top_k: 5,
        seed: 3,
        ..settings
    };
    let alone = draw(&[42], &long);
    assert_eq!(draw(&[42, 7], &long)[0], alone[0]);
    assert_ne!(draw(&[43], &long), alone);
    assert_ne!(draw(&[42], &Generation { seed: 4, ..long }), alone);
}
