//! The drawing of a plan is the plan: what operations touch lies in boxes, and boxes do not overlap.

use std::ops::Range;

use holdall_device::Arithmetic;
use holdall_device::cpu::CpuTarget;
use holdall_device::cuda::CudaTarget;
use holdall_device::cuda::cards::find;
use holdall_graph::Copies;
use holdall_models::config::ClipConfig;
use holdall_plan::{
    LaneOrder, Place, PlacedBox, Recompute, RecomputePolicy, StepPlan, StepShape, Target, Tenant,
    lifetimes_of,
};
use holdall_train::engine::step_graph::write_step;
use holdall_train::tasks::clip::ClipTask;

use crate::support::config_of;

fn plans(
    target: &dyn Target,
    lanes: LaneOrder,
    arithmetic: Arithmetic,
    check: impl Fn(&StepPlan, &str),
) {
    let mut task = ClipTask::new(ClipConfig::preset("small").unwrap(), Some(10));
    task.sorted_ids = true;
    let mut config = config_of(&task);
    config.arithmetic = arithmetic;
    config.evaluation_batch = Some(3);
    let variant = StepShape {
        batch_size: 4,
        gradient_accumulation: 3,
        copies: Copies::Resident,
    };
    let graph = write_step(&config, &variant);
    for recompute in [Recompute::None, Recompute::Cheap, Recompute::Blocks] {
        let policy = RecomputePolicy {
            lanes,
            ..RecomputePolicy::uniform(recompute, graph.blocks().len())
        };
        let layout = lifetimes_of(&graph, &policy, target).pack();
        for kept in 0..=3 {
            check(
                &layout.plan(kept, 3),
                &format!("{recompute:?}, {kept} kept"),
            );
        }
    }
}

fn check(plan: &StepPlan, named: &str) {
    let boxes = &plan.memory_map.boxes;
    assert!(no_two_overlap(boxes), "{named}: two in one place");
    let highest = boxes.iter().map(|one| one.offset + one.bytes).max();
    assert!(highest <= Some(plan.arena_bytes), "{named}: {highest:?}");
    for mapped in &plan.memory_map.programs {
        let program = plan.program(mapped.stage);
        assert_eq!(
            program.instructions.len(),
            mapped.last + 1 - mapped.first,
            "{named}: {}",
            program.name
        );
        for (moment, instruction) in (mapped.first..).zip(&program.instructions) {
            assert_eq!(
                plan.memory_map.operations[moment].operation,
                instruction.op.rules().name()
            );
            let outputs = instruction.outputs.iter().flatten().map(|(place, _)| place);
            for place in instruction.inputs.iter().chain(outputs) {
                let bytes = touched(place, plan.kept);
                let drawn = boxes.iter().any(|one| {
                    (one.first..=one.last).contains(&moment)
                        && one.offset <= bytes.start
                        && bytes.end <= one.offset + one.bytes
                });
                assert!(
                    drawn,
                    "{named}: {bytes:?} of {} at {moment} in {} is in no box",
                    instruction.op.rules().name(),
                    program.name
                );
            }
        }
    }
}

/// Bytes of an operand, in the last slot.
fn touched(place: &Place, kept: usize) -> Range<u64> {
    let dims = place.shape.dims().iter().zip(place.strides.dims());
    let last: usize = dims.map(|(&dim, &stride)| (dim - 1) * stride).sum();
    let start = place.offset + place.slot_stride * (kept as u64).saturating_sub(1);
    start..start + ((last + 1) * place.dtype.bytes()) as u64
}

fn no_two_overlap(boxes: &[PlacedBox]) -> bool {
    boxes.iter().enumerate().all(|(index, one)| {
        boxes[..index].iter().all(|other| {
            let together = one.first <= other.last && other.first <= one.last;
            let apart =
                one.offset + one.bytes <= other.offset || other.offset + other.bytes <= one.offset;
            !together || apart
        })
    })
}

#[test]
fn what_operations_touch_is_in_the_picture() {
    let cpu = CpuTarget::new(2).with_baseline(0);
    plans(&cpu, LaneOrder::InTurn, Arithmetic::F32, check);
    let card = CudaTarget::for_card(find("h200").unwrap(), Arithmetic::Bf16).unwrap();
    plans(&card, LaneOrder::SideBySide, Arithmetic::Bf16, check);
}

#[test]
fn every_slot_is_drawn() {
    let cpu = CpuTarget::new(2).with_baseline(0);
    plans(&cpu, LaneOrder::InTurn, Arithmetic::F32, |plan, named| {
        let slots = plan.memory_map.boxes.iter();
        let slots = slots.filter(|one| matches!(one.tenant, Tenant::Slot(_)));
        assert_eq!(slots.count(), plan.kept.saturating_sub(1), "{named}");
    });
}
