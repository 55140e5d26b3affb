//! What is kept and what is recomputed changes no value.

use std::collections::HashMap;

use holdall_graph::ops::activation::Activation;
use holdall_graph::{BlockId, DType, StorageId};
use holdall_plan::{Recompute, RecomputePolicy, Rewritten, rewrite};

use super::gradient_check::cpu;
use super::step::{Contents, Kept, Outcome, Planned, Step};
use super::two_branches::TwoBranches;

pub fn policies(num_blocks: usize) -> Vec<RecomputePolicy> {
    let mut policies = vec![
        RecomputePolicy::uniform(Recompute::None, num_blocks),
        RecomputePolicy::uniform(Recompute::Cheap, num_blocks),
        RecomputePolicy::uniform(Recompute::Blocks, num_blocks),
    ];
    for rest in [Recompute::Cheap, Recompute::None] {
        policies.push(RecomputePolicy {
            recomputed_blocks: 1.min(num_blocks),
            ..RecomputePolicy::uniform(rest, num_blocks)
        });
    }
    policies
}

fn run(step: &Step, policy: RecomputePolicy, kept: Kept, accumulation: usize) -> Outcome {
    let planned = Planned::new(&step.graph, policy, kept, accumulation, 2);
    let outcome = step.run(&planned, cpu());
    outcome.assert_finite(&format!("{policy:?}, {kept:?}"));
    outcome
}

/// Bytes that wait for the backward pass.
fn kept_bytes(rewritten: &Rewritten) -> u64 {
    let kept = rewritten.kept.iter();
    kept.map(|&storage| rewritten.graph.storage(storage).bytes())
        .sum()
}

#[test]
fn a_block_that_runs_again_keeps_what_enters_it_and_nothing_within() {
    let graph = TwoBranches::small(DType::F32).step().graph;
    let num_blocks = graph.blocks().len();
    let [none, cheap, blocks] = [Recompute::None, Recompute::Cheap, Recompute::Blocks]
        .map(|recompute| rewrite(&graph, &RecomputePolicy::uniform(recompute, num_blocks)));
    assert!(kept_bytes(&blocks) < kept_bytes(&cheap) && kept_bytes(&cheap) < kept_bytes(&none));
    let mut made_in: HashMap<StorageId, Option<BlockId>> = HashMap::new();
    for node in &blocks.forward {
        for &input in &node.inputs {
            let storage = graph.value(input).storage;
            // What stands outside the blocks is recomputed where that is cheap.
            if let (Some(block), Some(Some(from))) = (node.block, made_in.get(&storage)) {
                let enters = *from != block;
                let name = &graph.storage(storage).name;
                assert_eq!(
                    enters,
                    blocks.kept.contains(&storage),
                    "{name} in {block:?}"
                );
            }
        }
        for output in &node.outputs {
            made_in.insert(graph.value(output.value).storage, node.block);
        }
    }
}

#[test]
fn policies_and_slots_change_no_bit() {
    for dtype in [DType::F32, DType::F64] {
        let branches = TwoBranches::small(dtype);
        let step = branches.step();
        let num_blocks = step.graph.blocks().len();
        let accumulation = branches.accumulation;
        let none = RecomputePolicy::uniform(Recompute::None, num_blocks);
        let expected = run(&step, none, Kept::First(0), accumulation);
        for policy in policies(num_blocks) {
            for kept in 0..=accumulation {
                let found = run(&step, policy, Kept::First(kept), accumulation);
                expected.assert_same_bits(&found, &format!("{dtype:?}, {policy:?}, kept {kept}"));
            }
        }
    }
}

#[test]
fn another_order_of_micro_batches_changes_rounding_only() {
    let branches = TwoBranches::small(DType::F64);
    let step = branches.step();
    let num_blocks = step.graph.blocks().len();
    let none = RecomputePolicy::uniform(Recompute::None, num_blocks);
    let expected = run(&step, none, Kept::First(0), 3);
    for policy in policies(num_blocks) {
        for kept in 1..3 {
            let found = run(&step, policy, Kept::Last(kept), 3);
            expected.assert_close(&found, 1e-12, &format!("{policy:?}, the last {kept} kept"));
        }
    }
}

#[test]
fn frozen_branches_and_layers_agree_too() {
    let frozen: [&[&str]; 6] = [
        &["image."],
        &["text."],
        &["image.0", "text.0"],
        &["image.1", "text.1", "text.out"],
        &[
            "image.0.fc",
            "text.0.q",
            "text.0.k",
            "text.0.v",
            "logit_scale",
        ],
        &["image.out", "text.table", "text.positions", "head"],
    ];
    for frozen in frozen {
        let branches = TwoBranches {
            frozen: frozen.iter().map(|&name| name.to_owned()).collect(),
            activation: Activation::Gelu,
            ..TwoBranches::small(DType::F32)
        };
        let step = branches.step();
        let num_blocks = step.graph.blocks().len();
        let none = RecomputePolicy::uniform(Recompute::None, num_blocks);
        let expected = run(&step, none, Kept::First(0), 3);
        for policy in policies(num_blocks) {
            for kept in [0, 2] {
                let found = run(&step, policy, Kept::First(kept), 3);
                expected.assert_same_bits(
                    &found,
                    &format!("{frozen:?} frozen, {policy:?}, kept {kept}"),
                );
            }
        }
    }
}

#[test]
fn the_split_into_micro_batches_changes_rounding_only() {
    // The same twelve samples, in micro-batches of 12, 4 and 3.
    let outcome = |batch: usize| {
        let branches = TwoBranches {
            batch,
            accumulation: 12 / batch,
            ..TwoBranches::small(DType::F64)
        };
        let mut step = branches.step();
        let whole = TwoBranches {
            batch: 12,
            accumulation: 1,
            ..branches.clone()
        };
        let whole = whole.step();
        for ((_, parts), (_, all)) in step.inputs.iter_mut().zip(&whole.inputs) {
            *parts = split(&all[0], parts.len());
        }
        step.initial = whole.initial;
        let policy = RecomputePolicy::uniform(Recompute::Cheap, step.graph.blocks().len());
        run(&step, policy, Kept::First(1), branches.accumulation)
    };
    let expected = outcome(12);
    for batch in [4, 3] {
        expected.assert_close(&outcome(batch), 1e-11, &format!("micro-batches of {batch}"));
    }
}

/// Equal shares of the samples.
fn split(all: &Contents, parts: usize) -> Vec<Contents> {
    match all {
        Contents::Floats(all) => {
            let parts = all.chunks(all.len() / parts);
            parts.map(|part| Contents::Floats(part.to_vec())).collect()
        }
        Contents::Indices(all) => {
            let parts = all.chunks(all.len() / parts);
            parts.map(|part| Contents::Indices(part.to_vec())).collect()
        }
        Contents::Bytes(_) => unreachable!("the branches take no bytes"),
    }
}
