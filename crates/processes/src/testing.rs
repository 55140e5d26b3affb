//! A group of N threads in one process, for tests of code that uses a [`Group`].

use std::net::TcpListener;

use crate::connect::connect;
use crate::deadlines::Deadlines;
use crate::group::Group;
use crate::hello::Token;
use crate::rendezvous::{Arrival, MeetingPlace};

/// The members of a group of `size`, by rank: give each to its own thread.
///
/// # Panics
/// If the system has no sockets or threads for the group.
pub fn loopback(size: usize) -> Vec<Group> {
    loopback_with(size, Deadlines::default())
}

/// Like [`loopback`], with other deadlines.
///
/// # Panics
/// If the system has no sockets or threads for the group.
pub fn loopback_with(size: usize, deadlines: Deadlines) -> Vec<Group> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    let address = listener.local_addr().expect("a bound listener").to_string();
    let token = Token::random().expect("random bytes");
    let mut places = vec![MeetingPlace::Here(listener)];
    places.extend((1..size).map(|_| MeetingPlace::There(address.clone())));
    std::thread::scope(|scope| {
        let threads: Vec<_> = places
            .into_iter()
            .enumerate()
            .map(|(rank, place)| {
                let arrival = Arrival {
                    rank,
                    size,
                    local_rank: None,
                    local_size: None,
                    host: "loopback".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    token: token.clone(),
                    place,
                    start_deadline: deadlines.start,
                    needs_bulk: true,
                };
                scope.spawn(move || connect(arrival, deadlines, None))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let group = thread.join().expect("a thread that ends");
                group.expect("processes on loopback meet")
            })
            .collect()
    })
}
