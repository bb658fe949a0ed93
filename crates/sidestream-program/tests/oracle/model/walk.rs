//! What ops have in common: names, captures, points of the graph, events.

use std::collections::BTreeSet;

use super::state::{Access, Buffer, Bytes, Event, Here, Mode, Place, Run, Side, Stream, Work};
use super::{Point, Rule, THREAD};
use crate::oracle::prog::{MemKind, Part, StreamKind};

impl Run<'_> {
    pub(super) fn new_stream(&mut self, kind: StreamKind, device: u32) -> usize {
        self.streams.push(Stream {
            kind,
            device,
            destroyed: false,
            last: None,
            capture: None,
            captured: BTreeSet::new(),
            kernels: Vec::new(),
            last_is_event: false,
        });
        self.streams.len() - 1
    }

    /// Returns the legacy stream of a device, which exists with or without a name (R42).
    pub(super) fn legacy(&mut self, device: u32) -> usize {
        if let Some(&id) = self.legacy_of_device.get(&device) {
            return id;
        }
        let id = self.new_stream(StreamKind::Legacy, device);
        self.legacy_of_device.insert(device, id);
        id
    }

    pub(super) fn stream(&mut self, name: &str) -> usize {
        if let Some(&id) = self.stream_of_name.get(name) {
            return id;
        }
        let (kind, device) = self.prog.stream(name);
        let id = if kind == StreamKind::Legacy {
            self.legacy(device)
        } else {
            self.new_stream(kind, device)
        };
        self.stream_of_name.insert(name.to_string(), id);
        id
    }

    pub(super) fn device(&self, thread: &str) -> u32 {
        self.device_of_thread.get(thread).copied().unwrap_or(0)
    }

    pub(super) fn event(&self, name: &str) -> Event {
        self.events.get(name).cloned().unwrap_or(Event::Empty)
    }

    pub(super) fn fresh_region(&mut self) -> usize {
        self.regions += 1;
        self.regions
    }

    pub(super) fn buffer(&mut self, name: &str) -> &mut Buffer {
        if !self.buffers.contains_key(name) {
            let (mem, size) = self.prog.buffer(name);
            let region = self.fresh_region();
            self.buffers.insert(
                name.to_string(),
                Buffer {
                    bytes: Bytes {
                        region,
                        lo: 0,
                        hi: size,
                    },
                    mem,
                    allocated: false,
                    from_malloc_async: false,
                    home: None,
                    noted: Vec::new(),
                    free_records: Vec::new(),
                },
            );
        }
        self.buffers.get_mut(name).expect("just put there")
    }

    /// A buffer that an op allocates a second time gets fresh bytes.
    /// Reading (R32): the allocator itself provides the order when it hands out the same bytes again.
    pub(super) fn allocate(&mut self, name: &str) {
        if self.buffer(name).allocated {
            self.buffers.remove(name);
        }
        self.buffer(name).allocated = true;
    }

    pub(super) fn bytes(&mut self, part: &Part) -> Bytes {
        let whole = self.buffer(&part.buf).bytes;
        match part.range {
            None => whole,
            Some((lo, hi)) => Bytes {
                region: whole.region,
                lo: whole.lo + lo,
                hi: whole.lo + hi,
            },
        }
    }

    /// For copies, managed memory counts as device memory (R26).
    pub(super) fn on_host(&self, part: &Part) -> bool {
        matches!(
            self.prog.buffer(&part.buf).0,
            MemKind::Pinned | MemKind::Pageable
        )
    }

    // --- captures ---------------------------------------------------------------------------------------------------

    pub(super) fn capturing(&self, stream: usize) -> Option<usize> {
        self.streams[stream].capture
    }

    /// Reading (R45): "while a blocking stream captures" means a blocking stream of the same device as the legacy
    /// stream, since the legacy stream interacts with those only (R14, R42). A stream that is pulled into a capture
    /// captures too.
    pub(super) fn blocking_stream_captures(&self, device: u32) -> bool {
        self.streams
            .iter()
            .any(|s| s.device == device && s.kind.is_blocking() && s.capture.is_some())
    }

    /// Returns the failure of any use of `stream` if it is a legacy stream while a blocking stream captures (R45).
    pub(super) fn implicit(&self, stream: usize) -> Result<(), &'static str> {
        let s = &self.streams[stream];
        if s.kind == StreamKind::Legacy && self.blocking_stream_captures(s.device) {
            return Err("StreamCaptureImplicit");
        }
        Ok(())
    }

    /// Returns the failure of a sync or query of `stream` (R45, R46).
    pub(super) fn sync_stream_fails(&self, stream: usize) -> Result<(), &'static str> {
        self.implicit(stream)?;
        if self.capturing(stream).is_some() {
            return Err("StreamCaptureUnsupported");
        }
        Ok(())
    }

    /// Captures one piece of work in a capturing stream. It has no nodes that run and no accesses.
    pub(super) fn capture_work(&mut self, stream: usize) {
        let capture = self.streams[stream].capture.expect("the stream captures");
        let depends = std::mem::take(&mut self.streams[stream].captured);
        let work = &mut self.captures[capture].work;
        work.push(depends);
        self.streams[stream].captured.insert(work.len() - 1);
    }

    /// R48: returns whether some captured work is not joined into the origin stream.
    /// Reading: a fork counts as joined if every piece of its work is; a fork without work needs no join.
    pub(super) fn unjoined(&self, capture: usize) -> bool {
        let capture = &self.captures[capture];
        let mut joined = self.streams[capture.origin].captured.clone();
        loop {
            let more: BTreeSet<usize> = joined
                .iter()
                .flat_map(|&w| capture.work[w].clone())
                .collect();
            if more.is_subset(&joined) {
                break;
            }
            joined.extend(more);
        }
        joined.len() < capture.work.len()
    }

    // --- nodes ------------------------------------------------------------------------------------------------------

    /// Returns the point at which the caller touches memory.
    pub(super) fn host_point(&mut self, here: &mut Here) -> usize {
        let node = self.graph.add_node(here.op, Point::Host);
        self.graph.add_edge(here.call, node, THREAD);
        here.host = Some(node);
        node
    }

    /// Submits one action to a stream that does not capture: a node after everything that came before it there.
    /// `is_event`: the action is a record or a wait.
    pub(super) fn submit(&mut self, here: &mut Here, stream: usize, is_event: bool) -> usize {
        let node = self
            .graph
            .add_node(here.op, Point::Device(here.device_points));
        here.device_points += 1;
        self.streams[stream].kernels.clear();
        // R3: nothing starts before its call. R19: the DMA of a pageable upload starts after the caller has read the
        // source.
        match here.host {
            Some(host) => self.graph.add_edge(host, node, 19),
            None => self.graph.add_edge(here.call, node, 3),
        }
        // R1, R4: after the earlier actions of the stream, whichever thread submitted them.
        if let Some(last) = self.streams[stream].last {
            self.graph.add_edge(last, node, 1);
        }
        let device = self.streams[stream].device;
        if self.streams[stream].kind == StreamKind::Legacy {
            // R14, R17: an action of the legacy stream waits for all blocking streams of its device.
            let rule = if is_event { 17 } else { 14 };
            for (last, kind) in
                self.blocking_tails(device, self.readings.destroyed_streams_hold_legacy)
            {
                let rule = if kind == StreamKind::PerThread {
                    18
                } else {
                    rule
                };
                self.graph.add_edge(last, node, rule);
            }
            self.streams[stream].last_is_event = is_event;
        } else if self.streams[stream].kind.is_blocking() {
            // R14, R17: the blocking streams wait for the legacy stream.
            let legacy = self.legacy(device);
            if let Some(last) = self.streams[legacy].last {
                let rule = match (
                    self.streams[stream].kind,
                    self.streams[legacy].last_is_event,
                ) {
                    (StreamKind::PerThread, _) => 18,
                    (_, true) => 17,
                    (_, false) => 14,
                };
                self.graph.add_edge(last, node, rule);
            }
        }
        self.streams[stream].last = Some(node);
        node
    }

    /// The last actions of the blocking streams of a device.
    /// Reading (R13): a destroyed stream's work still runs, so it is still among them.
    pub(super) fn blocking_tails(
        &self,
        device: u32,
        with_destroyed: bool,
    ) -> Vec<(usize, StreamKind)> {
        self.streams
            .iter()
            .filter(|s| {
                s.device == device && s.kind.is_blocking() && (with_destroyed || !s.destroyed)
            })
            .filter_map(|s| s.last.map(|last| (last, s.kind)))
            .collect()
    }

    /// Returns what a sync of a stream waits for. R9: its own actions so far (and what these wait for). R16: the
    /// legacy stream covers all blocking streams of its device too. A blocking stream does not cover the legacy
    /// stream: if all its own actions are complete, its sync returns although the legacy stream is busy.
    pub(super) fn sync_targets(&self, stream: usize, own_rule: Rule) -> Vec<(usize, Rule)> {
        let s = &self.streams[stream];
        let mut targets: Vec<(usize, Rule)> = s.last.iter().map(|&last| (last, own_rule)).collect();
        if s.kind == StreamKind::Legacy {
            let tails = self.blocking_tails(s.device, self.readings.destroyed_streams_hold_legacy);
            targets.extend(tails.into_iter().map(|(last, _)| (last, 16)));
        }
        targets
    }

    pub(super) fn access(
        &mut self,
        here: &Here,
        node: usize,
        part: &Part,
        mode: Mode,
        side: &Side,
    ) {
        let bytes = self.bytes(part);
        let mem = self.buffer(&part.buf).mem;
        let place = side
            .stream
            .map_or(Place::Thread(here.thread.clone()), Place::Stream);
        self.accesses.push(Access {
            op: here.op,
            node,
            bytes,
            mode,
            host: side.host,
            buffer: part.buf.clone(),
            mem,
            place,
            shown_place: side.shown.to_string(),
        });
    }

    /// Submits work to a stream: reads, writes, a place in the stream, nothing else. Returns the node, or none if the
    /// stream captures.
    pub(super) fn submit_work(
        &mut self,
        here: &mut Here,
        stream: usize,
        shown: &str,
        r: &[Part],
        w: &[Part],
        host: bool,
    ) -> Result<Option<usize>, &'static str> {
        self.implicit(stream)?;
        if self.capturing(stream).is_some() {
            self.capture_work(stream);
            return Ok(None);
        }
        let node = self.submit(here, stream, false);
        let side = Side {
            stream: Some(stream),
            shown,
            host,
        };
        for part in r {
            self.access(here, node, part, Mode::Read, &side);
        }
        for part in w {
            self.access(here, node, part, Mode::Write, &side);
        }
        self.work.push(Work {
            op: here.op,
            stream,
            node,
            call: here.call,
        });
        Ok(Some(node))
    }

    /// Submits something that touches no memory; returns its node unless the stream captures.
    pub(super) fn submit_point(
        &mut self,
        here: &mut Here,
        stream: usize,
    ) -> Result<Option<usize>, &'static str> {
        self.implicit(stream)?;
        if self.capturing(stream).is_some() {
            self.capture_work(stream);
            return Ok(None);
        }
        Ok(Some(self.submit(here, stream, false)))
    }

    /// Adds accesses of other modes. Captured work has no node.
    pub(super) fn more(
        &mut self,
        here: &Here,
        stream: usize,
        shown: &str,
        parts: &[Part],
        mode: Mode,
        node: Option<usize>,
    ) {
        let side = Side {
            stream: Some(stream),
            shown,
            host: false,
        };
        for (part, node) in parts.iter().zip(node.into_iter().cycle()) {
            self.access(here, node, part, mode, &side);
        }
    }

    /// Returns the name of the legacy stream of a device, for messages.
    pub(super) fn legacy_name(&self, device: u32) -> String {
        self.prog
            .streams
            .iter()
            .find(|(_, kind, dev)| *kind == StreamKind::Legacy && *dev == device)
            .map_or("legacy".to_string(), |(name, _, _)| name.clone())
    }

    // --- events -----------------------------------------------------------------------------------------------------

    /// The effect of `wait` and of the second half of `wait_stream`. `rule` names the edge from the record.
    pub(super) fn wait(
        &mut self,
        here: &mut Here,
        stream: usize,
        event: Event,
        rule: Rule,
    ) -> Result<(), &'static str> {
        self.implicit(stream)?;
        let inside = self.capturing(stream);
        match event {
            // R8: nothing to wait for. Reading: "the wait does nothing", so it is not an action of the stream either:
            // it serialises nothing in the legacy stream and passes nothing on from the calling thread.
            Event::Empty => {
                if self.readings.empty_wait_acts && inside.is_none() {
                    self.submit(here, stream, true);
                }
                Ok(())
            }
            Event::Recorded { node: record, .. } => {
                if inside.is_some() {
                    // R47, even if the record has long completed.
                    return Err("StreamCaptureIsolation");
                }
                // R6, R7: the record as it is now, for later work of this stream. R40: on any device.
                let node = self.submit(here, stream, true);
                self.graph.add_edge(record, node, rule);
                Ok(())
            }
            Event::Captured { capture, work } => {
                if !self.captures[capture].running {
                    self.outside
                        .push((here.op, "wait on an event of a capture that has ended"));
                    return Ok(());
                }
                match inside {
                    Some(own) if own != capture => Err("StreamCaptureMerge"),
                    Some(_) => {
                        self.streams[stream].captured.extend(work);
                        Ok(())
                    }
                    None if self.streams[stream].kind == StreamKind::Legacy => {
                        self.outside
                            .push((here.op, "the legacy stream pulled into a capture"));
                        Ok(())
                    }
                    None => {
                        // R48: the waiting stream is pulled into the capture.
                        self.streams[stream].capture = Some(capture);
                        self.streams[stream].captured = work;
                        Ok(())
                    }
                }
            }
        }
    }

    /// The effect of `record` and of the first half of `wait_stream`.
    pub(super) fn record(&mut self, here: &mut Here, stream: usize) -> Result<Event, &'static str> {
        self.implicit(stream)?;
        if let Some(capture) = self.capturing(stream) {
            return Ok(Event::Captured {
                capture,
                work: self.streams[stream].captured.clone(),
            });
        }
        // R5: the work of the stream so far; in the legacy stream that includes all blocking work (R17, by `submit`).
        let node = self.submit(here, stream, true);
        Ok(Event::Recorded {
            op: here.op,
            node,
            device: self.streams[stream].device,
        })
    }

    /// Returns what a sync or a successful query of an event waits for (R8, R9, R46).
    pub(super) fn event_target(
        &mut self,
        op: usize,
        name: &str,
    ) -> Result<Option<usize>, &'static str> {
        match self.event(name) {
            Event::Empty => Ok(None),
            Event::Recorded { node, .. } => Ok(Some(node)),
            Event::Captured { capture, .. } if self.captures[capture].running => {
                Err("CapturedEvent")
            }
            Event::Captured { .. } => {
                self.outside
                    .push((op, "sync or query of an event of a capture that has ended"));
                Ok(None)
            }
        }
    }
}
