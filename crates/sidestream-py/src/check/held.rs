//! Memory with recorded streams that the program has freed, and that the allocator cannot reuse yet.

use std::collections::HashMap;

use indexmap::IndexMap;
use sidestream::op::StreamId;

use super::spine::Site;

/// The minimum number of freed bytes for a query of the memory that cannot be reused.
const MUCH_BYTES: u64 = 32 << 20;

/// Memory with recorded streams that the program has freed.
#[derive(Default)]
pub struct Held {
    noted: HashMap<u64, (Site, StreamId)>,
    freed: HashMap<u64, (u64, Site, StreamId)>,
    bytes: u64,
    looked_at: u64,
    /// The bytes by place and stream, at the time when the most memory could not be reused.
    pub most: IndexMap<(Site, StreamId), u64>,
}

impl Held {
    /// The program calls `record_stream`.
    pub fn note(&mut self, start: u64, site: Site, stream: StreamId) {
        self.noted.entry(start).or_insert((site, stream));
    }

    /// Memory is freed.
    pub fn freed(&mut self, start: u64, end: u64) {
        if let Some((site, stream)) = self.noted.remove(&start) {
            let bytes = end.saturating_sub(start);
            self.freed.insert(start, (bytes, site, stream));
            self.bytes += bytes;
        }
    }

    /// Memory is allocated.
    pub fn allocated(&mut self, start: u64) {
        self.noted.remove(&start);
        if let Some((bytes, ..)) = self.freed.remove(&start) {
            self.bytes -= bytes;
        }
    }

    /// Whether it is time to query which memory cannot be reused yet. The query is slow, so it becomes rarer over
    /// time.
    pub fn is_due(&self) -> bool {
        self.bytes >= MUCH_BYTES.max(self.looked_at.saturating_mul(2))
    }

    /// The result of the query: addresses and sizes.
    pub fn looked(&mut self, pending: &[(u64, u64)]) {
        self.looked_at = self.bytes;
        let mut found = IndexMap::new();
        let mut kept = HashMap::new();
        for &(start, bytes) in pending {
            let Some((_, site, stream)) = self.freed.remove(&start) else {
                continue;
            };
            *found.entry((site, stream)).or_default() += bytes;
            kept.insert(start, (bytes, site, stream));
        }
        self.bytes = found.values().sum();
        self.freed = kept;
        if self.bytes > self.most.values().sum() {
            self.most = found;
        }
    }
}
