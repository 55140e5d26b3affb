//! Bytes that the processes of a step exchange, and the time that takes.
//!
//! Rings: to gather `S` bytes among `N` processes each sends `S (N - 1) / N`, for a sum twice that.

use holdall_graph::Op;
use holdall_graph::ops::collective::Exchange;
use holdall_plan::StepPlan;
use serde::Serialize;

/// Bytes that a step exchanges, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    pub processes: usize,
    /// Features gathered for the losses over the whole effective batch.
    pub gathered_bytes: u64,
    /// Summed gradients.
    pub reduced_bytes: u64,
    /// Weights sent by the process that updated them.
    pub owned_bytes: u64,
}

impl Traffic {
    /// Traffic of a planned step; `None` for a single process.
    pub fn of(plan: &StepPlan) -> Option<Traffic> {
        let mut traffic = Traffic::default();
        let instructions = plan.programs.iter().flat_map(|one| &one.instructions);
        for instruction in instructions {
            let Op::Collective(op) = &instruction.op else {
                continue;
            };
            let bytes = instruction
                .inputs
                .iter()
                .map(|place| (place.shape.num_elements() * place.dtype.bytes()) as u64)
                .sum::<u64>();
            traffic.processes = op.processes.count;
            match op.exchange {
                Exchange::AllGather => traffic.gathered_bytes += bytes,
                Exchange::AllReduce => traffic.reduced_bytes += bytes,
                Exchange::FromOwners(_) => traffic.owned_bytes += bytes,
            }
        }
        (traffic.processes > 1).then_some(traffic)
    }

    /// Bytes that each process sends in a step.
    pub fn sent_bytes(&self) -> u64 {
        let all = self.gathered_bytes + 2 * self.reduced_bytes + self.owned_bytes;
        let count = self.processes as u64;
        all * (count - 1) / count
    }

    /// Time of the exchange in seconds, at a bandwidth per process.
    pub fn seconds(&self, bytes_per_second: f64) -> f64 {
        self.sent_bytes() as f64 / bytes_per_second
    }
}
