//! No log makes the reader or the checker panic, and records that were read are unchanged after being written and read
//! again.
//!
//! Run `cargo +nightly fuzz run op_log` in the folder `fuzz`. Input that does not start like a log is appended to a few
//! declarations, so that it is read as operations at once.

#![cfg_attr(fuzzing, no_main)]

use std::sync::OnceLock;

use fuzz_target::fuzz_target;
use sidestream::check::replay;
use sidestream::log::{Error, MAGIC, Reader, Record, Within, Writer};
use sidestream::op::{BufferId, DeviceId, Memory, StreamKind};
use sidestream::trace::recorded;

/// The size of the end record of a log with few declarations: its first byte and nine counts.
const END_BYTES: usize = 10;

fuzz_target!(|bytes: &[u8]| {
    static START: OnceLock<Vec<u8>> = OnceLock::new();
    let start = START.get_or_init(|| start().expect("writing to memory does not fail"));
    let log = match bytes.starts_with(&MAGIC) {
        true => bytes.to_vec(),
        false => [start, bytes].concat(),
    };
    let Ok(reader) = Reader::new(&log[..]) else {
        return;
    };
    let records: Vec<Record> = reader.map_while(Result::ok).collect();
    let again = write(&records).expect("records that were read can be written");
    let reader = Reader::new(&again[..]).expect("a log was written");
    let read: Result<Vec<Record>, Error> = reader.collect();
    assert_eq!(read.expect("a log was written"), records);

    if let Ok(reader) = Reader::new(&log[..]) {
        // Both an error and a report are valid results.
        let _ = replay(reader, 1 << 26);
    }
    if let Ok(reader) = Reader::new(&log[..])
        && let Ok(recorded) = recorded(reader, 1 << 26)
    {
        let mut json = Vec::new();
        let written = recorded.trace.write_json(&mut json);
        written.expect("writing to memory does not fail");
        serde_json::from_slice::<serde_json::Value>(&json).expect("a trace is JSON");
    }
});

/// Returns the start of a log: streams of every kind, events, overlapping buffers, threads, and call sites.
fn start() -> Result<Vec<u8>, Error> {
    use StreamKind::{Blocking, Legacy, NonBlocking, PerThread};
    let mut log = Writer::new(Vec::new())?;
    for kind in [NonBlocking, NonBlocking, Blocking, PerThread, Legacy] {
        log.take(&Record::stream(kind, DeviceId(0), ""))?;
        log.take(&Record::event(true, None, ""))?;
    }
    log.take(&Record::stream(Blocking, DeviceId(1), ""))?;
    log.take(&Record::event(false, Some(DeviceId(1)), ""))?;
    let mut buffer = BufferId(0);
    for memory in [
        Memory::Device,
        Memory::Pinned,
        Memory::Pageable,
        Memory::Managed,
    ] {
        log.take(&Record::buffer(memory, 100, None, ""))?;
        for (bytes, start) in [(60, 40), (20, 10)] {
            let within = Some(Within { buffer, start });
            log.take(&Record::buffer(memory, bytes, within, ""))?;
            buffer.0 += 1;
        }
        buffer.0 += 1;
    }
    for _ in 0..3 {
        log.take(&Record::thread(""))?;
        log.take(&Record::site(""))?;
    }
    let mut bytes = log.finish()?;
    bytes.truncate(bytes.len() - END_BYTES);
    Ok(bytes)
}

fn write(records: &[Record<'_>]) -> Result<Vec<u8>, Error> {
    let mut log = Writer::new(Vec::new())?;
    for record in records {
        log.take(record)?;
    }
    log.finish()
}
