//! The driver's state in this process: one machine, the tables of handles, and the current contexts of each thread.

use std::cell::RefCell;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sidestream::backend::{Address, Backend, Create, Destroy, Payload};
use sidestream::cuda::driver::{Code, CuContext, CuFunction, SUCCESS};
use sidestream::engine::Profile;
use sidestream::error::Error;
use sidestream::op::{DeviceId, Kind, Memory, Op, OpId, SiteId, ThreadId};
use sidestream::sim::{Machine, Schedule};

use crate::codes::{self, Answer, INVALID_CONTEXT, NOT_INITIALIZED, NOT_PERMITTED, UNKNOWN};
use crate::tables::Tables;
use crate::{host, modules};

/// Everything that `cuInit` creates.
pub struct State {
    pub machine: Machine,
    schedule: Schedule,
    tables: Mutex<Tables>,
    /// The code with which the devices were lost; zero while they are not.
    lost: AtomicI32,
    ops: AtomicU32,
}

/// Configuration of the machine.
#[derive(Clone, Copy)]
pub struct Config {
    pub devices: u32,
    pub schedule: Schedule,
    /// Memory of each device; that of its profile if absent.
    pub memory_bytes: Option<u64>,
}

/// The calling thread, and the device of its current context.
#[derive(Clone, Copy)]
pub struct Here {
    pub thread: ThreadId,
    context: Option<DeviceId>,
}

impl Here {
    /// # Errors
    /// If there is no current context.
    pub fn device(&self) -> Answer<DeviceId> {
        self.context.ok_or(INVALID_CONTEXT)
    }

    /// Returns this thread with another context.
    pub fn with(&self, device: DeviceId) -> Here {
        let context = Some(device);
        Here { context, ..*self }
    }
}

static CONFIG: Mutex<Config> = Mutex::new(Config {
    devices: 2,
    schedule: Schedule::InOrder,
    memory_bytes: None,
});
static STATE: OnceLock<State> = OnceLock::new();

// ------------------------------------------------------------------ how a function is entered

/// Runs a function that needs no state.
pub fn always(f: impl FnOnce() -> Answer<()>) -> Code {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Runs a function that needs no context and may be called from functions on the host.
pub fn asked(f: impl FnOnce(&'static State) -> Answer<()>) -> Code {
    always(|| f(STATE.get().ok_or(NOT_INITIALIZED)?))
}

/// Runs a function whose arguments determine its device: it needs a current context only if one of them is a default
/// stream. After a device is lost it does nothing.
pub fn anywhere(f: impl FnOnce(&'static State, Here) -> Answer<()>) -> Code {
    asked(|state| {
        if with_thread(|thread| thread.is_host_function) {
            return Err(NOT_PERMITTED);
        }
        state.refuse_lost()?;
        let (thread, context) = (this_thread(), current());
        f(state, Here { thread, context })
    })
}

/// Runs a function that needs a current context.
pub fn call(f: impl FnOnce(&'static State, Here) -> Answer<()>) -> Code {
    anywhere(|state, here| {
        here.device()?;
        f(state, here)
    })
}

/// `cuInit`: creates the machine, once.
pub fn init() {
    // The lock is held meanwhile, so that no thread configures a machine that is being created.
    let config = lock(&CONFIG);
    STATE.get_or_init(|| State::new(*config));
}

/// Configures the machine; returns false if it exists already.
pub fn configure(wanted: Config) -> bool {
    let mut config = lock(&CONFIG);
    if STATE.get().is_some() {
        return false;
    }
    *config = wanted;
    true
}

// ------------------------------------------------------------------ the machine

impl State {
    fn new(config: Config) -> State {
        let device = |_| (String::from(NAME), Profile::h200());
        let devices = (0..config.devices).map(device).collect();
        let machine = Machine::new(devices, config.schedule, config.memory_bytes);
        // SAFETY: they do as they say.
        unsafe { machine.access_host_by(host::load, host::store) };
        State {
            machine,
            schedule: config.schedule,
            tables: Mutex::new(Tables::default()),
            lost: AtomicI32::new(SUCCESS),
            ops: AtomicU32::new(0),
        }
    }

    /// Locks the tables. The lock is not held while the machine performs a call that takes time.
    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// Creates something for the program.
    pub fn create(&self, what: Create<'_>) -> Answer<()> {
        // SAFETY: the tables count the ids, and nothing is adopted.
        self.code(unsafe { self.machine.create(what) })
    }

    /// Destroys it.
    pub fn destroy(&self, what: Destroy) {
        // SAFETY: its handle was taken out of the tables, which no longer refer to it.
        unsafe { self.machine.destroy(what) };
    }

    /// Frees memory.
    pub fn unreserve(&self, place: Memory, device: DeviceId, at: Address) {
        // SAFETY: the memory was taken out of the tables. The driver requires its callers to guarantee that its uses
        // have completed; the machine keeps the memory until they have.
        unsafe { self.machine.unreserve(place, device, at) };
    }

    /// Submits a call to the machine.
    pub fn submit(&self, thread: ThreadId, kind: Kind, payload: Payload<'_>) -> Answer<()> {
        // SAFETY: ids come from the tables. The driver requires its callers to guarantee the validity of memory.
        self.code(unsafe { self.machine.submit(&self.op(thread, kind), payload) })
    }

    /// Blocks until the call is complete.
    pub fn wait(&self, thread: ThreadId, kind: Kind) -> Answer<()> {
        let waited = self.machine.wait(&self.op(thread, kind), Duration::MAX);
        self.code(waited.map(|_| ()))
    }

    /// Returns whether something is complete. Time advances only with calls here, whereas a program that polls a real
    /// driver sleeps between its queries. So the more often a thread was told that something is not complete, the more
    /// queries of the machine each of its own queries makes.
    pub fn query(&self, thread: ThreadId, kind: Kind) -> Answer<bool> {
        let op = self.op(thread, kind);
        let known = |all: &[(Kind, u32)]| all.iter().position(|(of, _)| *of == kind);
        let refused = REFUSED.with_borrow(|all| known(all).map_or(0, |at| all[at].1));
        for _ in 0..=refused.saturating_sub(PATIENCE).min(MOST_ASKS) {
            if self.code(self.machine.query(&op))? {
                REFUSED.with_borrow_mut(|all| known(all).map(|at| all.swap_remove(at)));
                return Ok(true);
            }
        }
        REFUSED.with_borrow_mut(|all| match known(all) {
            Some(at) => all[at].1 = refused.saturating_add(1),
            None => {
                // The table is full of things that are never queried again.
                if all.len() == MOST_KNOWN {
                    all.clear();
                }
                all.push((kind, 1));
            }
        });
        Ok(false)
    }

    /// Returns whether devices behave as observed, beyond what is promised.
    pub fn as_observed(&self) -> bool {
        self.schedule == Schedule::InOrder
    }

    /// Returns the code for a result of the machine. Some errors invalidate all active captures.
    pub fn code<T>(&self, outcome: Result<T, Error>) -> Answer<T> {
        let error = match outcome {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let code = codes::of(&error);
        if let Error::DeviceLost(lost) = &error
            && self.lost.swap(code, Ordering::Relaxed) == SUCCESS
        {
            eprintln!("stand-in for the CUDA driver: {lost}");
        }
        Err(code)
    }

    pub fn refuse_lost(&self) -> Answer<()> {
        match self.lost.load(Ordering::Relaxed) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    fn op(&self, thread: ThreadId, kind: Kind) -> Op {
        Op {
            id: OpId(self.ops.fetch_add(1, Ordering::Relaxed)),
            thread,
            site: SiteId(0),
            kind,
            accesses: Default::default(),
        }
    }
}

/// The name of every device.
pub const NAME: &str = "NVIDIA H200 (stand-in)";

// ------------------------------------------------------------------ threads

struct Thread {
    id: ThreadId,
    /// Devices of its contexts, the current one last.
    contexts: Vec<DeviceId>,
    /// The device that the machine assumes for the thread.
    told: DeviceId,
    /// Whether the thread is running a host function, which may call almost nothing.
    is_host_function: bool,
}

impl Thread {
    fn new() -> Thread {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Thread {
            id: ThreadId(NEXT.fetch_add(1, Ordering::Relaxed)),
            contexts: Vec::new(),
            told: DeviceId(0),
            is_host_function: false,
        }
    }
}

/// Number of "not complete" answers to a thread before each of its queries counts for more than one.
const PATIENCE: u32 = 32;
/// Maximum number of queries that one counts for.
const MOST_ASKS: u32 = 4096;
/// Maximum number of queried things for which a thread's "not complete" answers are counted.
const MOST_KNOWN: usize = 16;

thread_local! {
    /// Number of "not complete" answers to the thread, for each thing that it queried.
    static REFUSED: RefCell<Vec<(Kind, u32)>> = const { RefCell::new(Vec::new()) };
    static THREAD: RefCell<Thread> = RefCell::new(Thread::new());
}

/// Accesses the state of the calling thread; at the very end of a thread, a state without a context.
fn with_thread<R>(f: impl Fn(&mut Thread) -> R) -> R {
    let known = THREAD.try_with(|thread| f(&mut thread.borrow_mut()));
    known.unwrap_or_else(|_| f(&mut Thread::new()))
}

pub fn this_thread() -> ThreadId {
    with_thread(|thread| thread.id)
}

/// Returns the device of the current context.
pub fn current() -> Option<DeviceId> {
    with_thread(|thread| thread.contexts.last().copied())
}

/// Returns the handle and the number of the current context; zeros if there is none.
pub fn current_context() -> (CuContext, u32) {
    match (STATE.get(), current()) {
        (Some(state), Some(device)) => (state.tables().context(device), device.0 + 1),
        _ => (0, 0),
    }
}

/// Returns the name of a function, or a kernel, that is launched.
pub fn symbol(function: CuFunction) -> Option<*const c_char> {
    let state = STATE.get()?;
    let function = modules::function_of(state, function).unwrap_or(function);
    modules::name(state, function).ok()
}

/// Replaces or removes the current context.
pub fn set_current(device: Option<DeviceId>) {
    with_thread(|thread| {
        thread.contexts.pop();
        thread.contexts.extend(device);
    });
}

pub fn push_current(device: DeviceId) {
    with_thread(|thread| thread.contexts.push(device));
}

pub fn pop_current() -> Option<DeviceId> {
    with_thread(|thread| thread.contexts.pop())
}

/// Runs a function on the host, during which the thread may call almost nothing.
pub fn as_host_function(f: impl FnOnce()) {
    with_thread(|thread| thread.is_host_function = true);
    f();
    with_thread(|thread| thread.is_host_function = false);
}

impl State {
    /// Tells the machine on which device the blocking calls of the thread run.
    pub fn tell_device(&self, here: Here) -> Answer<()> {
        let device = here.device()?;
        if with_thread(|thread| thread.told) != device {
            self.submit(here.thread, Kind::SetDevice { device }, Payload::None)?;
            with_thread(|thread| thread.told = device);
        }
        Ok(())
    }
}

/// A panic that was caught leaves the tables in a state that is good enough for a test.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
