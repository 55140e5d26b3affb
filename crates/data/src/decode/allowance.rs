//! A byte budget shared by all threads that decode pictures: a thread claims the cost of a picture before it decodes it.
//!
//! First come, first served: a large picture waits until enough bytes are free, and small pictures that arrive later queue behind it, so
//! that it is not starved. A picture that costs more than the whole allowance is refused, with both figures.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A shared byte budget; clones share the same budget.
#[derive(Clone, Debug)]
pub struct Allowance {
    shared: Arc<SharedAllowance>,
}

#[derive(Debug)]
struct SharedAllowance {
    state: Mutex<AllowanceState>,
    /// Signalled when bytes are freed or the total changes.
    changed: Condvar,
}

#[derive(Debug)]
struct AllowanceState {
    total_bytes: u64,
    claimed_bytes: u64,
    most_claimed_bytes: u64,
    /// Queue of waiting threads: the next ticket to hand out, and the ticket at the head of the queue.
    next_ticket: u64,
    turn: u64,
}

/// Error: a picture costs more than the whole allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch {
    pub allowed_bytes: u64,
}

impl Allowance {
    pub fn new(total_bytes: u64) -> Allowance {
        Allowance {
            shared: Arc::new(SharedAllowance {
                state: Mutex::new(AllowanceState {
                    total_bytes,
                    claimed_bytes: 0,
                    most_claimed_bytes: 0,
                    next_ticket: 0,
                    turn: 0,
                }),
                changed: Condvar::new(),
            }),
        }
    }

    pub fn unlimited() -> Allowance {
        Allowance::new(u64::MAX)
    }

    /// Budget of all claims together.
    pub fn total_bytes(&self) -> u64 {
        self.lock().total_bytes
    }

    /// Changes the budget of all claims together; bytes that are claimed already stay claimed.
    pub fn set_total(&self, bytes: u64) {
        self.lock().total_bytes = bytes;
        self.shared.changed.notify_all();
    }

    /// Bytes claimed now, by all threads.
    pub fn claimed_bytes(&self) -> u64 {
        self.lock().claimed_bytes
    }

    /// Peak of the claimed bytes.
    pub fn most_claimed_bytes(&self) -> u64 {
        self.lock().most_claimed_bytes
    }

    fn lock(&self) -> MutexGuard<'_, AllowanceState> {
        // No code panics while it holds the lock.
        let state = self.shared.state.lock();
        state.unwrap_or_else(|error| error.into_inner())
    }

    pub fn claim(&self) -> Claim {
        Claim {
            allowance: self.clone(),
            bytes: 0,
        }
    }
}

impl AllowanceState {
    fn has(&self, bytes: u64) -> bool {
        self.claimed_bytes.saturating_add(bytes) <= self.total_bytes
    }

    fn give(&mut self, bytes: u64) {
        self.claimed_bytes += bytes;
        self.most_claimed_bytes = self.most_claimed_bytes.max(self.claimed_bytes);
    }
}

/// One thread's share of an [`Allowance`]; freed on drop.
#[derive(Debug)]
pub struct Claim {
    allowance: Allowance,
    bytes: u64,
}

impl Claim {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Grows the claim to `bytes` without waiting. Returns false when the allowance has too little left or other threads wait.
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let mut state = self.allowance.lock();
        let nobody_waits = state.turn == state.next_ticket;
        if more > 0 && !(nobody_waits && state.has(more)) {
            return false;
        }
        state.give(more);
        self.bytes += more;
        true
    }

    /// Frees the claim, then waits for a claim of `bytes`. The caller must hold no buffer meanwhile: threads that hold bytes while they
    /// wait could deadlock.
    pub fn exchange(&mut self, bytes: u64) -> Result<(), TooMuch> {
        self.give_back();
        let shared = Arc::clone(&self.allowance.shared);
        let mut state = self.allowance.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let is_allowed = loop {
            let is_my_turn = state.turn == ticket;
            let is_too_much = bytes > state.total_bytes;
            if is_my_turn && (is_too_much || state.has(bytes)) {
                break !is_too_much;
            }
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(|error| error.into_inner());
        };
        state.turn += 1;
        if is_allowed {
            state.give(bytes);
            self.bytes = bytes;
        }
        let allowed_bytes = state.total_bytes;
        drop(state);
        shared.changed.notify_all();
        if is_allowed {
            Ok(())
        } else {
            Err(TooMuch { allowed_bytes })
        }
    }

    /// Whether other threads wait for bytes.
    pub fn is_wanted(&self) -> bool {
        let state = self.allowance.lock();
        state.turn != state.next_ticket
    }

    pub fn give_back(&mut self) {
        if self.bytes > 0 {
            self.allowance.lock().claimed_bytes -= self.bytes;
            self.bytes = 0;
            self.allowance.shared.changed.notify_all();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_claimed_comes_back() {
        let allowance = Allowance::new(100);
        let (mut first, mut second) = (allowance.claim(), allowance.claim());
        assert!(first.try_grow(40) && second.try_grow(60));
        assert!(!first.try_grow(41) && first.bytes() == 40);
        drop(second);
        assert!(first.try_grow(100) && first.try_grow(7));
        assert_eq!(first.exchange(101), Err(TooMuch { allowed_bytes: 100 }));
        assert_eq!((first.bytes(), allowance.most_claimed_bytes()), (0, 100));
        allowance.set_total(101);
        assert_eq!(first.exchange(101), Ok(()));
    }

    /// While a large claim waits, later small ones wait behind it.
    #[test]
    fn a_large_claim_is_not_starved() {
        let allowance = Allowance::new(100);
        let mut held = allowance.claim();
        assert!(held.try_grow(50));
        let (send, order) = mpsc::channel();
        std::thread::scope(|threads| {
            let wait_for = |bytes: u64, tickets: u64| {
                let (mut claim, send) = (allowance.claim(), send.clone());
                threads.spawn(move || {
                    claim.exchange(bytes).unwrap();
                    send.send(bytes).unwrap();
                });
                while allowance.lock().next_ticket != tickets {
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            wait_for(100, 1);
            wait_for(10, 2);
            assert!(held.is_wanted() && !held.try_grow(51));
            held.give_back();
        });
        assert_eq!(order.try_iter().collect::<Vec<u64>>(), [100, 10]);
    }
}
