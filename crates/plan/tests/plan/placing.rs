//! Where bytes lie: nothing that is alive together overlaps, the peak is what the offsets say, names survive.

use holdall_graph::{Copies, Graph, Role, Section, Write};
use holdall_plan::{
    LaneOrder, Recompute, RecomputePolicy, Run, Stage, StepPlan, Tenant, lifetimes_of, rewrite,
};
use proptest::prelude::*;

use crate::toy::{ALIGNMENT, Loss, Toy, ToyDevice, example, shape, toys};

fn plans(toy: &Toy, batch: usize, accumulation: usize, device: &ToyDevice) -> Vec<StepPlan> {
    let graph = toy.build(&shape(batch, accumulation, Copies::Resident));
    let num_blocks = graph.blocks().len();
    let mut plans = vec![];
    for recompute in [Recompute::None, Recompute::Cheap, Recompute::Blocks] {
        for lanes in [LaneOrder::InTurn, LaneOrder::SideBySide] {
            let policy = RecomputePolicy {
                lanes,
                ..RecomputePolicy::uniform(recompute, num_blocks)
            };
            let layout = lifetimes_of(&graph, &policy, device).pack();
            plans.extend((0..=accumulation).map(|kept| layout.plan(kept, accumulation)));
        }
    }
    plans
}

/// Every box of the memory map against every other.
fn overlap(plan: &StepPlan) -> Option<[Tenant; 2]> {
    let boxes = &plan.memory_map.boxes;
    for (index, a) in boxes.iter().enumerate() {
        for b in &boxes[..index] {
            let together = a.first <= b.last && b.first <= a.last;
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            // Slots below the last are drawn as a whole, over the stretch in which one of them after the other is filled and
            // emptied; the transients of the last slot's programs lie above them.
            if together && !apart {
                return Some([a.tenant, b.tenant]);
            }
        }
    }
    None
}

fn left_by_first_pass(graph: &Graph) -> usize {
    let storages = 0..graph.storages().len();
    let left = storages.filter(|&id| graph.is_left_by_first_pass(holdall_graph::StorageId(id)));
    left.count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn places_do_not_overlap_and_the_peak_is_what_the_offsets_say(
        toy in toys(),
        (batch, accumulation) in (1..4usize, 1..4usize),
        has_landing in any::<bool>(),
    ) {
        let device = ToyDevice { has_lanes: true, has_landing };
        for plan in plans(&toy, batch, accumulation, &device) {
            prop_assert_eq!(overlap(&plan), None);
            let ends = plan.memory_map.boxes.iter().map(|placed| placed.offset + placed.bytes);
            let peak = ends.max().unwrap_or(0).next_multiple_of(ALIGNMENT);
            prop_assert_eq!(peak, plan.arena_bytes);
            prop_assert!(plan.bound_bytes <= plan.arena_bytes);
            prop_assert_eq!(plan.breakdown.total(), plan.arena_bytes);
            prop_assert!(plan.process_bytes > plan.arena_bytes);
            for placed in &plan.memory_map.boxes {
                prop_assert_eq!(placed.offset % ALIGNMENT, 0);
            }
        }
    }

    #[test]
    fn endpoints_survive_planning(toy in toys(), accumulation in 1..4usize) {
        let graph = toy.build(&shape(2, accumulation, Copies::Resident));
        let device = ToyDevice { has_lanes: true, has_landing: true };
        for plan in plans(&toy, 2, accumulation, &device) {
            for (name, value) in graph.endpoints() {
                let place = plan.endpoint(name).expect("every name");
                prop_assert_eq!(place.shape, graph.shape(value), "{}", name);
                prop_assert_eq!(place.dtype, graph.dtype(value));
                let bytes = (place.shape.num_elements() * place.dtype.bytes()) as u64;
                prop_assert!(place.offset + bytes <= plan.arena_bytes);
                if graph.storage(graph.value(value).storage).role == Role::Input {
                    prop_assert!(plan.inputs.range.contains(&place.offset), "{}", name);
                }
            }
            prop_assert!(plan.endpoint("nobody").is_none());
            for (index, name) in graph.forward_programs().iter().enumerate() {
                let id = plan.forward_program(name).expect("every program");
                prop_assert_eq!(id, Stage::Forward(index).id());
                prop_assert_eq!(&plan.programs[id.0].name, name);
                prop_assert!(!plan.programs[id.0].instructions.is_empty());
            }
        }
    }

    #[test]
    fn the_first_pass_computes_what_it_must_leave_and_sums_are_added_once(toy in toys()) {
        let graph = toy.build(&shape(2, 3, Copies::Resident));
        let policy = RecomputePolicy::uniform(Recompute::Blocks, graph.blocks().len());
        let rewritten = rewrite(&graph, &policy);
        let graph = &rewritten.graph;
        let storage = |output: &holdall_graph::Output| graph.value(output.value).storage;
        let is_left = |output: &&holdall_graph::Output| graph.is_left_by_first_pass(storage(output));
        let first_pass = rewritten.nodes(Stage::FirstPass);
        prop_assert_eq!(first_pass.is_empty(), left_by_first_pass(graph) == 0);
        let mut left: Vec<_> = first_pass.iter().flat_map(|node| &node.outputs).filter(is_left).map(storage).collect();
        left.sort();
        left.dedup();
        prop_assert_eq!(left.len(), left_by_first_pass(graph));
        // Nothing in it is for nothing: each node's results are left, or read by a later node.
        for (index, node) in first_pass.iter().enumerate() {
            let read = |output: &holdall_graph::Output| {
                let later = first_pass[index + 1..].iter().flat_map(|node| &node.inputs);
                later.copied().any(|input| graph.value(input).storage == storage(output))
            };
            prop_assert!(node.outputs.iter().any(|output| is_left(&output) || read(output)));
        }
        // What the second pass recomputes replaces; what would be added again is left out.
        let adds = |stage: Stage| {
            let nodes = rewritten.nodes(stage).into_iter();
            let outputs = nodes.flat_map(|node| &node.outputs).filter(is_left);
            outputs.filter(|output| output.mode == Write::Accumulate).count()
        };
        prop_assert_eq!(adds(Stage::ForwardBackward), 0);
        prop_assert_eq!(adds(Stage::FirstPass), usize::from(toy.loss == Loss::Sums));
        prop_assert_eq!(adds(Stage::KeptForward), usize::from(toy.loss == Loss::Sums));
    }
}

#[test]
fn slots_are_a_stack() {
    let device = ToyDevice {
        has_lanes: false,
        has_landing: false,
    };
    for loss in [Loss::Separable, Loss::Features] {
        for plan in plans(&Toy { loss, ..example() }, 2, 4, &device) {
            let (mut stack, mut forward, mut backward) = (vec![], [0; 4], [0; 4]);
            for Run {
                stage,
                micro_batch,
                slot,
                ..
            } in plan.passes()
            {
                match stage {
                    Stage::KeptForward => {
                        assert_eq!(slot, stack.len());
                        stack.push(micro_batch);
                        forward[micro_batch] += 1;
                    }
                    Stage::KeptBackward => {
                        assert_eq!(slot + 1, stack.len());
                        assert_eq!(stack.pop(), Some(micro_batch));
                        backward[micro_batch] += 1;
                    }
                    Stage::Loss => assert_eq!(stack.len(), plan.kept),
                    Stage::FirstPass => forward[micro_batch] += 1,
                    Stage::ForwardBackward => {
                        assert!(stack.is_empty());
                        backward[micro_batch] += 1;
                    }
                    _ => {}
                }
            }
            assert_eq!(backward, [1; 4]);
            if loss == Loss::Features {
                assert_eq!(forward, [1; 4]);
            }
        }
    }
}

/// Blocks that keep only what enters them leave less for the backward pass, and recompute what they do not keep.
#[test]
fn recomputing_keeps_less() {
    let graph = example().build(&shape(2, 3, Copies::Resident));
    let rewritten = [Recompute::None, Recompute::Cheap, Recompute::Blocks].map(|recompute| {
        rewrite(
            &graph,
            &RecomputePolicy::uniform(recompute, graph.blocks().len()),
        )
    });
    let kept = rewritten.each_ref().map(|one| {
        let storages = one.kept.iter().map(|&id| one.graph.storage(id).bytes());
        storages.sum::<u64>()
    });
    assert!(kept[0] > kept[1] && kept[1] > kept[2], "{kept:?}");
    let flops = rewritten.each_ref().map(|one| {
        let costs = one.backward.iter().map(|node| one.graph.cost(node));
        costs.map(|cost| cost.product_flops).sum::<u64>()
    });
    // Norms and activation functions take no product.
    assert!(flops[0] == flops[1] && flops[1] < flops[2], "{flops:?}");
    let nodes = graph.nodes().iter();
    let backward = nodes.filter(|node| node.section == Section::Backward);
    assert_eq!(rewritten[0].backward.len(), backward.count());
}
