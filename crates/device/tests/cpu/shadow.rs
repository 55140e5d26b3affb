//! Shadow memory: who wrote what, by address and by storage.
//!
//! Walks the programs of a step and keeps, per four bytes, the number of the last write: once at the address that the plan
//! chose, and once as if every storage (of every slot) had memory of its own. A read that finds
//! different numbers would compute with somebody else's bytes; a number of zero would compute with nobody's.

use std::collections::HashMap;
use std::ops::Range;

use holdall_graph::{Op, Role, StorageId, Value, ValueId, Write};
use holdall_plan::{Place, Rewritten, Stage, rewrite};

use super::step::{Planned, Run, Step, flat};

const CELL_BYTES: usize = 4;

/// Cells of a storage; the slot for what is kept in one.
type Key = (StorageId, Option<usize>);

#[derive(Default)]
struct Shadow {
    by_address: HashMap<usize, u32>,
    by_storage: HashMap<(Key, usize), u32>,
    num_writes: u32,
    num_reads: usize,
}

/// A cell as the graph and as the plan names it.
#[derive(Clone, Copy)]
struct Cell {
    key: Key,
    index: usize,
    address: usize,
}

/// Checks every read of a step; the number of cells read, or what is wrong.
pub fn check(step: &Step, planned: &Planned) -> Result<usize, String> {
    let rewritten = rewrite(&step.graph, &planned.policy);
    let mut shadow = Shadow::default();
    for (index, run) in planned.schedule().into_iter().enumerate() {
        shadow.enter(planned, &run, index == 0);
        let nodes = rewritten.nodes(run.program.stage);
        assert_eq!(
            nodes.len(),
            run.program.instructions.len(),
            "{}",
            run.program.name
        );
        for (moment, (node, instruction)) in nodes.iter().zip(&run.program.instructions).enumerate()
        {
            assert_eq!(node.op, instruction.op, "{} {moment}", run.program.name);
            let context = format!("{} {moment}, {}", run.program.name, node.op.rules().name());
            let place = |id: &ValueId, place: &Place| cells(&rewritten, &run, *id, place);
            let mut reads = Vec::new();
            let mut writes = Vec::new();
            for (id, at) in node.inputs.iter().zip(&instruction.inputs) {
                reads.extend(place(id, at));
            }
            for (output, at) in node.outputs.iter().zip(&instruction.outputs) {
                let Some((at, mode)) = at else { continue };
                assert_eq!(output.mode, *mode, "{context}");
                let cells = place(&output.value, at);
                if *mode == Write::Accumulate || matches!(node.op, Op::AdamW(_)) {
                    reads.extend(&cells);
                }
                writes.extend(cells);
            }
            let workspace = instruction.workspace;
            let slot = run.slot.unwrap_or(0);
            let start = workspace.offset as usize + slot * workspace.slot_stride as usize;
            let scratch = cell_range(start, workspace.bytes as usize);
            shadow
                .step(&reads, &writes, scratch)
                .map_err(|what| format!("{context}: {what}"))?;
        }
    }
    Ok(shadow.num_reads)
}

impl Shadow {
    /// A program starts: inputs are written from outside, transients of the last program are gone.
    fn enter(&mut self, planned: &Planned, run: &Run<'_>, first: bool) {
        let plan = &planned.plan;
        let fresh = |(storage, slot): Key| {
            plan.graph.storage(storage).role == Role::Activation
                && (slot.is_none() || (slot == run.slot && run.program.stage == Stage::KeptForward))
        };
        self.by_storage.retain(|&(key, _), _| !fresh(key));
        for index in 0..plan.graph.storages().len() {
            let storage = StorageId(index);
            let outside = match plan.graph.storage(storage).role {
                Role::Input => true,
                Role::Weight | Role::Optimizer => first,
                _ => false,
            };
            if outside {
                let value = flat(&plan.graph, storage);
                let place = plan.place_of(&value);
                self.write(&cells_of(&value, &place, (storage, None), 0, 0));
            }
        }
    }

    fn write(&mut self, cells: &[Cell]) {
        self.num_writes += 1;
        for cell in cells {
            self.by_address.insert(cell.address, self.num_writes);
            self.by_storage
                .insert((cell.key, cell.index), self.num_writes);
        }
    }

    fn step(
        &mut self,
        reads: &[Cell],
        writes: &[Cell],
        scratch: Range<usize>,
    ) -> Result<(), String> {
        for cell in reads {
            self.num_reads += 1;
            let expected = self.by_storage.get(&(cell.key, cell.index));
            let found = self.by_address.get(&cell.address);
            if expected.is_none() || expected != found {
                return Err(format!(
                    "reads {:?}[{}], written by {expected:?}, and finds {found:?}",
                    cell.key, cell.index
                ));
            }
        }
        // While it runs, what an instruction writes must be apart from everything else it touches.
        let mut written: HashMap<usize, (Key, usize)> = HashMap::new();
        for cell in writes {
            let me = (cell.key, cell.index);
            let other = written.insert(cell.address, me);
            if other.is_some_and(|other| other != me) || scratch.contains(&cell.address) {
                return Err(format!("{me:?} overlaps another result or scratch"));
            }
        }
        for cell in reads {
            let me = (cell.key, cell.index);
            let other = written.get(&cell.address);
            if other.is_some_and(|other| *other != me) || scratch.contains(&cell.address) {
                return Err(format!("{me:?} is overwritten while it is read"));
            }
        }
        self.write(writes);
        self.num_writes += 1;
        for address in scratch {
            self.by_address.insert(address, self.num_writes);
        }
        Ok(())
    }
}

fn cell_range(start: usize, bytes: usize) -> Range<usize> {
    start / CELL_BYTES..(start + bytes).div_ceil(CELL_BYTES)
}

fn cells(rewritten: &Rewritten, run: &Run<'_>, id: ValueId, place: &Place) -> Vec<Cell> {
    let value = rewritten.graph.value(id);
    let kept = rewritten.kept.contains(&value.storage);
    let key = (value.storage, run.slot.filter(|_| kept));
    cells_of(value, place, key, run.micro_batch, run.slot.unwrap_or(0))
}

fn cells_of(value: &Value, place: &Place, key: Key, micro_batch: usize, slot: usize) -> Vec<Cell> {
    let bytes = place.dtype.bytes();
    let address = place.offset as usize
        + micro_batch * place.micro_stride as usize
        + slot * place.slot_stride as usize;
    let index = (value.offset + micro_batch * value.micro_stride) * bytes;
    let mut offsets = vec![0];
    for (&dim, &stride) in place.shape.dims().iter().zip(place.strides.dims()) {
        let along = |offset: usize| (0..dim).map(move |step| offset + step * stride);
        offsets = offsets.into_iter().flat_map(along).collect();
    }
    let each = |offset: usize| {
        (0..bytes).step_by(CELL_BYTES).map(move |byte| Cell {
            key,
            index: (index + offset * bytes + byte) / CELL_BYTES,
            address: (address + offset * bytes + byte) / CELL_BYTES,
        })
    };
    offsets.into_iter().flat_map(each).collect()
}
