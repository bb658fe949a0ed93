//! In a trace file of arbitrary bytes, either the op log is found or the file is refused, without a
//! panic.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream::trace::embedded_log;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(log)) = embedded_log(bytes) {
        // Decoding base64 never makes it longer.
        assert!(log.len() <= bytes.len());
    }
});
