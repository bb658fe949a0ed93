//! Joins waits with the event records for which they wait.
//!
//! The kind in a wait's row is unreliable: schema 3.13 calls `cudaDeviceSynchronize` a wait for an event, 3.17 calls
//! `cudaStreamSynchronize` a wait of a stream, and 3.25 has rows for `cudaEventQuery`, which does not wait. So the call
//! decides, where the file has it.

use super::rows::{process, small, times};
use super::*;
use crate::model::{ApiKind, Call, Record, Sync, SyncKind};

pub(super) const EVENT: [Column; 7] = [
    integer("deviceId"),
    integer("contextId"),
    integer("streamId"),
    integer("correlationId"),
    integer("globalPid"),
    integer("eventId"),
    integer("eventSyncId"),
];
pub(super) const SYNC: [Column; 10] = [
    integer("start"),
    integer("end"),
    integer("deviceId"),
    integer("contextId"),
    integer("streamId"),
    integer("correlationId"),
    integer("globalPid"),
    integer("syncType"),
    integer("eventId"),
    integer("eventSyncId"),
];

/// The value for a missing stream or event.
const NONE: u32 = u32::MAX;
/// The value for a row without a process: process numbers are positive.
const NO_PROCESS: i32 = -1;

/// Waits that have not been joined with their calls and records yet.
#[derive(Default)]
pub(super) struct Waits {
    waits: Vec<Wait>,
    records: Vec<Recorded>,
}

struct Wait {
    sync: Sync,
    process: i32,
    event: u32,
    sync_id: u32,
    /// Whether the call turned out not to wait.
    is_poll: bool,
}

/// A record of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Recorded {
    process: i32,
    event: u32,
    correlation: u32,
    sync_id: u32,
}

// A trace may have as many waits and records as calls.
const _: () = assert!(size_of::<Wait>() <= 56);
const _: () = assert!(size_of::<Recorded>() <= 16);

impl Waits {
    pub(super) fn record(&mut self, reader: &mut Reader, row: &Row) -> Result<bool, Stop> {
        let (Some(device), Some(number), Some(event)) =
            (row.integer(0), row.integer(2), row.integer(5))
        else {
            return Ok(false);
        };
        self.check_room(reader)?;
        let (process, context) = (row.integer(4).map(process), row.integer(1).unwrap_or(0));
        let recorded = Recorded {
            process: short(process),
            event: u32::try_from(event).unwrap_or(NONE),
            correlation: small(row.integer(3)),
            sync_id: small(row.integer(6)),
        };
        let stream = reader.stream_somewhere(process, device, context, number)?;
        reader.builder.trace.records.push(Record {
            stream,
            event: event as u64,
            sync_id: recorded.sync_id.into(),
            correlation: recorded.correlation,
        });
        self.records.push(recorded);
        Ok(true)
    }

    pub(super) fn sync(&mut self, reader: &mut Reader, row: &Row) -> Result<bool, Stop> {
        let Some((start_ns, duration_ns)) = times(row) else {
            return Ok(false);
        };
        self.check_room(reader)?;
        let process = row.integer(6).map(process);
        let stream = match (row.integer(2), row.integer(4)) {
            (Some(device), Some(number)) if number != i64::from(NONE) && number >= 0 => {
                let context = row.integer(3).unwrap_or(0);
                Some(reader.stream_somewhere(process, device, context, number)?)
            }
            _ => None,
        };
        self.waits.push(Wait {
            process: short(process),
            sync: Sync {
                start_ns,
                duration_ns,
                kind: reader.kinds.sync(row.integer(7)),
                stream,
                correlation: small(row.integer(5)),
                record_correlation: 0,
            },
            event: row
                .integer(8)
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(NONE),
            sync_id: small(row.integer(9)),
            is_poll: false,
        });
        Ok(true)
    }

    /// Stops if the waits and records held here, together with the rows that are kept, reach the memory limit.
    fn check_room(&self, reader: &Reader) -> Result<(), Stop> {
        let here = size_of_val(&self.waits[..]) + size_of_val(&self.records[..]);
        if reader.builder.kept_bytes() + here as u64 >= reader.limits.rows_bytes {
            Err(Stop::Full)
        } else {
            Ok(())
        }
    }

    /// Sorts the waits and records once all have been read; calls come next.
    pub(super) fn sort(&mut self) {
        self.waits
            .sort_unstable_by_key(|wait| (wait.process, wait.sync.correlation));
        self.records.sort_unstable();
    }

    /// Records what a call shows about its waits.
    pub(super) fn called(&mut self, process: i64, call: &Call) {
        if call.correlation == 0 {
            return;
        }
        let kind = match call.api.kind {
            ApiKind::SyncDevice => Some(SyncKind::Context),
            ApiKind::SyncStream => Some(SyncKind::Stream),
            ApiKind::SyncEvent => Some(SyncKind::Event),
            ApiKind::WaitEvent => Some(SyncKind::StreamWait),
            ApiKind::Query => None,
            // Copies and other calls may wait for anything.
            _ => return,
        };
        let key = (short(Some(process)), call.correlation);
        let of = |wait: &Wait| (wait.process, wait.sync.correlation);
        let first = self.waits.partition_point(|wait| of(wait) < key);
        for wait in self.waits[first..]
            .iter_mut()
            .take_while(|wait| of(wait) == key)
        {
            match kind {
                Some(kind) => wait.sync.kind = kind,
                None => wait.is_poll = true,
            }
        }
    }

    /// Adds the waits to the trace.
    pub(super) fn finish(mut self, builder: &mut Builder) {
        let mut by_id: Vec<Recorded> = self.records.clone();
        by_id.retain(|record| record.sync_id != 0);
        by_id.sort_unstable_by_key(|record| (record.process, record.sync_id));
        for wait in &mut self.waits {
            if matches!(wait.sync.kind, SyncKind::StreamWait | SyncKind::Event) {
                let record = match wait.sync_id {
                    0 => last_before(&self.records, wait),
                    id => with_id(&by_id, wait.process, id),
                };
                wait.sync.record_correlation = record.unwrap_or(0);
            }
        }
        for wait in self.waits.into_iter().filter(|wait| !wait.is_poll) {
            builder.trace.syncs.push(wait.sync);
        }
    }
}

/// Returns the correlation number of the call that made the record with this unique number.
fn with_id(by_id: &[Recorded], process: i32, sync_id: u32) -> Option<u32> {
    let key = |record: &Recorded| (record.process, record.sync_id);
    let at = by_id.binary_search_by_key(&(process, sync_id), key).ok()?;
    Some(by_id[at].correlation)
}

/// Returns the call that last recorded the event before a wait. Event numbers are reused, and rows of records have no time in
/// most versions; the numbers of calls increase.
fn last_before(records: &[Recorded], wait: &Wait) -> Option<u32> {
    let event = wait.event;
    if event == NONE {
        return None;
    }
    let until = (wait.process, event, wait.sync.correlation);
    let key = |record: &Recorded| (record.process, record.event, record.correlation);
    let after = records.partition_point(|record| key(record) < until);
    let last = records[..after].last()?;
    (last.process == wait.process && last.event == event).then_some(last.correlation)
}

/// Returns a process in few bytes; exports have 24 bits for it.
fn short(process: Option<i64>) -> i32 {
    let number = process.and_then(|process| i32::try_from(process).ok());
    number.unwrap_or(NO_PROCESS)
}
