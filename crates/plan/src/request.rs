//! The user's settings for the planner, and the choices that they leave open.

use crate::error::PlanError;
use crate::host_state::HostState;
use crate::recompute::{LaneOrder, Recompute, RecomputePolicy};

/// The user's settings; `None` leaves the choice to the planner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Samples per optimizer step.
    pub effective_batch: Option<usize>,
    /// Samples per micro-batch.
    pub batch_size: Option<usize>,
    /// Micro-batches per optimizer step.
    pub gradient_accumulation: Option<usize>,
    /// Recomputation policy.
    pub recompute: Option<Recompute>,
    /// Micro-batches that keep their activations; set in tests only.
    pub kept: Option<usize>,
    /// Memory budget of the process.
    pub budget_bytes: Option<u64>,
    /// Host memory for offloaded state; `None` if unknown, and then nothing is offloaded.
    pub host_bytes: Option<u64>,
    /// State in host memory; set in tests only.
    pub host_state: Option<HostState>,
    /// Name of the arithmetic.
    pub precision: &'static str,
    /// Name of the format of the optimizer's state.
    pub optimizer_state: &'static str,
    /// Drawback of a smaller effective batch, for the end of a message: `: fewer negatives`, or empty.
    pub smaller_batch_note: &'static str,
}

/// Default effective batch.
const DEFAULT_EFFECTIVE_BATCH: usize = 128;

/// Upper bound of the samples per step, which catches typing errors.
const MOST_SAMPLES: usize = 1 << 26;

impl Request {
    /// Samples per optimizer step: as set, or from batch size and accumulation, or the default.
    pub fn samples_per_step(&self) -> Result<usize, PlanError> {
        Ok(self.sizes()?.0)
    }

    /// The effective batch, and the possible batch sizes.
    pub(crate) fn sizes(&self) -> Result<(usize, Vec<usize>), PlanError> {
        for (name, value) in [
            ("effective batch", self.effective_batch),
            ("batch size", self.batch_size),
            ("gradient accumulation", self.gradient_accumulation),
        ] {
            if value.is_some_and(|value| value == 0 || value > MOST_SAMPLES) {
                return Err(contradiction(
                    format!(
                        "{name} is {}, expected 1 to {MOST_SAMPLES}",
                        value.unwrap_or(0)
                    ),
                    "leave it out for a sensible one",
                ));
            }
        }
        let effective = self.effective()?;
        let larger = |name: &str, value: usize| {
            contradiction(
                format!("{name} {value} is larger than the effective batch {effective}"),
                &format!("--effective-batch {value}, or a smaller {name}"),
            )
        };
        let batches = match (self.batch_size, self.gradient_accumulation) {
            (Some(batch), _) if batch > effective => return Err(larger("batch size", batch)),
            (Some(batch), _) => vec![batch],
            (None, Some(accumulation)) if accumulation > effective => {
                return Err(larger("gradient accumulation", accumulation));
            }
            (None, Some(accumulation)) => vec![effective.div_ceil(accumulation)],
            (None, None) => open_batches(effective),
        };
        Ok((effective, batches))
    }

    fn effective(&self) -> Result<usize, PlanError> {
        let numbers = (
            self.effective_batch,
            self.batch_size,
            self.gradient_accumulation,
        );
        Ok(match numbers {
            (Some(effective), Some(batch), Some(accumulation)) => {
                // Both factors are at most 2^26, so the product does not overflow.
                let holds = batch * accumulation;
                if effective > holds || effective <= holds - batch {
                    return Err(contradiction(
                        format!(
                            "effective batch {effective} does not take {accumulation} micro-batches of \
                             {batch} (they hold {holds})"
                        ),
                        "leave one of the three out",
                    ));
                }
                effective
            }
            (Some(effective), _, _) => effective,
            (None, Some(batch), Some(accumulation)) if batch * accumulation > MOST_SAMPLES => {
                return Err(contradiction(
                    format!(
                        "{batch} x {accumulation} samples per step, expected at most {MOST_SAMPLES}"
                    ),
                    "a smaller batch size or accumulation",
                ));
            }
            (None, Some(batch), Some(accumulation)) => batch * accumulation,
            (None, None, Some(accumulation)) => DEFAULT_EFFECTIVE_BATCH.max(accumulation),
            (None, Some(batch), None) => DEFAULT_EFFECTIVE_BATCH.max(batch),
            (None, None, None) => DEFAULT_EFFECTIVE_BATCH,
        })
    }
}

fn contradiction(what: String, hint: &str) -> PlanError {
    PlanError::Contradiction(format!("{what}\nhint: {hint}"))
}

/// Batch sizes to try: powers of two, and even shares of the effective batch up to the whole.
fn open_batches(effective: usize) -> Vec<usize> {
    let mut batches: Vec<usize> = (0..)
        .map(|power| 1 << power)
        .take_while(|&batch| batch < effective && batch <= 4096)
        .collect();
    batches.extend(
        [1, 2, 3, 4, 6, 8]
            .iter()
            .map(|parts| effective.div_ceil(*parts))
            .filter(|&batch| batch <= 4096),
    );
    batches.sort_unstable();
    batches.dedup();
    batches
}

/// With more samples than this, one lane fills a device.
const LARGEST_BESIDE: usize = 64;

/// Recomputation policies for a batch size and accumulation, on a device with or without parallel lanes.
pub(crate) fn policies(
    request: &Request,
    num_blocks: usize,
    (batch_size, accumulation): (usize, usize),
    has_lanes: bool,
) -> Vec<RecomputePolicy> {
    let mut policies = in_turn(request, num_blocks, accumulation);
    if has_lanes && batch_size <= LARGEST_BESIDE {
        let beside = |policy: RecomputePolicy| RecomputePolicy {
            lanes: LaneOrder::SideBySide,
            ..policy
        };
        policies.extend(policies.clone().into_iter().map(beside));
    }
    policies
}

fn in_turn(request: &Request, num_blocks: usize, accumulation: usize) -> Vec<RecomputePolicy> {
    let uniform = |recompute| RecomputePolicy::uniform(recompute, num_blocks);
    match request.recompute {
        Some(Recompute::Blocks) => by_groups(num_blocks),
        Some(recompute) => vec![uniform(recompute)],
        None => {
            let cheap = uniform(Recompute::Cheap);
            let mut policies = vec![uniform(Recompute::None), cheap];
            // With fewer micro-batches there are fewer choices of kept ones, so the steps between blocks are finer.
            let parts = match accumulation {
                1 => 24,
                2 | 3 => 8,
                _ => 4,
            };
            let shares = |parts: usize| (1..parts).map(move |part| num_blocks * part / parts);
            policies.extend(shares(parts.min(8)).map(|blocks| RecomputePolicy {
                whole_from: Some(blocks),
                ..cheap
            }));
            policies.extend(shares(parts).map(|blocks| RecomputePolicy {
                recomputed_blocks: blocks,
                ..cheap
            }));
            policies.extend(by_groups(num_blocks));
            policies.dedup();
            policies
        }
    }
}

/// All blocks recomputed, in groups of up to four.
fn by_groups(num_blocks: usize) -> Vec<RecomputePolicy> {
    let all = RecomputePolicy::uniform(Recompute::Blocks, num_blocks);
    let groups = (1..=4).filter(|&group| group <= num_blocks.max(1));
    groups
        .map(|group| RecomputePolicy { group, ..all })
        .collect()
}

/// Numbers of micro-batches that might keep their activations.
pub(crate) fn kept_counts(request: &Request, accumulation: usize, coupled: bool) -> Vec<usize> {
    if let Some(kept) = request.kept {
        return vec![kept.min(accumulation)];
    }
    // Without a first pass, no activations are kept between passes.
    if !coupled {
        return vec![0];
    }
    let mut counts: Vec<usize> = (0..=accumulation.min(32)).collect();
    counts.extend((1..=8).map(|eighths| accumulation * eighths / 8));
    counts.sort_unstable();
    counts.dedup();
    counts
}
