//! The meaning of the driver's codes for the runtime.

use super::driver::{Code, Driver, SUCCESS};
use crate::error::{Error, Result};

/// The work is not complete yet.
pub(super) const NOT_READY: Code = 600;

/// Codes after which a context returns the same code for every call: those for which `cuda.h` says that the process
/// must be terminated and relaunched.
const LOSES_THE_DEVICE: &[Code] = &[
    4,   // deinitialized
    46,  // the device is unavailable
    214, // memory error that cannot be corrected
    220, // link error that cannot be corrected
    226, // memory of a peer failed
    700, // illegal address
    702, // a kernel ran too long
    709, // the context was destroyed
    710, // assertion in a kernel
    714, // hardware stack error
    715, // illegal instruction
    716, // misaligned address
    717, // invalid address space
    718, // invalid program counter
    719, // launch failure
    721, // a kernel ended and had not given back all of its tensor memory
    999, // unknown
];

pub(super) fn loses_the_device(code: Code) -> bool {
    LOSES_THE_DEVICE.contains(&code)
}

impl Driver {
    /// Converts the code of a call that cannot lose a device, because it creates or queries something before any work
    /// runs.
    pub(super) fn done(&self, call: &'static str, code: Code) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            code => Err(Error::Refused {
                call,
                code,
                why: self.words(code),
            }),
        }
    }
}
