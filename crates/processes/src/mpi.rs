//! MPI, opened at run time: whichever of the two families of libraries started this process.
//!
//! MPI's standard names functions and not bytes. In Open MPI a handle is the address of a symbol of the library, in MPICH and
//! what descends from it (Intel MPI, MVAPICH, Cray MPICH) a number; the functions are the same. So each is bound once, for
//! either kind of handle. Values are those of Open MPI 4.1.4's and MPICH 4.0.2's `mpi.h`; both projects promise not to change
//! them within `libmpi.so.40` and `libmpi.so.12`.
//!
//! Only point-to-point messages are used, and waiting is asking: an MPI that waits inside of a call would wait for a lost
//! process for ever.

mod functions;
mod library;
mod rounds;

pub use library::{FoundMpi, MissingMpi, find};

pub(crate) use library::{Family, open};
pub(crate) use rounds::Mpi;
