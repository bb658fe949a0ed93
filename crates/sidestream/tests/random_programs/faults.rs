//! A back end that refuses random calls, or one of them, and counts allocations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sidestream::backend::{
    Address, Backend, Caps, Code, Create, Destroy, Done, Fill, Payload, Reserve,
};
use sidestream::error::{Error, Result};
use sidestream::op::{
    Accesses, DeviceId, EventId, GraphId, Kind, Memory, Op, OpId, SiteId, StreamId, ThreadId,
};
use sidestream::sim::Machine;

use super::dice::Dice;
use super::stuck;

/// The code of an artificial refusal. An error with another code comes from the machine, and is a bug of the runtime.
pub const MADE_UP: i32 = 987_654;

/// Maximum number of calls, after which a program counts as endless. The longest that ends makes a few thousand.
const CALLS_AT_MOST: u64 = 400_000;

/// The thread of other code in the machine.
const OTHERS: ThreadId = ThreadId(60);
/// The handle of a stream is its number, plus this. Handles of other code begin at twice this.
const HANDLES: u64 = 1 << 32;
const THEIRS: u64 = 1 << 40;

pub struct Faults {
    pub machine: Machine,
    /// Streams of other code by handle.
    adopted: Mutex<BTreeMap<u64, StreamId>>,
    handles: AtomicU64,
    graphs: AtomicU32,
    per_mille: AtomicU32,
    dice: Mutex<Dice>,
    one: Option<One>,
    calls: AtomicU64,
    account: Mutex<Account>,
}

/// The one call that fails.
struct One {
    /// Number of calls before the one that fails.
    left: AtomicU64,
    /// Whether the machine performs the call first, if it submits work to a stream.
    behind: bool,
}

/// Objects that were created and not destroyed.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct Account {
    pub memory: BTreeMap<Address, u64>,
    pub streams: BTreeSet<StreamId>,
    pub events: BTreeSet<EventId>,
    pub graphs: BTreeSet<GraphId>,
    /// Messages about invalid calls: an object that was created twice, or destroyed or freed without existing.
    pub wrong: Vec<String>,
}

impl Faults {
    pub fn new(machine: Machine, per_mille: u32, seed: u64) -> Faults {
        Faults {
            machine,
            adopted: Mutex::default(),
            handles: AtomicU64::new(THEIRS),
            graphs: AtomicU32::new(300),
            per_mille: AtomicU32::new(per_mille),
            dice: Mutex::new(Dice::new(seed)),
            one: None,
            calls: AtomicU64::new(0),
            account: Mutex::default(),
        }
    }

    /// Returns a back end in which the call after `after` others fails. With `behind`, a call that submits work does
    /// so and then fails; other calls are only refused.
    pub fn one(machine: Machine, after: u64, behind: bool) -> Faults {
        let left = AtomicU64::new(after);
        Faults {
            one: Some(One { left, behind }),
            ..Faults::new(machine, 1000, 0)
        }
    }

    /// Returns whether that call was made.
    pub fn has_failed(&self) -> bool {
        let one = self.one.as_ref();
        one.is_some_and(|one| one.left.load(Ordering::Relaxed) == u64::MAX)
    }

    /// Lets nothing fail from here on.
    pub fn stop(&self) {
        self.per_mille.store(0, Ordering::Relaxed);
    }

    pub fn account(&self) -> Account {
        self.account.lock().clone()
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn count(&self) {
        stuck::step();
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(calls < CALLS_AT_MOST, "the program does not end");
    }

    fn chance(&self, call: &'static str) -> Result<()> {
        self.count();
        let per_mille = self.per_mille.load(Ordering::Relaxed);
        let is_hit = match &self.one {
            _ if per_mille == 0 => false,
            None => self.dice.lock().chance(per_mille),
            Some(_) if self.has_failed() => false,
            Some(one) => one.left.fetch_sub(1, Ordering::Relaxed) == 0,
        };
        if !is_hit {
            return Ok(());
        }
        Err(Error::Refused {
            call,
            code: MADE_UP,
            why: "the test said so".into(),
        })
    }
}

/// Calls of other code to the machine, which the runtime does not observe.
impl Faults {
    /// Returns the handle of a new stream of other code.
    pub fn new_handle(&self) -> u64 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    pub fn stream_of(&self, handle: u64) -> StreamId {
        let adopted = self.adopted.lock().get(&handle).copied();
        adopted.unwrap_or(StreamId((handle - HANDLES) as u32))
    }

    /// Fills memory as other code. Returns whether the call succeeded: the machine refuses invalid calls during
    /// captures, and calls to a lost device.
    pub fn others_fill(&self, stream: StreamId, at: u64, bytes: u64, value: u8) -> bool {
        let fill = Fill {
            at: Address(at),
            value: u32::from(value),
            width: 1,
            count: bytes,
        };
        let filled = self.others(Kind::Memset { stream }, Payload::Fill(fill));
        filled.is_ok()
    }

    pub fn others_wait(&self, stream: StreamId) -> bool {
        let op = of_others(Kind::SyncStream { stream });
        self.machine.wait(&op, Duration::MAX) == Ok(true)
    }

    pub fn others_begin(&self, stream: StreamId) -> bool {
        let kind = Kind::BeginCapture { stream };
        self.others(kind, Payload::None).is_ok()
    }

    /// Ends a capture and launches its graph.
    pub fn others_end(&self, stream: StreamId, device: DeviceId) -> Result<()> {
        self.others(Kind::EndCapture { stream }, Payload::None)?;
        let graph = GraphId(self.graphs.fetch_add(1, Ordering::Relaxed));
        let create = Create::Graph {
            id: graph,
            device,
            nodes: &[],
        };
        // SAFETY: the number belongs to other code, which destroys the graph after waiting for it.
        unsafe { self.machine.create(create)? };
        self.others(Kind::GraphLaunch { stream, graph }, Payload::Graph)?;
        self.others_wait(stream);
        // SAFETY: as above.
        unsafe { self.machine.destroy(Destroy::Graph(graph)) };
        Ok(())
    }

    /// Each query advances the machine's clock.
    pub fn let_time_pass(&self) {
        let device = Some(DeviceId(0));
        let op = of_others(Kind::SyncDevice { device });
        for _ in 0..64 {
            let _ = self.machine.wait(&op, Duration::MAX);
        }
    }

    fn others(&self, kind: Kind, payload: Payload<'_>) -> Result<()> {
        // SAFETY: the memory was lent for this, or is the capture's own.
        unsafe { self.machine.submit(&of_others(kind), payload) }
    }
}

fn of_others(kind: Kind) -> Op {
    Op {
        id: OpId(0),
        thread: OTHERS,
        site: SiteId(0),
        kind,
        accesses: Accesses::new(),
    }
}

// SAFETY: the machine performs every call that is not refused, with the same guarantees.
unsafe impl Backend for Faults {
    fn devices(&self) -> &[Caps] {
        self.machine.devices()
    }

    unsafe fn create(&self, what: Create<'_>) -> Result<()> {
        if let Err(error) = self.chance("create") {
            // A capture that could not be made into a graph no longer exists.
            if let Create::Graph { id, nodes: [], .. } = what
                && !self.account.lock().graphs.contains(&id)
            {
                // SAFETY: the number refers to no object, before and afterwards.
                unsafe {
                    self.machine.create(what)?;
                    self.machine.destroy(Destroy::Graph(id));
                }
            }
            return Err(error);
        }
        // SAFETY: the caller promises it, here and below.
        unsafe { self.machine.create(what)? };
        let mut account = self.account.lock();
        if let Create::Stream {
            id,
            adopt: Some(handle),
            ..
        } = what
        {
            self.adopted.lock().insert(handle, id);
        }
        let is_new = match what {
            // The default streams exist before and afterwards.
            Create::Stream { kind, .. } if kind.is_default() => true,
            Create::Stream { id, .. } => account.streams.insert(id),
            Create::Event { id, .. } | Create::Interprocess { id, .. } => account.events.insert(id),
            Create::Graph { id, .. } => account.graphs.insert(id),
        };
        if !is_new {
            account.wrong.push(format!("{what:?} was there already"));
        }
        Ok(())
    }

    unsafe fn destroy(&self, what: Destroy) {
        self.count();
        {
            let mut account = self.account.lock();
            let was_there = match what {
                Destroy::Stream(id) => account.streams.remove(&id),
                Destroy::Event(id) => account.events.remove(&id),
                Destroy::Graph(id) => account.graphs.remove(&id),
            };
            if !was_there {
                account.wrong.push(format!("{what:?} was not there"));
            }
        }
        // SAFETY: as in `create`.
        unsafe { self.machine.destroy(what) };
    }

    fn reserve(&self, wanted: Reserve) -> Result<Address> {
        self.chance("reserve")?;
        let address = self.machine.reserve(wanted)?;
        self.account.lock().memory.insert(address, wanted.bytes);
        Ok(address)
    }

    unsafe fn unreserve(&self, memory: Memory, device: DeviceId, at: Address) {
        self.count();
        {
            let mut account = self.account.lock();
            if account.memory.remove(&at).is_none() {
                account.wrong.push(format!("{at:?} was not reserved"));
            }
        }
        // SAFETY: as in `create`.
        unsafe { self.machine.unreserve(memory, device, at) };
    }

    unsafe fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        let chance = self.chance("submit");
        if chance.is_ok() || self.one.as_ref().is_some_and(|one| one.behind) {
            // SAFETY: as in `create`.
            unsafe { self.machine.submit(op, payload)? };
        }
        chance.map_err(|error| match (error, &self.one) {
            (Error::Refused { call, code, why }, Some(One { behind: true, .. })) => {
                Error::Submitted { call, code, why }
            }
            (error, _) => error,
        })
    }

    fn is_captured(&self, stream: StreamId) -> bool {
        self.machine.is_captured(stream)
    }

    unsafe fn register(&self, at: Address, bytes: u64) -> Result<()> {
        self.chance("register")?;
        // SAFETY: the caller promises it.
        unsafe { self.machine.register(at, bytes) }
    }

    unsafe fn unregister(&self, at: Address) {
        // SAFETY: as in `create`.
        unsafe { self.machine.unregister(at) };
    }

    fn prepare(&self, device: DeviceId, code: &Arc<Code>) -> Result<()> {
        self.chance("prepare")?;
        self.machine.prepare(device, code)
    }

    fn query(&self, op: &Op) -> Result<bool> {
        self.chance("query")?;
        self.machine.query(op)
    }

    fn peek(&self, op: &Op) -> Result<bool> {
        self.chance("peek")?;
        self.machine.peek(op)
    }

    fn wait(&self, op: &Op, for_at_most: Duration) -> Result<bool> {
        self.chance("wait")?;
        self.machine.wait(op, for_at_most)
    }

    fn elapsed_ns(&self, from: EventId, to: EventId) -> Result<f64> {
        self.chance("elapsed")?;
        self.machine.elapsed_ns(from, to)
    }

    fn keep_times(&self, keep: bool) {
        self.machine.keep_times(keep);
    }

    fn take_times(&self, into: &mut Vec<Done>) {
        self.machine.take_times(into);
    }

    fn raw_stream(&self, stream: StreamId) -> Option<u64> {
        Some(HANDLES + u64::from(stream.0))
    }
}
