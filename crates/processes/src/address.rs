//! The rendezvous address of a job's processes, and the token that they recognise each other by.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use holdall_files::{FNV_START, fnv1a, mix};

use crate::error::GroupError;
use crate::hello::{TOKEN_BYTES, Token};
use crate::launch::{Launch, Launcher, Variables};

/// Address and port of rank 0, and the job's token, from the launcher's variables.
pub(crate) fn meeting_point(
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
        // Derived from the job, so that jobs on one machine get different ports; below the range of ephemeral ports.
        (None, _) => 12_000 + (mix(fnv1a(FNV_START, job.as_bytes())) % 20_000) as u16,
    };
    let token = match variables("HOLDALL_TOKEN") {
        Some(token) => unhex(&token).unwrap_or_else(|| derived_token(&token)),
        None => derived_token(&job),
    };
    Ok((address, port, token))
}

/// Text that is the same for all processes of a job and differs between jobs.
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

/// First machine of a host list in Slurm's notation: `node[07-12,20],login1`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (head, rest) = list.split_at(end);
    let Some(numbers) = rest.strip_prefix('[') else {
        return (!head.is_empty()).then(|| head.to_owned());
    };
    let (numbers, behind) = numbers.split_once(']')?;
    let first = numbers.split([',', '-']).next()?;
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    // `rack[1-2]node[3-4]` starts with rack1node3.
    let tail = if behind.is_empty() || behind.starts_with(',') {
        String::new()
    } else {
        first_host(behind)?
    };
    is_number.then(|| format!("{head}{first}{tail}"))
}

pub(crate) fn with_port(address: &str, port: u16) -> String {
    match address.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{address}:{port}"),
    }
}

/// A documentation address that no machine has; the route to it is the default route.
const ANYWHERE: &str = "192.0.2.1";

/// Where this machine's name resolves to loopback only, as on many machines: its address on the default route, which other machines can
/// reach.
pub(crate) fn way_out_of(name: &str, port: u16) -> Option<SocketAddr> {
    let is_name = name != "localhost" && name.parse::<IpAddr>().is_err();
    let mut known = with_port(name, port).to_socket_addrs().ok()?;
    if !is_name || known.any(|address| !address.ip().is_loopback()) {
        return None;
    }
    Some(SocketAddr::new(towards(ANYWHERE)?, port))
}

/// The first non-loopback address of a name, or else its first address.
pub(crate) fn address_to_bind(name: &str, port: u16) -> Result<SocketAddr, GroupError> {
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

/// The local address of the route to a host; nothing is sent.
pub(crate) fn towards(host: &str) -> Option<IpAddr> {
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

pub(crate) fn reachable(own: &str) -> Option<IpAddr> {
    let addresses = with_port(own, 9).to_socket_addrs().ok()?;
    let mut addresses = addresses.map(|address| address.ip());
    addresses.find(|address| !address.is_loopback())
}

pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, GroupError> {
    TcpListener::bind(address).map_err(|error| {
        GroupError::Start(format!(
            "rank 0 cannot listen on {address}: {error}\n\
             hint: HOLDALL_PORT takes another port, HOLDALL_ADDRESS another address of this machine"
        ))
    })
}

pub(crate) fn no_listener(error: &std::io::Error) -> GroupError {
    GroupError::Start(format!("rank 0 cannot listen: {error}"))
}

pub(crate) fn random_token() -> Result<Token, GroupError> {
    Token::random()
        .map_err(|error| GroupError::Start(format!("the system has no random bytes: {error}")))
}

/// A token that all processes can derive from the same text.
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

pub(crate) fn unhex(text: &str) -> Option<Token> {
    if text.len() != 2 * TOKEN_BYTES || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; TOKEN_BYTES];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(Token(bytes))
}

pub(crate) fn host_name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
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
    fn tokens_are_derived_from_what_all_know_or_given() {
        let token = random_token().unwrap();
        assert!(unhex(&hex(&token)) == Some(token));
        assert!(unhex("xy").is_none());
        assert!(derived_token("a") != derived_token("b"));
        assert!(derived_token("a").matches(&derived_token("a").0));
    }
}
