//! libnccl: exchanges between the cards of several processes, through shared files.
//!
//! ```text
//! FOLDER/join-1       who joined as rank 1: host, card, process
//! FOLDER/17-1         what rank 1 brings to the 17th exchange
//! FOLDER/left-1       rank 1 has gone as it should
//! ```
//!
//! A communicator is nonblocking: initialisation is in progress until all processes have joined, and a call may be in progress for a while.
//! Exchanges run in the order of the calls, captured graphs included, as in NCCL; like the sums of a ring, a sum starts with a different
//! rank
//! in each part of the data.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::{bus_id, current_card};
use crate::foreign::{Handle, get, handle, number, put, slice, slice_mut};
use crate::memory::Memory;
use crate::numbers::NumberFormat;
use crate::streams::{CardFault, Exchange, Task, code, machine};

/// 2.28.9.
const VERSION: c_int = 22_809;

const SUCCESS: c_int = 0;
const CUDA_ERROR: c_int = 1;
const SYSTEM_ERROR: c_int = 2;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;

/// Device memory of a communicator.
const COMMUNICATOR_BYTES: u64 = 24 << 20;

/// Additional device memory once exchanges are captured: 1.0 to 3.4 MiB were measured on a card.
const CAPTURED_BYTES: u64 = 3_560_000;

/// `ncclUniqueId`: the name of the folder.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([c_char; 128]);

/// The fields of `ncclConfig_t` that are read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

const MAGIC: u32 = 0xcafe_beef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeKind {
    AllGather,
    AllReduce,
    Broadcast { root: usize },
}

/// NCCL's number of a data type. Data other than f32, f16 or bf16 is copied, never added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DataType(c_int);

impl DataType {
    fn bytes(self) -> Option<usize> {
        match self.0 {
            0 | 1 => Some(1),
            2 | 3 | 7 => Some(4),
            4 | 5 | 8 => Some(8),
            6 | 9 => Some(2),
            _ => None,
        }
    }

    fn format(self) -> Option<NumberFormat> {
        match self.0 {
            6 => Some(NumberFormat::F16),
            7 => Some(NumberFormat::F32),
            9 => Some(NumberFormat::Bf16),
            _ => None,
        }
    }
}

/// This process's end of a communicator.
struct Communicator {
    folder: PathBuf,
    rank: usize,
    size: usize,
    card: usize,
    /// Number of issued tickets, and number of completed exchanges.
    num_issued: AtomicU64,
    num_done: AtomicU64,
    /// The last ticket whose contribution of this process is in the folder.
    brought: Mutex<Option<u64>>,
    has_joined: AtomicBool,
    is_captured: AtomicBool,
    is_aborted: AtomicBool,
    error: Mutex<Option<(c_int, CString)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Communicator {
    fn path(&self, kind: &str, rank: usize) -> PathBuf {
        self.folder.join(format!("{kind}-{rank}"))
    }

    /// Writes a file that other processes see completely or not at all.
    fn write(&self, kind: &str, bytes: &[u8]) -> std::io::Result<()> {
        let part = self.folder.join(format!("part-{}", self.rank));
        fs::write(&part, bytes)?;
        fs::rename(part, self.path(kind, self.rank))
    }

    fn fail(&self, status: c_int, text: String) -> c_int {
        let text = CString::new(text).unwrap_or_default();
        locked(&self.error).get_or_insert((status, text));
        status
    }

    /// `SUCCESS` once all other processes have joined.
    fn join(&self) -> c_int {
        if self.has_joined.load(Ordering::SeqCst) {
            return SUCCESS;
        }
        let mut places = HashMap::new();
        for rank in 0..self.size {
            let Ok(text) = fs::read_to_string(self.path("join", rank)) else {
                return IN_PROGRESS;
            };
            let place = text.rsplit_once(' ').map(|(place, _)| place.to_owned());
            if let Some(other) = places.insert(place, rank) {
                let text = format!(
                    "Duplicate GPU detected : rank {other} and rank {rank} both on {}",
                    bus_id(self.card)
                );
                return self.fail(INVALID_USAGE, text);
            }
        }
        let room = machine().map(|mut machine| {
            machine.cards[self.card]
                .memory
                .take_small(COMMUNICATOR_BYTES)
        });
        if room != Ok(true) {
            return self.fail(CUDA_ERROR, "out of memory".to_owned());
        }
        self.has_joined.store(true, Ordering::SeqCst);
        SUCCESS
    }

    /// A rank whose process has ended without leaving.
    fn lost_rank(&self) -> Option<usize> {
        (0..self.size).find(|&rank| {
            let text = fs::read_to_string(self.path("join", rank)).unwrap_or_default();
            let process = text.rsplit(' ').next().unwrap_or_default();
            !process.is_empty()
                && !PathBuf::from(format!("/proc/{process}")).exists()
                && !self.path("left", rank).exists()
        })
    }

    fn status(&self) -> c_int {
        if let Some((status, _)) = &*locked(&self.error) {
            return *status;
        }
        if let Some(rank) = self.lost_rank() {
            return self.fail(REMOTE_ERROR, format!("rank {rank} has ended"));
        }
        self.join()
    }

    /// Frees its device memory and leaves its folder; the last process removes the folder.
    fn leave(&self) {
        let taken = [
            (&self.has_joined, COMMUNICATOR_BYTES),
            (&self.is_captured, CAPTURED_BYTES),
        ];
        for (is_taken, bytes) in taken {
            if is_taken.swap(false, Ordering::SeqCst)
                && let Ok(mut machine) = machine()
            {
                machine.cards[self.card].memory.give_small(bytes);
            }
        }
        // If the file cannot be written, the folder does not exist.
        let _ = self.write("left", b"");
        if (0..self.size).all(|rank| self.path("left", rank).exists()) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A call that runs when its stream reaches it.
struct Call {
    communicator: Arc<Communicator>,
    kind: ExchangeKind,
    data_type: DataType,
    count: usize,
    from: u64,
    to: u64,
}

impl Call {
    /// Contents of this process's file: a header that describes the call, then the data.
    fn contribution(&self) -> Vec<u8> {
        let mut bytes = self.header();
        let is_silent =
            matches!(self.kind, ExchangeKind::Broadcast { root } if root != self.communicator.rank);
        if !is_silent {
            bytes.extend(slice::<u8>(self.from, self.num_bytes()));
        }
        bytes
    }

    fn header(&self) -> Vec<u8> {
        let mut text = format!("{:?} {:?} {}", self.kind, self.data_type, self.count).into_bytes();
        text.resize(64, b' ');
        text
    }

    fn num_bytes(&self) -> usize {
        self.count * self.data_type.bytes().unwrap_or(0)
    }

    /// Combines the contributions of all processes.
    fn finish(&self, parts: &[Vec<u8>]) -> Result<(), String> {
        let bytes = self.num_bytes();
        match self.kind {
            ExchangeKind::AllGather => {
                for (rank, part) in parts.iter().enumerate() {
                    slice_mut::<u8>(self.to + (rank * bytes) as u64, bytes).copy_from_slice(part);
                }
            }
            ExchangeKind::Broadcast { root } => {
                slice_mut::<u8>(self.to, bytes).copy_from_slice(&parts[root]);
            }
            ExchangeKind::AllReduce => {
                let format = self
                    .data_type
                    .format()
                    .ok_or("sums are of f32, f16 or bf16")?;
                let read = |part: &Vec<u8>| {
                    let mut values = vec![0f32; self.count];
                    format.read(part.as_ptr() as u64, self.count, 1, &mut values);
                    values
                };
                let parts: Vec<Vec<f32>> = parts.iter().map(read).collect();
                let sum = ring_sum(&parts);
                format.write(self.to, &sum);
            }
        }
        Ok(())
    }
}

/// Adds rows of equal length part by part; like in a ring, each part starts with a different row.
fn ring_sum(rows: &[Vec<f32>]) -> Vec<f32> {
    let count = rows[0].len();
    let part = count.div_ceil(rows.len()).max(1);
    let at = |index: usize| {
        let first = index / part;
        let sum = |sum: f32, turn: usize| sum + rows[(first + turn) % rows.len()][index];
        (1..rows.len()).fold(rows[first % rows.len()][index], sum)
    };
    (0..count).map(at).collect()
}

impl Task for Call {
    fn run(&self, _memory: &Memory) -> Result<(), CardFault> {
        Ok(())
    }

    fn seconds(&self) -> f64 {
        20e-6 + self.num_bytes() as f64 / 10e9
    }

    fn exchange(&self) -> Option<&dyn Exchange> {
        Some(self)
    }
}

impl Exchange for Call {
    fn take_ticket(&self) -> u64 {
        self.communicator.num_issued.fetch_add(1, Ordering::SeqCst)
    }

    fn advance(&self, ticket: u64) -> Result<bool, CardFault> {
        let fault = |message: String| CardFault {
            code: code::LAUNCH_FAILED,
            message,
        };
        let own = &*self.communicator;
        if own.is_aborted.load(Ordering::SeqCst) {
            return Ok(true);
        }
        if own.num_done.load(Ordering::SeqCst) != ticket {
            return Ok(false);
        }
        let name = ticket.to_string();
        let mut brought = locked(&own.brought);
        if *brought != Some(ticket) {
            own.write(&name, &self.contribution())
                .map_err(|error| fault(format!("an exchange cannot be written: {error}")))?;
            *brought = Some(ticket);
        }
        let mut parts = Vec::new();
        for rank in 0..own.size {
            let Ok(part) = fs::read(own.path(&name, rank)) else {
                return Ok(false);
            };
            let header = self.header();
            if part[..header.len()] != header {
                let [own, other] =
                    [&header, &part].map(|part| String::from_utf8_lossy(&part[..64]));
                return Err(fault(format!(
                    "exchange {ticket} is `{}` here and `{}` on rank {rank}",
                    own.trim(),
                    other.trim()
                )));
            }
            parts.push(part[header.len()..].to_vec());
        }
        self.finish(&parts).map_err(fault)?;
        // All processes have contributed to this exchange, so all have completed the previous one.
        if let Some(before) = ticket.checked_sub(1) {
            let _ = fs::remove_file(own.path(&before.to_string(), own.rank));
        }
        own.num_done.store(ticket + 1, Ordering::SeqCst);
        Ok(true)
    }
}

static COMMUNICATORS: Mutex<Option<HashMap<u64, Arc<Communicator>>>> = Mutex::new(None);

fn find(communicator: Handle) -> Option<Arc<Communicator>> {
    locked(&COMMUNICATORS)
        .as_ref()?
        .get(&number(communicator))
        .cloned()
}

thread_local! {
    /// Calls since the start of the group, with their streams; `None` outside of a group.
    static GROUP: RefCell<Option<Vec<(Call, u64)>>> = const { RefCell::new(None) };
}

/// Enqueues a call in its stream, now or at the end of the group.
fn issue(call: Call, stream: Handle) -> c_int {
    let Ok((machine, card)) = current_card() else {
        return INVALID_USAGE;
    };
    let bytes = call.num_bytes() as u64;
    let gathered = if call.kind == ExchangeKind::AllGather {
        bytes * call.communicator.size as u64
    } else {
        bytes
    };
    let is_reached = bytes == 0
        || (machine.reaches(card, call.from, bytes) && machine.reaches(card, call.to, gathered));
    drop(machine);
    if !is_reached || call.data_type.bytes().is_none() {
        return INVALID_ARGUMENT;
    }
    let stream = number(stream);
    let waiting = GROUP.with_borrow_mut(|group| match group {
        Some(calls) => {
            calls.push((call, stream));
            None
        }
        None => Some(call),
    });
    waiting.map_or(SUCCESS, |call| start(call, stream))
}

fn start(call: Call, stream: u64) -> c_int {
    let put = current_card().and_then(|(mut machine, card)| {
        let communicator = &call.communicator;
        if machine.is_captured(stream) && !communicator.is_captured.swap(true, Ordering::SeqCst) {
            let has_room = machine.cards[card].memory.take_small(CAPTURED_BYTES);
            communicator.is_captured.store(has_room, Ordering::SeqCst);
            if !has_room {
                return Err(code::OUT_OF_MEMORY);
            }
        }
        machine.put(stream, Arc::new(call))
    });
    match put {
        Ok(()) => SUCCESS,
        Err(code::OUT_OF_MEMORY) => CUDA_ERROR,
        Err(_) => INVALID_USAGE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    put(version, VERSION);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let folder = crate::nvrtc::own_folder().join("exchanges");
    remove_abandoned(&folder);
    let own = std::process::id();
    let time = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| time.as_nanos());
    let name = format!("{own}-{time}-{}", COUNT.fetch_add(1, Ordering::SeqCst));
    let path = folder.join(&name);
    if fs::create_dir_all(&path).is_err() {
        return SYSTEM_ERROR;
    }
    let mut bytes = [0; 128];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    put(id, UniqueId(bytes));
    SUCCESS
}

/// Removes folders whose processes were killed and that would remain for good.
fn remove_abandoned(folder: &std::path::Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.split('-').next());
        let lives =
            process.is_some_and(|process| PathBuf::from(format!("/proc/{process}")).exists());
        if !lives {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(
    to: *mut Handle,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    let Some(config) = get(config) else {
        return INVALID_ARGUMENT;
    };
    let is_known = config.magic == MAGIC && config.size >= size_of::<Config>();
    if !is_known || config.version == 0 || config.blocking != 0 || !(0..size).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    let name: String =
        id.0.iter()
            .take_while(|&&byte| byte != 0)
            .map(|&byte| byte as u8 as char)
            .collect();
    let Ok((mut machine, card)) = current_card() else {
        return INVALID_USAGE;
    };
    let made = machine.new_number();
    drop(machine);
    let communicator = Communicator {
        folder: crate::nvrtc::own_folder().join("exchanges").join(name),
        rank: rank as usize,
        size: size as usize,
        card,
        num_issued: AtomicU64::new(0),
        num_done: AtomicU64::new(0),
        brought: Mutex::new(None),
        has_joined: AtomicBool::new(false),
        is_captured: AtomicBool::new(false),
        is_aborted: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    let host = std::env::var("NCCL_HOSTID").unwrap_or_default();
    let joined = format!("{host} {} {}", bus_id(card), std::process::id());
    if communicator.write("join", joined.as_bytes()).is_err() {
        return SYSTEM_ERROR;
    }
    locked(&COMMUNICATORS)
        .get_or_insert_default()
        .insert(made, Arc::new(communicator));
    put(to, handle(made));
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(communicator: Handle, status: *mut c_int) -> c_int {
    let Some(found) = find(communicator) else {
        return INVALID_ARGUMENT;
    };
    put(status, found.status());
    SUCCESS
}

fn remove(communicator: Handle, is_abort: bool) -> c_int {
    let removed = locked(&COMMUNICATORS)
        .as_mut()
        .and_then(|all| all.remove(&number(communicator)));
    let Some(removed) = removed else {
        return INVALID_ARGUMENT;
    };
    removed.is_aborted.store(is_abort, Ordering::SeqCst);
    removed.leave();
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(communicator: Handle) -> c_int {
    remove(communicator, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(communicator: Handle) -> c_int {
    find(communicator).map_or(INVALID_ARGUMENT, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(communicator: Handle) -> c_int {
    remove(communicator, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|group| {
        group.get_or_insert_default();
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    let Some(calls) = GROUP.take() else {
        return INVALID_USAGE;
    };
    calls
        .into_iter()
        .map(|(call, stream)| start(call, stream))
        .find(|&status| status != SUCCESS)
        .unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    communicator: Handle,
    stream: Handle,
) -> c_int {
    call(
        ExchangeKind::AllGather,
        (from, to, count, data_type),
        communicator,
        stream,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    operation: c_int,
    communicator: Handle,
    stream: Handle,
) -> c_int {
    const SUM: c_int = 0;
    if operation != SUM {
        return INVALID_ARGUMENT;
    }
    call(
        ExchangeKind::AllReduce,
        (from, to, count, data_type),
        communicator,
        stream,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    root: c_int,
    communicator: Handle,
    stream: Handle,
) -> c_int {
    let root = root as usize;
    call(
        ExchangeKind::Broadcast { root },
        (from, to, count, data_type),
        communicator,
        stream,
    )
}

fn call(
    kind: ExchangeKind,
    (from, to, count, data_type): (u64, u64, usize, c_int),
    communicator: Handle,
    stream: Handle,
) -> c_int {
    let Some(communicator) = find(communicator) else {
        return INVALID_ARGUMENT;
    };
    if matches!(kind, ExchangeKind::Broadcast { root } if root >= communicator.size) {
        return INVALID_ARGUMENT;
    }
    let call = Call {
        communicator,
        kind,
        data_type: DataType(data_type),
        count,
        from,
        to,
    };
    issue(call, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    let text = match status {
        SUCCESS => c"no error",
        CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// The text lives as long as the communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(communicator: Handle) -> *const c_char {
    let Some(found) = find(communicator) else {
        return c"".as_ptr();
    };
    let error = locked(&found.error);
    error
        .as_ref()
        .map_or(c"".as_ptr(), |(_, text)| text.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_sum_begin_at_different_ranks() {
        let rows = vec![vec![1e8, 1e8, 1.0], vec![1.0; 3], vec![-1e8, -1e8, 1.0]];
        // (1e8 + 1) - 1e8 loses the 1, and so does (1 - 1e8) + 1e8; the last part has nothing to lose.
        let expected = [
            (1e8f32 + 1.0) - 1e8,
            (1.0f32 - 1e8) + 1e8,
            (1.0f32 + 1.0) + 1.0,
        ];
        assert_eq!(ring_sum(&rows), expected);
    }
}
