//! From the launcher's variables to a group: the table of rendezvous addresses and tokens.
//!
//! | launcher | rank 0 listens on | token |
//! |---|---|---|
//! | `--processes N` | loopback, a port that the launcher chose | random, from the launcher |
//! | mpirun, mpiexec, srun with an MPI | the interface towards the others, a port that the system chose | random, sent by MPI |
//! | torchrun | MASTER_ADDR, MASTER_PORT + 1 (torchrun itself listens on MASTER_PORT) | derived from the job |
//! | srun without MPI | the first machine of the step, a port derived from the job | derived from the job |
//!
//! HOLDALL_ADDRESS, HOLDALL_PORT and HOLDALL_TOKEN override all of these; HOLDALL_MPI=none disables MPI. A derived token
//! separates jobs; only a random one, or HOLDALL_TOKEN, keeps out processes that know the job's variables.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::address::{
    address_to_bind, hex, host_name, listen, meeting_point, no_listener, random_token, reachable,
    towards, unhex, way_out_of, with_port,
};
use crate::bulk::{Interruption, Round, Span, Transport};
use crate::connect::connect;
use crate::deadlines::Deadlines;
use crate::error::GroupError;
use crate::group::Group;
use crate::hello::Token;
use crate::launch::{Launch, Launcher, Variables, variable};
use crate::mpi::{self, Family, Mpi};
use crate::rendezvous::{Arrival, MeetingPlace};

/// Variable with the seconds of silence after which a process is lost.
pub const DEADLINE_VARIABLE: &str = "HOLDALL_DEADLINE";

/// Largest text that MPI carries about a machine or an address.
const MOST_NOTE: usize = 512;

impl Group {
    /// The group that this process's variables describe: [`Group::alone`] where there are none. Waits for all processes.
    /// `version` must be the same on all.
    ///
    /// # Errors
    /// [`GroupError::Launch`] where variables contradict each other, [`GroupError::Start`] where the processes do not meet.
    pub fn start(launch: &Launch, version: &str) -> Result<Group, GroupError> {
        let deadlines = deadlines(&variable)?;
        if launch.size == 1 {
            return Ok(Group::alone());
        }
        let mut meeting = Meeting {
            launch,
            version,
            deadlines,
            variables: &variable,
        };
        match meeting.mpi()? {
            Some(mpi) => meeting.by_mpi(mpi),
            None => meeting.by_tcp(),
        }
    }
}

/// HOLDALL_DEADLINE sets the silence deadline; the start deadline is at least a minute.
pub(crate) fn deadlines(variables: &Variables<'_>) -> Result<Deadlines, GroupError> {
    let Some(text) = variables(DEADLINE_VARIABLE) else {
        return Ok(Deadlines::default());
    };
    let seconds: Option<f64> = text.trim().parse().ok();
    match seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds)) {
        Some(seconds) => {
            let silence = Duration::from_secs_f64(seconds);
            let usual = Deadlines::default();
            Ok(Deadlines {
                start: silence.max(usual.start),
                stall: silence.max(usual.stall),
                silence,
            })
        }
        None => Err(GroupError::Launch(format!(
            "{DEADLINE_VARIABLE}={text}: expected seconds from 0.1 to 86400\n\
             hint: {DEADLINE_VARIABLE}=60 is the default"
        ))),
    }
}

struct Meeting<'a> {
    launch: &'a Launch,
    version: &'a str,
    deadlines: Deadlines,
    variables: &'a Variables<'a>,
}

impl Meeting<'_> {
    fn arrival(&self, token: Token, place: MeetingPlace, needs_bulk: bool) -> Arrival {
        Arrival {
            rank: self.launch.rank,
            size: self.launch.size,
            local_rank: self.launch.local_rank,
            local_size: self.launch.local_size,
            host: host_name(),
            version: self.version.to_owned(),
            token,
            place,
            start_deadline: self.deadlines.start,
            needs_bulk,
        }
    }

    /// The MPI that started this process, if there is one and it may be used.
    fn mpi(&self) -> Result<Option<Mpi>, GroupError> {
        let is_given = (self.variables)("HOLDALL_MPI");
        if is_given.as_deref() == Some("none") || (self.variables)("HOLDALL_ADDRESS").is_some() {
            return Ok(None);
        }
        let has = |name: &str| (self.variables)(name).is_some();
        let families = match self.launch.launcher {
            Launcher::Alone | Launcher::Holdall | Launcher::Torchrun => return Ok(None),
            Launcher::OpenMpi => &[Family::OpenMpi][..],
            Launcher::Pmi => &[Family::Mpich],
            // srun starts either kind when it is configured to.
            Launcher::Slurm if has("PMIX_RANK") => &[Family::OpenMpi, Family::Mpich],
            Launcher::Slurm => return Ok(None),
        };
        let may_go_without = self.launch.launcher == Launcher::Slurm || has("SLURM_STEP_NODELIST");
        let mut missing = None;
        for &family in families {
            match mpi::open(family) {
                Ok(mpi) => match self.init(&mpi) {
                    Ok(()) => return Ok(Some(mpi)),
                    Err(error) if !may_go_without => return Err(error),
                    // An MPI that srun did not start sees itself alone.
                    Err(_) => {}
                },
                Err(error) => missing = Some(error),
            }
        }
        match missing {
            Some(missing) if !may_go_without => Err(GroupError::Start(format!(
                "this process was started by {}, and its MPI cannot be opened: {missing}",
                self.launch.describe()
            ))),
            _ => Ok(None),
        }
    }

    fn init(&self, mpi: &Mpi) -> Result<(), GroupError> {
        let fail = |error: String| {
            GroupError::Start(format!(
                "{} did not start: {error}\n\
                 hint: HOLDALL_MPI=none with HOLDALL_ADDRESS and HOLDALL_PORT goes without it",
                mpi.name()
            ))
        };
        if !mpi.init().map_err(fail)? {
            return Err(fail("its calls are bound to one thread".to_owned()));
        }
        let (rank, size) = mpi.rank_and_size().map_err(fail)?;
        if (rank, size) != (self.launch.rank, self.launch.size) {
            return Err(GroupError::Start(format!(
                "{} says rank {rank} of {size}, the variables of {} say rank {} of {}\n\
                 hint: this MPI is not the launcher's; HOLDALL_MPI names the library that is",
                mpi.name(),
                self.launch.describe(),
                self.launch.rank,
                self.launch.size
            )));
        }
        Ok(())
    }

    /// Rank 0 listens and sends its address to the others by MPI.
    fn by_mpi(&mut self, mut mpi: Mpi) -> Result<Group, GroupError> {
        let hosts = self.exchange_notes(&mut mpi, |_| host_name())?;
        let mut place = None;
        let mut note = String::new();
        if self.launch.rank == 0 {
            let own = host_name();
            let other = hosts.iter().find(|host| **host != own && !host.is_empty());
            let address = match other {
                None => IpAddr::from([127, 0, 0, 1]),
                Some(other) => towards(other).or_else(|| reachable(&own)).ok_or_else(|| {
                    GroupError::Start(format!(
                        "no address of {own} leads to {other}\n\
                         hint: HOLDALL_ADDRESS and HOLDALL_PORT name an address of rank 0 that all can reach"
                    ))
                })?,
            };
            let listener = listen(SocketAddr::new(address, 0))?;
            let bound = listener.local_addr().map_err(|error| no_listener(&error))?;
            place = Some((listener, random_token()?));
            if let Some((_, token)) = &place {
                note = format!("{bound} {}", hex(token));
            }
        }
        let notes = self.exchange_notes(&mut mpi, |_| note.clone())?;
        let (place, token) = match place {
            Some((listener, token)) => (MeetingPlace::Here(listener), token),
            None => {
                let told = notes[0].split_once(' ');
                let told = told.and_then(|(address, token)| Some((address, unhex(token)?)));
                let (address, token) = told.ok_or_else(|| {
                    GroupError::Start(format!("rank 0 sent {:?} for an address", notes[0]))
                })?;
                (MeetingPlace::There(address.to_owned()), token)
            }
        };
        let arrival = self.arrival(token, place, false);
        connect(arrival, self.deadlines, Some(Box::new(mpi)))
    }

    /// Exchanges a short text between all processes.
    fn exchange_notes(
        &self,
        mpi: &mut Mpi,
        note: impl Fn(usize) -> String,
    ) -> Result<Vec<String>, GroupError> {
        let (rank, size) = (self.launch.rank, self.launch.size);
        let mut outgoing = vec![0; size * MOST_NOTE];
        let mut incoming = vec![0; size * MOST_NOTE];
        let mut spans = Vec::new();
        for peer in 0..size {
            let note = note(peer);
            let len = note.len().min(MOST_NOTE);
            outgoing[peer * MOST_NOTE..][..len].copy_from_slice(&note.as_bytes()[..len]);
            spans.push(Span {
                start: peer * MOST_NOTE,
                len: if peer == rank { 0 } else { MOST_NOTE },
            });
        }
        let round = Round {
            outgoing: &outgoing,
            sends: &spans,
            incoming: &mut incoming,
            receives: &spans,
        };
        let end = Instant::now() + self.deadlines.start;
        let exchanged = mpi.exchange(round, &|| Instant::now() > end);
        if let Err(interruption) = exchanged {
            // MPI may still write to the buffers: they are leaked.
            std::mem::forget((outgoing, incoming));
            let reason = match interruption {
                Interruption::Stopped => {
                    format!("no answer within {} s", self.deadlines.start.as_secs_f64())
                }
                Interruption::Peer { seen, .. } => seen,
                Interruption::Transport { said } => said,
            };
            return Err(GroupError::Start(format!(
                "the processes did not meet by {}: {reason}\n\
                 hint: what the others printed says more",
                mpi.name()
            )));
        }
        incoming[rank * MOST_NOTE..][..MOST_NOTE]
            .copy_from_slice(&outgoing[rank * MOST_NOTE..][..MOST_NOTE]);
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|&byte| byte == 0);
            String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
        };
        Ok(incoming.chunks(MOST_NOTE).map(text).collect())
    }

    /// Rank 0 listens at an address that all processes derive from the variables.
    fn by_tcp(&self) -> Result<Group, GroupError> {
        let (name, port, token) = meeting_point(self.launch, self.variables)?;
        let own_way = if self.launch.local_size == Some(self.launch.size) {
            None
        } else {
            way_out_of(&name, port)
        };
        let place = match (self.launch.rank, own_way) {
            (0, Some(address)) => MeetingPlace::Here(listen(address)?),
            (0, None) => MeetingPlace::Here(listen(address_to_bind(&name, port)?)?),
            (_, Some(address)) => MeetingPlace::There(address.to_string()),
            (_, None) => MeetingPlace::There(with_port(&name, port)),
        };
        connect(self.arrival(token, place, true), self.deadlines, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_seconds() {
        let with = |text: &str| {
            let text = text.to_owned();
            deadlines(&move |_: &str| Some(text.clone()))
        };
        assert_eq!(with("2.5").unwrap().silence, Duration::from_millis(2500));
        assert_eq!(with("90").unwrap().start, Duration::from_secs(90));
        for text in ["0", "-1", "x", "inf", "NaN"] {
            assert!(with(text).unwrap_err().is_bad_input(), "{text}");
        }
    }
}
