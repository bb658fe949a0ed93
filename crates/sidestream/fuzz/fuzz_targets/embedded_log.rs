//! Whatever bytes a trace file contains, its op log is found or the file is refused.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream::trace::embedded_log;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(log)) = embedded_log(bytes) {
        // Decoding base64 never makes it longer.
        assert!(log.len() <= bytes.len());
    }
});
