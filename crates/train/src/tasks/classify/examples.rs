//! `samples.json` and `confusion.json`: example pictures with their predictions, for the report.
//!
//! The evaluation decodes every picture anyway. [`Examples`] keeps a dozen of them, evenly spread, and the most confident
//! mistakes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdall_data::decode::thumbnail;
use holdall_data::samples::{Samples, TargetKind, TargetValues};
use holdall_device::HostRow;
use holdall_metrics::classification::top_k;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Head;
use crate::config::Subset;

/// Pictures that are kept whether right or wrong.
const MAX_EXAMPLES: usize = 12;
/// Mistakes that are kept per head.
const MAX_MISTAKES: usize = 12;
/// Labels that are kept per picture.
const NUM_BEST: usize = 3;
/// Longest side of a thumbnail.
const MAX_SIDE: u32 = 160;

/// Memory of the examples: JPEGs, and the two files while they are written.
pub(super) const EXAMPLES_BYTES: u64 = 2 << 20;

/// A picture with a wrong top label.
#[derive(Serialize, Deserialize)]
struct Mistake {
    sample: u32,
    jpeg: String,
    expected: usize,
    found: usize,
    share: f64,
}

/// Collects pictures while an evaluation runs.
#[derive(Serialize, Deserialize)]
pub(super) struct Examples {
    chosen: Vec<u32>,
    lines: Vec<Value>,
    /// Per head, most confident first.
    mistakes: Vec<Vec<Mistake>>,
}

fn jpeg(row: &HostRow) -> Option<String> {
    thumbnail(row.as_ref(), MAX_SIDE).map(|jpeg| STANDARD.encode(jpeg))
}

impl Examples {
    /// Chooses pictures evenly spread over the samples: the same ones at every evaluation.
    pub fn of(samples: &Samples) -> Examples {
        let count = samples.len().min(MAX_EXAMPLES);
        let chosen = (0..count).map(|index| (index * samples.len() / count) as u32);
        Examples {
            chosen: chosen.collect(),
            lines: Vec::new(),
            mistakes: Vec::new(),
        }
    }

    /// Offers a picture with its outputs; numbers are in the unit of the data.
    pub fn see(
        &mut self,
        heads: &[Head],
        samples: &Samples,
        sample: u32,
        row: &HostRow,
        outputs: &[f32],
    ) {
        self.mistakes.resize_with(heads.len(), Vec::new);
        let mut first = 0;
        for (index, (head, values)) in heads.iter().zip(samples.targets()).enumerate() {
            let own = &outputs[first..first + head.num_outputs()];
            first += own.len();
            if let TargetValues::Class(labels) = values
                && let Ok(expected) = usize::try_from(labels[sample as usize])
                && let Some(&(found, share)) = top_k(own, 1).first()
                && found != expected
            {
                self.see_mistake(index, sample, row, [expected, found], share);
            }
        }
        if self.chosen.binary_search(&sample).is_ok()
            && let Some(jpeg) = jpeg(row)
        {
            self.lines
                .push(line(heads, samples, sample as usize, jpeg, outputs));
        }
    }

    fn see_mistake(
        &mut self,
        head: usize,
        sample: u32,
        row: &HostRow,
        [expected, found]: [usize; 2],
        share: f64,
    ) {
        let Some(at) = place(&self.mistakes[head], share) else {
            return;
        };
        let Some(jpeg) = jpeg(row) else { return };
        let mistake = Mistake {
            sample,
            jpeg,
            expected,
            found,
            share,
        };
        keep(&mut self.mistakes[head], at, mistake);
    }

    /// Appends the examples of the next process, whose samples come after these.
    pub fn add(&mut self, more: Examples) {
        self.lines.extend(more.lines);
        let heads = self.mistakes.len().max(more.mistakes.len());
        self.mistakes.resize_with(heads, Vec::new);
        for (mistakes, more) in self.mistakes.iter_mut().zip(more.mistakes) {
            for mistake in more {
                if let Some(at) = place(mistakes, mistake.share) {
                    keep(mistakes, at, mistake);
                }
            }
        }
    }

    /// The contents of both files; `confusions` has one entry per head, `None` for heads without one label per picture.
    pub fn files(
        self,
        step: u64,
        on: Subset,
        samples: &Samples,
        heads: &[Head],
        confusions: Vec<Option<Value>>,
    ) -> Vec<(&'static str, String)> {
        let mut files = Vec::new();
        if !self.lines.is_empty() {
            let file = json!({"step": step, "on": on, "samples": self.lines});
            files.push(("samples.json", file.to_string()));
        }
        let mut mistakes = self.mistakes.into_iter();
        let targets: Vec<Value> = heads
            .iter()
            .zip(confusions)
            .filter_map(|(head, confusion)| {
                let own = mistakes.next().unwrap_or_default();
                let mut target = confusion?;
                let name = |class: usize| head.kind.names().get(class);
                let own = own.iter().map(|mistake| {
                    json!({
                        "image": samples.image(mistake.sample as usize),
                        "jpeg": mistake.jpeg,
                        "expected": name(mistake.expected),
                        "found": name(mistake.found),
                        "share": mistake.share,
                    })
                });
                target["mistakes"] = own.collect();
                Some(target)
            })
            .collect();
        if !targets.is_empty() {
            let file = json!({"step": step, "on": on, "targets": targets});
            files.push(("confusion.json", file.to_string()));
        }
        files
    }
}

/// Index for a mistake of this confidence; `None` if all kept mistakes are more confident.
fn place(mistakes: &[Mistake], share: f64) -> Option<usize> {
    let at = mistakes.partition_point(|one| one.share >= share);
    (at < MAX_MISTAKES).then_some(at)
}

fn keep(mistakes: &mut Vec<Mistake>, at: usize, mistake: Mistake) {
    mistakes.truncate(MAX_MISTAKES - 1);
    mistakes.insert(at, mistake);
}

/// One entry of `samples.json`.
fn line(heads: &[Head], samples: &Samples, sample: usize, jpeg: String, outputs: &[f32]) -> Value {
    let mut line = json!({"image": samples.image(sample), "jpeg": jpeg});
    let mut numbers = Vec::new();
    let mut first = 0;
    let mut is_labelled = false;
    for (head, values) in heads.iter().zip(samples.targets()) {
        let own = &outputs[first..first + head.num_outputs()];
        first += own.len();
        let names = head.kind.names();
        let shares = |best: Vec<(usize, f64)>| -> Vec<Value> {
            let shown = best.into_iter();
            shown
                .map(|(class, share)| json!({"label": names[class], "share": share}))
                .collect()
        };
        match (&head.kind, values) {
            // The first head with labels is the picture's label.
            (TargetKind::Class { .. }, TargetValues::Class(labels)) if !is_labelled => {
                is_labelled = true;
                let label = usize::try_from(labels[sample]).ok();
                line["label"] = json!(label.and_then(|label| names.get(label)));
                line["labels"] = Value::Array(shares(top_k(own, NUM_BEST)));
            }
            (TargetKind::Classes { .. }, TargetValues::Classes(rows)) if !is_labelled => {
                is_labelled = true;
                let labels = rows.get(sample).unwrap_or(&[]).iter();
                let labels: Vec<_> = labels.map(|&label| &names[label as usize]).collect();
                line["label"] = json!(labels);
                let mut best: Vec<(usize, f64)> = own
                    .iter()
                    .map(|&logit| 1.0 / (1.0 + f64::from(-logit).exp()))
                    .enumerate()
                    .collect();
                best.sort_by(|a, b| b.1.total_cmp(&a.1));
                best.truncate(NUM_BEST);
                line["labels"] = Value::Array(shares(best));
            }
            (TargetKind::Number { .. }, TargetValues::Number(known)) => {
                let expected = Some(known[sample]).filter(|number| !number.is_nan());
                numbers.push(json!({"name": head.name, "found": own[0], "expected": expected}));
            }
            _ => {}
        }
    }
    if !numbers.is_empty() {
        line["numbers"] = Value::Array(numbers);
    }
    line
}
