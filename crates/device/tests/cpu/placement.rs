//! No tensor lies on bytes that another still needs, on the programs of a real step.

use std::collections::HashSet;

use holdall_graph::{DType, MemorySpace, Role, Shape, StorageId};
use holdall_plan::{Place, Recompute, RecomputePolicy, Stage, rewrite};

use super::gradient_check::cpu;
use super::recompute::policies;
use super::shadow;
use super::step::{Kept, Planned, Step, flat};
use super::two_branches::TwoBranches;

fn each_plan(step: &Step, accumulation: usize, mut visit: impl FnMut(&Planned, &str)) {
    for policy in policies(step.graph.blocks().len()) {
        for kept in 0..=accumulation {
            for kept in [Kept::First(kept), Kept::Last(kept)] {
                let planned = Planned::new(&step.graph, policy, kept, accumulation, 2);
                visit(&planned, &format!("{policy:?}, {kept:?}"));
            }
        }
    }
}

#[test]
fn every_read_sees_the_bytes_that_the_graph_says() {
    for dtype in [DType::F32, DType::F64] {
        let branches = TwoBranches::small(dtype);
        let step = branches.step();
        each_plan(&step, branches.accumulation, |planned, what| {
            let num_cells = shadow::check(&step, planned)
                .unwrap_or_else(|wrong| panic!("{dtype:?}, {what}: {wrong}"));
            assert!(num_cells > 10_000, "{num_cells}");
            assert_eq!(planned.plan.breakdown.total(), planned.plan.arena_bytes);
            assert!(planned.plan.bound_bytes <= planned.plan.arena_bytes);
        });
    }
}

const BACKWARD: Stage = Stage::ForwardBackward;

/// The check itself: results moved by one granule must not pass.
#[test]
fn a_misplaced_result_is_noticed() {
    let branches = TwoBranches::small(DType::F32);
    let step = branches.step();
    let policy = RecomputePolicy::uniform(Recompute::Cheap, step.graph.blocks().len());
    let num_instructions = {
        let planned = Planned::new(&step.graph, policy, Kept::First(1), 3, 2);
        planned.plan.program(BACKWARD).instructions.len()
    };
    for moved in (0..num_instructions).step_by(9) {
        let mut planned = Planned::new(&step.graph, policy, Kept::First(1), 3, 2);
        let instruction = &mut planned.plan.programs[BACKWARD.id().0].instructions[moved];
        let (place, _) = instruction.outputs[0].as_mut().unwrap();
        place.offset += 64;
        assert!(
            shadow::check(&step, &planned).is_err(),
            "instruction {moved}"
        );
    }
    // Scratch on top of an operand.
    let mut planned = Planned::new(&step.graph, policy, Kept::First(1), 3, 2);
    let mut instructions = planned.plan.programs[BACKWARD.id().0]
        .instructions
        .iter_mut();
    let instruction = instructions.find(|i| i.workspace.bytes > 0).unwrap();
    instruction.workspace.offset = instruction.inputs[0].offset;
    assert!(shadow::check(&step, &planned).is_err());
}

/// Bytes that must survive up to the program at `index`: the rest may hold anything.
fn alive(step: &Step, planned: &Planned, index: usize) -> HashSet<usize> {
    let mut cells = HashSet::new();
    if index == 0 {
        return cells;
    }
    let schedule = planned.schedule();
    let when = |stage: Stage, slot: Option<usize>| {
        let mut runs = schedule.iter();
        runs.position(|run| run.program.stage == stage && run.slot == slot)
    };
    for id in (0..step.graph.storages().len()).map(StorageId) {
        let persists = match step.graph.storage(id).role {
            Role::Activation => false,
            Role::Gradient => when(Stage::Loss, None).is_some_and(|loss| index > loss),
            _ => true,
        };
        if persists {
            let place = planned.plan.place_of(&flat(&step.graph, id));
            let bytes = step.graph.storage(id).bytes() as usize;
            cells.extend((place.offset as usize..place.offset as usize + bytes).step_by(4));
        }
    }
    // A slot: from its own forward program to its own backward program.
    let rewritten = rewrite(&step.graph, &planned.policy);
    let nodes = rewritten.nodes(Stage::KeptForward);
    let in_slots = nodes
        .iter()
        .zip(&planned.plan.program(Stage::KeptForward).instructions);
    for (node, instruction) in in_slots {
        for (output, place) in node.outputs.iter().zip(&instruction.outputs) {
            let storage = rewritten.graph.value(output.value).storage;
            let (Some((place, _)), true) = (place, rewritten.kept.contains(&storage)) else {
                continue;
            };
            let bytes = place.shape.num_elements() * place.dtype.bytes();
            for slot in 0..planned.plan.kept {
                let filled = when(Stage::KeptForward, Some(slot)).unwrap();
                let emptied = when(Stage::KeptBackward, Some(slot)).unwrap();
                if index > filled && index <= emptied {
                    let start = place.offset as usize + slot * place.slot_stride as usize;
                    cells.extend((start..start + bytes).step_by(4));
                }
            }
        }
    }
    cells
}

/// All bits set: not a number in f32 and f64, and no index.
const POISON: u32 = u32::MAX;

#[test]
fn nothing_is_read_that_was_not_written() {
    for dtype in [DType::F32, DType::F64] {
        let branches = TwoBranches::small(dtype);
        let step = branches.step();
        let none = RecomputePolicy::uniform(Recompute::None, step.graph.blocks().len());
        let clean = Planned::new(&step.graph, none, Kept::First(0), branches.accumulation, 2);
        let expected = step.run(&clean, cpu());
        each_plan(&step, branches.accumulation, |planned, what| {
            if matches!(planned.kept, Kept::Last(_)) {
                return; // another order of sums
            }
            let shape = Shape::new(&[planned.plan.arena_bytes as usize / 4]);
            let all = Place {
                space: MemorySpace::Device,
                offset: 0,
                micro_stride: 0,
                slot_stride: 0,
                shape,
                strides: shape.contiguous_strides(),
                dtype: DType::F32,
            };
            let found = step.run_with(planned, cpu(), |index, arena| {
                let alive = alive(&step, planned, index);
                for (cell, value) in arena.write::<f32>(&all, 0).iter_mut().enumerate() {
                    if !alive.contains(&(4 * cell)) {
                        *value = f32::from_bits(POISON);
                    }
                }
            });
            found.assert_finite(&format!("{dtype:?}, {what}"));
            expected.assert_same_bits(&found, &format!("{dtype:?}, {what}"));
        });
    }
}
