//! Holds copies back on the device, so that what the host does too early shows in the bytes that arrive.
//!
//! Before a copy, its stream waits for a number in memory of our own; behind it, the bytes that arrived are copied there. The number
//! is set when the program waits for the copy, or after some time: the device may need longer than without, but completes the same
//! work in the same order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::system::Library;

/// The bytes of a copy that are compared.
pub const COMPARED: usize = 64 << 10;
/// The number of copies that can be compared at a time.
const SLOTS: usize = 16;
/// The bytes before the slots.
const BEFORE: usize = 4096;

type AllocFn = unsafe extern "C" fn(*mut usize, usize, u32) -> i32;
type WaitFn = unsafe extern "C" fn(u64, usize, u32, u32) -> i32;
type CopyFn = unsafe extern "C" fn(usize, u64, usize, u64) -> i32;

/// What holds copies back.
pub struct Hold {
    wait: WaitFn,
    copy: CopyFn,
    /// Page-locked memory: the number for which streams wait, and the slots.
    memory: usize,
    /// The number for which the last stream waits.
    last: Arc<AtomicU32>,
    free: [bool; SLOTS],
}

impl Hold {
    /// Prepares to hold each copy for at most twice this many milliseconds. `None` if the driver has no such waits, or no memory.
    pub fn begin(millis: u64) -> Option<Hold> {
        let driver = Library::driver();
        let mut memory = 0;
        // SAFETY: the types are those of CUDA's header, and the pointer is valid for the call. 1 is `CU_MEMHOSTALLOC_PORTABLE`.
        let (wait, copy) = unsafe {
            let alloc = driver.function::<AllocFn>(c"cuMemHostAlloc")?;
            let wait = driver.function::<WaitFn>(c"cuStreamWaitValue32_v2");
            let wait = wait.or_else(|| driver.function::<WaitFn>(c"cuStreamWaitValue32"))?;
            let copy = driver.function::<CopyFn>(c"cuMemcpyDtoHAsync_v2")?;
            let bytes = BEFORE + SLOTS * COMPARED;
            (alloc(&mut memory, bytes, 1) == 0).then_some((wait, copy))?
        };
        let hold = Hold {
            wait,
            copy,
            memory,
            last: Arc::default(),
            free: [true; SLOTS],
        };
        number_at(memory).store(0, Ordering::SeqCst);
        let last = hold.last.clone();
        let rings = move || {
            let (mut before, mut set) = (0, 0);
            loop {
                std::thread::sleep(Duration::from_millis(millis));
                // The memory is touched only while streams may be held: it ends with the program's last context.
                if before > set {
                    number_at(memory).fetch_max(before, Ordering::SeqCst);
                    set = before;
                }
                before = last.load(Ordering::SeqCst);
            }
        };
        std::thread::Builder::new().spawn(rings).ok()?;
        Some(hold)
    }

    /// Holds what is submitted to a stream from now on.
    pub fn stream(&self, stream: u64) {
        let number = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        // SAFETY: the stream is one to which the program is submitting a copy. 0 is `CU_STREAM_WAIT_VALUE_GEQ`.
        let done = unsafe { (self.wait)(stream, self.memory, number, 0) };
        if done != 0 {
            self.release();
        }
    }

    /// Lets all streams go on.
    pub fn release(&self) {
        let last = self.last.load(Ordering::SeqCst);
        number_at(self.memory).fetch_max(last, Ordering::SeqCst);
    }

    /// Copies what has arrived on the device, behind the copy in its stream. Returns the slot.
    pub fn arrives(&mut self, at: u64, bytes: usize, stream: u64) -> Option<usize> {
        let slot = self.free.iter().position(|free| *free)?;
        // SAFETY: the program has just submitted a copy of at least this size to this address, in this stream.
        let done = unsafe { (self.copy)(self.slot(slot), at, bytes.min(COMPARED), stream) };
        self.free[slot] = done != 0;
        (done == 0).then_some(slot)
    }

    /// The address of a slot.
    pub fn slot(&self, slot: usize) -> usize {
        self.memory + BEFORE + slot * COMPARED
    }

    /// Frees a slot.
    pub fn free(&mut self, slot: usize) {
        self.free[slot] = true;
    }
}

/// The number for which streams wait.
fn number_at(memory: usize) -> &'static AtomicU32 {
    // SAFETY: it is at the start of memory of our own, and only accessed atomically.
    unsafe { AtomicU32::from_ptr(memory as *mut u32) }
}
