//! Rendezvous: how the processes of a job connect to each other.
//!
//! ```text
//! rank 0   listens on one address; waits for a control hello from every rank; then answers all with the list of members
//! rank r   sends a control hello to rank 0; listens on the interface that reached rank 0
//! then     r sends a bulk hello to every lower rank; all listeners close
//! ```
//!
//! Connections without the job's token are closed and counted; they do not end the run. A process that was closed without an answer
//! while rank 0 still listens was crowded out by other connections: it reconnects.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use crate::door::{Door, HELLO_TIME, LET_IN, read_until};
use crate::error::GroupError;
use crate::hello::{Answer, ConnectionPurpose, Hello, MOST_ANSWER, MOST_DETAILS, Member, Token};

pub(crate) enum MeetingPlace {
    /// Rank 0, with its bound listener.
    Here(TcpListener),
    /// `host:port` of rank 0.
    There(String),
}

/// A process before the rendezvous.
pub(crate) struct Arrival {
    pub rank: usize,
    pub size: usize,
    pub local_rank: Option<usize>,
    pub local_size: Option<usize>,
    pub host: String,
    pub version: String,
    pub token: Token,
    pub place: MeetingPlace,
    /// Time by which all processes must have come.
    pub start_deadline: Duration,
    pub needs_bulk: bool,
}

/// Connections after the rendezvous, by rank.
pub(crate) struct Met {
    pub members: Vec<Member>,
    pub control: Vec<Option<TcpStream>>,
    pub bulk: Vec<Option<TcpStream>>,
}

pub(crate) fn meet(arrival: Arrival) -> Result<Met, GroupError> {
    let end = Instant::now() + arrival.start_deadline;
    match &arrival.place {
        MeetingPlace::Here(listener) => {
            let listener = listener
                .try_clone()
                .map_err(|error| GroupError::Start(format!("no listener: {error}")))?;
            host(&arrival, listener, end)
        }
        MeetingPlace::There(address) => join(&arrival, address, end),
    }
}

fn hello(arrival: &Arrival, purpose: ConnectionPurpose, address: String) -> Hello {
    Hello {
        purpose,
        rank: arrival.rank,
        size: arrival.size,
        local_rank: arrival.local_rank,
        local_size: arrival.local_size,
        version: arrival.version.clone(),
        host: arrival.host.clone(),
        address,
    }
}

/// Rendezvous on rank 0.
fn host(arrival: &Arrival, listener: TcpListener, end: Instant) -> Result<Met, GroupError> {
    let mut door = Door::open(listener, arrival.token.clone(), arrival.size)?;
    let mut came: Vec<Option<(TcpStream, Hello)>> = (0..arrival.size).map(|_| None).collect();
    let result = collect(arrival, &mut door, &mut came, end);
    let answer = match result {
        Ok(()) => Answer::Welcome(members(arrival, &came)),
        Err(GroupError::Start(reason)) => Answer::Refused(reason),
        Err(error) => return Err(error),
    };
    let bytes = answer.encode();
    let mut control = Vec::new();
    for (rank, guest) in came.into_iter().enumerate() {
        let Some((mut stream, hello)) = guest else {
            control.push(None);
            continue;
        };
        if let Err(error) = stream.write_all(&bytes) {
            // A process that cannot be sent the refusal sees its connection end.
            if let Answer::Welcome(_) = answer {
                return Err(GroupError::Start(format!(
                    "rank {rank} on {} left while the processes were starting: {error}\n\
                     hint: what it printed last says more",
                    hello.host
                )));
            }
        }
        control.push(Some(stream));
    }
    let members = match answer {
        Answer::Welcome(members) => members,
        Answer::Refused(reason) => return Err(GroupError::Start(reason)),
    };
    let mut bulk: Vec<Option<TcpStream>> = (0..arrival.size).map(|_| None).collect();
    if arrival.needs_bulk {
        door.take_bulk(arrival, &members, &mut bulk, end)?;
    }
    Ok(Met {
        members,
        control,
        bulk,
    })
}

fn members(arrival: &Arrival, came: &[Option<(TcpStream, Hello)>]) -> Vec<Member> {
    let own = hello(arrival, ConnectionPurpose::Control, String::new());
    let hellos: Vec<&Hello> = came
        .iter()
        .map(|guest| guest.as_ref().map_or(&own, |(_, hello)| hello))
        .collect();
    let on_host = |hello: &Hello, ranks: usize| {
        let same = |other: &&&Hello| other.host == hello.host;
        hellos[..ranks].iter().filter(same).count()
    };
    hellos
        .iter()
        .enumerate()
        .map(|(rank, hello)| Member {
            host: hello.host.clone(),
            address: hello.address.clone(),
            local_rank: hello.local_rank.unwrap_or_else(|| on_host(hello, rank)),
            local_size: hello
                .local_size
                .unwrap_or_else(|| on_host(hello, hellos.len())),
        })
        .collect()
}

fn collect(
    arrival: &Arrival,
    door: &mut Door,
    came: &mut [Option<(TcpStream, Hello)>],
    end: Instant,
) -> Result<(), GroupError> {
    let mut num_missing = arrival.size - 1;
    while num_missing > 0 {
        let Some((mut stream, hello)) = door.next(end) else {
            return Err(GroupError::Start(missing(arrival, came, door)));
        };
        if let Err(reason) = fits(arrival, &hello) {
            let _ = stream.write_all(&Answer::Refused(reason.clone()).encode());
            return Err(GroupError::Start(reason));
        }
        if hello.purpose != ConnectionPurpose::Control {
            continue;
        }
        if let Some((_, first)) = &came[hello.rank] {
            let reason = format!(
                "rank {} came twice: from {} and from {}\n\
                 hint: two jobs with the same token and port; give each its own HOLDALL_PORT and HOLDALL_TOKEN",
                hello.rank, first.host, hello.host
            );
            let _ = stream.write_all(&Answer::Refused(reason).encode());
            continue;
        }
        let rank = hello.rank;
        came[rank] = Some((stream, hello));
        num_missing -= 1;
    }
    Ok(())
}

fn fits(arrival: &Arrival, hello: &Hello) -> Result<(), String> {
    if hello.version != arrival.version {
        return Err(format!(
            "rank {} on {} is holdall {}, rank 0 on {} is holdall {}\n\
             hint: all machines need the same version",
            hello.rank, hello.host, hello.version, arrival.host, arrival.version
        ));
    }
    if hello.size != arrival.size || hello.rank == 0 || hello.rank >= arrival.size {
        return Err(format!(
            "rank {} of {} on {} came to a group of {}: expected ranks 1 to {} of {}\n\
             hint: two jobs with the same token and port, or a launcher that was told different numbers on different machines",
            hello.rank,
            hello.size,
            hello.host,
            arrival.size,
            arrival.size - 1,
            arrival.size
        ));
    }
    Ok(())
}

fn missing(arrival: &Arrival, came: &[Option<(TcpStream, Hello)>], door: &Door) -> String {
    let missing: Vec<String> = (1..arrival.size)
        .filter(|&rank| came[rank].is_none())
        .map(|rank| rank.to_string())
        .collect();
    let (garbage, tokens) = door.refused();
    let mut text = format!(
        "{} of {} processes had not come after {} s: rank{} {}",
        missing.len(),
        arrival.size,
        arrival.start_deadline.as_secs_f64(),
        if missing.len() == 1 { "" } else { "s" },
        missing.join(", ")
    );
    if tokens > 0 {
        text += &format!("; {tokens} connections with another job's token were refused");
    }
    if garbage > 0 {
        text += &format!("; {garbage} connections that did not say hello were closed");
    }
    text + "\nhint: what they printed says more; where they wait for this process, a firewall is between: HOLDALL_ADDRESS and \
            HOLDALL_PORT name an address of rank 0 that all can reach"
}

/// Time after which rank 0 counts as gone if it was reached once and now is not: it listens until all have met.
const GONE_AFTER: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// Rendezvous on every rank but 0.
fn join(arrival: &Arrival, address: &str, end: Instant) -> Result<Met, GroupError> {
    // The last closed connection to rank 0: error, address, time.
    let mut closed: Option<(std::io::Error, SocketAddr, Instant)> = None;
    loop {
        let reached = connect(address, end).and_then(|stream| {
            let to = stream.peer_addr()?;
            Ok((stream, to))
        });
        let is_late = Instant::now() >= end;
        match (reached, &closed) {
            (Ok((stream, reached)), _) => match introduce(arrival, stream, end) {
                Ok(introduced) => return introduced.enter(arrival, reached, end),
                Err(error) if !is_late && was_closed(&error) => {
                    closed = Some((error, reached, Instant::now()));
                }
                Err(error) => return Err(not_let_in(arrival, reached, &error)),
            },
            (Err(_), Some((error, reached, at))) if is_late || at.elapsed() > GONE_AFTER => {
                return Err(not_let_in(arrival, *reached, error));
            }
            (Err(error), None) if is_late => {
                return Err(GroupError::Start(format!(
                    "rank 0 was not reached at {address} within {} s: {error}\n\
                     hint: what rank 0 printed says more; HOLDALL_ADDRESS and HOLDALL_PORT name an address of it that all can reach",
                    arrival.start_deadline.as_secs_f64()
                )));
            }
            (Err(_), _) => {}
        }
        thread::sleep(PAUSE);
    }
}

fn was_closed(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

fn not_let_in(arrival: &Arrival, reached: SocketAddr, error: &std::io::Error) -> GroupError {
    let why = match error.kind() {
        _ if was_closed(error) => "it closed the connection".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it gave no answer".to_owned(),
        _ => error.to_string(),
    };
    GroupError::Start(format!(
        "rank 0 at {reached} did not let rank {} in: {why}\n\
         hint: it ended, or another program or job listens there: HOLDALL_PORT takes another port, HOLDALL_TOKEN keeps jobs apart",
        arrival.rank
    ))
}

/// A process with rank 0's answer.
struct Introduced {
    stream: TcpStream,
    door: Door,
    answer: Answer,
}

/// Sends a hello to rank 0 and waits for its answer.
fn introduce(
    arrival: &Arrival,
    mut stream: TcpStream,
    end: Instant,
) -> std::io::Result<Introduced> {
    // The listener uses the interface that reached rank 0.
    let local = stream.local_addr()?;
    let listener = TcpListener::bind(SocketAddr::new(local.ip(), 0))?;
    let own_address = listener.local_addr()?.to_string();
    let door = Door::open(listener, arrival.token.clone(), arrival.size);
    let door = door.map_err(|error| std::io::Error::other(error.to_string()))?;
    let own = hello(arrival, ConnectionPurpose::Control, own_address);
    stream.write_all(&own.encode(&arrival.token))?;
    // The wait is longer than rank 0's deadline, because rank 0 knows which processes are missing and reports them.
    let answer = read_answer(&mut stream, end + HELLO_TIME)?;
    Ok(Introduced {
        stream,
        door,
        answer,
    })
}

impl Introduced {
    /// Connects to the other processes, if rank 0 admitted this one.
    fn enter(
        self,
        arrival: &Arrival,
        reached: SocketAddr,
        end: Instant,
    ) -> Result<Met, GroupError> {
        let Introduced {
            stream,
            mut door,
            answer,
        } = self;
        let members = match answer {
            Answer::Welcome(members) if members.len() == arrival.size => members,
            Answer::Refused(reason) => return Err(GroupError::Start(reason)),
            Answer::Welcome(_) => {
                return Err(not_let_in(arrival, reached, &ErrorKind::InvalidData.into()));
            }
        };
        let mut bulk: Vec<Option<TcpStream>> = (0..arrival.size).map(|_| None).collect();
        if arrival.needs_bulk {
            let greeting =
                hello(arrival, ConnectionPurpose::Bulk, String::new()).encode(&arrival.token);
            for (peer, member) in members[..arrival.rank].iter().enumerate() {
                let to = match peer {
                    0 => reached.to_string(),
                    _ => member.address.clone(),
                };
                let connected = connect_bulk(&to, &greeting, end);
                bulk[peer] = Some(connected.map_err(|error| {
                    GroupError::Start(format!(
                        "rank {} on {} could not reach rank {peer} on {} at {to}: {error}\n\
                         hint: a firewall between the machines; every process listens on a port of the system's choice while it starts",
                        arrival.rank, arrival.host, member.host
                    ))
                })?);
            }
            door.take_bulk(arrival, &members, &mut bulk, end)?;
        }
        let control = (0..arrival.size).map(|_| None);
        let mut control: Vec<Option<TcpStream>> = control.collect();
        control[0] = Some(stream);
        Ok(Met {
            members,
            control,
            bulk,
        })
    }
}

/// A bulk connection, once the other process has accepted it.
fn connect_bulk(address: &str, greeting: &[u8], end: Instant) -> std::io::Result<TcpStream> {
    loop {
        let connected = connect(address, end).and_then(|mut stream| {
            stream.write_all(greeting)?;
            let mut answer = [0];
            // The other process may itself still be waiting.
            read_until(&mut stream, &mut answer, end + HELLO_TIME)?;
            stream.set_read_timeout(None)?;
            match answer {
                [LET_IN] => Ok(stream),
                _ => Err(ErrorKind::InvalidData.into()),
            }
        });
        match connected {
            Err(error) if was_closed(&error) && Instant::now() < end => thread::sleep(PAUSE),
            connected => return connected,
        }
    }
}

fn connect(address: &str, end: Instant) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for to in address.to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now());
        let patience = left.clamp(Duration::from_millis(10), HELLO_TIME);
        match TcpStream::connect_timeout(&to, patience) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read_answer(stream: &mut TcpStream, end: Instant) -> std::io::Result<Answer> {
    let mut length = [0; 4];
    read_until(stream, &mut length, end)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST_ANSWER {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    while body.len() < length {
        let old = body.len();
        body.resize(length.min(old + MOST_DETAILS), 0);
        read_until(stream, &mut body[old..], end)?;
    }
    Answer::parse(&body).map_err(|_| ErrorKind::InvalidData.into())
}
