//! Checks for multi-process training: an MPI, needed only if a cluster's launcher starts the processes.

use holdall_processes::mpi::{self, FoundMpi, MissingMpi};

use super::Check;

pub(super) fn check() -> Check {
    if cfg!(windows) {
        let found = "not used on Windows: --processes and torchrun go by TCP";
        return Check::ok("MPI", found.to_owned());
    }
    mpi_check(mpi::find())
}

fn mpi_check(found: Result<Vec<FoundMpi>, MissingMpi>) -> Check {
    match found {
        Ok(found) => {
            let each = found
                .iter()
                .map(|mpi| format!("{} ({})", mpi.version, mpi.name));
            Check::ok("MPI", each.collect::<Vec<_>>().join(", "))
        }
        // No fault: most machines are not part of a cluster.
        Err(missing) => Check::ok(
            "MPI",
            format!(
                "none, and only mpirun and srun need one: --processes and torchrun go by TCP\nto have one: {}",
                missing.hint
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn every_mpi_is_named_and_none_is_no_fault() {
        let found = FoundMpi {
            name: "libmpi.so.40".to_owned(),
            version: "Open MPI 4.1.4".to_owned(),
        };
        let check = mpi_check(Ok(vec![found]));
        assert_eq!(check.found, "Open MPI 4.1.4 (libmpi.so.40)");
        let missing = MissingMpi {
            looked: vec!["libmpi.so.40".to_owned()],
            hint: "`apt install mpich`".to_owned(),
        };
        let check = mpi_check(Err(missing));
        assert!(check.status == Status::Ok && check.found.contains("apt install mpich"));
    }
}
