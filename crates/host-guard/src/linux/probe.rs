//! Whether the program may store to a page: memory that it pinned may be read-only, and must stay so. An atomic
//! instruction adds zero to a word of the page, as any thread might do, which changes no byte. If it faults, the handler
//! continues where the answer is no. A system call that tells the same takes half a microsecond.

use std::ffi::c_void;

use super::registers;

/// # Safety
/// The address is the start of a page of the program. The handler is installed.
pub unsafe fn can_store(page: usize) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe { add_zero(page) != 0 }
}

#[unsafe(naked)]
unsafe extern "C" fn add_zero(page: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("lock add dword ptr [rdi], 0", "mov eax, 1", "ret");
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "2: ldxr w1, [x0]",
        "stxr w2, w1, [x0]",
        "cbnz w2, 2b",
        "mov x0, 1",
        "ret"
    );
}

#[unsafe(naked)]
unsafe extern "C" fn no() -> usize {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("xor eax, eax", "ret");
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("mov x0, 0", "ret");
}

/// Whether a fault is the answer to [`can_store`], which then returns.
///
/// # Safety
/// `context` is what the system passed to a handler, and `pc` is its program counter.
pub unsafe fn answers(context: *mut c_void, pc: usize) -> bool {
    // The instructions that may fault are the first ones, and the stack is as at the call.
    let is_ours = pc.wrapping_sub(add_zero as *const () as usize) < 8;
    if is_ours {
        // SAFETY: the caller guarantees it.
        unsafe { registers::continue_at(context, no as *const () as usize) };
    }
    is_ours
}
