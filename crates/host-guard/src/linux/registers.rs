//! The registers from which a stack is followed: here, and where a signal interrupted a thread.

use std::ffi::c_void;

use crate::stack::Registers;

/// Those of the calling function.
#[inline(always)]
pub fn here() -> Registers {
    let (pc, sp, fp);
    // SAFETY: reads three registers.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) pc, out(reg) sp, out(reg) fp,
            options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("adr {}, .", "mov {}, sp", "mov {}, x29", out(reg) pc, out(reg) sp, out(reg) fp,
            options(nomem, nostack, preserves_flags));
    }
    Registers { pc, sp, fp, lr: 0 }
}

/// Has the thread continue elsewhere when the handler returns.
///
/// # Safety
/// `context` is what the system passed to a handler, and the code may run with the registers there.
pub unsafe fn continue_at(context: *mut c_void, code: usize) {
    let word = if cfg!(target_arch = "x86_64") {
        5 + 16
    } else {
        (176 + 264) / size_of::<usize>()
    };
    // SAFETY: the caller guarantees it.
    unsafe { *context.cast::<usize>().add(word) = code };
}

/// Those at a fault, and whether it was a store. The places are those of the kernel's `struct ucontext`.
///
/// # Safety
/// `context` is what the system passed to a handler.
#[cfg(target_arch = "x86_64")]
pub unsafe fn at_fault(context: *mut c_void) -> (bool, Registers) {
    // After five words come the registers.
    // SAFETY: the caller guarantees it.
    let register = |at: usize| unsafe { *context.cast::<usize>().add(5 + at) };
    let [fp, sp, pc, error] = [10, 15, 16, 19].map(register);
    // Bit 1 of a page fault's error code is set for a store.
    (error & 2 != 0, Registers { pc, sp, fp, lr: 0 })
}

/// Those at a fault, and whether it was a store. The places are those of the kernel's `struct ucontext`.
///
/// # Safety
/// `context` is what the system passed to a handler.
#[cfg(target_arch = "aarch64")]
pub unsafe fn at_fault(context: *mut c_void) -> (bool, Registers) {
    let machine = context as usize + 176;
    // SAFETY: the caller guarantees it.
    let register = |at: usize| unsafe { *((machine + at) as *const usize) };
    let [fp, lr, sp, pc] = [240, 248, 256, 264].map(register);
    let at = Registers { pc, sp, fp, lr };
    // After 35 words of registers, aligned to 16 bytes, come records with a magic number and a size each. In the record
    // with the magic number "ESR", bit 6 is set for a store.
    let mut record = machine + 288;
    let end = record + 4096;
    while record + 16 <= end {
        // SAFETY: as above.
        let (mark, size) = unsafe { (*(record as *const u32), *((record + 4) as *const u32)) };
        if mark == 0x4553_5201 {
            return (register(record + 8 - machine) & (1 << 6) != 0, at);
        }
        if mark == 0 || size == 0 {
            break;
        }
        record += size as usize;
    }
    (true, at)
}
