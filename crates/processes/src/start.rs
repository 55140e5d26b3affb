//! From the variables of a launcher to a group: where the processes meet, and what token they know each other by.
//!
//! | launcher | rank 0 listens on | token |
//! |---|---|---|
//! | `--processes N` | loopback, a port that the launcher chose | random, from the launcher |
//! | mpirun, mpiexec, srun with an MPI | the interface towards the others, a port that the system chose | random, sent by MPI |
//! | torchrun | MASTER_ADDR, MASTER_PORT + 1 (torchrun itself listens on MASTER_PORT) | derived from the job |
//! | srun without MPI | the first machine of the step, a port derived from the job | derived from the job |
//!
//! HOLDALL_ADDRESS, HOLDALL_PORT and HOLDALL_TOKEN come before all of these; HOLDALL_MPI=none goes without MPI. A derived token
//! keeps jobs apart; only a random one, or HOLDALL_TOKEN, keeps out who knows the job's variables.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use holdall_files::{FNV_START, fnv1a, mix};

use crate::bulk::{Interruption, Round, Span, Transport};
use crate::connect::connect;
use crate::error::GroupError;
use crate::group::{Deadlines, Group};
use crate::hello::{TOKEN_BYTES, Token};
use crate::launch::{Launch, Launcher, Variables, variable};
use crate::mpi::{self, Family, Mpi};
use crate::rendezvous::{Arrival, Place};

/// The variable for seconds of silence after which a process is lost.
pub const DEADLINE_VARIABLE: &str = "HOLDALL_DEADLINE";

/// What is said of a machine or an address by MPI, at most.
const MOST_NOTE: usize = 512;

impl Group {
    /// The group that the variables of this process tell of: [`Group::alone`] where there are none. Waits for all others.
    /// `version` must be the same for all.
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

/// HOLDALL_DEADLINE is of silence; nobody waits less than a minute for others to start.
pub(crate) fn deadlines(variables: &Variables<'_>) -> Result<Deadlines, GroupError> {
    let Some(text) = variables(DEADLINE_VARIABLE) else {
        return Ok(Deadlines::default());
    };
    let seconds: Option<f64> = text.trim().parse().ok();
    match seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds)) {
        Some(seconds) => {
            let silence = Duration::from_secs_f64(seconds);
            Ok(Deadlines {
                start: silence.max(Deadlines::default().start),
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
    fn arrival(&self, token: Token, place: Place, needs_bulk: bool) -> Arrival {
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

    /// The MPI that started this process, where one did and may be used.
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
            // srun starts either kind, where it was told to.
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
                    // One that srun knows nothing of sees itself alone.
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

    /// Rank 0 listens and tells the others where, by MPI.
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
            Some((listener, token)) => (Place::Here(listener), token),
            None => {
                let told = notes[0].split_once(' ');
                let told = told.and_then(|(address, token)| Some((address, unhex(token)?)));
                let (address, token) = told.ok_or_else(|| {
                    GroupError::Start(format!("rank 0 sent {:?} for an address", notes[0]))
                })?;
                (Place::There(address.to_owned()), token)
            }
        };
        let arrival = self.arrival(token, place, false);
        connect(arrival, self.deadlines, Some(Box::new(mpi)))
    }

    /// A short text to every process, one from each.
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
            // Messages may still be written to it.
            std::mem::forget((outgoing, incoming));
            let reason = match interruption {
                Interruption::Failed => {
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

    /// Rank 0 listens where all know to find it.
    fn by_tcp(&self) -> Result<Group, GroupError> {
        let (address, port, token) = meeting_point(self.launch, self.variables)?;
        let place = if self.launch.rank == 0 {
            Place::Here(listen(address_to_bind(&address, port)?)?)
        } else {
            Place::There(with_port(&address, port))
        };
        connect(self.arrival(token, place, true), self.deadlines, None)
    }
}

/// Address, port and token, by what the launcher told every process.
fn meeting_point(
    launch: &Launch,
    variables: &Variables<'_>,
) -> Result<(String, u16, Token), GroupError> {
    let job = job(launch, variables);
    let address = match variables("HOLDALL_ADDRESS") {
        Some(address) => Some(address),
        None => match launch.launcher {
            Launcher::Torchrun => variables("MASTER_ADDR"),
            _ => variables("SLURM_STEP_NODELIST").and_then(|list| first_host(&list)),
        },
    };
    let Some(address) = address else {
        let missing = match launch.launcher {
            Launcher::Torchrun => "MASTER_ADDR",
            _ => "HOLDALL_ADDRESS",
        };
        return Err(GroupError::Launch(format!(
            "{}: expected an address of rank 0 in {missing}, found none\n\
             hint: HOLDALL_ADDRESS and HOLDALL_PORT name an address of rank 0 that all can reach",
            launch.describe()
        )));
    };
    let port = match (port_of("HOLDALL_PORT", variables)?, launch.launcher) {
        (Some(port), _) => port,
        (None, Launcher::Torchrun) => match port_of("MASTER_PORT", variables)? {
            Some(u16::MAX) => u16::MAX - 1,
            Some(port) => port + 1,
            None => {
                return Err(GroupError::Launch(
                    "MASTER_ADDR: expected MASTER_PORT beside it, found none\n\
                     hint: HOLDALL_PORT names a port of rank 0"
                        .to_owned(),
                ));
            }
        },
        // Jobs that share a machine should not meet; below the ports that systems give out by themselves.
        (None, _) => 12_000 + (mix(fnv1a(FNV_START, job.as_bytes())) % 20_000) as u16,
    };
    let token = match variables("HOLDALL_TOKEN") {
        Some(token) => unhex(&token).unwrap_or_else(|| derived_token(&token)),
        None => derived_token(&job),
    };
    Ok((address, port, token))
}

/// What tells this job from others, and is the same for all of its processes.
fn job(launch: &Launch, variables: &Variables<'_>) -> String {
    let names = [
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_CLUSTER_NAME",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "PMIX_NAMESPACE",
        "PMI_JOBID",
    ];
    let mut job = format!("{:?} of {}", launch.launcher, launch.size);
    for name in names {
        job += &format!("\n{name}={}", variables(name).unwrap_or_default());
    }
    job
}

fn port_of(name: &str, variables: &Variables<'_>) -> Result<Option<u16>, GroupError> {
    let Some(text) = variables(name) else {
        return Ok(None);
    };
    let port: Option<u16> = text.trim().parse().ok();
    match port.filter(|&port| port > 0) {
        Some(port) => Ok(Some(port)),
        None => Err(GroupError::Launch(format!(
            "{name}={text}: expected a port from 1 to 65535\n\
             hint: HOLDALL_PORT=29600, or any other that is free on the machine of rank 0"
        ))),
    }
}

/// The first machine of a list as Slurm writes it: `node[07-12,20],login1`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (head, rest) = list.split_at(end);
    let Some(numbers) = rest.strip_prefix('[') else {
        return (!head.is_empty()).then(|| head.to_owned());
    };
    let (numbers, behind) = numbers.split_once(']')?;
    let first = numbers.split([',', '-']).next()?;
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    // `rack[1-2]node[3-4]` begins with rack1node3.
    let tail = match behind.is_empty() || behind.starts_with(',') {
        true => String::new(),
        false => first_host(behind)?,
    };
    is_number.then(|| format!("{head}{first}{tail}"))
}

fn with_port(address: &str, port: u16) -> String {
    match address.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{address}:{port}"),
    }
}

/// The address of this machine that a name means to others: the first that is not loopback, if there is one.
fn address_to_bind(name: &str, port: u16) -> Result<SocketAddr, GroupError> {
    let found = with_port(name, port).to_socket_addrs();
    let all: Vec<SocketAddr> = found
        .map_err(|error| {
            GroupError::Start(format!(
                "{name}: no address of rank 0's machine: {error}\n\
                 hint: HOLDALL_ADDRESS names an address of rank 0 that all can reach"
            ))
        })?
        .collect();
    let outside = all.iter().find(|address| !address.ip().is_loopback());
    outside.or(all.first()).copied().ok_or_else(|| {
        GroupError::Start(format!(
            "{name}: no address of rank 0's machine\n\
             hint: HOLDALL_ADDRESS names an address of rank 0 that all can reach"
        ))
    })
}

/// The address by which this machine would talk to another; nothing is sent.
fn towards(host: &str) -> Option<IpAddr> {
    let addresses = with_port(host, 9).to_socket_addrs().ok()?;
    addresses
        .filter(|address| !address.ip().is_loopback())
        .find_map(|address| {
            let any: SocketAddr = match address {
                SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
                SocketAddr::V6(_) => ([0; 16], 0).into(),
            };
            let socket = UdpSocket::bind(any).ok()?;
            socket.connect(address).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
}

fn reachable(own: &str) -> Option<IpAddr> {
    let addresses = with_port(own, 9).to_socket_addrs().ok()?;
    let mut addresses = addresses.map(|address| address.ip());
    addresses.find(|address| !address.is_loopback())
}

fn listen(address: SocketAddr) -> Result<TcpListener, GroupError> {
    TcpListener::bind(address).map_err(|error| {
        GroupError::Start(format!(
            "rank 0 cannot listen on {address}: {error}\n\
             hint: HOLDALL_PORT takes another port, HOLDALL_ADDRESS another address of this machine"
        ))
    })
}

fn no_listener(error: &std::io::Error) -> GroupError {
    GroupError::Start(format!("rank 0 cannot listen: {error}"))
}

pub(crate) fn random_token() -> Result<Token, GroupError> {
    Token::random()
        .map_err(|error| GroupError::Start(format!("the system has no random bytes: {error}")))
}

/// The same for all who know the same text.
fn derived_token(text: &str) -> Token {
    let mut bytes = [0; TOKEN_BYTES];
    for (place, part) in bytes.chunks_exact_mut(8).enumerate() {
        let hash = fnv1a(fnv1a(FNV_START, &[place as u8]), text.as_bytes());
        part.copy_from_slice(&mix(hash).to_le_bytes());
    }
    Token(bytes)
}

pub(crate) fn hex(token: &Token) -> String {
    token.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Token> {
    if text.len() != 2 * TOKEN_BYTES || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; TOKEN_BYTES];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(Token(bytes))
}

/// The name of this machine.
fn host_name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    #[cfg(not(unix))]
    let name = variable("COMPUTERNAME").unwrap_or_default();
    if name.is_empty() {
        return "an unnamed machine".to_owned();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(launcher: Launcher, variables: &[(&str, &str)]) -> Result<(String, u16), String> {
        let look = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let launch = Launch {
            launcher,
            size: 2,
            ..Launch::alone()
        };
        let point = meeting_point(&launch, &look);
        point
            .map(|(address, port, _)| (address, port))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn torchrun_keeps_its_own_port() {
        let variables = [("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
        let expected = ("node7".to_owned(), 29501);
        assert_eq!(point(Launcher::Torchrun, &variables), Ok(expected));
        let own = [
            &variables[..],
            &[("HOLDALL_ADDRESS", "::1"), ("HOLDALL_PORT", "7")],
        ]
        .concat();
        assert_eq!(point(Launcher::Torchrun, &own), Ok(("::1".to_owned(), 7)));
        for (variables, expected) in [
            (
                &[][..],
                "torchrun (RANK, WORLD_SIZE): expected an address of rank 0 in MASTER_ADDR",
            ),
            (
                &[("MASTER_ADDR", "node7")],
                "MASTER_ADDR: expected MASTER_PORT beside it, found none",
            ),
            (
                &[("MASTER_ADDR", "node7"), ("MASTER_PORT", "0")],
                "MASTER_PORT=0: expected a port from 1 to 65535",
            ),
        ] {
            let error = point(Launcher::Torchrun, variables).unwrap_err();
            assert!(
                error.starts_with(expected) && error.contains("\nhint: "),
                "{error}"
            );
        }
    }

    #[test]
    fn slurm_meets_on_the_first_machine_of_the_step() {
        for (list, first) in [
            ("node7", "node7"),
            ("node[07-12,20],login1", "node07"),
            ("a,b", "a"),
            ("rack[1-2]node[3,5]x", "rack1node3x"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first));
            let job = |id| {
                point(
                    Launcher::Slurm,
                    &[("SLURM_STEP_NODELIST", list), ("SLURM_JOB_ID", id)],
                )
            };
            let (address, port) = job("17").unwrap();
            assert_eq!(address, first);
            assert!((12_000..32_000).contains(&port));
            assert_ne!(job("18").unwrap().1, port);
        }
        for list in ["", "[", "a[", "a[x]", "a[]", "a[1"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

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

    #[test]
    fn tokens_are_derived_from_what_all_know_or_given() {
        let token = random_token().unwrap();
        assert!(unhex(&hex(&token)) == Some(token));
        assert!(unhex("xy").is_none());
        assert!(derived_token("a") != derived_token("b"));
        assert!(derived_token("a").matches(&derived_token("a").0));
    }
}
