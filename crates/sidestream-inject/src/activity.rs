//! What devices did and when, and which calls were made: CUPTI's activity records.
//!
//! The functions are the ones that hold for the process. CUPTI 13.2 adds others that hold for one subscriber, whose names end
//! in `_v2`: a tool may use either kind, and only these exist in all versions.
//!
//! A record is a structure of CUPTI's version, and each version extends the one before. All that the command reads is at the
//! same place from CUDA 12.0 to 13.5, so the beginning of each record is written as it is.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::ring::SharedRing;
use crate::system::{self, Library, text};
use crate::wire::{
    DEVICE, DEVICE_NAME, DRIVER, KERNEL, KERNEL_NAME, MEMCPY, MEMSET, PEER, RUNTIME, SYNC, Tag,
};

type SetFn = unsafe extern "C" fn(u32) -> c_int;
type ChooseFn = unsafe extern "C" fn(u32, u8) -> c_int;
type NowFn = unsafe extern "C" fn(*mut u64) -> c_int;
type NameFn = unsafe extern "C" fn(c_int, u32, *mut *const c_char) -> c_int;
type NextFn = unsafe extern "C" fn(*mut u64, usize, *mut *const u64) -> c_int;
type DroppedFn = unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> c_int;
type RequestFn = extern "C" fn(*mut *mut u64, *mut usize, *mut usize);
type CompleteFn = extern "C" fn(*mut c_void, u32, *mut u64, usize, usize);
type RegisterFn = unsafe extern "C" fn(RequestFn, CompleteFn) -> c_int;

/// The kinds of records that are enabled as a whole. Of the driver's functions, some are chosen.
const KINDS: [u32; 6] = [KERNEL, MEMCPY, PEER, MEMSET, RUNTIME, SYNC];
/// The words of a buffer: 2 MiB.
const BUFFER: usize = 1 << 18;
/// The largest number of buffers that CUPTI gets. It drops records if the command cannot keep up with the program.
const MAX_BUFFERS: usize = 64;
/// The time between two flushes.
const PAUSE: Duration = Duration::from_millis(500);

/// Functions of the driver that matter if they are called without the runtime, by the beginnings of their names.
const WANTED: &str = "cuLaunch cuGraphLaunch cuMemcpy cuMemset cuMemAlloc cuMemFree cuMemHost cuMemCreate cuMemMap \
    cuStreamSynchronize cuCtxSynchronize cuEventSynchronize cuStreamQuery cuEventQuery cuEventRecord cuStreamWaitEvent";
/// Functions of the runtime that only ask or set something, of which programs make thousands of calls.
const UNWANTED: &str = "cudaGet cudaSetDevice cudaPeek cudaStreamGet cudaStreamIsCapturing cudaDeviceGet cudaFunc \
    cudaOccupancy cudaPointerGet cudaEventCreate cudaEventDestroy cudaThreadExchange __cuda";

/// The states of a profiler, in order.
const WAITS: u8 = 0;
const IS_ON: u8 = 1;
const HAS_ENDED: u8 = 2;
/// The process ends: CUPTI may be gone already.
const IS_LATE: u8 = 3;

static PROFILER: OnceLock<Profiler> = OnceLock::new();

struct Profiler {
    library: Library,
    now: NowFn,
    next: NextFn,
    ring: &'static SharedRing,
    state: AtomicU8,
    /// How long to record; zero to the end.
    time: Duration,
    /// The ranges of this name to record; zero to the end.
    steps: usize,
    range: String,
    /// The ranges of this name that have ended.
    ended: AtomicUsize,
    buffers: AtomicUsize,
    /// By the number of each name that is written, and of each function: whether its calls are.
    names: Mutex<HashMap<u64, bool>>,
}

/// Begins to record, or to wait for the range that was asked for; see [`crate::wire::PROFILE`].
pub fn begin(library: Library, ring: &'static SharedRing, asked: &str) -> Result<(), String> {
    let mut parts = asked.splitn(3, ',');
    let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
    let (milliseconds, steps) = (number(), number() as usize);
    // SAFETY: the types are those of CUPTI's header.
    let found = unsafe {
        library
            .function(c"cuptiGetTimestamp")
            .zip(library.function(c"cuptiActivityGetNextRecord"))
    };
    let (now, next) = found.ok_or("this CUPTI has no activity records")?;
    let profiler = PROFILER.get_or_init(|| Profiler {
        library,
        now,
        next,
        ring,
        state: AtomicU8::new(WAITS),
        time: Duration::from_millis(milliseconds),
        steps,
        range: parts.next().unwrap_or_default().to_owned(),
        ended: AtomicUsize::new(0),
        buffers: AtomicUsize::new(0),
        names: Mutex::default(),
    });
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let rank = format!("{} {}", variable("RANK"), variable("WORLD_SIZE"));
    ring.write_text(Tag::Began, &[profiler.now()], rank.as_bytes());
    // The numbers of threads are then the system's.
    profiler.set(c"cuptiSetThreadIdType", 1);
    // SAFETY: the type is that of CUPTI's header; both functions stay.
    let register = unsafe { library.function::<RegisterFn>(c"cuptiActivityRegisterCallbacks") };
    // SAFETY: as above.
    match register.map(|register| unsafe { register(request, complete) }) {
        Some(0) => {
            // Devices are told of when the program initializes them, which may be before the range.
            profiler.set(c"cuptiActivityEnable", DEVICE);
            if profiler.range.is_empty() {
                profiler.start()
            } else {
                Ok(())
            }
        }
        answer => Err(format!("CUPTI's error {}", answer.unwrap_or(-1))),
    }
}

/// Writes what is left when the process ends.
pub fn end() {
    // In a forked child, CUPTI would wait for threads that are not there.
    let Some(profiler) = PROFILER.get().filter(|profiler| profiler.ring.is_open()) else {
        return;
    };
    profiler.stop();
    profiler.flush_all();
    profiler.state.store(IS_LATE, Ordering::Relaxed);
}

/// Returns the time on CUPTI's clock at which a range begins. A range of the name that was asked for begins the recording.
pub fn range_begins(name: &[u8]) -> u64 {
    let Some(profiler) = PROFILER.get() else {
        return 0;
    };
    if profiler.state.load(Ordering::Relaxed) == WAITS && profiler.is_asked(name) {
        let _ = profiler.start();
    }
    profiler.now()
}

/// Writes a range that ends, and ends the recording after the last one.
pub fn range_ends(start: u64, name: &[u8]) {
    let is_on = |profiler: &&Profiler| profiler.state.load(Ordering::Relaxed) == IS_ON;
    let Some(profiler) = PROFILER.get().filter(is_on).filter(|_| start > 0) else {
        return;
    };
    let words = [start, profiler.now(), u64::from(system::thread())];
    profiler.ring.write_text(Tag::Range, &words, name);
    let is_asked = profiler.is_asked(name);
    if is_asked && profiler.ended.fetch_add(1, Ordering::Relaxed) + 1 == profiler.steps {
        profiler.stop();
    }
}

extern "C" fn request(buffer: *mut *mut u64, bytes: *mut usize, most: *mut usize) {
    let take = |count| (count < MAX_BUFFERS).then_some(count + 1);
    let takes = |profiler: &Profiler| {
        profiler
            .buffers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    };
    let (mut new, mut size) = (std::ptr::null_mut(), 0);
    if PROFILER.get().is_some_and(takes) {
        new = Box::into_raw(vec![0_u64; BUFFER].into_boxed_slice()).cast();
        size = BUFFER * 8;
    }
    // SAFETY: CUPTI passes three places to write to. As many records as fit are allowed.
    unsafe { (*buffer, *bytes, *most) = (new, size, 0) };
}

extern "C" fn complete(_: *mut c_void, _: u32, buffer: *mut u64, _: usize, valid_bytes: usize) {
    let Some(profiler) = PROFILER.get().filter(|_| !buffer.is_null()) else {
        return;
    };
    let _ = catch_unwind(|| {
        let mut record = std::ptr::null();
        // SAFETY: CUPTI has filled so much of the buffer with records.
        unsafe {
            while (profiler.next)(buffer, valid_bytes, &mut record) == 0 {
                profiler.record(record);
            }
        }
    });
    // SAFETY: `request` made it of a box, and CUPTI returns it once.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer, BUFFER)) });
    profiler.buffers.fetch_sub(1, Ordering::Relaxed);
}

impl Profiler {
    /// Whether a range has the name that was asked for, whatever its number.
    fn is_asked(&self, name: &[u8]) -> bool {
        let rest = name.strip_prefix(self.range.as_bytes());
        let is_number = |rest: &[u8]| rest.iter().all(|byte| b"0123456789 #_:".contains(byte));
        !self.range.is_empty() && rest.is_some_and(is_number)
    }

    fn now(&self) -> u64 {
        let mut now = 0;
        // SAFETY: CUPTI writes the time there.
        unsafe { (self.now)(&mut now) };
        now
    }

    /// Calls a function of CUPTI that takes one number.
    fn set(&self, function: &CStr, number: u32) -> c_int {
        // SAFETY: the callers name functions of this type.
        let function = unsafe { self.library.function::<SetFn>(function) };
        // SAFETY: as above.
        function.map_or(-1, |function| unsafe { function(number) })
    }

    /// Records from now on, once.
    fn start(&'static self) -> Result<(), String> {
        if self.state.swap(IS_ON, Ordering::Relaxed) != WAITS {
            return Ok(());
        }
        for kind in KINDS {
            let answer = self.set(c"cuptiActivityEnable", kind);
            if answer != 0 && kind != PEER {
                return Err(format!("CUPTI's error {answer}"));
            }
        }
        for (kind, function, wanted) in [
            (DRIVER, c"cuptiActivityEnableDriverApi", true),
            (RUNTIME, c"cuptiActivityEnableRuntimeApi", false),
        ] {
            // SAFETY: the type is that of CUPTI's header. A number that CUPTI does not know is refused.
            let choose = unsafe { self.library.function::<ChooseFn>(function) };
            if choose.is_none() && kind == DRIVER {
                // What is not wanted is dropped later.
                self.set(c"cuptiActivityEnable", kind);
            }
            for id in 1..1024 {
                if self.is_wanted(kind, id) == Some(wanted) {
                    // SAFETY: as above.
                    choose.map(|choose| unsafe { choose(id, u8::from(wanted)) });
                }
            }
        }
        let attending = thread::Builder::new().spawn(move || self.attend());
        attending.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Passes on what is complete from time to time, so that little is lost if the program is killed; ends the recording at
    /// its time, and says when all of it is written.
    fn attend(&self) {
        let begun = Instant::now();
        let is = |state| self.state.load(Ordering::Relaxed) == state;
        loop {
            let left = self.time.saturating_sub(begun.elapsed());
            thread::sleep(if self.time.is_zero() {
                PAUSE
            } else {
                left.min(PAUSE)
            });
            if !is(IS_ON) {
                break;
            }
            self.set(c"cuptiActivityFlushAll", 0);
            if !self.time.is_zero() && begun.elapsed() >= self.time {
                self.stop();
            }
        }
        // Most of what was submitted is complete after a pause. CUPTI keeps the buffer of what is not.
        thread::sleep(PAUSE);
        if !is(IS_LATE) {
            self.flush_all();
            self.ring.write_words(Tag::Stopped, &[]);
        }
    }

    /// Enables nothing any longer.
    fn stop(&self) {
        if self.state.swap(HAS_ENDED, Ordering::Relaxed) == IS_ON {
            for kind in KINDS.into_iter().chain([DRIVER]) {
                self.set(c"cuptiActivityDisable", kind);
            }
        }
    }

    /// Passes on all records, even if they are not complete, and says how many CUPTI has dropped since the last time.
    fn flush_all(&self) {
        self.set(c"cuptiActivityFlushAll", 1);
        let mut dropped = 0;
        // SAFETY: the type is that of CUPTI's header.
        let ask = unsafe {
            self.library
                .function::<DroppedFn>(c"cuptiActivityGetNumDroppedRecords")
        };
        // SAFETY: as above.
        ask.map(|ask| unsafe { ask(std::ptr::null_mut(), 0, &mut dropped) });
        self.ring.write_words(Tag::Dropped, &[dropped as u64]);
    }

    /// Whether calls of a function are written; `None` if CUPTI does not know its number. Writes its name the first time.
    fn is_wanted(&self, kind: u32, id: u32) -> Option<bool> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let number = u64::from(id) << 32 | u64::from(kind);
        if let Some(wanted) = names.get(&number) {
            return Some(*wanted);
        }
        let mut name = std::ptr::null();
        // CUPTI's domains: the driver's functions and the runtime's.
        let domain = if kind == DRIVER { 1 } else { 2 };
        // SAFETY: the type is that of CUPTI's header, which writes a text that stays.
        let name = unsafe {
            let ask = self.library.function::<NameFn>(c"cuptiGetCallbackName")?;
            (ask(domain, id, &mut name) == 0).then(|| text(name))?
        };
        let begins = |some: &str| {
            some.split(' ')
                .any(|start| name.starts_with(start.as_bytes()))
        };
        let wanted = if kind == DRIVER {
            begins(WANTED)
        } else {
            !begins(UNWANTED)
        };
        if wanted {
            self.ring.write_text(Tag::Name, &[number], name);
        }
        names.insert(number, wanted);
        Some(wanted)
    }

    /// Returns the number of a name, which is written the first time.
    fn named(&self, name: &[u8]) -> u64 {
        let word = |part: &[u8]| {
            part.iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let mix = |hash: u64, word: u64| {
            (hash ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        };
        let number = name.chunks(8).map(word).fold(name.len() as u64, mix);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.insert(number, true).is_none() {
            self.ring.write_text(Tag::Name, &[number], name);
        }
        number
    }

    /// Writes a record.
    ///
    /// # Safety
    /// It is one of CUPTI's.
    unsafe fn record(&self, record: *const u64) {
        // SAFETY: each record begins with its kind and another number of 4 bytes.
        let first = unsafe { *record };
        let (words, name) = match first as u32 {
            KERNEL => (20, Some(KERNEL_NAME)),
            DEVICE => (18, Some(DEVICE_NAME)),
            PEER => (11, None),
            MEMCPY | MEMSET => (10, None),
            SYNC => (5, None),
            kind @ (RUNTIME | DRIVER)
                if self.is_wanted(kind, (first >> 32) as u32) == Some(true) =>
            {
                (5, None)
            }
            _ => return,
        };
        let mut copy = [0; 20];
        // SAFETY: records of these kinds are at least as long in all versions since CUDA 12.0.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(record, words) };
        if let Some(at) = name {
            // SAFETY: the word is a pointer to a text of CUPTI.
            copy[at] = self.named(unsafe { text(copy[at] as *const c_char) });
        }
        self.ring.write_words(Tag::Activity, &copy[..words]);
    }
}
