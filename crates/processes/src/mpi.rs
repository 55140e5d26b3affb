//! MPI, opened at run time: the library, of either of two families, that started this process.
//!
//! MPI's standard fixes function names but no binary interface. In Open MPI a handle is the address of a library symbol; in MPICH and its
//! descendants (Intel MPI, MVAPICH, Cray MPICH) it is a number; the functions are the same. So the bindings are generic over the
//! handle type. Constants are those of Open MPI 4.1.4's and MPICH 4.0.2's `mpi.h`; both projects promise not to change
//! them within `libmpi.so.40` and `libmpi.so.12`.
//!
//! Only point-to-point messages are used, and waiting means polling: a blocking MPI call would wait for a lost process for ever.

mod functions;
mod library;
mod rounds;

pub use library::{FoundMpi, MissingMpi, find};

pub(crate) use library::{Family, open};
pub(crate) use rounds::Mpi;
