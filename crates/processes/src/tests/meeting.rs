//! Which processes the rendezvous admits, which it refuses, and its message when a process does not come.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::connect::connect;
use crate::hello::{ConnectionPurpose, Hello, Token};
use crate::rendezvous::{Arrival, MeetingPlace};
use crate::{Deadlines, Group, GroupError};

const SIZE: usize = 3;

/// Rank 0 of a rendezvous, its address and token.
struct Meeting {
    address: String,
    token: Token,
    first: JoinHandle<Result<Group, GroupError>>,
}

fn deadlines(start: Duration) -> Deadlines {
    Deadlines {
        start,
        ..Deadlines::default()
    }
}

fn arrival(rank: usize, token: &Token, place: MeetingPlace, start: Duration) -> Arrival {
    Arrival {
        rank,
        size: SIZE,
        local_rank: None,
        local_size: None,
        host: format!("host-{rank}"),
        version: "1.2.3".to_owned(),
        token: token.clone(),
        place,
        start_deadline: start,
        needs_bulk: true,
    }
}

impl Meeting {
    /// Starts rank 0 in a thread.
    fn new(start: Duration) -> Meeting {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let token = Token::random().unwrap();
        let arrival = arrival(0, &token, MeetingPlace::Here(listener), start);
        let first = thread::spawn(move || connect(arrival, deadlines(start), None));
        Meeting {
            address,
            token,
            first,
        }
    }

    fn come(
        &self,
        rank: usize,
        change: impl FnOnce(&mut Arrival),
    ) -> JoinHandle<Result<Group, GroupError>> {
        let place = MeetingPlace::There(self.address.clone());
        let start = Duration::from_secs(60);
        let mut arrival = arrival(rank, &self.token, place, start);
        change(&mut arrival);
        thread::spawn(move || connect(arrival, deadlines(start), None))
    }

    fn stranger(&self, says: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(says).unwrap();
        stream
    }
}

fn failure(thread: JoinHandle<Result<Group, GroupError>>) -> String {
    let text = thread.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("\nhint: "), "{text}");
    text
}

fn hello(rank: usize, size: usize) -> Hello {
    Hello {
        purpose: ConnectionPurpose::Control,
        rank,
        size,
        local_rank: None,
        local_size: Some(2),
        version: "1.2.3".to_owned(),
        host: "elsewhere".to_owned(),
        address: "127.0.0.1:9".to_owned(),
    }
}

#[test]
fn strangers_are_turned_away_and_the_door_closes() {
    let meeting = Meeting::new(Duration::from_secs(60));
    let mut scanner =
        meeting.stranger(b"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: scanner\r\n\r\n");
    let _silent = meeting.stranger(b"");
    let other_job = hello(1, SIZE).encode(&Token::random().unwrap());
    let mut other_job = meeting.stranger(&other_job);
    for stranger in [&mut scanner, &mut other_job] {
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    let others = [meeting.come(1, |_| ()), meeting.come(2, |_| ())];
    let groups: Vec<Group> = [meeting.first]
        .into_iter()
        .chain(others)
        .map(|thread| thread.join().unwrap().unwrap())
        .collect();
    assert_eq!(groups[0].host(2), "host-2");
    assert_eq!((groups[2].local_rank(), groups[2].local_size()), (0, 1));
    // The listener is closed.
    assert!(TcpStream::connect(&meeting.address).is_err());
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let meeting = Meeting::new(Duration::from_secs(60));
    let (is_over, address) = (AtomicBool::new(false), meeting.address.clone());
    let groups = thread::scope(|scope| {
        // More connections than there is room for, and new ones all the time.
        let mut silent: Vec<TcpStream> = (0..80).map(|_| meeting.stranger(b"")).collect();
        let (is_over, address) = (&is_over, &address);
        scope.spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                silent.extend((0..20).filter_map(|_| TcpStream::connect(address).ok()));
                silent.drain(..silent.len().saturating_sub(200));
                thread::sleep(Duration::from_millis(10));
            }
        });
        thread::sleep(Duration::from_millis(100));
        let others = [meeting.come(1, |_| ()), meeting.come(2, |_| ())];
        let all = [meeting.first].into_iter().chain(others);
        let groups: Vec<_> = all.map(|thread| thread.join().unwrap()).collect();
        is_over.store(true, Ordering::Release);
        groups
    });
    for group in groups {
        assert_eq!(group.unwrap().size(), SIZE);
    }
}

#[test]
fn who_is_closed_without_an_answer_comes_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (token, start) = (Token::random().unwrap(), Duration::from_secs(60));
    let come = |rank: usize| {
        let place = MeetingPlace::There(address.clone());
        let arrival = arrival(rank, &token, place, start);
        thread::spawn(move || connect(arrival, deadlines(start), None))
    };
    let second = come(1);
    // The process sees a connection that was crowded out.
    drop(listener.accept().unwrap());
    let first = arrival(0, &token, MeetingPlace::Here(listener), start);
    let first = thread::spawn(move || connect(first, deadlines(start), None));
    for thread in [first, second, come(2)] {
        assert_eq!(thread.join().unwrap().unwrap().size(), SIZE);
    }
}

#[test]
fn who_is_closed_by_a_process_that_has_ended_does_not_wait_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (token, start) = (Token::random().unwrap(), Duration::from_secs(3600));
    let arrival = arrival(1, &token, MeetingPlace::There(address), start);
    let second = thread::spawn(move || connect(arrival, deadlines(start), None));
    drop(listener.accept().unwrap());
    drop(listener);
    let text = failure(second);
    assert!(
        text.contains("did not let rank 1 in: it closed the connection"),
        "{text}"
    );
}

#[test]
fn who_has_not_come_is_named_to_all() {
    let meeting = Meeting::new(Duration::from_millis(1500));
    drop(meeting.stranger(b"nonsense"));
    let second = meeting.come(1, |_| ());
    let text = failure(meeting.first);
    assert!(text.contains("had not come after 1.5 s: rank"), "{text}");
    assert!(
        text.contains("1 connections that did not say hello were closed"),
        "{text}"
    );
    // On a slow machine rank 1 may be late too; then it is named as well.
    assert!(text.contains(" 2"), "{text}");
    failure(second);
}

#[test]
fn another_version_is_refused_on_both_sides() {
    let meeting = Meeting::new(Duration::from_secs(60));
    let second = meeting.come(1, |arrival| arrival.version = "9.9.9".to_owned());
    let expected = "rank 1 on host-1 is holdall 9.9.9, rank 0 on host-0 is holdall 1.2.3";
    for thread in [meeting.first, second] {
        let text = failure(thread);
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn another_size_is_refused_on_both_sides() {
    let meeting = Meeting::new(Duration::from_secs(60));
    let second = meeting.come(1, |arrival| arrival.size = 8);
    for thread in [meeting.first, second] {
        let text = failure(thread);
        assert!(
            text.starts_with("rank 1 of 8 on host-1 came to a group of 3"),
            "{text}"
        );
    }
}

#[test]
fn who_comes_twice_is_refused_and_the_others_go_on() {
    let meeting = Meeting::new(Duration::from_secs(60));
    let one = meeting.come(1, |_| ());
    let again = meeting.come(1, |_| ());
    // One of the two is admitted, the other refused; then the third process completes the group.
    let mut pair = vec![one, again];
    let refused = loop {
        if let Some(place) = pair.iter().position(JoinHandle::is_finished) {
            break pair.remove(place);
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = failure(refused);
    assert!(
        text.starts_with("rank 1 came twice: from host-1 and from host-1"),
        "{text}"
    );
    let third = meeting.come(2, |_| ());
    let rest = [meeting.first, third].into_iter().chain(pair);
    let groups: Vec<Group> = rest.map(|thread| thread.join().unwrap().unwrap()).collect();
    assert_eq!(groups.len(), SIZE);
}

#[test]
fn an_address_where_nobody_listens_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let start = Duration::from_millis(200);
    let token = Token::random().unwrap();
    let arrival = arrival(1, &token, MeetingPlace::There(address.clone()), start);
    let text = failure(thread::spawn(move || {
        connect(arrival, deadlines(start), None)
    }));
    let expected = format!("rank 0 was not reached at {address} within 0.2 s: ");
    assert!(text.starts_with(&expected), "{text}");
}
