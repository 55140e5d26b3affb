//! What a process knows of the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::bulk::{Bulk, Interruption, Transport, Watch};
use crate::control::Control;
use crate::error::GroupError;
use crate::hello::Member;
use crate::pulse::Stretch;
use crate::state::{Shared, lock};

/// The processes of a run, as one of them sees them. Clones share one connection; when the last is dropped, the process has
/// left in good order.
///
/// All processes must make the same calls in the same order; calls for bulk data ([`Group::all_gather`],
/// [`Group::all_reduce_f32`], [`Group::gather_bytes`]) may run beside calls for small messages. Once there is an error, every
/// call returns it at once.
#[derive(Clone)]
pub struct Group(Option<Arc<Connected>>);

struct Connected {
    rank: usize,
    members: Vec<Member>,
    // Before `control`, so that tensors have travelled when it says goodbye.
    bulk: Mutex<Bulk>,
    /// Of bulk data: its transport, and what it holds.
    transport: String,
    staging_bytes: u64,
    /// In calls, all together: for the others, and for what travels.
    waited_nanoseconds: AtomicU64,
    control: Control,
}

impl Group {
    /// One process: every call answers at once and costs nothing.
    pub fn alone() -> Group {
        Group(None)
    }

    pub(crate) fn new(
        rank: usize,
        members: Vec<Member>,
        control: Control,
        transport: Box<dyn Transport>,
    ) -> Group {
        let bulk = Bulk::new(rank, members.len(), transport);
        Group(Some(Arc::new(Connected {
            rank,
            members,
            transport: bulk.transport().name().to_owned(),
            staging_bytes: bulk.held_bytes(),
            bulk: Mutex::new(bulk),
            waited_nanoseconds: AtomicU64::new(0),
            control,
        })))
    }

    /// Number of this process among all, from zero.
    pub fn rank(&self) -> usize {
        self.0.as_ref().map_or(0, |group| group.rank)
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(1, |group| group.members.len())
    }

    /// Number of this process among those of this machine.
    pub fn local_rank(&self) -> usize {
        self.0
            .as_ref()
            .map_or(0, |group| group.members[group.rank].local_rank)
    }

    /// Number of processes on this machine.
    pub fn local_size(&self) -> usize {
        self.0
            .as_ref()
            .map_or(1, |group| group.members[group.rank].local_size)
    }

    /// The machine of a process; empty for a process alone.
    pub fn host(&self, rank: usize) -> &str {
        self.0
            .as_ref()
            .map_or("", |group| &group.members[rank].host)
    }

    /// What carries tensors: `TCP`, or which MPI; `None` for a process alone.
    pub fn transport(&self) -> Option<&str> {
        self.0.as_ref().map(|group| group.transport.as_str())
    }

    /// What every process says, to every process, in rank order. For small messages. Waits for all; fails when a process is lost.
    pub fn share(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        match &self.0 {
            None => Ok(vec![own.to_vec()]),
            Some(group) => group.counting(|| group.control.share(own)),
        }
    }

    /// Makes `bytes` rank 0's.
    pub fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => group.counting(|| group.control.broadcast(bytes)),
        }
    }

    /// Adds up numbers over all processes, in rank order.
    pub fn sum(&self, numbers: &mut [f64]) -> Result<(), GroupError> {
        let Some(group) = &self.0 else {
            return Ok(());
        };
        let all = group.counting(|| group.control.share(bytemuck::cast_slice(numbers)))?;
        for (rank, theirs) in all.iter().enumerate() {
            if theirs.len() != size_of_val(numbers) {
                return Err(group.shared().fail(GroupError::Mismatch(format!(
                    "ranks {} and {rank} are out of step: sums of {} and {} bytes\n\
                     hint: this is a bug; please report it",
                    group.rank,
                    size_of_val(numbers),
                    theirs.len()
                ))));
            }
            for (number, bytes) in numbers.iter_mut().zip(theirs.chunks_exact(8)) {
                let theirs: f64 = bytemuck::pod_read_unaligned(bytes);
                *number = if rank == 0 { theirs } else { *number + theirs };
            }
        }
        Ok(())
    }

    /// Takes the memory that bulk data travels through, this group's and its transport's, by a message of full size from each to all:
    /// whoever measures the process afterwards finds it.
    pub fn reserve_staging(&self) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => group.with_bulk(|bulk, watch| bulk.reserve(watch)),
        }
    }

    /// Bulk, in place: `parts` is [`Group::size`] equal parts one behind the other, of which each process has filled its own.
    ///
    /// # Panics
    /// If `parts` cannot be divided so.
    pub fn all_gather(&self, parts: &mut [u8]) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => group.with_bulk(|bulk, watch| bulk.all_gather(parts, watch)),
        }
    }

    /// Bulk, in place: every process gets the sums, added in rank order, so that their bits do not depend on timing. The
    /// slices count as one concatenation, which must be as long on every process.
    pub fn all_reduce_f32(&self, values: &mut [&mut [f32]]) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => group.with_bulk(|bulk, watch| bulk.all_reduce(values, watch)),
        }
    }

    /// Bulk, in place: each slice becomes that of its owner.
    pub fn take_from_owners(
        &self,
        values: &mut [&mut [f32]],
        owners: &[usize],
    ) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => {
                group.with_bulk(|bulk, watch| bulk.take_from_owners(values, owners, watch))
            }
        }
    }

    /// Rows of any length, in rank order, to every process.
    pub fn gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        let Some(group) = &self.0 else {
            return Ok(vec![own.to_vec()]);
        };
        let lengths = group.counting(|| group.control.share(&(own.len() as u64).to_le_bytes()))?;
        let lengths: Option<Vec<usize>> = lengths
            .iter()
            .map(|bytes| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?) as usize))
            .collect();
        let Some(lengths) = lengths else {
            return Err(group.shared().fail(GroupError::Mismatch(format!(
                "rank {}: a length was expected of every process\nhint: this is a bug; please report it",
                group.rank
            ))));
        };
        group.with_bulk(|bulk, watch| bulk.gather_bytes(own, &lengths, watch))
    }

    /// Seconds that calls took so far: waiting for others, and for what travels.
    pub fn seconds_waited(&self) -> f64 {
        let nanoseconds = |group: &Arc<Connected>| group.waited_nanoseconds.load(Ordering::Relaxed);
        self.0.as_ref().map_or(0, nanoseconds) as f64 / 1e9
    }

    /// The first thing that went wrong: rank, host, what was seen.
    pub fn error(&self) -> Option<GroupError> {
        self.0.as_ref().and_then(|group| group.shared().error())
    }

    /// Tells all others that this process cannot go on, and why; their calls fail with it.
    pub fn fail(&self, message: &str) {
        if let Some(group) = &self.0 {
            let shared = group.shared();
            shared.fail(shared.failed(message));
        }
    }

    /// Until what this returns is dropped, this process does work of many small parts and says after each that it [goes
    /// on](Group::goes_on), as calls of this group do while they wait. One that does not for the deadline of silence hangs: the group
    /// ends.
    pub fn expect_progress(&self) -> Stretch {
        Stretch::of_small_parts(self.0.as_ref().map(|group| group.shared().clone()))
    }

    /// Until what this returns is dropped, this process does something that has no parts, as saving does, and says nothing meanwhile.
    pub fn expect_no_progress(&self) -> Stretch {
        Stretch::of_one_part(self.0.as_ref().map(|group| group.shared().clone()))
    }

    /// Something was done: a picture read, an operation computed, a look at whether the others are still there.
    pub fn goes_on(&self) {
        if let Some(group) = &self.0 {
            group.shared().pulse.beat();
        }
    }

    /// Whether this process hangs, as [`Group::expect_progress`] has it.
    pub fn hangs(&self) -> bool {
        self.0.as_ref().is_some_and(|group| group.shared().hangs())
    }

    /// How long processes wait for each other.
    pub fn deadlines(&self) -> Deadlines {
        let group = self.0.as_ref();
        group.map_or(Deadlines::default(), |group| group.shared().deadlines)
    }

    /// What the group holds once bulk data has travelled.
    pub fn staging_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |group| group.staging_bytes)
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "rank {} of {}", self.rank(), self.size())
    }
}

impl Default for Group {
    fn default() -> Group {
        Group::alone()
    }
}

impl Connected {
    fn shared(&self) -> &Arc<Shared> {
        self.control.shared()
    }

    fn with_bulk<T>(
        &self,
        call: impl FnOnce(&mut Bulk, &dyn Watch) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        let mut bulk = lock(&self.bulk);
        self.shared().check()?;
        self.counting(|| call(&mut bulk, &**self.shared()))
    }

    fn counting<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let answer = call();
        self.shared().pulse.beat();
        let nanoseconds = began.elapsed().as_nanos() as u64;
        self.waited_nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
        answer
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shared = self.shared();
            shared.fail(shared.failed("it panicked"));
        }
        let mut bulk = lock(&self.bulk);
        // A transport that waits for all others at its end must not be left waiting for one that is gone.
        if bulk.transport().ends_together() && self.control.leave_together().is_ok() {
            bulk.finish();
        }
    }
}

impl Watch for Shared {
    fn has_failed(&self) -> bool {
        Shared::has_failed(self)
    }

    fn begin(&self) {
        self.begin_bulk();
    }

    fn is_stalled(&self, began: Instant) -> bool {
        self.pulse.beat();
        Shared::is_stalled(self, began)
    }

    fn stalled(&self) -> GroupError {
        self.fail(Shared::stalled(self))
    }

    fn explain(&self, interruption: Interruption) -> GroupError {
        match interruption {
            Interruption::Stopped => self
                .error()
                .unwrap_or_else(|| GroupError::Mismatch("failed without an error".to_owned())),
            Interruption::Peer { rank, seen } => self.fail_unless_told(self.lost(rank, seen)),
            Interruption::Transport { said } => self.fail_unless_told(self.failed(said)),
        }
    }

    fn mismatch(&self, text: String) -> GroupError {
        self.fail(GroupError::Mismatch(text))
    }
}

/// How long processes wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Until all must have started.
    pub start: Duration,
    /// Of silence after which a process is lost, or of standstill in work that goes on in small parts.
    pub silence: Duration,
    /// After which a process is lost that is alive, but does not make the call that all others wait in, whatever it does.
    pub stall: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines {
            start: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            // Rank 0 may plan, compile or save for minutes while the others wait.
            stall: Duration::from_secs(1800),
        }
    }
}
