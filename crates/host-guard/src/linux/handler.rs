//! The SIGSEGV handler, and the handlers that were installed before it or take the signal later.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::{probe, registers, sys, table};
use crate::hits::{self, Hit, this_thread};

/// Handlers of others, in the order in which they were found installed instead of ours. The first was installed
/// before ours. An action that an entry points to is never changed or freed: the handler may be reading it.
const OTHERS: usize = 16;
static OTHER: [AtomicPtr<sys::sigaction>; OTHERS] = [const { AtomicPtr::new(null_mut()) }; OTHERS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The actions that the entries point to: each is written once, under the lock. There is room for this many different
/// ones.
static KNOWN: [Known; 64] = [const { Known(UnsafeCell::new(MaybeUninit::uninit())) }; 64];
static KNOWNS: AtomicUsize = AtomicUsize::new(0);
static INSTALLING: AtomicBool = AtomicBool::new(false);

struct Known(UnsafeCell<MaybeUninit<sys::sigaction>>);

// SAFETY: an action is written under the lock, before the count and so before any pointer to it, and only read from then on.
unsafe impl Sync for Known {}

/// The threads in which one of those handlers is running, with its index: the thread in the upper half, the index in
/// the lower.
static PASSING: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
/// Faults that were retried: the thread, and a hash of the place and of the number of releases. A thread loses its
/// entry only after as many other threads have faulted.
static TRIED: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The handler of another owner at an index.
fn other(at: usize) -> Option<&'static sys::sigaction> {
    let place = OTHER.get(at)?.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or points into `KNOWN`, whose entries stay valid.
    unsafe { place.as_ref() }
}

fn is_ours(action: &sys::sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// Runs a function with mutual exclusion. A handler of any signal may come here, by `sigaction`: so signals are
/// blocked inside, and a waiting thread waits only for a few instructions of another one.
fn alone<T>(what: impl FnOnce() -> T) -> T {
    // SAFETY: the signal sets are written before they are read.
    unsafe {
        let [mut every, mut before]: [sys::sigset_t; 2] = std::mem::zeroed();
        sys::sigfillset(&mut every);
        sys::pthread_sigmask(sys::SIG_BLOCK, &every, &mut before);
        while INSTALLING.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let done = what();
        INSTALLING.store(false, Ordering::Release);
        sys::pthread_sigmask(sys::SIG_SETMASK, &before, null_mut());
        done
    }
}

/// The current action of the signal; `None` if the system call fails.
fn current() -> Option<sys::sigaction> {
    // SAFETY: all zeros are a valid value; the call queries the signal's action, and writes it.
    unsafe {
        let mut now: sys::sigaction = std::mem::zeroed();
        let asked = sys::sigaction(sys::SIGSEGV, std::ptr::null(), &mut now);
        (asked == 0).then_some(now)
    }
}

fn is_same(one: &sys::sigaction, other: &sys::sigaction) -> bool {
    one.sa_sigaction == other.sa_sigaction && one.sa_flags == other.sa_flags
}

/// Stores an action that an entry may point to, for a caller that has the lock: returns an equal known one, or fills
/// a free place.
fn keep(action: sys::sigaction) -> Option<*mut sys::sigaction> {
    let count = KNOWNS.load(Ordering::Relaxed);
    for room in &KNOWN[..count] {
        let at = room.0.get().cast::<sys::sigaction>();
        // SAFETY: the first `count` places were written.
        let known = unsafe { &*at };
        if is_same(known, &action) && known.sa_mask.0 == action.sa_mask.0 {
            return Some(at);
        }
    }
    let at = KNOWN.get(count)?.0.get().cast::<sys::sigaction>();
    // SAFETY: no pointer to the place exists yet, and the lock is taken.
    unsafe { at.write(action) };
    KNOWNS.store(count + 1, Ordering::Release);
    Some(at)
}

/// Installs our handler. A handler that was installed meanwhile gets the faults that are not ours. Returns whether
/// ours is installed.
pub fn install() -> bool {
    // Usually our handler is installed already.
    if current().is_some_and(|now| is_ours(&now)) {
        return true;
    }
    alone(take)
}

fn take() -> bool {
    let Some(now) = current() else {
        return false;
    };
    if is_ours(&now) {
        return true;
    }
    let count = COUNT.load(Ordering::Relaxed);
    // A handler that is installed repeatedly, as by a test runner, needs one entry if the one below it is the same.
    let last = count.checked_sub(1).and_then(other);
    if !last.is_some_and(|last| is_same(last, &now)) {
        let Some(known) = (count < OTHERS).then(|| keep(now)).flatten() else {
            return false;
        };
        OTHER[count].store(known, Ordering::Release);
        COUNT.store(count + 1, Ordering::Release);
    }
    // SAFETY: as in `current`.
    let mut ours: sys::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_fault as *const () as usize;
    // The handler runs on the alternate stack if the thread has one, as handlers of stack overflows require; and
    // faults in another owner's handler are not blocked.
    ours.sa_flags = sys::SA_SIGINFO | sys::SA_ONSTACK | sys::SA_NODEFER;
    // SAFETY: the handler has the signature that the flags require, and lives as long as the process.
    unsafe { sys::sigaction(sys::SIGSEGV, &ours, null_mut()) == 0 }
}

/// Another handler was installed, and is called after ours from here on. If the installed handler is ours, the last
/// other one has left.
pub fn taken() {
    alone(|| {
        if !current().is_some_and(|now| is_ours(&now)) {
            take();
            return;
        }
        let count = COUNT.load(Ordering::Relaxed);
        if count > 1 {
            COUNT.store(count - 1, Ordering::Release);
        }
    });
}

/// Restores the last other handler, if ours is installed.
pub fn uninstall() {
    alone(|| {
        let count = COUNT.load(Ordering::Relaxed);
        let last = count.checked_sub(1).and_then(other);
        if let (Some(now), Some(last)) = (current(), last)
            && is_ours(&now)
        {
            // SAFETY: the action is what its owner passed to the system.
            unsafe { sys::sigaction(sys::SIGSEGV, last, null_mut()) };
            COUNT.store(count - 1, Ordering::Release);
        }
    });
}

/// Records an access to protected pages and opens them; all other faults go to the other handlers.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut sys::siginfo_t, context: *mut c_void) {
    // SAFETY: the system calls this with the arguments that the flags require. `errno` is thread-local.
    unsafe {
        let error = sys::__errno_location();
        let before = *error;
        // The signal may also be raised or sent by a program.
        let is_fault = (*info).si_code > 0;
        if is_fault {
            let address = (*info).si_addr;
            let (store, at) = registers::at_fault(context);
            if probe::answers(context, at.pc) {
                *error = before;
                return;
            }
            if table::open_page(address, store) {
                // The page is open from here on.
                let from = address as *const u8;
                let count = (table::page() - address % table::page()).min(Hit::BEFORE);
                let bytes: [u8; Hit::BEFORE] =
                    std::array::from_fn(|byte| from.add(byte.min(count - 1)).read_volatile());
                hits::note(address, address + 1, store, None, at, &bytes[..count]);
                *error = before;
                return;
            }
            // Code 2 is an access that the protection of a mapped page does not allow.
            if (*info).si_code == 2 && is_first(address, at.pc) {
                *error = before;
                return;
            }
        }
        pass_on(signal, info, context, is_fault);
        *error = before;
    }
}

/// Whether this fault occurs for the first time since the last release: the page may have been opened between the
/// fault and its handling.
fn is_first(address: usize, code: usize) -> bool {
    if table::releases() == 0 {
        return false;
    }
    let thread = this_thread() as u64;
    let mut mix = thread ^ (table::releases() as u64).rotate_left(17);
    for part in [address, code] {
        mix = (mix ^ part as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
    let own = TRIED
        .iter()
        .find(|[of, _]| of.load(Ordering::Relaxed) == thread);
    let [of, last] = own.unwrap_or_else(|| {
        let at = NEXT.fetch_add(1, Ordering::Relaxed);
        &TRIED[at % TRIED.len()]
    });
    of.store(thread, Ordering::Relaxed);
    last.swap(mix | 1, Ordering::Relaxed) != mix | 1
}

/// # Safety
/// As for a signal handler.
unsafe fn pass_on(signal: c_int, info: *mut sys::siginfo_t, context: *mut c_void, is_fault: bool) {
    let thread = this_thread() as u64;
    let of_thread = |room: &&AtomicU64| room.load(Ordering::Acquire) >> 32 == thread;
    let known = PASSING.iter().find(of_thread);
    // A handler that was called and raises the signal again, as Python's faulthandler does, expects the next older
    // one: it found that one installed.
    let above = match known {
        Some(room) => (room.load(Ordering::Acquire) & 0xffff_ffff) as usize,
        None => COUNT.load(Ordering::Acquire),
    };
    let room = known.or_else(|| {
        let free = |room: &&AtomicU64| {
            let now = thread << 32 | above as u64;
            room.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        PASSING.iter().find(free)
    });
    let (Some(room), Some(at)) = (room, above.checked_sub(1)) else {
        // SAFETY: the default action of a fault ends the process.
        return unsafe { end(signal, is_fault) };
    };
    room.store(thread << 32 | at as u64, Ordering::Release);
    let Some(other) = other(at) else {
        // SAFETY: as above.
        return unsafe { end(signal, is_fault) };
    };
    // SAFETY: the handler is what its owner passed to the system, with the signature that the flags require.
    unsafe {
        match other.sa_sigaction {
            sys::SIG_DFL => return end(signal, is_fault),
            // An ignored fault would be retried forever; the system itself does not ignore faults either.
            sys::SIG_IGN if is_fault => return end(signal, is_fault),
            sys::SIG_IGN => {}
            handler => {
                let mut mask = other.sa_mask;
                if other.sa_flags & sys::SA_NODEFER == 0 {
                    sys::sigaddset(&mut mask, signal);
                }
                let mut before: sys::sigset_t = std::mem::zeroed();
                sys::pthread_sigmask(sys::SIG_BLOCK, &mask, &mut before);
                if other.sa_flags & sys::SA_SIGINFO != 0 {
                    type WithInfo = extern "C" fn(c_int, *mut sys::siginfo_t, *mut c_void);
                    std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context);
                } else {
                    std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
                }
                sys::pthread_sigmask(sys::SIG_SETMASK, &before, null_mut());
            }
        }
    }
    match above - at {
        _ if known.is_some() => room.store(thread << 32 | above as u64, Ordering::Release),
        _ => room.store(0, Ordering::Release),
    }
}

/// Does what a fault does if no handler takes it.
///
/// # Safety
/// As for a signal handler.
unsafe fn end(signal: c_int, is_fault: bool) {
    // SAFETY: the call restores the default action. A fault occurs again when the handler returns; a raised signal has to be raised again.
    unsafe {
        sys::signal(signal, sys::SIG_DFL);
        if !is_fault {
            sys::raise(signal);
        }
    }
}
