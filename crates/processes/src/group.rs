//! The group of processes of a run, as one of them sees it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::bulk::{Bulk, Interruption, Transport, Watch};
use crate::control::Control;
use crate::deadlines::Deadlines;
use crate::error::GroupError;
use crate::hello::Member;
use crate::pulse::Stretch;
use crate::state::{Shared, lock};

/// The processes of a run, as one of them sees them. Clones share one set of connections; dropping the last clone leaves the group in good
/// order.
///
/// All processes must make the same calls in the same order; bulk calls ([`Group::all_gather`], [`Group::all_reduce_f32`],
/// [`Group::gather_bytes`]) may run concurrently with calls for small messages. After an error, every call returns that error at once.
#[derive(Clone)]
pub struct Group(Option<Arc<Connected>>);

struct Connected {
    rank: usize,
    members: Vec<Member>,
    // Declared before `control`: bulk data is complete before the control connection says goodbye.
    bulk: Mutex<Bulk>,
    /// Name of the transport for bulk data, and its memory below.
    transport: String,
    staging_bytes: u64,
    /// Time in all calls: waiting for other processes, and for data.
    waited_nanoseconds: AtomicU64,
    control: Control,
}

impl Group {
    /// A group of one process: every call returns at once and costs nothing.
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

    pub fn rank(&self) -> usize {
        self.0.as_ref().map_or(0, |group| group.rank)
    }

    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(1, |group| group.members.len())
    }

    /// Rank of this process among those on its machine.
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

    /// Name of a process's machine; empty for a process alone.
    pub fn host(&self, rank: usize) -> &str {
        self.0
            .as_ref()
            .map_or("", |group| &group.members[rank].host)
    }

    /// Name of the bulk transport: `TCP`, or the MPI library; `None` for a process alone.
    pub fn transport(&self) -> Option<&str> {
        self.0.as_ref().map(|group| group.transport.as_str())
    }

    /// All-gather of small messages: every process's bytes, in rank order. Waits for all; fails when a process is lost.
    pub fn share(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        match &self.0 {
            None => Ok(vec![own.to_vec()]),
            Some(group) => group.counting(|| group.control.share(own)),
        }
    }

    /// Replaces `bytes` by rank 0's bytes.
    pub fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => group.counting(|| group.control.broadcast(bytes)),
        }
    }

    /// Sums numbers over all processes, in rank order.
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

    /// Makes the staging memory resident, this group's and its transport's, by a full-size message from each process to all others, so that
    /// a later measurement of the process includes it.
    pub fn reserve_staging(&self) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => group.with_bulk(|bulk, watch| bulk.reserve(watch)),
        }
    }

    /// Bulk, in place: `parts` is [`Group::size`] equal parts one after another, of which each process has filled its own.
    ///
    /// # Panics
    /// If `parts` cannot be divided into equal parts.
    pub fn all_gather(&self, parts: &mut [u8]) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => group.with_bulk(|bulk, watch| bulk.all_gather(parts, watch)),
        }
    }

    /// Bulk, in place: every process gets the sums, added in rank order, so that their bits do not depend on timing. The
    /// slices count as one concatenation, which must have the same length on every process.
    pub fn all_reduce_f32(&self, values: &mut [&mut [f32]]) -> Result<(), GroupError> {
        match &self.0 {
            None => Ok(()),
            Some(group) => group.with_bulk(|bulk, watch| bulk.all_reduce(values, watch)),
        }
    }

    /// Bulk, in place: each slice is overwritten by its owner's, `owners[i]` being the rank that owns slice `i`.
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

    /// Bulk all-gather of byte strings of any length, in rank order.
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

    /// Seconds spent in calls so far: waiting for other processes, and for data.
    pub fn seconds_waited(&self) -> f64 {
        let nanoseconds = |group: &Arc<Connected>| group.waited_nanoseconds.load(Ordering::Relaxed);
        self.0.as_ref().map_or(0, nanoseconds) as f64 / 1e9
    }

    /// The first error: rank, host, what was seen.
    pub fn error(&self) -> Option<GroupError> {
        self.0.as_ref().and_then(|group| group.shared().error())
    }

    /// Reports to all processes that this one cannot continue; their calls fail with this message.
    pub fn fail(&self, message: &str) {
        if let Some(group) = &self.0 {
            let shared = group.shared();
            shared.fail(shared.failed(message));
        }
    }

    /// Marks work made of many small parts, until the returned guard is dropped. After each part the process calls
    /// [`goes_on`](Group::goes_on); calls of this group do the same while they wait. A process that stays silent for the silence deadline
    /// hangs: the group ends.
    pub fn expect_progress(&self) -> Stretch {
        Stretch::of_small_parts(self.0.as_ref().map(|group| group.shared().clone()))
    }

    /// Marks work that has no parts, such as saving, until the returned guard is dropped; hang detection pauses meanwhile.
    pub fn expect_no_progress(&self) -> Stretch {
        Stretch::of_one_part(self.0.as_ref().map(|group| group.shared().clone()))
    }

    /// Records progress: a picture was read, an operation computed, a check on the other processes made.
    pub fn goes_on(&self) {
        if let Some(group) = &self.0 {
            group.shared().pulse.beat();
        }
    }

    /// Whether this process hangs, by the rule of [`Group::expect_progress`].
    pub fn hangs(&self) -> bool {
        self.0.as_ref().is_some_and(|group| group.shared().hangs())
    }

    pub fn deadlines(&self) -> Deadlines {
        let group = self.0.as_ref();
        group.map_or(Deadlines::default(), |group| group.shared().deadlines)
    }

    /// Memory for bulk data: staging and the transport's own.
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
        // A transport whose shutdown waits for all processes must not wait for a lost one.
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
