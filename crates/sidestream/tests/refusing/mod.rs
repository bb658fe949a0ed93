//! A simulated machine that on request refuses to launch graphs or to pin memory, or hands out memory again at the
//! same address, and that counts its calls.

// Not every test file that includes this uses all of it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sidestream::backend::{Address, Backend, Caps, Code, Create, Destroy, Done, Payload, Reserve};
use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::error::{Error, Result};
use sidestream::op::{DeviceId, EventId, Memory, Op, StreamId};
use sidestream::sim::{Machine, Schedule};

thread_local! {
    /// Whether a test has marked this thread as running a host function.
    pub static IS_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

pub struct Refusing {
    machine: Machine,
    refuses: AtomicBool,
    refuses_to_pin: AtomicBool,
    /// Number of objects that were created and not destroyed.
    events: AtomicUsize,
    /// Number of pinned ranges of the program's memory.
    registered: AtomicUsize,
    /// Number of created events that let a thread sleep.
    sleeping: AtomicUsize,
    /// Bytes of write-combined memory that were requested.
    combined_bytes: AtomicUsize,
    /// Number of waits without a limit.
    endless_waits: AtomicUsize,
    /// Whether a host function has destroyed a graph, which is not allowed.
    misplaced: AtomicBool,
    /// Reserved memory; absent if freed memory goes to the machine.
    kept: Option<Mutex<Vec<Kept>>>,
    /// How often memory was handed out again.
    again: AtomicUsize,
    /// The limit of each wait.
    limits: Mutex<Vec<Duration>>,
    /// Called after the next query was answered, before the caller gets the answer.
    behind_answer: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct Kept {
    memory: Memory,
    bytes: u64,
    at: Address,
    is_free: bool,
}

impl Refusing {
    pub fn open(schedule: Schedule) -> (Arc<Refusing>, Device) {
        Refusing::open_with(schedule, None)
    }

    /// Opens a machine on which freed memory is handed out again to the next request of the same size, as drivers
    /// often do. The machine itself leaves that to the system, which may or may not.
    pub fn open_giving_again(schedule: Schedule) -> (Arc<Refusing>, Device) {
        Refusing::open_with(schedule, Some(Mutex::default()))
    }

    fn open_with(schedule: Schedule, kept: Option<Mutex<Vec<Kept>>>) -> (Arc<Refusing>, Device) {
        let profile = ("sim:h200".to_owned(), Profile::h200());
        let backend = Arc::new(Refusing {
            machine: Machine::new(vec![profile], schedule, None),
            refuses: AtomicBool::new(false),
            refuses_to_pin: AtomicBool::new(false),
            events: AtomicUsize::new(0),
            registered: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            combined_bytes: AtomicUsize::new(0),
            endless_waits: AtomicUsize::new(0),
            misplaced: AtomicBool::new(false),
            kept,
            again: AtomicUsize::new(0),
            limits: Mutex::default(),
            behind_answer: Mutex::default(),
        });
        let mut devices = Device::on(Arc::<Refusing>::clone(&backend), &Options::new());
        (backend, devices.remove(0))
    }

    pub fn refuse_graphs(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Sets a function that runs between the answer to the next query and its return.
    pub fn behind_answer(&self, happens: impl FnOnce() + Send + 'static) {
        *self.behind_answer.lock().unwrap() = Some(Box::new(happens));
    }

    fn happen(&self) {
        let between = self.behind_answer.lock().unwrap().take();
        if let Some(between) = between {
            between();
        }
    }

    /// Returns the limits of all waits since the last call.
    pub fn limits(&self) -> Vec<Duration> {
        std::mem::take(&mut self.limits.lock().unwrap())
    }

    pub fn refuse_to_pin(&self, refuses: bool) {
        self.refuses_to_pin.store(refuses, Ordering::Relaxed);
    }

    pub fn registered(&self) -> usize {
        self.registered.load(Ordering::Relaxed)
    }

    pub fn sleeping(&self) -> usize {
        self.sleeping.load(Ordering::Relaxed)
    }

    pub fn combined_bytes(&self) -> usize {
        self.combined_bytes.load(Ordering::Relaxed)
    }

    pub fn endless_waits(&self) -> usize {
        self.endless_waits.load(Ordering::Relaxed)
    }

    /// Returns whether a graph was destroyed by the thread on which the machine runs host functions.
    pub fn misplaced(&self) -> bool {
        self.misplaced.load(Ordering::Relaxed)
    }

    pub fn given_again(&self) -> usize {
        self.again.load(Ordering::Relaxed)
    }

    pub fn events(&self) -> usize {
        self.events.load(Ordering::Relaxed)
    }
}

// SAFETY: the machine performs every call that is not refused, with the same guarantees. Memory is handed out again
// only after it was freed.
unsafe impl Backend for Refusing {
    unsafe fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        if matches!(payload, Payload::Graph) && self.refuses.load(Ordering::Relaxed) {
            return Err(Error::Refused {
                call: "graph launch",
                code: 2,
                why: "it was told to".into(),
            });
        }
        // SAFETY: the caller promises it, here and below.
        unsafe { self.machine.submit(op, payload) }
    }

    fn devices(&self) -> &[Caps] {
        self.machine.devices()
    }

    unsafe fn create(&self, what: Create<'_>) -> Result<()> {
        // SAFETY: as in `submit`.
        unsafe { self.machine.create(what)? };
        if let Create::Event { sleeps, .. } = what {
            self.events.fetch_add(1, Ordering::Relaxed);
            self.sleeping
                .fetch_add(usize::from(sleeps), Ordering::Relaxed);
        }
        Ok(())
    }

    unsafe fn destroy(&self, what: Destroy) {
        match what {
            Destroy::Event(_) => _ = self.events.fetch_sub(1, Ordering::Relaxed),
            Destroy::Graph(_) if IS_CALLBACK.get() => self.misplaced.store(true, Ordering::Relaxed),
            Destroy::Graph(_) | Destroy::Stream(_) => {}
        }
        // SAFETY: as in `submit`.
        unsafe { self.machine.destroy(what) };
    }

    fn reserve(&self, wanted: Reserve) -> Result<Address> {
        if wanted.write_combined {
            self.combined_bytes
                .fetch_add(wanted.bytes as usize, Ordering::Relaxed);
        }
        let Some(kept) = &self.kept else {
            return self.machine.reserve(wanted);
        };
        let Reserve { memory, bytes, .. } = wanted;
        let mut kept = kept.lock().unwrap();
        let is_alike = |kept: &&mut Kept| (kept.memory, kept.bytes) == (memory, bytes);
        if let Some(again) = kept.iter_mut().filter(is_alike).find(|kept| kept.is_free) {
            again.is_free = false;
            self.again.fetch_add(1, Ordering::Relaxed);
            return Ok(again.at);
        }
        let at = self.machine.reserve(wanted)?;
        kept.push(Kept {
            memory,
            bytes,
            at,
            is_free: false,
        });
        Ok(at)
    }

    unsafe fn unreserve(&self, memory: Memory, device: DeviceId, at: Address) {
        if let Some(kept) = &self.kept
            && let Some(kept) = kept.lock().unwrap().iter_mut().find(|kept| kept.at == at)
        {
            kept.is_free = true;
            return;
        }
        // SAFETY: as in `submit`.
        unsafe { self.machine.unreserve(memory, device, at) };
    }

    unsafe fn register(&self, at: Address, bytes: u64) -> Result<()> {
        if self.refuses_to_pin.load(Ordering::Relaxed) {
            return Err(Error::Refused {
                call: "register",
                code: 712,
                why: "it was told to".into(),
            });
        }
        // SAFETY: the caller promises it.
        unsafe { self.machine.register(at, bytes)? };
        self.registered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn unregister(&self, at: Address) {
        self.registered.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: as in `submit`.
        unsafe { self.machine.unregister(at) };
    }

    fn prepare(&self, device: DeviceId, code: &Arc<Code>) -> Result<()> {
        self.machine.prepare(device, code)
    }

    fn query(&self, op: &Op) -> Result<bool> {
        let answer = self.machine.query(op);
        self.happen();
        answer
    }

    fn peek(&self, op: &Op) -> Result<bool> {
        self.machine.peek(op)
    }

    fn wait(&self, op: &Op, for_at_most: Duration) -> Result<bool> {
        if for_at_most == Duration::MAX {
            self.endless_waits.fetch_add(1, Ordering::Relaxed);
        }
        self.limits.lock().unwrap().push(for_at_most);
        let answer = self.machine.wait(op, for_at_most);
        self.happen();
        answer
    }

    fn elapsed_ns(&self, from: EventId, to: EventId) -> Result<f64> {
        self.machine.elapsed_ns(from, to)
    }

    fn keep_times(&self, keep: bool) {
        self.machine.keep_times(keep);
    }

    fn take_times(&self, into: &mut Vec<Done>) {
        self.machine.take_times(into);
    }

    fn raw_stream(&self, stream: StreamId) -> Option<u64> {
        self.machine.raw_stream(stream)
    }
}
