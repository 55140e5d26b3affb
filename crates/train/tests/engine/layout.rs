//! Offsets against the bound that no layout can beat, on the graphs that people train.

use std::ops::Range;

use holdall_device::Arithmetic;
use holdall_device::cpu::CpuTarget;
use holdall_device::cuda::CudaTarget;
use holdall_device::cuda::cards::find;
use holdall_graph::{Copies, Op, Section};
use holdall_models::config::ClipConfig;
use holdall_plan::{
    Instruction, LaneOrder, Place, Recompute, RecomputePolicy, Request, StepShape, lifetimes_of,
    search,
};
use holdall_train::engine::step_graph::write_step;
use holdall_train::tasks::clip::ClipTask;
use proptest::prelude::*;

use crate::support::config_of;

#[test]
fn offsets_are_within_five_per_cent_of_the_liveness_bound() {
    let target = CpuTarget::new(2).with_baseline(0);
    println!(
        "{:44} {:>7} {:>9} {:>4} {:>12} {:>12}  over",
        "model", "batch", "recompute", "kept", "arena", "bound"
    );
    for name in ClipConfig::PRESETS {
        let config = config_of(&ClipTask::new(ClipConfig::preset(name).unwrap(), Some(196)));
        for (batch, accumulation) in [(1, 16), (8, 16), (128, 1)] {
            let variant = StepShape {
                batch_size: batch,
                gradient_accumulation: accumulation,
                copies: Copies::Resident,
            };
            let graph = write_step(&config, &variant);
            let blocks = graph.blocks().len();
            for policy in [
                RecomputePolicy::uniform(Recompute::None, blocks),
                RecomputePolicy::uniform(Recompute::Cheap, blocks),
                RecomputePolicy {
                    recomputed_blocks: blocks / 2,
                    ..RecomputePolicy::uniform(Recompute::Cheap, blocks)
                },
                RecomputePolicy::uniform(Recompute::Blocks, blocks),
            ] {
                let layout = lifetimes_of(&graph, &policy, &target).pack();
                for kept in [0, 1, accumulation] {
                    let arena = layout.arena_bytes(kept, accumulation);
                    let bound = layout.lifetimes().bound_bytes(kept, accumulation);
                    let over = arena as f64 / bound as f64 - 1.0;
                    println!(
                        "{name:44} {batch:>3}x{accumulation:<3} {:>11} {kept:>4} {arena:>12} {bound:>12}  {:.2}%",
                        policy.label(),
                        100.0 * over
                    );
                    assert!(
                        arena >= bound,
                        "a layout below its bound: the bound is wrong"
                    );
                    assert!(
                        over < 0.05,
                        "{name} {batch} x {accumulation} {policy:?} kept {kept}: {over}"
                    );
                    assert_eq!(layout.breakdown(kept, accumulation).total(), arena);
                    let plan = layout.plan(kept, accumulation);
                    assert_eq!(plan.arena_bytes, arena);
                    assert_eq!(
                        highest_byte(&plan),
                        arena,
                        "{name}: the peak is what the offsets say"
                    );
                }
            }
        }
    }
}

/// The last byte that any instruction touches, rounded up to the alignment.
fn highest_byte(plan: &holdall_plan::StepPlan) -> u64 {
    let mut highest = 0;
    for program in &plan.programs {
        for instruction in &program.instructions {
            let outputs = instruction.outputs.iter().flatten().map(|(place, _)| place);
            for place in instruction.inputs.iter().chain(outputs) {
                let span: usize = place
                    .shape
                    .dims()
                    .iter()
                    .zip(place.strides.dims())
                    .map(|(&extent, &stride)| (extent - 1) * stride)
                    .sum();
                let slots = (plan.kept.max(1) as u64 - 1) * place.slot_stride;
                let end = place.offset + slots + (span as u64 + 1) * place.dtype.bytes() as u64;
                highest = highest.max(end);
            }
            let workspace = instruction.workspace;
            let slots = (plan.kept.max(1) as u64 - 1) * workspace.slot_stride;
            highest = highest.max(workspace.offset + slots + workspace.bytes);
        }
    }
    highest.next_multiple_of(64)
}

/// A device that replays fixed addresses can move what a copy reads or writes, and no operand of a product.
#[test]
fn no_product_touches_rows_that_move_with_the_micro_batch() {
    let mut task = ClipTask::new(ClipConfig::preset("small").unwrap(), Some(10));
    task.sorted_ids = true;
    let mut config = config_of(&task);
    let target = CpuTarget::new(2).with_baseline(0);
    for (arithmetic, copies) in [
        (Arithmetic::F32, Copies::Resident),
        (Arithmetic::Bf16, Copies::Resident),
        (Arithmetic::F16, Copies::PerUse),
    ] {
        config.arithmetic = arithmetic;
        let variant = StepShape {
            batch_size: 4,
            gradient_accumulation: 3,
            copies,
        };
        let graph = write_step(&config, &variant);
        let policy = RecomputePolicy::uniform(Recompute::Cheap, graph.blocks().len());
        let plan = lifetimes_of(&graph, &policy, &target).pack().plan(1, 3);
        let mut moved = 0;
        for program in &plan.programs {
            for instruction in &program.instructions {
                let outputs = instruction.outputs.iter().flatten().map(|(place, _)| place);
                let mut places = instruction.inputs.iter().chain(outputs);
                if places.any(|place| place.micro_stride > 0) {
                    let name = instruction.op.rules().name();
                    let allowed = ["add into", "cross-entropy", "cross-entropy gradient"];
                    assert!(allowed.contains(&name), "{}: {name}", program.name);
                    moved += 1;
                }
            }
        }
        assert!(moved > 0);
    }
}

/// Weights that products read in a narrower format are narrowed by the update, and after they were set from outside.
#[test]
fn every_resident_copy_is_written_with_its_weight() {
    let mut task = ClipTask::new(ClipConfig::preset("small").unwrap(), Some(10));
    task.sorted_ids = true;
    let mut config = config_of(&task);
    config.evaluation_batch = Some(7);
    for (arithmetic, copies) in [
        (Arithmetic::F32, Copies::Resident),
        (Arithmetic::Bf16, Copies::Resident),
        (Arithmetic::Bf16, Copies::PerUse),
    ] {
        config.arithmetic = arithmetic;
        let variant = StepShape {
            batch_size: 4,
            gradient_accumulation: 3,
            copies,
        };
        let graph = write_step(&config, &variant);
        let copied: Vec<bool> = graph
            .parameters()
            .iter()
            .map(|parameter| graph.parameter_copy(parameter).is_some())
            .collect();
        let matrices_stay = (arithmetic, copies) == (Arithmetic::Bf16, Copies::Resident);
        let fc1 = |name: &str| name.ends_with("mlp.fc1.weight");
        for (parameter, &copied) in graph.parameters().iter().zip(&copied) {
            if fc1(&parameter.name) {
                assert_eq!(copied, matrices_stay, "{}", parameter.name);
            }
        }
        let nodes = graph.nodes().iter();
        let updates: Vec<_> = nodes
            .filter_map(|node| match &node.op {
                Op::AdamW(update) => Some((update, node.outputs.len())),
                _ => None,
            })
            .collect();
        let [(update, num_outputs)] = updates[..] else {
            panic!("one update");
        };
        let noted: Vec<bool> = update.parameters.iter().map(|one| one.copy).collect();
        assert_eq!(noted, copied);
        let num_copied = copied.iter().filter(|&&copied| copied).count();
        assert_eq!(num_outputs, 3 * copied.len() + num_copied);
        let refreshes = graph.nodes().iter();
        let refreshes = refreshes.filter(|node| node.section == Section::Refresh);
        assert_eq!(refreshes.count() > 0, num_copied > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_larger_budget_never_has_a_slower_plan(
        effective in 1usize..70,
        mut budgets in prop::collection::vec(30u64..400, 6),
    ) {
        let config = config_of(&ClipTask::new(ClipConfig::preset("small").unwrap(), Some(10)));
        let target = CpuTarget::new(2).with_baseline(0);
        let build = |variant: &StepShape| write_step(&config, variant);
        budgets.sort_unstable();
        let mut fastest = f64::INFINITY;
        for budget in budgets {
            let request = Request {
                effective_batch: Some(effective),
                budget_bytes: Some(budget << 20),
                ..Request::default()
            };
            match search(&request, &build, &target) {
                Ok(candidate) => {
                    prop_assert!(candidate.process_bytes <= budget << 20);
                    prop_assert!(candidate.step_ms <= fastest);
                    fastest = candidate.step_ms;
                }
                Err(_) => prop_assert_eq!(fastest, f64::INFINITY, "fitted in less"),
            }
        }
    }

    #[test]
    fn what_the_user_fixed_stays_fixed(
        batch in 1usize..20, accumulation in 1usize..8, megabytes in 30u64..300,
    ) {
        let config = config_of(&ClipTask::new(ClipConfig::preset("small").unwrap(), None));
        let target = CpuTarget::new(2).with_baseline(0);
        let build = |variant: &StepShape| write_step(&config, variant);
        let request = Request {
            batch_size: Some(batch),
            gradient_accumulation: Some(accumulation),
            recompute: Some(Recompute::Cheap),
            budget_bytes: Some(megabytes << 20),
            ..Request::default()
        };
        if let Ok(candidate) = search(&request, &build, &target) {
            prop_assert_eq!(candidate.choice.batch_size, batch);
            prop_assert_eq!(candidate.choice.gradient_accumulation, accumulation);
            prop_assert_eq!(candidate.choice.recompute.label(), "cheap");
        }
    }
}

/// Bytes that an instruction reads and writes, scratch included.
fn touched(instruction: &Instruction) -> [Vec<Range<u64>>; 2] {
    let bytes = |place: &Place| {
        let dims = place.shape.dims().iter().zip(place.strides.dims());
        let last: usize = dims.map(|(&dim, &stride)| (dim - 1) * stride).sum();
        place.offset..place.offset + ((last + 1) * place.dtype.bytes()) as u64
    };
    let reads = instruction.inputs.iter().map(bytes).collect();
    let outputs = instruction.outputs.iter().flatten();
    let mut writes: Vec<Range<u64>> = outputs.map(|(place, _)| bytes(place)).collect();
    let scratch = instruction.workspace;
    writes.push(scratch.offset..scratch.offset + scratch.bytes);
    [reads, writes]
}

#[test]
fn towers_side_by_side_never_write_what_the_other_uses() {
    let target = CudaTarget::for_card(find("h200").unwrap(), Arithmetic::Bf16).unwrap();
    let mut task = ClipTask::new(ClipConfig::preset("small").unwrap(), Some(10));
    task.sorted_ids = true;
    let mut config = config_of(&task);
    config.arithmetic = Arithmetic::Bf16;
    let mut pairs = 0;
    for copies in [Copies::Resident, Copies::PerUse] {
        let variant = StepShape {
            batch_size: 4,
            gradient_accumulation: 3,
            copies,
        };
        let graph = write_step(&config, &variant);
        for recompute in [Recompute::None, Recompute::Cheap, Recompute::Blocks] {
            let policy = RecomputePolicy {
                lanes: LaneOrder::SideBySide,
                group: 2,
                ..RecomputePolicy::uniform(recompute, graph.blocks().len())
            };
            let plan = lifetimes_of(&graph, &policy, &target).pack().plan(2, 3);
            for program in &plan.programs {
                let in_lane =
                    |a: &Instruction, b: &Instruction| a.lane.is_some() == b.lane.is_some();
                for stretch in program.instructions.chunk_by(in_lane) {
                    let of = |lane: usize| {
                        let own = stretch.iter().filter(move |one| one.lane == Some(lane));
                        own.map(touched).collect::<Vec<_>>()
                    };
                    for ([reads, writes], [other_reads, other_writes]) in of(0)
                        .iter()
                        .flat_map(|one| of(1).into_iter().map(move |other| (one.clone(), other)))
                    {
                        let apart = |a: &[Range<u64>], b: &[Range<u64>]| {
                            a.iter()
                                .all(|a| b.iter().all(|b| a.end <= b.start || b.end <= a.start))
                        };
                        pairs += 1;
                        assert!(
                            apart(&writes, &other_reads)
                                && apart(&writes, &other_writes)
                                && apart(&reads, &other_writes),
                            "{} under {recompute:?}: {writes:?} beside {other_writes:?}",
                            program.name
                        );
                    }
                }
            }
        }
    }
    assert!(
        pairs > 10_000,
        "lanes beside each other were looked at: {pairs}"
    );
}
