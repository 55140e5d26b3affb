//! Buckets of gradients that are exchanged during the last backward pass: a gradient is final after its last writer, and gradients that
//! become final at about the same time are exchanged together.

use std::collections::HashSet;
use std::ops::Range;

use holdall_graph::Op;
use holdall_graph::ops::collective::Exchange;
use holdall_plan::{Place, Program, Stage, StepPlan};

/// Minimum bytes of an exchange.
const BUCKET_BYTES: u64 = 32 << 20;

/// Gradients that are exchanged together.
pub(super) struct Bucket {
    /// Index of the instruction after which all of them are final.
    pub after: usize,
    pub places: Vec<Place>,
}

/// The stage of a step's last pass, if its gradients are added over several processes.
pub(super) fn last_stage(plan: &StepPlan) -> Option<Stage> {
    gradients(plan)?;
    Some(if plan.kept == plan.accumulation {
        Stage::KeptBackward
    } else {
        Stage::ForwardBackward
    })
}

fn gradients(plan: &StepPlan) -> Option<&[Place]> {
    let instructions = &plan.program(Stage::Reduce).instructions;
    instructions.iter().find_map(|one| match &one.op {
        Op::Collective(op) if op.exchange == Exchange::AllReduce => Some(one.inputs.as_slice()),
        _ => None,
    })
}

fn bytes_of(place: &Place) -> Range<u64> {
    let extent = place.shape.dims().iter().zip(place.strides.dims());
    let elements = extent.map(|(&size, &stride)| size.saturating_sub(1) * stride);
    let elements = elements.sum::<usize>() + 1;
    place.offset..place.offset + (elements * place.dtype.bytes()) as u64
}

/// Buckets of a last pass, in the order in which they become final. Gradients that the pass does not write are in no bucket.
pub(super) fn buckets(plan: &StepPlan, program: &Program) -> Vec<Bucket> {
    let mut final_after: Vec<(usize, Place)> = Vec::new();
    for place in gradients(plan).unwrap_or_default() {
        let own = bytes_of(place);
        let writes = |output: &Option<(Place, holdall_graph::Write)>| {
            output.as_ref().is_some_and(|(place, _)| {
                let written = bytes_of(place);
                place.slot_stride == 0 && written.start < own.end && own.start < written.end
            })
        };
        let mut instructions = program.instructions.iter();
        let last = instructions.rposition(|one| one.outputs.iter().any(writes));
        final_after.extend(last.map(|last| (last, *place)));
    }
    final_after.sort_by_key(|&(after, place)| (after, place.offset));
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut bytes = BUCKET_BYTES;
    for (after, place) in final_after {
        if bytes >= BUCKET_BYTES {
            bytes = 0;
            buckets.push(Bucket {
                after,
                places: Vec::new(),
            });
        }
        let range = bytes_of(&place);
        bytes += range.end - range.start;
        if let Some(bucket) = buckets.last_mut() {
            bucket.after = after;
            bucket.places.push(place);
        }
    }
    for bucket in &mut buckets {
        bucket.places.sort_by_key(|place| place.offset);
    }
    buckets
}

/// Offsets of the gradients that are exchanged during the last pass.
pub(super) fn travelling(plan: &StepPlan) -> HashSet<u64> {
    let Some(stage) = last_stage(plan) else {
        return HashSet::new();
    };
    let buckets = buckets(plan, plan.program(stage));
    let places = buckets.iter().flat_map(|bucket| &bucket.places);
    places.map(|place| place.offset).collect()
}
