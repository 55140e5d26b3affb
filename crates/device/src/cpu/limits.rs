//! Memory available to this process: the smallest of the machine's memory, the limits of its containers and its own limits.
//!
//! Each system reports them in its own way.

#[cfg_attr(windows, path = "limits/windows.rs")]
#[cfg_attr(not(windows), path = "limits/linux.rs")]
mod system;

/// Source of a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Physical memory of the machine.
    Machine,
    /// A control group of a container or batch system.
    Container,
    /// A job of Windows: a container, a service or a remote shell.
    Job,
    /// `ulimit -v`: the process's mapped memory, resident or not.
    AddressSpace,
    /// `ulimit -d`: the process's writable mapped memory.
    Data,
}

impl Bound {
    /// Noun for messages.
    pub fn noun(self) -> &'static str {
        match self {
            Bound::Machine => "this machine",
            Bound::Container => "limit of the container",
            Bound::Job => "limit of its job object",
            Bound::AddressSpace => "limit by ulimit -v",
            Bound::Data => "limit by ulimit -d",
        }
    }
}

/// One memory limit of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    bound: Bound,
    total_bytes: u64,
    available_bytes: u64,
}

/// Memory available to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Memory of the machine.
    pub machine_bytes: u64,
    /// Memory of the machine that is available without swapping, ignoring all other limits.
    pub machine_available_bytes: u64,
    /// The smallest limit.
    pub total_bytes: u64,
    /// Source of the smallest limit.
    pub bound: Bound,
    /// Memory that the process can still allocate under every limit.
    pub available_bytes: u64,
}

/// Memory available to this process; `None` where the system does not report it, so that budgets must be explicit.
pub fn host_memory() -> Option<HostMemory> {
    smallest_of(&system::rooms()?)
}

/// The smallest limit; `None` where the system does not report it.
pub fn total_bytes() -> Option<u64> {
    host_memory().map(|memory| memory.total_bytes)
}

/// Memory that the process can still allocate; `None` where the system does not report it.
pub fn available_bytes() -> Option<u64> {
    host_memory().map(|memory| memory.available_bytes)
}

/// `rooms`: the machine first.
fn smallest_of(rooms: &[Room]) -> Option<HostMemory> {
    let machine = rooms.first()?;
    let smallest = rooms.iter().min_by_key(|room| room.total_bytes)?;
    let available = rooms.iter().map(|room| room.available_bytes).min()?;
    Some(HostMemory {
        machine_bytes: machine.total_bytes,
        machine_available_bytes: machine.available_bytes,
        total_bytes: smallest.total_bytes,
        bound: smallest.bound,
        available_bytes: available,
    })
}
