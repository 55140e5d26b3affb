//! Captions generated token by token with caches, compared with transformers and with a recomputation of every prefix.

use std::borrow::Cow;
use std::collections::BTreeMap;

use holdall_device::cpu::Cpu;
use holdall_device::{Arithmetic, Device, Machine};
use holdall_graph::{DType, Graph};
use holdall_models::decoder::config::DecoderConfig;
use holdall_models::video_text::config::VideoTextConfig;
use holdall_models::video_text::{self, CaptionInputs, FrameCounts};
use holdall_plan::{Recompute, RecomputePolicy, StepPlan, lifetimes_of};
use safetensors::SafeTensors;
use serde::Deserialize;

use super::predict::write_captions;
use super::programs::{CachedClips, write_decoding};
use crate::engine::forward::Forward;
use crate::engine::step::{fill_parameters, place};
use crate::error::TrainError;
use crate::tasks::generation::{
    Asked, Candidates, DecoderTokens, EarlyStopping, Generation, Logits, Method, NextToken, search,
};

const CLIPS: usize = 4;
const FRAME_TOKENS: usize = 14;
const LONGEST: usize = 12;

#[derive(Deserialize)]
struct Case {
    beams: usize,
    early_stopping: EarlyStopping,
    length_penalty: f64,
    no_repeat_ngram: usize,
    min_tokens: usize,
    frame_token_counts: Vec<i64>,
    tokens: Vec<Vec<i64>>,
}

impl Case {
    fn settings(&self) -> Generation {
        Generation {
            method: match self.beams {
                1 => Method::Greedy,
                _ => Method::Beam,
            },
            beams: self.beams,
            min_tokens: self.min_tokens,
            length_penalty: self.length_penalty,
            early_stopping: self.early_stopping,
            no_repeat_ngram: self.no_repeat_ngram,
            ..Generation::default()
        }
    }
}

fn cases() -> Vec<Case> {
    let file = include_str!("../../../tests/fixtures/captions/cases.json");
    serde_json::from_str(file).expect("as the script writes it")
}

fn weights() -> BTreeMap<String, Vec<f32>> {
    let file = include_bytes!("../../../tests/fixtures/captions/weights.safetensors");
    let tensors = SafeTensors::deserialize(file).expect("as the script writes it");
    let tensors = tensors.tensors().into_iter();
    tensors
        .map(|(name, tensor)| {
            let bytes = tensor.data().chunks_exact(4);
            let values = bytes.map(|four| f32::from_le_bytes(four.try_into().expect("four")));
            (name, values.collect())
        })
        .collect()
}

fn decoder() -> DecoderConfig {
    DecoderConfig {
        layers: 2,
        width: 32,
        heads: 4,
        inner: 64,
        ..DecoderConfig::new(60, LONGEST, [57, 58, 59])
    }
}

fn tokens() -> DecoderTokens {
    DecoderTokens {
        bos: 57,
        eos: vec![58],
        pad: 59,
        longest: LONGEST,
    }
}

/// Forward programs that read frame tokens from an input.
struct Programs {
    device: Device,
    plan: StepPlan,
    machine: Machine,
}

impl Programs {
    /// A graph for this number of rows; `write` gets the frame tokens and their counts.
    fn new(rows: usize, write: impl FnOnce(&mut Graph, &CachedClips)) -> Programs {
        let device = Device::on_cpu(Cpu::open(Some(2)).expect("two threads"));
        let mut graph = Graph::new(DType::F32);
        let frame_tokens = graph.input("frames", &[rows, FRAME_TOKENS, 32], DType::F32);
        let tokens = graph.input("counts", &[rows], DType::I64);
        let clips = CachedClips {
            batch: rows,
            frame_tokens,
            // The decoder reads the token counts only.
            frame_counts: Some(FrameCounts {
                frames: tokens,
                tokens,
            }),
        };
        write(&mut graph, &clips);
        let target = device.target(Arithmetic::F32, 0).expect("a CPU");
        let nothing_recomputed = RecomputePolicy::uniform(Recompute::None, 0);
        let lifetimes = lifetimes_of(&graph, &nothing_recomputed, &*target);
        let plan = lifetimes.pack().plan(0, 0);
        let mut machine = Machine::new(&device, &plan, Arithmetic::F32).expect("a small arena");
        let weights = weights();
        let filled = fill_parameters(&device, &plan, &mut machine, |name, values| {
            values.copy_from_slice(&weights[name]);
            Ok::<(), TrainError>(())
        });
        filled.expect("every weight is in the fixture");
        Programs {
            device,
            plan,
            machine,
        }
    }

    /// Feeds the fixture's frame tokens, each clip `times` times; rows beyond them repeat the first clip.
    fn feed(&mut self, clips: usize, times: usize, counts: &[i64]) {
        let all = &weights()["frame_tokens"];
        let clip_of = |row: usize| match row / times {
            clip if clip < clips => clip,
            _ => 0,
        };
        let frames = place(&self.plan, "frames");
        let each = FRAME_TOKENS * 32;
        self.machine.input(&frames, |to: &mut [f32]| {
            for (row, to) in to.chunks_mut(each).enumerate() {
                to.copy_from_slice(&all[clip_of(row) * each..][..each]);
            }
        });
        let place = place(&self.plan, "counts");
        self.machine.input(&place, |to: &mut [i64]| {
            for (row, to) in to.iter_mut().enumerate() {
                *to = counts[clip_of(row)];
            }
        });
    }

    fn forward(&mut self) -> Forward<'_> {
        Forward::new(&self.device, &self.plan, &mut self.machine)
    }
}

/// Captions from the decoding programs, whose batch has room for one clip more.
fn with_caches(settings: &Generation, counts: &[i64]) -> Vec<Vec<i64>> {
    let mut programs = Programs::new(CLIPS + 1, |graph, clips| {
        write_decoding(graph, &decoder(), (settings, &tokens()), clips);
    });
    programs.feed(CLIPS, 1, counts);
    let samples: Vec<u64> = (0..CLIPS as u64).collect();
    let forward = &mut programs.forward();
    // Twice: caches with old contents must not matter.
    let first = write_captions(forward, settings, &tokens(), &samples).expect("a CPU");
    let second = write_captions(forward, settings, &tokens(), &samples).expect("a CPU");
    assert_eq!(first, second);
    first.into_iter().map(|caption| caption.tokens).collect()
}

#[test]
fn captions_are_those_of_transformers_generate() {
    for case in cases() {
        let found = with_caches(&case.settings(), &case.frame_token_counts);
        let name = format!(
            "{} beams, {:?}, {} tokens at least",
            case.beams, case.early_stopping, case.min_tokens
        );
        assert_eq!(found, case.tokens, "{name}");
    }
}

/// A decoder without caches: computes every prefix anew with the training layers.
struct PlainDecoder<'a> {
    forward: Forward<'a>,
    rows: usize,
    count: Option<usize>,
    /// Tokens that each row was fed, by position.
    fed: Vec<Vec<i64>>,
}

impl NextToken for PlainDecoder<'_> {
    fn next(&mut self, asked: &Asked<'_>) -> Result<Candidates<'_>, TrainError> {
        self.fed.push(asked.ids.to_vec());
        let rows = asked.ids.len();
        let mut ids = vec![0; self.rows * LONGEST];
        for row in 0..rows {
            for (step, fed) in self.fed.iter().enumerate() {
                let from = match asked.ancestors {
                    Some(ancestors) if step < asked.position => {
                        ancestors[row * ancestors.len() / rows + step] as usize
                    }
                    _ => row,
                };
                ids[row * LONGEST + step] = fed[from];
            }
        }
        self.forward.feed_indices("plain/ids", &ids);
        let logits = self.forward.run_and_read("plain", "plain/logits")?;
        let vocabulary = decoder().vocab_size;
        let row_of = |row: usize| {
            let at = (row * LONGEST + asked.position) * vocabulary;
            &logits[at..][..vocabulary]
        };
        let Some(count) = self.count else {
            let all: Vec<f32> = (0..rows).flat_map(|row| row_of(row).to_vec()).collect();
            let logits = Logits::All(Cow::Owned(all));
            return Ok(Candidates { rows, logits });
        };
        let [mut values, mut best, mut sums] = [const { Vec::new() }; 3];
        for row in 0..rows {
            let logits = row_of(row);
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            sums.push(sum.ln() as f32);
            let banned = asked.banned.unwrap_or(&[]);
            let banned = &banned[row * banned.len() / rows..][..banned.len() / rows];
            let mut order: Vec<usize> = (0..vocabulary).collect();
            order.retain(|&id| !banned.contains(&(id as i64)));
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            values.extend(order[..count].iter().map(|&id| logits[id]));
            best.extend(order[..count].iter().map(|&id| id as f32));
        }
        let logits = Logits::Best(Cow::Owned([values, best, sums].concat()));
        Ok(Candidates { rows, logits })
    }
}

fn without_caches(settings: &Generation, counts: &[i64]) -> Vec<Vec<i64>> {
    let beams = settings.rows_per_sample();
    let rows = CLIPS * beams;
    let config = VideoTextConfig::preset("video-text-small").expect("a preset");
    let config = VideoTextConfig {
        decoder: Some(decoder()),
        ..config
    };
    let mut programs = Programs::new(rows, |graph, clips| {
        graph.forward_program("plain", |graph| {
            let ids = graph.input("ids", &[rows, LONGEST], DType::I64);
            let inputs = CaptionInputs {
                ids_bt: ids,
                order_bt: None,
            };
            let (frames, counts) = (clips.frame_tokens, clips.frame_counts);
            let states = video_text::caption_states(graph, &config, frames, counts, &inputs);
            let head = video_text::head_weight(graph, &config);
            let logits = graph.linear("logits", states, head, None, None);
            let dims = graph.shape(logits);
            let to = graph.output("logits", dims.dims());
            let copy = holdall_graph::ops::add::AddInto {};
            graph.push_new(copy, vec![logits], &[to]);
        });
    });
    programs.feed(CLIPS, beams, counts);
    let mut plain = PlainDecoder {
        forward: programs.forward(),
        rows,
        count: settings.candidates(&tokens()),
        fed: Vec::new(),
    };
    let samples: Vec<u64> = (0..CLIPS as u64).collect();
    let found = search(&mut plain, settings, &tokens(), &samples).expect("a CPU");
    found.into_iter().map(|caption| caption.tokens).collect()
}

#[test]
fn captions_are_those_of_a_plain_recomputation_of_every_prefix() {
    let usual = Generation {
        min_tokens: 3,
        ..Generation::default()
    };
    let all = [
        usual.clone(),
        Generation {
            method: Method::Beam,
            beams: 5,
            no_repeat_ngram: 2,
            early_stopping: EarlyStopping::Never,
            ..usual.clone()
        },
        Generation {
            method: Method::Sample,
            top_k: 8,
            temperature: 1.5,
            seed: 3,
            ..usual.clone()
        },
        // Samples among all tokens, for which all logits are read back.
        Generation {
            method: Method::Sample,
            top_k: 0,
            top_p: 0.9,
            no_repeat_ngram: 1,
            ..usual
        },
    ];
    for settings in all {
        let counts = [14, 2, 7, 11];
        let found = with_caches(&settings, &counts);
        assert_eq!(found, without_caches(&settings, &counts), "{settings:?}");
        assert!(found.iter().all(|tokens| tokens.len() > 3), "{found:?}");
    }
}
