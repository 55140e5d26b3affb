//! Rank and size of this process, from the environment variables of its launcher.
//!
//! | launcher | rank | size | on this machine |
//! |---|---|---|---|
//! | `--processes N`, or by hand | HOLDALL_RANK | HOLDALL_SIZE | HOLDALL_LOCAL_RANK, HOLDALL_LOCAL_SIZE |
//! | torchrun | RANK | WORLD_SIZE | LOCAL_RANK, LOCAL_WORLD_SIZE |
//! | Open MPI's mpirun | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_SIZE | OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE |
//! | MPICH's and Intel's mpiexec, srun with PMI | PMI_RANK | PMI_SIZE | MPI_LOCALRANKID, MPI_LOCALNRANKS |
//! | srun | SLURM_PROCID | SLURM_STEP_NUM_TASKS | SLURM_LOCALID |
//!
//! The first row whose variables are set counts: it is the innermost of the launchers that are usually nested. Further variables must
//! agree, except Slurm's, which often starts another launcher on every machine, and those of the launcher that started torchrun.
//!
//! Slurm's variables count only inside a step that srun started. A batch script and an interactive shell have SLURM_PROCID=0
//! and SLURM_NTASKS=4 as well, although no other process would come: they have no SLURM_STEP_NUM_TASKS, or a SLURM_STEP_ID that is
//! one of Slurm's reserved numbers at the end of the 32-bit range.

use crate::error::GroupError;
use crate::hello::MOST_PROCESSES;

/// The program that started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// No launcher: one process.
    Alone,
    /// `--processes N`, or variables set by hand.
    Holdall,
    /// PyTorch's torchrun.
    Torchrun,
    /// Open MPI's mpirun or mpiexec.
    OpenMpi,
    /// A launcher with PMI: MPICH's or Intel's mpiexec.
    Pmi,
    Slurm,
}

/// This process's place in its group, by the launcher's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub launcher: Launcher,
    pub rank: usize,
    pub size: usize,
    /// Rank among the processes of this machine, where the launcher says.
    pub local_rank: Option<usize>,
    /// Number of processes on this machine, where the launcher says.
    pub local_size: Option<usize>,
}

/// Names of a launcher's variables.
struct LauncherVariables {
    launcher: Launcher,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

/// Innermost launcher first.
const VARIABLES: [LauncherVariables; 5] = [
    LauncherVariables {
        launcher: Launcher::Holdall,
        rank: "HOLDALL_RANK",
        size: "HOLDALL_SIZE",
        local_rank: "HOLDALL_LOCAL_RANK",
        local_size: "HOLDALL_LOCAL_SIZE",
    },
    LauncherVariables {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
    },
    LauncherVariables {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    LauncherVariables {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
    },
    LauncherVariables {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "",
    },
];

/// Slurm step ids from here on mean batch scripts, interactive shells and the like.
const FIRST_RESERVED_STEP: u64 = 0xffff_fff0;

/// Looks up a variable by name; tests pass their own.
pub(crate) type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// An environment variable; `None` where it is unset, empty or not UTF-8.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Launch {
    /// Reads the variables of this process.
    ///
    /// # Errors
    /// [`GroupError::Launch`] where they are incomplete, contradict each other, or are not numbers.
    pub fn from_environment() -> Result<Launch, GroupError> {
        Launch::read(&variable)
    }

    pub(crate) fn read(variables: &Variables<'_>) -> Result<Launch, GroupError> {
        let mut found = Vec::new();
        for names in &VARIABLES {
            found.extend(names.read(variables)?.map(|launch| (names, launch)));
        }
        let Some((names, launch)) = found.first() else {
            if let Some(rank) = variables("PMIX_RANK").filter(|_| !in_slurm(variables)) {
                return Err(GroupError::Launch(format!(
                    "PMIX_RANK={rank}: expected the number of processes beside it, found neither OMPI_COMM_WORLD_SIZE nor \
                     SLURM_STEP_NUM_TASKS\n\
                     hint: set HOLDALL_RANK and HOLDALL_SIZE; `env -u PMIX_RANK holdall ...` for one process alone"
                )));
            }
            return Ok(Launch::alone());
        };
        let is_outer = |other: Launcher| match launch.launcher {
            Launcher::Holdall => true,
            Launcher::Torchrun if variables("TORCHELASTIC_RUN_ID").is_some() => true,
            _ => other == Launcher::Slurm,
        };
        for (other_names, other) in &found[1..] {
            if !is_outer(other.launcher) && (other.rank, other.size) != (launch.rank, launch.size) {
                return Err(GroupError::Launch(format!(
                    "{}={} and {}={}, but {}={} and {}={}: expected launchers that agree on this process\n\
                     hint: one was started inside of the other; unset the variables of the one that does not count",
                    names.rank,
                    launch.rank,
                    names.size,
                    launch.size,
                    other_names.rank,
                    other.rank,
                    other_names.size,
                    other.size
                )));
            }
        }
        Ok(launch.clone())
    }

    pub fn alone() -> Launch {
        Launch {
            launcher: Launcher::Alone,
            rank: 0,
            size: 1,
            local_rank: None,
            local_size: None,
        }
    }

    /// The launcher and its variables, for messages.
    pub fn describe(&self) -> &'static str {
        match self.launcher {
            Launcher::Alone => "nobody",
            Launcher::Holdall => "HOLDALL_RANK and HOLDALL_SIZE",
            Launcher::Torchrun => "torchrun (RANK, WORLD_SIZE)",
            Launcher::OpenMpi => "Open MPI's mpirun (OMPI_COMM_WORLD_RANK)",
            Launcher::Pmi => "mpiexec (PMI_RANK)",
            Launcher::Slurm => "srun (SLURM_PROCID)",
        }
    }
}

impl LauncherVariables {
    fn read(&self, variables: &Variables<'_>) -> Result<Option<Launch>, GroupError> {
        if self.launcher == Launcher::Slurm && !in_slurm(variables) {
            return Ok(None);
        }
        let rank = number(self.rank, variables)?;
        let size = number(self.size, variables)?;
        let (rank, size) = match (rank, size) {
            (None, None) => return Ok(None),
            (Some(rank), Some(size)) => (rank, size),
            (rank, _) => {
                let (here, missing) = match rank {
                    Some(_) => (self.rank, self.size),
                    None => (self.size, self.rank),
                };
                return Err(GroupError::Launch(format!(
                    "{here}={}: expected {missing} beside it, found none\n\
                     hint: set {missing}, or `env -u {here} holdall ...` for one process alone",
                    variables(here).unwrap_or_default()
                )));
            }
        };
        if size == 0 || size > MOST_PROCESSES {
            return Err(GroupError::Launch(format!(
                "{}={size}: expected 1 to {MOST_PROCESSES} processes\n\
                 hint: one process for every GPU, or one for every machine without",
                self.size
            )));
        }
        below(self.rank, rank, self.size, size)?;
        let [local_rank, local_size] = [
            number(self.local_rank, variables)?,
            number(self.local_size, variables)?,
        ];
        match (local_rank, local_size) {
            (Some(local_rank), Some(local_size)) => {
                below(self.local_rank, local_rank, self.local_size, local_size)?;
            }
            (Some(local_rank), None) => below(self.local_rank, local_rank, self.size, size)?,
            _ => {}
        }
        if let Some(local_size) = local_size.filter(|&local_size| local_size > size) {
            return Err(GroupError::Launch(format!(
                "{}={local_size}: expected at most {size}, as {} says\n\
                 hint: the variables are those of two launchers; unset the ones that do not count",
                self.local_size, self.size
            )));
        }
        Ok(Some(Launch {
            launcher: self.launcher,
            rank,
            size,
            local_rank,
            local_size,
        }))
    }
}

fn below(name: &str, number: usize, of: &str, size: usize) -> Result<(), GroupError> {
    if number < size {
        return Ok(());
    }
    Err(GroupError::Launch(format!(
        "{name}={number}: expected 0 to {}, as {of}={size} says\n\
         hint: the variables are those of two launchers; unset the ones that do not count",
        size.saturating_sub(1)
    )))
}

fn number(name: &str, variables: &Variables<'_>) -> Result<Option<usize>, GroupError> {
    let Some(text) = variables(name).filter(|_| !name.is_empty()) else {
        return Ok(None);
    };
    let number: Option<u32> = text.trim().parse().ok();
    match number {
        Some(number) => Ok(Some(number as usize)),
        None => Err(GroupError::Launch(format!(
            "{name}={text}: expected a whole number\n\
             hint: the launcher sets it; `env -u {name} holdall ...` where it means something else"
        ))),
    }
}

/// Whether srun started this process as one task of a step.
fn in_slurm(variables: &Variables<'_>) -> bool {
    let step: Option<u64> = variables("SLURM_STEP_ID").and_then(|text| text.trim().parse().ok());
    step.is_some_and(|step| step < FIRST_RESERVED_STEP)
        && variables("SLURM_STEP_NUM_TASKS").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Launch, String> {
        let look = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Launch::read(&look).map_err(|error| error.to_string())
    }

    #[test]
    fn every_launcher_is_known_by_its_variables() {
        assert_eq!(read(&[]), Ok(Launch::alone()));
        for (launcher, variables) in [
            (
                Launcher::Torchrun,
                [
                    ("RANK", "3"),
                    ("WORLD_SIZE", "8"),
                    ("LOCAL_RANK", "1"),
                    ("LOCAL_WORLD_SIZE", "2"),
                ],
            ),
            (
                Launcher::OpenMpi,
                [
                    ("OMPI_COMM_WORLD_RANK", "3"),
                    ("OMPI_COMM_WORLD_SIZE", "8"),
                    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ],
            ),
            (
                Launcher::Pmi,
                [
                    ("PMI_RANK", "3"),
                    ("PMI_SIZE", "8"),
                    ("MPI_LOCALRANKID", "1"),
                    ("MPI_LOCALNRANKS", "2"),
                ],
            ),
        ] {
            let launch = Launch {
                launcher,
                rank: 3,
                size: 8,
                local_rank: Some(1),
                local_size: Some(2),
            };
            assert_eq!(read(&variables), Ok(launch));
        }
    }

    #[test]
    fn a_batch_script_is_one_process_and_a_step_is_many() {
        let batch = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_LOCALID", "0"),
        ];
        assert_eq!(read(&batch), Ok(Launch::alone()));
        let step = |id| {
            let step = [("SLURM_STEP_ID", id), ("SLURM_STEP_NUM_TASKS", "4")];
            read(&[&batch[..], &step].concat()).map(|launch| (launch.launcher, launch.size))
        };
        assert_eq!(step("0"), Ok((Launcher::Slurm, 4)));
        // Batch and interactive steps.
        assert_eq!(step("4294967291"), Ok((Launcher::Alone, 1)));
        assert_eq!(step("4294967290"), Ok((Launcher::Alone, 1)));
    }

    #[test]
    fn launchers_nest_or_contradict() {
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "2"),
        ];
        let torchrun = [("RANK", "5"), ("WORLD_SIZE", "8")];
        let launch = read(&[&slurm[..], &torchrun].concat()).unwrap();
        assert_eq!((launch.launcher, launch.rank), (Launcher::Torchrun, 5));
        let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let error = read(&[&mpirun[..], &torchrun].concat()).unwrap_err();
        assert!(
            error.starts_with("RANK=5 and WORLD_SIZE=8, but OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2: expected")
                && error.contains("\nhint: "),
            "{error}"
        );
        let elastic = [("TORCHELASTIC_RUN_ID", "none")];
        let launch = read(&[&mpirun[..], &torchrun, &elastic].concat()).unwrap();
        assert_eq!(launch.launcher, Launcher::Torchrun);
    }

    #[test]
    fn what_is_half_there_or_no_number_is_named() {
        for (variables, expected) in [
            (
                &[("RANK", "1")][..],
                "RANK=1: expected WORLD_SIZE beside it, found none",
            ),
            (
                &[("PMI_SIZE", "2")],
                "PMI_SIZE=2: expected PMI_RANK beside it, found none",
            ),
            (
                &[("RANK", "4"), ("WORLD_SIZE", "4")],
                "RANK=4: expected 0 to 3, as WORLD_SIZE=4 says",
            ),
            (
                &[("RANK", "x"), ("WORLD_SIZE", "4")],
                "RANK=x: expected a whole number",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "0")],
                "WORLD_SIZE=0: expected 1 to 4096 processes",
            ),
            (
                &[
                    ("RANK", "0"),
                    ("WORLD_SIZE", "4"),
                    ("LOCAL_RANK", "2"),
                    ("LOCAL_WORLD_SIZE", "2"),
                ],
                "LOCAL_RANK=2: expected 0 to 1, as LOCAL_WORLD_SIZE=2 says",
            ),
            (
                &[
                    ("RANK", "0"),
                    ("WORLD_SIZE", "4"),
                    ("LOCAL_RANK", "2"),
                    ("LOCAL_WORLD_SIZE", "8"),
                ],
                "LOCAL_WORLD_SIZE=8: expected at most 4, as WORLD_SIZE says",
            ),
            (
                &[("PMIX_RANK", "1")],
                "PMIX_RANK=1: expected the number of processes beside it",
            ),
        ] {
            let error = read(variables).unwrap_err();
            assert!(
                error.starts_with(expected) && error.contains("\nhint: "),
                "{error}"
            );
        }
    }
}
