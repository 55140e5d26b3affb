use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::functions::{Address, Functions, Handle};
use crate::bulk::{Interruption, Round, Transport};

/// One tag for all messages: their order tells them apart.
const TAG: c_int = 7;
/// How long polls follow each other at once before pauses begin. Each poll advances a message by one fragment: with pauses from the start,
/// Open MPI without single copies was ten times slower.
const EAGER: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_micros(50);

/// MPI as a transport of rounds.
pub(crate) struct Mpi {
    name: String,
    bound: Bound,
    has_unfinished: bool,
}

enum Bound {
    OpenMpi(Requests<Address>),
    Mpich(Requests<c_int>),
}

struct Requests<H: Handle> {
    functions: Functions<H>,
    /// Requests of the current round; kept to avoid an allocation per round.
    requests: Vec<H>,
}

impl Mpi {
    pub(super) fn open_mpi(functions: Functions<Address>, name: String) -> Mpi {
        Mpi::new(Bound::OpenMpi(Requests::new(functions)), name)
    }

    pub(super) fn mpich(functions: Functions<c_int>, name: String) -> Mpi {
        Mpi::new(Bound::Mpich(Requests::new(functions)), name)
    }

    fn new(bound: Bound, name: String) -> Mpi {
        Mpi {
            name,
            bound,
            has_unfinished: false,
        }
    }

    /// Initialises MPI; returns whether other threads may use it.
    pub fn init(&self) -> Result<bool, String> {
        match &self.bound {
            Bound::OpenMpi(bound) => bound.functions.init(),
            Bound::Mpich(bound) => bound.functions.init(),
        }
    }

    /// Rank and size in MPI_COMM_WORLD.
    pub fn rank_and_size(&self) -> Result<(usize, usize), String> {
        match &self.bound {
            Bound::OpenMpi(bound) => bound.functions.rank_and_size(),
            Bound::Mpich(bound) => bound.functions.rank_and_size(),
        }
    }
}

impl Transport for Mpi {
    fn exchange(
        &mut self,
        round: Round<'_>,
        must_stop: &dyn Fn() -> bool,
    ) -> Result<(), Interruption> {
        self.has_unfinished = true;
        match &mut self.bound {
            Bound::OpenMpi(bound) => bound.exchange(round, must_stop)?,
            Bound::Mpich(bound) => bound.exchange(round, must_stop)?,
        }
        self.has_unfinished = false;
        Ok(())
    }

    fn held_bytes(&self) -> u64 {
        0
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn has_unfinished(&self) -> bool {
        self.has_unfinished
    }

    fn ends_together(&self) -> bool {
        true
    }

    fn finish(&mut self) {
        match &self.bound {
            Bound::OpenMpi(bound) => bound.functions.finish(),
            Bound::Mpich(bound) => bound.functions.finish(),
        }
    }
}

impl<H: Handle> Requests<H> {
    fn new(functions: Functions<H>) -> Requests<H> {
        Requests {
            functions,
            requests: Vec::new(),
        }
    }

    fn exchange(
        &mut self,
        round: Round<'_>,
        must_stop: &dyn Fn() -> bool,
    ) -> Result<(), Interruption> {
        let failed = |said: String| Interruption::Transport { said };
        self.requests.clear();
        for (peer, span) in round.receives.iter().enumerate() {
            if span.len > 0 {
                let bytes = &mut round.incoming[span.start..span.start + span.len];
                // SAFETY: spans do not overlap, and staging is neither touched nor freed before the round is done: the
                // borrow lasts until then, and a caller that aborts a round leaks its staging (`has_unfinished`).
                let request = unsafe { self.functions.receive(bytes, peer, TAG) };
                self.requests.push(request.map_err(failed)?);
            }
        }
        for (peer, span) in round.sends.iter().enumerate() {
            if span.len > 0 {
                let bytes = &round.outgoing[span.start..span.start + span.len];
                // SAFETY: as above.
                let request = unsafe { self.functions.send(bytes, peer, TAG) };
                self.requests.push(request.map_err(failed)?);
            }
        }
        let began = Instant::now();
        while !self
            .functions
            .are_done(&mut self.requests)
            .map_err(failed)?
        {
            if must_stop() {
                return Err(Interruption::Stopped);
            }
            if began.elapsed() < EAGER {
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}
