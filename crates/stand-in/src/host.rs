//! Access to host memory as a device has it: whatever the protection of its pages, which only holds for the processor.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// The memory of this process. The kernel reads and writes it whatever its protection. A forked child opens its own.
const MEMORY: &str = "/proc/self/mem";

/// Reads host memory; returns whether it exists.
pub fn load(at: u64, into: &mut [u8]) -> bool {
    let memory = OpenOptions::new().read(true).open(MEMORY);
    memory.is_ok_and(|memory| memory.read_exact_at(into, at).is_ok())
}

/// Writes host memory; returns whether it exists.
///
/// # Safety
/// It belongs to the program that asked for the write.
pub unsafe fn store(at: u64, bytes: &[u8]) -> bool {
    let memory = OpenOptions::new().write(true).open(MEMORY);
    memory.is_ok_and(|memory| memory.write_all_at(bytes, at).is_ok())
}
