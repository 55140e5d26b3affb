//! NCCL, opened at run time: exchanges between the GPUs of several processes.
//!
//! A communicator is nonblocking: calls return before they are done, so that a wait can end if a process is lost, and aborting is
//! safe. The algorithm is pinned to rings with the simple protocol, so that the order of additions depends only on the number of processes
//! and the set of cards, not on timing. Settings of the user's environment are kept.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdall_graph::DType;
use holdall_processes::{Deadlines, Group};
use libloading::Library;

use super::driver::{Buffer, Stream};
use super::libraries::nccl;
use crate::DeviceError;

type Raw = *mut c_void;
type Status = i32;

const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;
const SUM: i32 = 0;

/// NCCL's id of a communicator, passed by value, as in `nccl.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([c_char; 128]);

/// Settings of a communicator in version 2.18; later versions accept this shorter struct by its size and version.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    cluster_size: i32,
    least_blocks: i32,
    most_blocks: i32,
    network: *const c_char,
    split_share: i32,
}

const MAGIC: u32 = 0xcafe_beef;
const CONFIG_VERSION: u32 = 21_800;
const UNDEFINED: i32 = i32::MIN;

/// NCCL's functions.
struct Api {
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> Status,
    init: unsafe extern "C" fn(*mut Raw, i32, UniqueId, i32, *mut Config) -> Status,
    async_error: unsafe extern "C" fn(Raw, *mut Status) -> Status,
    abort: unsafe extern "C" fn(Raw) -> Status,
    finalize: unsafe extern "C" fn(Raw) -> Status,
    destroy: unsafe extern "C" fn(Raw) -> Status,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    all_gather: unsafe extern "C" fn(u64, u64, usize, i32, Raw, Raw) -> Status,
    all_reduce: unsafe extern "C" fn(u64, u64, usize, i32, i32, Raw, Raw) -> Status,
    broadcast: unsafe extern "C" fn(u64, u64, usize, i32, i32, Raw, Raw) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    last_error: unsafe extern "C" fn(Raw) -> *const c_char,
}

fn symbols(library: &Library) -> Result<Api, libloading::Error> {
    // SAFETY: the types are those of the header, since version 2.18.
    unsafe {
        Ok(Api {
            unique_id: *library.get(b"ncclGetUniqueId")?,
            init: *library.get(b"ncclCommInitRankConfig")?,
            async_error: *library.get(b"ncclCommGetAsyncError")?,
            abort: *library.get(b"ncclCommAbort")?,
            finalize: *library.get(b"ncclCommFinalize")?,
            destroy: *library.get(b"ncclCommDestroy")?,
            group_start: *library.get(b"ncclGroupStart")?,
            group_end: *library.get(b"ncclGroupEnd")?,
            all_gather: *library.get(b"ncclAllGather")?,
            all_reduce: *library.get(b"ncclAllReduce")?,
            broadcast: *library.get(b"ncclBroadcast")?,
            error_string: *library.get(b"ncclGetErrorString")?,
            last_error: *library.get(b"ncclGetLastError")?,
        })
    }
}

/// Version of an open library, such as `2.28.9`.
pub(super) fn version_of(library: &Library) -> Option<String> {
    type Version = unsafe extern "C" fn(*mut i32) -> Status;
    let mut version = 0;
    // SAFETY: writes one int to the given address, as the type declares.
    let status = unsafe { library.get::<Version>(b"ncclGetVersion").ok()?(&mut version) };
    let parts = [version / 10_000, version / 100 % 100, version % 100];
    (status == SUCCESS).then(|| parts.map(|part| part.to_string()).join("."))
}

/// Part of the memory that is exchanged.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExchangedMemory {
    pub address: u64,
    pub elements: usize,
    pub dtype: DType,
}

/// A communicator between this process's card and the cards of all other processes.
pub(super) struct Nccl {
    api: Api,
    comm: Raw,
    group: Group,
    is_aborted: AtomicBool,
    /// Ensures that one thread at a time calls the communicator.
    turn: Mutex<()>,
    /// Statistics of waits for the card.
    waits: Mutex<CardWaits>,
}

/// Count and maximum of completed waits for the card.
#[derive(Default)]
struct CardWaits {
    count: u64,
    longest: Duration,
}

impl CardWaits {
    /// Limit of the next wait: ten times the longest, once enough waits are recorded.
    fn limit(&self, deadlines: Deadlines) -> Duration {
        if self.count >= KNOWN_WAITS {
            deadlines.silence.max(10 * self.longest)
        } else {
            deadlines.stall
        }
    }

    fn add(&mut self, waited: Duration) {
        self.count += 1;
        self.longest = self.longest.max(waited);
    }
}

// SAFETY: a communicator may be used from any thread, one call at a time, which `turn` ensures.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

/// Settings that fix the order of additions.
const PINNED: [(&str, &str); 3] = [
    ("NCCL_ALGO", "Ring"),
    ("NCCL_PROTO", "Simple"),
    ("NCCL_NVLS_ENABLE", "0"),
];

impl Nccl {
    /// Connects to the other processes; the card's context must be current. Creates every connection and buffer before it returns.
    pub fn open(group: &Group) -> Result<Nccl, DeviceError> {
        let library = nccl().map_err(|missing| DeviceError::Missing(missing.to_string()))?;
        let api = symbols(library).map_err(|error| {
            DeviceError::Missing(format!(
                "NCCL is older than 2.18: {error}\nhint: `holdall doctor` says which one was found"
            ))
        })?;
        for (name, value) in PINNED {
            if std::env::var_os(name).is_none() {
                // SAFETY: the only readers of these names are NCCL, which has not started, and `settings`, later on this thread.
                unsafe { std::env::set_var(name, value) };
            }
        }
        let mut id = UniqueId([0; 128]);
        if group.rank() == 0 {
            // SAFETY: the id is written to a local of its size.
            let status = unsafe { (api.unique_id)(&mut id) };
            if status != SUCCESS {
                return Err(failed(&api, null_mut(), status, "ncclGetUniqueId"));
            }
        }
        let mut bytes: Vec<u8> = id.0.iter().map(|&byte| byte as u8).collect();
        group
            .broadcast(&mut bytes)
            .map_err(|error| DeviceError::Failed(error.to_string()))?;
        for (to, from) in id.0.iter_mut().zip(bytes) {
            *to = from as c_char;
        }
        let mut config = Config {
            size: size_of::<Config>(),
            magic: MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cluster_size: UNDEFINED,
            least_blocks: UNDEFINED,
            most_blocks: UNDEFINED,
            network: null_mut(),
            split_share: UNDEFINED,
        };
        let mut comm = null_mut();
        let (size, rank) = (group.size() as i32, group.rank() as i32);
        // SAFETY: the handle is written to a local; id and settings have the types of the header.
        let status = unsafe { (api.init)(&mut comm, size, id, rank, &mut config) };
        if status != SUCCESS && status != IN_PROGRESS {
            return Err(failed(&api, comm, status, "ncclCommInitRankConfig"));
        }
        let nccl = Nccl {
            api,
            comm,
            group: group.clone(),
            is_aborted: AtomicBool::new(false),
            turn: Mutex::new(()),
            waits: Mutex::default(),
        };
        nccl.settle("joining the others")?;
        nccl.connect()?;
        Ok(nccl)
    }

    /// Performs one exchange of each kind, which creates the connections and their buffers.
    fn connect(&self) -> Result<(), DeviceError> {
        let elements = self.group.size() * CONNECTING_ELEMENTS;
        let (buffer, stream) = (Buffer::new(4 * elements as u64)?, Stream::new()?);
        stream.clear(buffer.address, buffer.bytes)?;
        let piece = ExchangedMemory {
            address: buffer.address,
            elements,
            dtype: DType::F32,
        };
        self.all_gather(&[piece], &stream)?;
        self.all_reduce(&[piece], &stream)?;
        self.take_from_owners(&[piece], &[0], &stream)?;
        self.wait(&stream)
    }

    /// Everything that the order of additions depends on, apart from the processes and their machines: version and settings.
    pub fn describe(&self) -> String {
        let setting = |(name, _): (&str, &str)| {
            let value = std::env::var(name).unwrap_or_default();
            format!("{name}={value}")
        };
        let version = nccl().ok().and_then(version_of);
        let version = format!("NCCL {}", version.unwrap_or_default());
        let words = [version].into_iter().chain(PINNED.map(setting));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Gathers each piece in place: it has one equal part per process, and each process has filled its own.
    pub fn all_gather(
        &self,
        pieces: &[ExchangedMemory],
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let (size, rank) = (self.group.size(), self.group.rank());
        self.together("ncclAllGather", pieces, |piece| {
            let own = piece.elements / size;
            assert_eq!(own * size, piece.elements, "equal parts");
            let offset = (rank * own * piece.dtype.bytes()) as u64;
            // SAFETY: the piece is in memory of this context that outlives the stream's work.
            unsafe {
                (self.api.all_gather)(
                    piece.address + offset,
                    piece.address,
                    own,
                    data_type(piece.dtype),
                    self.comm,
                    stream.raw(),
                )
            }
        })
    }

    /// Sums each piece over all processes, in place.
    pub fn all_reduce(
        &self,
        pieces: &[ExchangedMemory],
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        self.together("ncclAllReduce", pieces, |piece| {
            // SAFETY: as above.
            unsafe {
                (self.api.all_reduce)(
                    piece.address,
                    piece.address,
                    piece.elements,
                    data_type(piece.dtype),
                    SUM,
                    self.comm,
                    stream.raw(),
                )
            }
        })
    }

    /// Copies each piece from its owner to all processes, in place.
    pub fn take_from_owners(
        &self,
        pieces: &[ExchangedMemory],
        owners: &[usize],
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let owned: Vec<(ExchangedMemory, usize)> =
            pieces.iter().copied().zip(owners.iter().copied()).collect();
        self.together("ncclBroadcast", &owned, |(piece, owner)| {
            // SAFETY: as above.
            unsafe {
                (self.api.broadcast)(
                    piece.address,
                    piece.address,
                    piece.elements,
                    data_type(piece.dtype),
                    *owner as i32,
                    self.comm,
                    stream.raw(),
                )
            }
        })
    }

    fn together<T>(
        &self,
        call: &'static str,
        pieces: &[T],
        one: impl Fn(&T) -> Status,
    ) -> Result<(), DeviceError> {
        let _turn = self.turn.lock().expect("nothing panics with it");
        let checked = |status: Status| match status {
            SUCCESS | IN_PROGRESS => Ok(()),
            status => Err(failed(&self.api, self.comm, status, call)),
        };
        // SAFETY: no arguments; every group start has its group end.
        checked(unsafe { (self.api.group_start)() })?;
        let issued = pieces.iter().try_for_each(|piece| checked(one(piece)));
        // SAFETY: as above.
        let ended = checked(unsafe { (self.api.group_end)() });
        issued.and(ended)?;
        self.settle(call)
    }

    /// Waits until the communicator has accepted its calls; does not wait for the work.
    fn settle(&self, what: &str) -> Result<(), DeviceError> {
        let began = Instant::now();
        loop {
            let mut status = SUCCESS;
            // SAFETY: the status is written to a local; the communicator is alive.
            let asked = unsafe { (self.api.async_error)(self.comm, &mut status) };
            match (asked, status) {
                (SUCCESS, SUCCESS) => return Ok(()),
                (SUCCESS, IN_PROGRESS) => {}
                (SUCCESS, status) | (status, _) => {
                    let error = failed(&self.api, self.comm, status, what);
                    self.abort();
                    return Err(error);
                }
            }
            self.look_around()?;
            if began.elapsed() > PATIENCE {
                self.abort();
                return Err(DeviceError::Failed(format!(
                    "NCCL: {what} took longer than {} s\n\
                     hint: NCCL_DEBUG=INFO says what it waits for; NCCL_SOCKET_IFNAME names the network to use",
                    PATIENCE.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns an error if another process is lost, since a wait for it would never end. Also signals that this process is alive.
    fn look_around(&self) -> Result<(), DeviceError> {
        self.group.goes_on();
        let Some(error) = self.group.error() else {
            return Ok(());
        };
        self.abort();
        Err(DeviceError::Failed(error.to_string()))
    }

    /// Waits for the work of a stream, or until a process is lost.
    pub fn wait(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.wait_until(|| stream.is_done())
    }

    /// Waits until `is_done`, or until a process is lost.
    pub fn wait_until(
        &self,
        is_done: impl Fn() -> Result<bool, DeviceError>,
    ) -> Result<(), DeviceError> {
        let waited = self.wait_within(&is_done);
        let mut waits = self.waits.lock().expect("nothing panics with it");
        waited.map(|waited| waits.add(waited))
    }

    fn wait_within(
        &self,
        is_done: &dyn Fn() -> Result<bool, DeviceError>,
    ) -> Result<Duration, DeviceError> {
        let waits = self.waits.lock().expect("nothing panics with it");
        let limit = waits.limit(self.group.deadlines());
        drop(waits);
        let began = Instant::now();
        while !is_done()? {
            // Short waits spin, so that their end is noticed at once; long waits use no core.
            if began.elapsed() > SPINNING {
                self.look_around()?;
                let mut status = SUCCESS;
                // SAFETY: the status is written to a local; the communicator is alive.
                unsafe { (self.api.async_error)(self.comm, &mut status) };
                if status != SUCCESS && status != IN_PROGRESS {
                    let error = failed(&self.api, self.comm, status, "an exchange");
                    self.abort();
                    return Err(error);
                }
                if began.elapsed() > limit {
                    self.group.fail(&format!(
                        "its card has not come back for {} s: it hangs, or the network between the cards does\n\
                         hint: NCCL_DEBUG=INFO says what it waits for; docs/clusters.md has what usually helps",
                        limit.as_secs()
                    ));
                    self.look_around()?;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(began.elapsed())
    }

    fn abort(&self) {
        if !self.is_aborted.swap(true, Ordering::SeqCst) {
            // SAFETY: nonblocking communicators may be aborted at any time, once.
            unsafe { (self.api.abort)(self.comm) };
        }
    }
}

/// Time limit for connecting to the other processes and for submitting an exchange.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of recorded waits after which their longest sets the limit.
const KNOWN_WAITS: u64 = 100;

/// Time that a wait spins before it pauses between checks.
const SPINNING: Duration = Duration::from_millis(2);

/// Elements per process in the connecting exchanges: enough to use every channel.
const CONNECTING_ELEMENTS: usize = 1 << 20;

fn data_type(dtype: DType) -> i32 {
    match dtype {
        DType::U8 => 1,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
    }
}

fn failed(api: &Api, comm: Raw, status: Status, call: &str) -> DeviceError {
    // SAFETY: both functions return text that lives as long as the library.
    let texts = unsafe { [(api.error_string)(status), (api.last_error)(comm)] };
    let texts = texts.map(|text| {
        if text.is_null() {
            String::new()
        } else {
            // SAFETY: not null, and terminated by a zero.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        }
    });
    DeviceError::Failed(format!(
        "NCCL: {call}: {} {}\nhint: NCCL_DEBUG=WARN says more; docs/clusters.md has what usually helps",
        texts[0], texts[1]
    ))
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.is_aborted.load(Ordering::SeqCst) {
            return;
        }
        if self.group.error().is_some() {
            return self.abort();
        }
        // SAFETY: nothing runs any more, and nothing uses the communicator after this.
        unsafe {
            (self.api.finalize)(self.comm);
            if self.settle("leaving the others").is_ok() {
                (self.api.destroy)(self.comm);
            }
        }
    }
}
