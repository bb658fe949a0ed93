//! Whatever a trace file holds, its op log is found or the file is refused.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream::trace::embedded_log;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(log)) = embedded_log(bytes) {
        // Base64 never grows by decoding.
        assert!(log.len() <= bytes.len());
    }
});
