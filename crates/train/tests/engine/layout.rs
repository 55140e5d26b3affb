//! Offsets against the bound that no layout can beat, on the graphs that people train.

use holdall_device::cpu::CpuTarget;
use holdall_models::config::ClipConfig;
use holdall_plan::{Policy, Recompute, Request, prepare, search};
use holdall_train::step_graph::{StepConfig, write_step};
use proptest::prelude::*;

#[test]
fn offsets_are_within_five_per_cent_of_the_liveness_bound() {
    let target = CpuTarget::new(2).with_baseline(0);
    println!(
        "{:44} {:>7} {:>9} {:>4} {:>12} {:>12}  over",
        "model", "batch", "recompute", "kept", "arena", "bound"
    );
    for name in ClipConfig::PRESETS {
        let config = StepConfig::new(ClipConfig::preset(name).unwrap(), Some(196));
        for (batch, accumulation) in [(1, 16), (8, 16), (128, 1)] {
            let graph = write_step(&config, batch, accumulation).graph;
            let blocks = graph.blocks().len();
            for policy in [
                Policy::uniform(Recompute::None, blocks),
                Policy::uniform(Recompute::Cheap, blocks),
                Policy {
                    blocks_again: blocks / 2,
                    rest: Recompute::Cheap,
                },
                Policy::uniform(Recompute::Blocks, blocks),
            ] {
                let layout = prepare(&graph, &policy, &target).pack();
                for kept in [0, 1, accumulation] {
                    let arena = layout.arena_bytes(kept, accumulation);
                    let bound = layout.draft().bound_bytes(kept, accumulation);
                    let over = arena as f64 / bound as f64 - 1.0;
                    println!(
                        "{name:44} {batch:>3}x{accumulation:<3} {:>11} {kept:>4} {arena:>12} {bound:>12}  {:.2}%",
                        policy.label(blocks),
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
    for program in plan.programs.all() {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_larger_budget_never_has_a_slower_plan(
        effective in 1usize..70,
        mut budgets in prop::collection::vec(30u64..400, 6),
    ) {
        let config = StepConfig::new(ClipConfig::preset("small").unwrap(), Some(10));
        let target = CpuTarget::new(2).with_baseline(0);
        let build = |batch, accumulation| write_step(&config, batch, accumulation).graph;
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
        let config = StepConfig::new(ClipConfig::preset("small").unwrap(), None);
        let target = CpuTarget::new(2).with_baseline(0);
        let build = |batch, accumulation| write_step(&config, batch, accumulation).graph;
        let request = Request {
            batch_size: Some(batch),
            gradient_accumulation: Some(accumulation),
            recompute: Some(Recompute::Cheap),
            budget_bytes: Some(megabytes << 20),
            ..Request::default()
        };
        if let Ok(candidate) = search(&request, &build, &target) {
            prop_assert_eq!(candidate.batch_size, batch);
            prop_assert_eq!(candidate.gradient_accumulation, accumulation);
            prop_assert_eq!(candidate.recompute, "cheap");
        }
    }
}
