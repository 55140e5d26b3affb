//! Streams, events and captured graphs, and the order in which work runs.
//!
//! Nothing runs when it is enqueued. When the program waits, or queries whether work is done, work runs piece by piece: each time a
//! stream is drawn at random among those whose next piece has no unmet dependency. The nodes of a captured graph are drawn in the same way.
//! So every order that a real card could choose may occur, and a result that depends on the order differs from seed to seed.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::memory::Memory;
use crate::model::{Draws, Model, SHARED_BYTES, SPILLED_SLOWDOWN, model};

/// Status codes of the driver.
pub mod code {
    pub const SUCCESS: i32 = 0;
    pub const INVALID_VALUE: i32 = 1;
    pub const OUT_OF_MEMORY: i32 = 2;
    pub const NO_DEVICE: i32 = 100;
    pub const INVALID_DEVICE: i32 = 101;
    pub const INVALID_IMAGE: i32 = 200;
    pub const INVALID_CONTEXT: i32 = 201;
    pub const NO_BINARY: i32 = 209;
    pub const INVALID_HANDLE: i32 = 400;
    pub const NOT_FOUND: i32 = 500;
    pub const NOT_READY: i32 = 600;
    pub const ILLEGAL_ADDRESS: i32 = 700;
    pub const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
    pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    pub const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
    pub const LAUNCH_FAILED: i32 = 719;
    pub const CAPTURE_UNSUPPORTED: i32 = 900;
    pub const CAPTURE_MERGE: i32 = 902;
    pub const CAPTURE_UNJOINED: i32 = 904;
    pub const CAPTURE_ISOLATION: i32 = 905;
    pub const CAPTURED_EVENT: i32 = 907;
}

/// An error that ends a card's work for good.
#[derive(Debug)]
pub struct CardFault {
    pub code: i32,
    pub message: String,
}

/// A piece of work: a kernel, a copy, a product.
pub trait Task: Send + Sync {
    fn run(&self, memory: &Memory) -> Result<(), CardFault>;

    /// Duration on the model card.
    fn seconds(&self) -> f64;

    /// The task as an exchange, if other processes take part: then `run` is never called.
    fn exchange(&self) -> Option<&dyn Exchange> {
        None
    }

    /// If two consecutive tasks have the same key, the second has no effect and is skipped.
    fn key(&self) -> Option<&[u64]> {
        None
    }
}

/// Work of several processes.
pub trait Exchange {
    /// Takes the next index in the order of exchanges, when the exchange is enqueued or a graph that contains it is launched.
    fn take_ticket(&self) -> u64;

    /// Does as much as is possible now; returns whether the exchange is complete.
    fn advance(&self, ticket: u64) -> Result<bool, CardFault>;
}

/// The ticket of an exchange; `None` for other work.
fn ticket_of(task: &dyn Task) -> Option<u64> {
    task.exchange().map(Exchange::take_ticket)
}

/// Outcome of one attempt to run work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// A piece of work ran.
    Made,
    /// All remaining work waits for another process.
    WaitsForOthers,
    NothingToDo,
}

enum Work {
    Task {
        task: Arc<dyn Task>,
        ticket: Option<u64>,
    },
    /// Records an event.
    Record {
        event: u64,
        record: u64,
    },
    /// Waits for a record of an event.
    Wait {
        record: u64,
    },
    Replay(Replay),
}

struct Node {
    task: Arc<dyn Task>,
    after: Vec<usize>,
    /// Nodes that depend on this one; known once the capture has ended.
    before: Vec<usize>,
}

/// A captured graph.
#[derive(Default)]
pub struct Graph {
    nodes: Vec<Node>,
}

struct Replay {
    graph: Arc<Graph>,
    tickets: Vec<Option<u64>>,
    /// Number of unmet dependencies of each node.
    missing: Vec<usize>,
    ready: Vec<usize>,
    num_left: usize,
}

impl Replay {
    fn new(graph: Arc<Graph>) -> Replay {
        let missing: Vec<usize> = graph.nodes.iter().map(|node| node.after.len()).collect();
        let ready = (0..missing.len())
            .filter(|&index| missing[index] == 0)
            .collect();
        let nodes = graph.nodes.iter();
        let tickets = nodes.map(|node| ticket_of(&*node.task)).collect();
        Replay {
            num_left: missing.len(),
            tickets,
            graph,
            missing,
            ready,
        }
    }

    fn finish(&mut self, done: usize) {
        self.num_left -= 1;
        for &index in &self.graph.nodes[done].before {
            self.missing[index] -= 1;
            if self.missing[index] == 0 {
                self.ready.push(index);
            }
        }
    }
}

struct Capture {
    origin: u64,
    graph: Graph,
}

struct Stream {
    card: usize,
    queue: VecDeque<Work>,
    /// The capture that the stream takes part in, and the nodes that the next node depends on.
    captured: Option<(u64, Vec<usize>)>,
}

struct Event {
    last_record: Option<u64>,
    has_clock: bool,
    seconds: f64,
    captured: Option<(u64, Vec<usize>)>,
}

pub struct Card {
    pub memory: Memory,
    /// The driver's status for every call after a fault.
    pub fault: Option<i32>,
    pub num_retained: usize,
}

/// All cards, and the objects that programs have created on them.
pub struct Machine {
    pub model: &'static Model,
    pub cards: Vec<Card>,
    /// Host memory that cards can access: start -> bytes.
    pub pinned: BTreeMap<u64, u64>,
    pub draws: Draws,
    next_number: u64,
    streams: BTreeMap<u64, Stream>,
    events: HashMap<u64, Event>,
    pending_records: HashSet<u64>,
    captures: HashMap<u64, Capture>,
    graphs: HashMap<u64, Arc<Graph>>,
    /// Clock of the model card, in seconds.
    seconds: f64,
    last_key: Option<Vec<u64>>,
}

/// Condition of a wait.
#[derive(Clone, Copy)]
pub enum Goal {
    Stream(u64),
    Record(u64),
    Card(usize),
}

/// The machine; `Err` if the environment names no card.
pub fn machine() -> Result<MutexGuard<'static, Machine>, i32> {
    static MACHINE: OnceLock<Option<Mutex<Machine>>> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| {
        let model = model().ok()?;
        let card = |ordinal| Card {
            memory: Memory::new(
                ordinal,
                model.total_bytes,
                if model.is_wddm { SHARED_BYTES } else { 0 },
            ),
            fault: None,
            num_retained: 0,
        };
        Some(Mutex::new(Machine {
            model,
            cards: (0..model.count).map(card).collect(),
            pinned: BTreeMap::new(),
            draws: Draws::new(model.seed),
            next_number: 0x10,
            streams: BTreeMap::new(),
            events: HashMap::new(),
            pending_records: HashSet::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            seconds: 0.0,
            last_key: None,
        }))
    });
    let machine = machine.as_ref().ok_or(code::NO_DEVICE)?;
    Ok(machine.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Machine {
    /// A number that no other handle has.
    pub fn new_number(&mut self) -> u64 {
        self.next_number += 0x10;
        self.next_number
    }

    /// Forgets the key of the last task, because memory was freed or allocated.
    pub fn forget_last(&mut self) {
        self.last_key = None;
    }

    /// Whether work may access this range: on the card, or in pinned host memory.
    pub fn reaches(&self, card: usize, address: u64, bytes: u64) -> bool {
        self.cards[card].memory.contains(address, bytes) || self.is_pinned(address, bytes)
    }

    pub fn is_pinned(&self, address: u64, bytes: u64) -> bool {
        let before = self.pinned.range(..=address).next_back();
        before.is_some_and(|(start, size)| address + bytes <= start + size)
    }

    /// Pins host memory; false if that exceeds the system's limit.
    pub fn pin(&mut self, address: u64, bytes: u64) -> bool {
        let pinned: u64 = self.pinned.values().sum();
        if pinned + bytes > self.model.pinned_bytes {
            return false;
        }
        self.pinned.insert(address, bytes);
        self.charge_pinned();
        true
    }

    pub fn unpin(&mut self, address: u64) -> Option<u64> {
        let bytes = self.pinned.remove(&address);
        self.charge_pinned();
        bytes
    }

    fn charge_pinned(&mut self) {
        let pinned = self.pinned.values().sum();
        self.cards[0].memory.charge_pinned(pinned);
    }

    pub fn new_stream(&mut self, card: usize) -> u64 {
        let number = self.new_number();
        let stream = Stream {
            card,
            queue: VecDeque::new(),
            captured: None,
        };
        self.streams.insert(number, stream);
        number
    }

    pub fn destroy_stream(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    fn stream(&mut self, stream: u64) -> Result<&mut Stream, i32> {
        self.streams.get_mut(&stream).ok_or(code::INVALID_HANDLE)
    }

    pub fn is_captured(&self, stream: u64) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.captured.is_some())
    }

    /// Enqueues work in a stream, or in the graph of the stream's capture.
    pub fn put(&mut self, stream: u64, task: Arc<dyn Task>) -> Result<(), i32> {
        let stream = self.streams.get_mut(&stream);
        let stream = stream.ok_or(code::INVALID_HANDLE)?;
        let Some((capture, after)) = &mut stream.captured else {
            let ticket = ticket_of(&*task);
            stream.queue.push_back(Work::Task { task, ticket });
            return Ok(());
        };
        let capture = self
            .captures
            .get_mut(capture)
            .ok_or(code::CAPTURE_UNSUPPORTED)?;
        let index = capture.graph.nodes.len();
        let after = std::mem::replace(after, vec![index]);
        capture.graph.nodes.push(Node {
            task,
            after,
            before: Vec::new(),
        });
        Ok(())
    }

    pub fn begin_capture(&mut self, number: u64) -> Result<(), i32> {
        let capture = self.new_number();
        let stream = self.stream(number)?;
        if stream.captured.is_some() {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        stream.captured = Some((capture, Vec::new()));
        self.captures.insert(
            capture,
            Capture {
                origin: number,
                graph: Graph::default(),
            },
        );
        Ok(())
    }

    /// Ends a stream's capture and returns the number of its graph.
    pub fn end_capture(&mut self, number: u64) -> Result<u64, i32> {
        let (capture, last) = self
            .stream(number)?
            .captured
            .clone()
            .ok_or(code::CAPTURE_UNSUPPORTED)?;
        let origin = self.captures.get(&capture).map(|capture| capture.origin);
        if origin != Some(number) {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        for stream in self.streams.values_mut() {
            if stream
                .captured
                .as_ref()
                .is_some_and(|(of, _)| *of == capture)
            {
                stream.captured = None;
            }
        }
        let Some(Capture { mut graph, .. }) = self.captures.remove(&capture) else {
            return Err(code::CAPTURE_UNSUPPORTED);
        };
        for index in 0..graph.nodes.len() {
            for before in graph.nodes[index].after.clone() {
                graph.nodes[before].before.push(index);
            }
        }
        let mut nodes = graph.nodes.iter().enumerate();
        if nodes.any(|(index, node)| node.before.is_empty() && !last.contains(&index)) {
            return Err(code::CAPTURE_UNJOINED);
        }
        let number = self.new_number();
        self.graphs.insert(number, Arc::new(graph));
        Ok(number)
    }

    /// A second handle of a graph, for launching.
    pub fn instantiate(&mut self, graph: u64) -> Result<u64, i32> {
        let graph = self.graph(graph)?;
        let number = self.new_number();
        self.graphs.insert(number, graph);
        Ok(number)
    }

    pub fn graph(&self, graph: u64) -> Result<Arc<Graph>, i32> {
        self.graphs.get(&graph).cloned().ok_or(code::INVALID_HANDLE)
    }

    pub fn destroy_graph(&mut self, graph: u64) -> Option<Arc<Graph>> {
        self.graphs.remove(&graph)
    }

    pub fn launch_graph(&mut self, graph: u64, stream: u64) -> Result<(), i32> {
        let graph = self.graph(graph)?;
        let stream = self.stream(stream)?;
        if stream.captured.is_some() {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        stream.queue.push_back(Work::Replay(Replay::new(graph)));
        Ok(())
    }

    pub fn new_event(&mut self, has_clock: bool) -> u64 {
        let number = self.new_number();
        let event = Event {
            last_record: None,
            has_clock,
            seconds: 0.0,
            captured: None,
        };
        self.events.insert(number, event);
        number
    }

    pub fn destroy_event(&mut self, event: u64) -> bool {
        self.events.remove(&event).is_some()
    }

    pub fn record(&mut self, event: u64, stream: u64) -> Result<(), i32> {
        let captured = self.stream(stream)?.captured.clone();
        let record = self.new_number();
        let made = self.events.get_mut(&event).ok_or(code::INVALID_HANDLE)?;
        made.captured = captured;
        if made.captured.is_none() {
            made.last_record = Some(record);
            self.pending_records.insert(record);
            let work = Work::Record { event, record };
            self.stream(stream)?.queue.push_back(work);
        }
        Ok(())
    }

    /// Makes a stream wait for the last record of an event.
    pub fn wait_for_event(&mut self, stream: u64, event: u64) -> Result<(), i32> {
        let event = self.events.get(&event).ok_or(code::INVALID_HANDLE)?;
        let (captured, last_record) = (event.captured.clone(), event.last_record);
        if let Some((capture, nodes)) = captured {
            if !self.captures.contains_key(&capture) {
                return Err(code::CAPTURED_EVENT);
            }
            let stream = self.stream(stream)?;
            return match &mut stream.captured {
                Some((own, _)) if *own != capture => Err(code::CAPTURE_MERGE),
                Some((_, after)) => {
                    after.extend(nodes);
                    after.sort_unstable();
                    after.dedup();
                    Ok(())
                }
                None => {
                    stream.captured = Some((capture, nodes));
                    Ok(())
                }
            };
        }
        let Some(record) = last_record else {
            return Ok(());
        };
        let stream = self.stream(stream)?;
        if stream.captured.is_some() {
            return Err(code::CAPTURE_ISOLATION);
        }
        stream.queue.push_back(Work::Wait { record });
        Ok(())
    }

    /// The condition of a wait for an event.
    pub fn goal_of_event(&self, event: u64) -> Result<Option<Goal>, i32> {
        let event = self.events.get(&event).ok_or(code::INVALID_HANDLE)?;
        if event.captured.is_some() {
            return Err(code::CAPTURED_EVENT);
        }
        Ok(event.last_record.map(Goal::Record))
    }

    /// Milliseconds between two events.
    pub fn elapsed(&self, from: u64, to: u64) -> Result<f32, i32> {
        let [from, to] = [from, to].map(|event| self.events.get(&event));
        let (Some(from), Some(to)) = (from, to) else {
            return Err(code::INVALID_HANDLE);
        };
        if !from.has_clock || !to.has_clock {
            return Err(code::INVALID_HANDLE);
        }
        let is_pending = |event: &Event| match event.last_record {
            Some(record) => self.pending_records.contains(&record),
            None => true,
        };
        if is_pending(from) || is_pending(to) {
            return Err(code::NOT_READY);
        }
        Ok(((to.seconds - from.seconds) * 1e3) as f32)
    }

    pub fn is_reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Stream(stream) => self
                .streams
                .get(&stream)
                .is_none_or(|stream| stream.queue.is_empty()),
            Goal::Record(record) => !self.pending_records.contains(&record),
            Goal::Card(card) => {
                let mut streams = self.streams.values();
                streams.all(|stream| stream.card != card || stream.queue.is_empty())
            }
        }
    }

    /// Runs a piece of work of a randomly drawn stream.
    pub fn step(&mut self) -> Attempt {
        let is_ready = |stream: &Stream| match stream.queue.front() {
            None => false,
            Some(Work::Wait { record }) => !self.pending_records.contains(record),
            Some(_) => true,
        };
        let mut ready: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, stream)| is_ready(stream))
            .map(|(number, _)| *number)
            .collect();
        let mut progress = Attempt::NothingToDo;
        while !ready.is_empty() {
            let number = ready.swap_remove(self.draws.below(ready.len()));
            if self.step_of(number) {
                return Attempt::Made;
            }
            progress = Attempt::WaitsForOthers;
        }
        progress
    }

    /// Runs the next piece of a stream's work; false if the piece waits for another process.
    fn step_of(&mut self, number: u64) -> bool {
        let Some(stream) = self.streams.get_mut(&number) else {
            return true;
        };
        let card = stream.card;
        match stream.queue.pop_front() {
            Some(Work::Task { task, ticket }) => {
                let is_done = self.run(card, &*task, ticket);
                if !is_done {
                    self.put_back(number, Work::Task { task, ticket });
                }
                is_done
            }
            Some(Work::Replay(mut replay)) => {
                let is_done = replay.num_left == 0 || self.step_of_replay(card, &mut replay);
                if replay.num_left > 0 {
                    self.put_back(number, Work::Replay(replay));
                }
                is_done
            }
            Some(Work::Record { event, record }) => {
                self.pending_records.remove(&record);
                if let Some(event) = self.events.get_mut(&event)
                    && event.last_record == Some(record)
                {
                    event.seconds = self.seconds;
                }
                true
            }
            Some(Work::Wait { .. }) | None => true,
        }
    }

    fn step_of_replay(&mut self, card: usize, replay: &mut Replay) -> bool {
        let mut ready = replay.ready.clone();
        while !ready.is_empty() {
            let index = ready.swap_remove(self.draws.below(ready.len()));
            let task = replay.graph.nodes[index].task.clone();
            if self.run(card, &*task, replay.tickets[index]) {
                replay.ready.retain(|other| *other != index);
                replay.finish(index);
                return true;
            }
        }
        false
    }

    fn put_back(&mut self, stream: u64, work: Work) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.queue.push_front(work);
        }
    }

    /// Runs a task; false if the task waits for another process and has to be tried again.
    fn run(&mut self, card: usize, task: &dyn Task, ticket: Option<u64>) -> bool {
        if self.cards[card].fault.is_some() {
            return true;
        }
        let key = task.key().map(<[u64]>::to_vec);
        let is_done = match (task.exchange(), ticket) {
            (Some(exchange), Some(ticket)) => exchange.advance(ticket),
            _ if key.is_some() && key == self.last_key => Ok(true),
            _ => task.run(&self.cards[card].memory).map(|()| true),
        };
        let is_done = is_done.unwrap_or_else(|fault| {
            eprintln!("software card: {}", fault.message);
            self.cards[card].fault = Some(fault.code);
            true
        });
        if is_done {
            self.last_key = key;
            let slowdown = if self.cards[card].memory.is_spilled() {
                SPILLED_SLOWDOWN
            } else {
                1.0
            };
            self.seconds += slowdown * task.seconds();
        }
        is_done
    }
}

impl Graph {
    pub fn num_nodes(&self) -> usize {
        self.nodes.len()
    }
}

/// Runs work until a condition is met.
pub fn run_until(
    mut machine: MutexGuard<'static, Machine>,
    goal: Goal,
) -> Result<MutexGuard<'static, Machine>, i32> {
    while !machine.is_reached(goal) {
        match machine.step() {
            Attempt::Made => {}
            Attempt::WaitsForOthers => {
                drop(machine);
                std::thread::sleep(Duration::from_micros(100));
                machine = self::machine()?;
            }
            Attempt::NothingToDo => {
                eprintln!("software card: streams wait for each other, and none can go on");
                return Err(code::LAUNCH_FAILED);
            }
        }
    }
    Ok(machine)
}

/// A copy of bytes between any two addresses.
pub struct Copy {
    pub to: u64,
    pub from: CopySource,
    pub bytes: usize,
}

/// Source of a copy.
pub enum CopySource {
    Address(u64),
    /// Contents of pageable memory at the time of the call.
    Snapshot(Vec<u8>),
}

impl Task for Copy {
    fn run(&self, _memory: &Memory) -> Result<(), CardFault> {
        let from = match &self.from {
            CopySource::Address(address) => *address,
            CopySource::Snapshot(bytes) => bytes.as_ptr() as u64,
        };
        crate::foreign::copy(self.to, from, self.bytes);
        Ok(())
    }

    fn seconds(&self) -> f64 {
        2e-6 + 2.0 * self.bytes as f64 / crate::model::BYTES_PER_SECOND
    }
}

/// Sets bytes or words to one value.
pub struct Fill {
    pub to: u64,
    pub value: u32,
    pub count: usize,
    /// Whether each value has 4 bytes.
    pub is_wide: bool,
}

impl Task for Fill {
    fn run(&self, _memory: &Memory) -> Result<(), CardFault> {
        if self.is_wide {
            crate::foreign::slice_mut::<u32>(self.to, self.count).fill(self.value);
        } else {
            crate::foreign::slice_mut::<u8>(self.to, self.count).fill(self.value as u8);
        }
        Ok(())
    }

    fn seconds(&self) -> f64 {
        2e-6 + self.count as f64 / crate::model::BYTES_PER_SECOND
    }
}
