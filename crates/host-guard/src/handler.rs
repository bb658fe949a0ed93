//! The handler of SIGSEGV, and those who had the signal before or take it later.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::hits::this_thread;
use crate::{hits, table};

/// Handlers of others, in the order in which they were found in our place. The first is who was there before us. What a place leads to is
/// never changed or given back: the handler may be reading it.
const OTHERS: usize = 16;
static OTHER: [AtomicPtr<libc::sigaction>; OTHERS] = [const { AtomicPtr::new(null_mut()) }; OTHERS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// What the places lead to: each is written once, under the lock, and there is room for this many that differ.
static KNOWN: [Known; 64] = [const { Known(UnsafeCell::new(MaybeUninit::uninit())) }; 64];
static KNOWNS: AtomicUsize = AtomicUsize::new(0);
static INSTALLING: AtomicBool = AtomicBool::new(false);

struct Known(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: it is written under the lock, before its number and so before anything leads to it, and only read from then on.
unsafe impl Sync for Known {}

/// Threads for which one of those handlers runs just now, with which it is: the thread above, the number below.
static PASSING: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
/// Faults that were tried once more: the thread, and a mix of the place and of how many releases there had been. A thread loses its room only
/// once as many others have faulted since.
static TRIED: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Whether this processor says in a fault what was tried.
pub const IS_KNOWN: bool = cfg!(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
));

/// Who has the signal but for us.
fn other(at: usize) -> Option<&'static libc::sigaction> {
    let place = OTHER.get(at)?.load(Ordering::Acquire);
    // SAFETY: null, or one of what is known, which stays.
    unsafe { place.as_ref() }
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// Runs something that no other thread may do meanwhile. A handler of any signal may come here, by `sigaction`: so none interrupts who is inside,
/// and who waits outside waits for a few instructions of another thread.
fn alone<T>(what: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals, which are written before they are read.
    unsafe {
        let [mut every, mut before]: [libc::sigset_t; 2] = std::mem::zeroed();
        libc::sigfillset(&mut every);
        libc::pthread_sigmask(libc::SIG_BLOCK, &every, &mut before);
        while INSTALLING.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let done = what();
        INSTALLING.store(false, Ordering::Release);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        done
    }
}

/// Who has the signal; none where the system does not say.
fn current() -> Option<libc::sigaction> {
    // SAFETY: all zeros are a value of it; the call asks who has the signal, and writes it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        let asked = libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut now);
        (asked == 0).then_some(now)
    }
}

fn is_same(one: &libc::sigaction, other: &libc::sigaction) -> bool {
    one.sa_sigaction == other.sa_sigaction && one.sa_flags == other.sa_flags
}

/// Keeps what a place may lead to, for who holds the lock: as it is known already, or in a room that is free.
fn keep(action: libc::sigaction) -> Option<*mut libc::sigaction> {
    // SAFETY: a set of signals is plain numbers.
    let mask = |action: &libc::sigaction| unsafe {
        let set = (&raw const action.sa_mask).cast::<u8>();
        std::slice::from_raw_parts(set, size_of::<libc::sigset_t>())
    };
    let count = KNOWNS.load(Ordering::Relaxed);
    for room in &KNOWN[..count] {
        let at = room.0.get().cast::<libc::sigaction>();
        // SAFETY: it was written.
        let known = unsafe { &*at };
        if is_same(known, &action) && mask(known) == mask(&action) {
            return Some(at);
        }
    }
    let at = KNOWN.get(count)?.0.get().cast::<libc::sigaction>();
    // SAFETY: nothing leads to it yet, and the lock is held.
    unsafe { at.write(action) };
    KNOWNS.store(count + 1, Ordering::Release);
    Some(at)
}

/// Makes the signal ours. A handler that took it meanwhile gets what is not meant for us. Returns whether it is ours.
pub fn install() -> bool {
    // Mostly it is.
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
    // A handler that is set again and again, as by a test runner, needs one place: with the same below it.
    let last = count.checked_sub(1).and_then(other);
    if !last.is_some_and(|last| is_same(last, &now)) {
        let Some(known) = (count < OTHERS).then(|| keep(now)).flatten() else {
            return false;
        };
        OTHER[count].store(known, Ordering::Release);
        COUNT.store(count + 1, Ordering::Release);
    }
    // SAFETY: as in `current`.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_fault as *const () as usize;
    // On a stack of its own where the thread has one, as who catches an overflow of the stack has to; and open to a fault in another's
    // handler.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler has the signature that the flags say, and stays as long as the process.
    unsafe { libc::sigaction(libc::SIGSEGV, &ours, null_mut()) == 0 }
}

/// Another handler has taken the signal, and is asked after ours from here on. If it was given back to us, the last one has left.
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

/// Gives the signal back to who has it but for us, if it is ours.
pub fn uninstall() {
    alone(|| {
        let count = COUNT.load(Ordering::Relaxed);
        let last = count.checked_sub(1).and_then(other);
        if let (Some(now), Some(last)) = (current(), last)
            && is_ours(&now)
        {
            // SAFETY: it is what its owner told the system.
            unsafe { libc::sigaction(libc::SIGSEGV, last, null_mut()) };
            COUNT.store(count - 1, Ordering::Release);
        }
    });
}

/// What the processor says of a fault: whether it was a store, and where the code is.
///
/// # Safety
/// `context` is what the system gave a handler.
unsafe fn what(context: *mut c_void) -> (bool, usize) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            let registers = &(*context).uc_mcontext.gregs;
            // Bit 1 of the error of a page fault says that it was a store.
            let store = registers[libc::REG_ERR as usize] & 2 != 0;
            (store, registers[libc::REG_RIP as usize] as usize)
        }
        #[cfg(target_arch = "aarch64")]
        {
            let machine = &raw const (*context).uc_mcontext;
            let code = (*machine).pc as usize;
            // Behind 35 words of registers, aligned to 16 bytes, are records with a mark and a size each. The one with the mark "ESR" says
            // in bit 6 whether it was a store.
            let mut record = machine as usize + 288;
            let end = machine as usize + std::mem::size_of_val(&*machine);
            while record + 16 <= end {
                let mark = *(record as *const u32);
                let size = *((record + 4) as *const u32) as usize;
                if mark == 0x4553_5201 {
                    return (*((record + 8) as *const u64) & (1 << 6) != 0, code);
                }
                if mark == 0 || size == 0 {
                    break;
                }
                record += size;
            }
            (true, code)
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            let _ = context;
            (true, 0)
        }
    }
}

/// Notes an access to protected pages and opens them; all else goes to the handler that has the signal but for us.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system calls this with what the flags ask for. The thread's error number is a variable of its own.
    unsafe {
        let error = libc::__errno_location();
        let before = *error;
        // Others raise the signal too, or send it.
        let is_fault = (*info).si_code > 0;
        if is_fault {
            let address = (*info).si_addr() as usize;
            let (store, code) = what(context);
            if table::open_page(address, store) {
                hits::note(address, address + 1, store, code, None);
                *error = before;
                return;
            }
            // 2 is a page that is there and may not be touched so.
            if (*info).si_code == 2 && is_first(address, code) {
                *error = before;
                return;
            }
        }
        pass_on(signal, info, context, is_fault);
        *error = before;
    }
}

/// Whether this fault is met for the first time since anything was released: the page may have been open by the time it was looked
/// at.
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
/// As of a handler.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_fault: bool) {
    let thread = this_thread() as u64;
    let of_thread = |room: &&AtomicU64| room.load(Ordering::Acquire) >> 32 == thread;
    let known = PASSING.iter().find(of_thread);
    // A handler that was told and raises the signal anew, as Python's faulthandler does, means the one before it: it found us there.
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
        // SAFETY: the default of a fault is the end of the process.
        return unsafe { end(signal, is_fault) };
    };
    room.store(thread << 32 | at as u64, Ordering::Release);
    let Some(other) = other(at) else {
        // SAFETY: as above.
        return unsafe { end(signal, is_fault) };
    };
    // SAFETY: the handler is what its owner told the system, with the signature that the flags say.
    unsafe {
        match other.sa_sigaction {
            libc::SIG_DFL => return end(signal, is_fault),
            // A fault that is ignored is tried forever; the system itself does not ignore one.
            libc::SIG_IGN if is_fault => return end(signal, is_fault),
            libc::SIG_IGN => {}
            handler => {
                let mut mask = other.sa_mask;
                if other.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&mut mask, signal);
                }
                let mut before: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, &mask, &mut before);
                if other.sa_flags & libc::SA_SIGINFO != 0 {
                    type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                    std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context);
                } else {
                    std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
            }
        }
    }
    match above - at {
        _ if known.is_some() => room.store(thread << 32 | above as u64, Ordering::Release),
        _ => room.store(0, Ordering::Release),
    }
}

/// What a fault does where no handler takes it.
///
/// # Safety
/// As of a handler.
unsafe fn end(signal: c_int, is_fault: bool) {
    // SAFETY: it asks for the default. A fault happens once more when the handler returns; what was raised has to be raised.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if !is_fault {
            libc::raise(signal);
        }
    }
}
