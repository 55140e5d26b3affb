//! Bindings of the MPI functions in use, for the handles of either family.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

/// An MPI handle: an address in Open MPI, a number in MPICH.
pub(super) trait Handle: Copy + Send + 'static {
    /// Values of the `mpi.h` constants in this library.
    fn constants(library: &'static Library) -> Result<Constants<Self>, String>;
}

/// Constants of `mpi.h`.
pub(super) struct Constants<H> {
    pub world: H,
    pub byte: H,
    pub errors_return: H,
    pub null_request: H,
    /// `MPI_STATUSES_IGNORE`.
    pub ignore: *mut c_void,
}

/// A handle of Open MPI. It is never dereferenced here, only passed back.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Address(*mut c_void);

// SAFETY: the address is never read through, and MPI allows handles to be used from any thread.
unsafe impl Send for Address {}

impl Handle for Address {
    fn constants(library: &'static Library) -> Result<Constants<Address>, String> {
        let address = |name: &str| -> Result<Address, String> {
            // SAFETY: the symbol is data; only its address is taken, and the library is never closed.
            let symbol = unsafe {
                let symbol = library.get::<*mut c_void>(name.as_bytes());
                symbol.map(|symbol| symbol.try_as_raw_ptr())
            };
            let symbol = symbol.map_err(|error| format!("{name}: {error}"))?;
            symbol
                .map(Address)
                .ok_or_else(|| format!("{name}: no address"))
        };
        Ok(Constants {
            world: address("ompi_mpi_comm_world")?,
            byte: address("ompi_mpi_byte")?,
            errors_return: address("ompi_mpi_errors_return")?,
            null_request: address("ompi_request_null")?,
            ignore: std::ptr::null_mut(),
        })
    }
}

impl Handle for c_int {
    fn constants(_: &'static Library) -> Result<Constants<c_int>, String> {
        Ok(Constants {
            world: 0x4400_0000,
            byte: 0x4c00_010d,
            errors_return: 0x5400_0001,
            null_request: 0x2c00_0000,
            ignore: std::ptr::without_provenance_mut(1),
        })
    }
}

pub(super) const SUCCESS: c_int = 0;
pub(super) const THREAD_SERIALIZED: c_int = 2;
pub(super) const THREAD_MULTIPLE: c_int = 3;
/// Longer than `MPI_MAX_ERROR_STRING` of either family (256 and 512).
const MOST_ERROR: usize = 1024;

/// `MPI_Get_library_version`, which may be called before anything else. The buffer is longer than
/// `MPI_MAX_LIBRARY_VERSION_STRING` of either family (256 and 8192).
pub(super) fn library_version(library: &'static Library) -> Result<String, String> {
    type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    // SAFETY: this is the function's type in every MPI since 3.0.
    let version = unsafe { library.get::<Version>(b"MPI_Get_library_version") };
    let version = version.map_err(|error| error.to_string())?;
    let mut text = vec![0u8; 16384];
    let mut len = 0;
    // SAFETY: the buffer has room for the longest text, and both pointers live through the call.
    let code = unsafe { version(text.as_mut_ptr().cast(), &mut len) };
    if code != SUCCESS {
        return Err(format!("MPI_Get_library_version returned {code}"));
    }
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(0);
    text.truncate(end);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

type InitThread =
    unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
type AskOf<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
type SetErrhandler<H> = unsafe extern "C" fn(H, H) -> c_int;
type Isend<H> = unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Irecv<H> = unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Testall<H> = unsafe extern "C" fn(c_int, *mut H, *mut c_int, *mut c_void) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// The functions of an opened MPI library.
pub(super) struct Functions<H: Handle> {
    pub constants: Constants<H>,
    init_thread: InitThread,
    initialized: Ask,
    finalized: Ask,
    comm_rank: AskOf<H>,
    comm_size: AskOf<H>,
    comm_set_errhandler: SetErrhandler<H>,
    isend: Isend<H>,
    irecv: Irecv<H>,
    testall: Testall<H>,
    error_string: ErrorString,
    finalize: Finalize,
}

// SAFETY: function pointers and constants of a library that is never closed.
unsafe impl<H: Handle> Send for Functions<H> {}

impl<H: Handle> Functions<H> {
    pub fn load(library: &'static Library) -> Result<Functions<H>, String> {
        /// A function of the library.
        ///
        /// # Safety
        /// `T` must be the function's type.
        unsafe fn get<T: Copy>(library: &'static Library, name: &str) -> Result<T, String> {
            // SAFETY: the caller's contract.
            let symbol = unsafe { library.get::<T>(name.as_bytes()) };
            symbol
                .map(|symbol| *symbol)
                .map_err(|error| format!("{name}: {error}"))
        }
        // SAFETY: the types are those of the MPI standard, with the family's handle type.
        unsafe {
            Ok(Functions {
                constants: H::constants(library)?,
                init_thread: get(library, "MPI_Init_thread")?,
                initialized: get(library, "MPI_Initialized")?,
                finalized: get(library, "MPI_Finalized")?,
                comm_rank: get(library, "MPI_Comm_rank")?,
                comm_size: get(library, "MPI_Comm_size")?,
                comm_set_errhandler: get(library, "MPI_Comm_set_errhandler")?,
                isend: get(library, "MPI_Isend")?,
                irecv: get(library, "MPI_Irecv")?,
                testall: get(library, "MPI_Testall")?,
                error_string: get(library, "MPI_Error_string")?,
                finalize: get(library, "MPI_Finalize")?,
            })
        }
    }

    /// Initialises MPI; returns whether calls may come from any thread, one at a time.
    pub fn init(&self) -> Result<bool, String> {
        let mut is_initialized = 0;
        // SAFETY: MPI_Initialized may be called at any time.
        self.check(unsafe { (self.initialized)(&mut is_initialized) })?;
        let mut provided = THREAD_MULTIPLE;
        if is_initialized == 0 {
            let nothing = std::ptr::null_mut();
            // SAFETY: since MPI 2, null is allowed for the process's arguments.
            self.check(unsafe {
                (self.init_thread)(
                    nothing,
                    std::ptr::null_mut(),
                    THREAD_MULTIPLE,
                    &mut provided,
                )
            })?;
        }
        let Constants {
            world,
            errors_return,
            ..
        } = self.constants;
        // SAFETY: both are handles of this library.
        self.check(unsafe { (self.comm_set_errhandler)(world, errors_return) })?;
        Ok(provided >= THREAD_SERIALIZED)
    }

    /// Rank and size in MPI_COMM_WORLD.
    pub fn rank_and_size(&self) -> Result<(usize, usize), String> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI has started, and both pointers live through the calls.
        unsafe {
            self.check((self.comm_rank)(self.constants.world, &mut rank))?;
            self.check((self.comm_size)(self.constants.world, &mut size))?;
        }
        let number = |number: c_int| usize::try_from(number).unwrap_or(0);
        Ok((number(rank), number(size)))
    }

    /// Starts a send.
    ///
    /// # Safety
    /// `bytes` must stay unchanged until the request is done.
    pub unsafe fn send(&self, bytes: &[u8], to: usize, tag: c_int) -> Result<H, String> {
        let mut request = self.constants.null_request;
        let Constants { world, byte, .. } = self.constants;
        let (count, to) = (length(bytes.len())?, length(to)?);
        // SAFETY: the caller's contract; handles are of this library.
        self.check(unsafe {
            (self.isend)(
                bytes.as_ptr().cast(),
                count,
                byte,
                to,
                tag,
                world,
                &mut request,
            )
        })?;
        Ok(request)
    }

    /// Starts a receive.
    ///
    /// # Safety
    /// No other code may read or write `bytes` until the request is done.
    pub unsafe fn receive(&self, bytes: &mut [u8], from: usize, tag: c_int) -> Result<H, String> {
        let mut request = self.constants.null_request;
        let Constants { world, byte, .. } = self.constants;
        let (count, from) = (length(bytes.len())?, length(from)?);
        // SAFETY: the caller's contract; handles are of this library.
        self.check(unsafe {
            (self.irecv)(
                bytes.as_mut_ptr().cast(),
                count,
                byte,
                from,
                tag,
                world,
                &mut request,
            )
        })?;
        Ok(request)
    }

    /// Whether all requests are done; also makes progress on them.
    pub fn are_done(&self, requests: &mut [H]) -> Result<bool, String> {
        let mut are_done = 0;
        let count = length(requests.len())?;
        // SAFETY: requests come from `send` and `receive`; statuses are ignored.
        self.check(unsafe {
            (self.testall)(
                count,
                requests.as_mut_ptr(),
                &mut are_done,
                self.constants.ignore,
            )
        })?;
        Ok(are_done != 0)
    }

    /// Finalises MPI, which waits for all processes to do so.
    pub fn finish(&self) {
        let mut is_finalized = 0;
        // SAFETY: MPI_Finalized may be called at any time; nothing is called after MPI_Finalize.
        unsafe {
            if (self.finalized)(&mut is_finalized) == SUCCESS && is_finalized == 0 {
                (self.finalize)();
            }
        }
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut text = [0u8; MOST_ERROR];
        let mut len = 0;
        // SAFETY: the buffer has room for the longest text, and both pointers live through the call.
        unsafe { (self.error_string)(code, text.as_mut_ptr().cast(), &mut len) };
        let len = usize::try_from(len).unwrap_or(0).min(MOST_ERROR);
        let text = String::from_utf8_lossy(&text[..len]);
        Err(format!("MPI returned {code}: {}", text.trim()))
    }
}

fn length(length: usize) -> Result<c_int, String> {
    c_int::try_from(length).map_err(|_| format!("{length} does not fit MPI's int"))
}
