//! The effect of each op.

use super::state::{Buffer, Bytes, Capture, Event, Here, Mode, POOL, Run, Side};
use super::{FLAG, Point, THREAD};
use crate::oracle::prog::{Act, EventKind, MemKind, Part, Source, StreamKind};

impl Run<'_> {
    pub(super) fn walk(&mut self) {
        let prog = self.prog;
        for (op, line) in prog.ops.iter().enumerate() {
            let call = self.graph.add_node(op, Point::Call);
            if let Some(&last) = self.last_of_thread.get(&line.thread) {
                self.graph.add_edge(last, call, THREAD);
            }
            let mut here = Here {
                op,
                thread: line.thread.clone(),
                call,
                host: None,
                device_points: 0,
                returns_after: Vec::new(),
                returns_after_one_of: Vec::new(),
            };
            let lints_before = self.lints.len();
            if let Err(code) = self.act(&mut here, &line.act) {
                // The call fails and checking stops there. Reading: lints "found before it" are those of earlier ops.
                self.lints.truncate(lints_before);
                self.error = Some((op, code));
                // A failed wait_stream may have made its record, which touches no memory.
                return;
            }
            let ret = self.graph.add_node(op, Point::Return);
            self.graph.add_edge(call, ret, THREAD);
            if let Some(host) = here.host {
                self.graph.add_edge(host, ret, THREAD);
            }
            for (node, rule) in here.returns_after {
                self.graph.add_edge(node, ret, rule);
            }
            if !here.returns_after_one_of.is_empty() {
                self.graph.add_choice(here.returns_after_one_of, ret);
            }
            self.last_of_thread.insert(line.thread.clone(), ret);
        }
    }

    #[allow(clippy::too_many_lines)]
    pub(super) fn act(&mut self, here: &mut Here, act: &Act) -> Result<(), &'static str> {
        match act {
            Act::Kernel {
                s,
                r,
                w,
                may_write,
                atomic,
                programmatic,
                ..
            } => {
                let stream = self.stream(s);
                let captured = self.capturing(stream).is_some();
                if self.streams[stream].device != self.device(&here.thread)
                    && (!captured || self.readings.captured_ops_lint)
                {
                    self.lints.push(("FOREIGN_DEVICE_LAUNCH", here.op));
                }
                let before = self.streams[stream].kernels.clone();
                let node = self.submit_work(here, stream, s, r, w, false)?;
                self.more(here, stream, s, may_write, Mode::MayWrite, node);
                self.more(here, stream, s, atomic, Mode::Atomic, node);
                if node.is_some() {
                    // R66: a kernel after an early one may start before that one is complete, or the ones before it.
                    let mut running = if *programmatic { before } else { Vec::new() };
                    self.early.insert(here.op, running.clone());
                    running.push(here.op);
                    self.streams[stream].kernels = running;
                }
            }
            Act::MemsetAsync { s, to } => {
                let stream = self.stream(s);
                self.submit_work(here, stream, s, &[], std::slice::from_ref(to), false)?;
            }
            Act::CopyPeer { s, from, to, .. } => {
                let stream = self.stream(s);
                let (from, to) = (std::slice::from_ref(from), std::slice::from_ref(to));
                self.submit_work(here, stream, s, from, to, false)?;
            }
            Act::CopyBatch {
                s,
                from,
                to,
                source,
            } => {
                let stream = self.stream(s);
                let to = std::slice::from_ref(to);
                if *source == Source::Stream || self.capturing(stream).is_some() {
                    // R61
                    let from = std::slice::from_ref(from);
                    self.submit_work(here, stream, s, from, to, false)?;
                    return Ok(());
                }
                self.implicit(stream)?;
                if *source == Source::DuringCall {
                    // R62: the call reads the source, whatever the stream still does.
                    self.host_access(here, from, Mode::Read);
                    self.submit_work(here, stream, s, &[], to, false)?;
                    return Ok(());
                }
                // R63: the source is read between the call and the end of the copy, which is in stream order.
                let read = self.graph.add_node(here.op, Point::Source);
                self.graph.add_edge(here.call, read, 63);
                let side = Side {
                    stream: Some(stream),
                    shown: s,
                    host: false,
                };
                self.access(here, read, from, Mode::Read, &side);
                let node = self.submit_work(here, stream, s, &[], to, false)?;
                self.graph
                    .add_edge(read, node.expect("it does not capture"), 63);
            }
            Act::CopyAsync { s, from, to } => {
                let stream = self.stream(s);
                let captured = self.capturing(stream).is_some();
                let pageable = [from, to]
                    .iter()
                    .any(|part| self.prog.buffer(&part.buf).0 == MemKind::Pageable);
                if pageable && (!captured || self.readings.captured_ops_lint) {
                    self.lints.push(("UNPINNED_ASYNC_COPY", here.op));
                }
                let node = self.submit_work(
                    here,
                    stream,
                    s,
                    std::slice::from_ref(from),
                    std::slice::from_ref(to),
                    false,
                )?;
                // R23: host to host also blocks the caller. R22, R25: no other asynchronous copy is guaranteed to.
                if let Some(node) = node
                    && self.on_host(from)
                    && self.on_host(to)
                {
                    here.returns_after.push((node, 23));
                }
            }
            Act::HostFunc { s, r, w, sets } => {
                let stream = self.stream(s);
                let node = self.submit_work(here, stream, s, r, w, true)?;
                if let Some(flag) = sets {
                    match node {
                        // R28: the function runs after the earlier work of the stream; then the flag is raised.
                        Some(node) => {
                            let flag = self.flags.entry(flag.clone()).or_default();
                            flag.raise(node, 28);
                        }
                        None => self
                            .outside
                            .push((here.op, "a captured host function that sets a flag")),
                    }
                }
            }
            Act::GraphLaunch {
                s,
                g,
                r,
                w,
                may_write,
                atomic,
            } => {
                let stream = self.stream(s);
                let node = self.submit_work(here, stream, s, r, w, false)?;
                self.more(here, stream, s, may_write, Mode::MayWrite, node);
                self.more(here, stream, s, atomic, Mode::Atomic, node);
                if let Some(node) = node {
                    // R49: a launch comes after the earlier launch of the same graph.
                    if let Some(&earlier) = self.graph_runs.get(g) {
                        self.graph.add_edge(earlier, node, 49);
                    }
                    self.graph_runs.insert(g.clone(), node);
                }
            }
            Act::Copy { from, to } => self.blocking_copy(here, from, to)?,
            Act::Memset { to } => {
                let device = self.device(&here.thread);
                let legacy = self.legacy(device);
                let shown = self.legacy_name(device);
                let node =
                    self.submit_work(here, legacy, &shown, &[], std::slice::from_ref(to), false)?;
                // R24
                if matches!(
                    self.prog.buffer(&to.buf).0,
                    MemKind::Pinned | MemKind::Managed
                ) {
                    here.returns_after
                        .push((node.expect("the legacy stream never captures"), 24));
                }
            }
            Act::Record { ev, s } => {
                let stream = self.stream(s);
                // R38. Reading: the handle is checked before the state of the stream.
                if let EventKind::Device(device) = self.prog.event(ev)
                    && device != self.streams[stream].device
                {
                    return Err("InvalidResourceHandle");
                }
                let event = self.record(here, stream)?;
                self.events.insert(ev.clone(), event);
            }
            Act::Wait { s, ev } => {
                let stream = self.stream(s);
                let event = self.event(ev);
                if matches!(event, Event::Empty)
                    && (self.capturing(stream).is_none() || self.readings.captured_ops_lint)
                {
                    self.lints.push(("WAIT_ON_UNRECORDED_EVENT", here.op));
                }
                self.wait(here, stream, event, 6)?;
            }
            Act::WriteValue {
                s,
                at,
                value,
                unfenced,
            } => {
                let stream = self.stream(s);
                if let Some(node) = self.submit_point(here, stream)? {
                    let written = self.words.entry(at.clone()).or_default();
                    written.push((*value, stream, node, !unfenced));
                    // R64: a wait that no earlier write ends is ended by the first later one that does.
                    let ends = |(word, _, awaited, when): &(String, usize, u64, Option<String>)| {
                        !unfenced && word == at && ends_wait(*value, *awaited, when.as_deref())
                    };
                    for (_, wait, ..) in self.value_waits.extract_if(.., |wait| ends(wait)) {
                        self.graph.add_late_edge(node, wait, 64);
                        self.outside_waits.retain(|&other| other != wait);
                        self.ended_waits.push(wait);
                    }
                }
            }
            Act::WaitValue { s, at, value, when } => {
                let stream = self.stream(s);
                let Some(node) = self.submit_point(here, stream)? else {
                    return Ok(());
                };
                let ends = |found: u64| ends_wait(found, *value, when.as_deref());
                let written = self.words.get(at).cloned().unwrap_or_default();
                let fails = written.iter().rposition(|one| !ends(one.0));
                match &written[fails.map_or(0, |at| at + 1)..] {
                    [] => {
                        self.outside_waits.push(node);
                        let wait = (at.clone(), node, *value, when.clone());
                        self.value_waits.push(wait);
                    }
                    ending @ [(_, writer, first, fenced), ..] => {
                        if *fenced && ending.iter().all(|one| one.1 == *writer) {
                            self.graph.add_edge(*first, node, 64);
                        }
                    }
                }
            }
            Act::WaitOutside { s } => {
                let node = match s {
                    Some(s) => {
                        let stream = self.stream(s);
                        self.submit_point(here, stream)?
                    }
                    None => Some(self.host_point(here)),
                };
                self.outside_waits.extend(node);
            }
            Act::WaitStream { s, src } => {
                // R50: a record of its own in `src`, then a wait for it in `s`.
                let stream = self.stream(s);
                let source = self.stream(src);
                let event = self.record(here, source)?;
                self.wait(here, stream, event, 50)?;
            }
            Act::SyncStream { st } => {
                let stream = self.stream(st);
                self.sync_stream_fails(stream)?;
                here.returns_after = self.sync_targets(stream, 9);
                self.sync_in_loop(here.op);
            }
            Act::SyncEvent { ev } => {
                if let Some(node) = self.event_target(here.op, ev)? {
                    here.returns_after.push((node, 9));
                }
                self.sync_in_loop(here.op);
            }
            Act::SyncDevice { dev } => {
                let device = dev.unwrap_or(self.device(&here.thread));
                if self
                    .streams
                    .iter()
                    .any(|s| s.device == device && s.capture.is_some())
                {
                    return Err("StreamCaptureUnsupported");
                }
                // R9, R41: everything submitted to this one device so far, including destroyed streams (R13).
                for s in &self.streams {
                    if s.device == device
                        && let Some(last) = s.last
                    {
                        here.returns_after.push((last, 9));
                    }
                }
                self.sync_in_loop(here.op);
            }
            Act::QueryStream { st, ready } => {
                let stream = self.stream(st);
                self.sync_stream_fails(stream)?;
                if *ready {
                    here.returns_after = self.sync_targets(stream, 10);
                }
            }
            Act::QueryEvent { ev, ready } => {
                let target = self.event_target(here.op, ev)?;
                if *ready && let Some(node) = target {
                    here.returns_after.push((node, 10));
                }
            }
            Act::SetFlag { flag } => {
                let flag = self.flags.entry(flag.clone()).or_default();
                flag.raise(here.call, FLAG);
            }
            Act::WaitFlag { flag } => match self.flags.get_mut(flag) {
                // Reading: the flag is up from the first raise on, whichever that is when the program runs, and the
                // thread that waits takes it down. So of several raises since it was last taken, any one may release
                // the thread.
                Some(flag) => {
                    flag.is_taken = true;
                    match flag.raised[..] {
                        [only] => here.returns_after.push(only),
                        _ => here.returns_after_one_of.clone_from(&flag.raised),
                    }
                }
                None => self
                    .outside
                    .push((here.op, "wait for a flag that nothing raised")),
            },
            Act::HostRead { buf } => self.host_access(here, buf, Mode::Read),
            Act::HostWrite { buf } => self.host_access(here, buf, Mode::Write),
            Act::Alloc {
                buf,
                s,
                over,
                after_events,
            } => self.alloc(here, buf, s.as_deref(), over.as_ref(), *after_events),
            Act::Free { buf } => {
                // R53, R54: one event per recorded stream, for the work that is queued there now. An event record is
                // an action of its stream like any other. No access: the next tenant finds the uses of the block by
                // others.
                let noted = std::mem::take(&mut self.buffer(buf).noted);
                let mut records = Vec::new();
                for stream in noted {
                    if self.implicit(stream).is_err() {
                        let why = "free with a noted legacy stream during a capture";
                        self.outside.push((here.op, why));
                        continue;
                    }
                    match self.record(here, stream)? {
                        Event::Recorded { node, .. } => records.push(node),
                        _ => self
                            .outside
                            .push((here.op, "free while a noted stream captures")),
                    }
                }
                self.buffer(buf).free_records = records;
            }
            Act::RecordStream { buf, st } => {
                let stream = self.stream(st);
                let buffer = self.buffer(buf);
                // R53
                if buffer.home != Some(stream) && !buffer.noted.contains(&stream) {
                    buffer.noted.push(stream);
                }
            }
            Act::MallocAsync { buf, s } => {
                let stream = self.stream(s);
                self.lifetime_on_stream(here, stream, s, buf, Mode::Birth)?;
            }
            Act::FreeAsync { buf, s } => {
                let stream = self.stream(s);
                self.lifetime_on_stream(here, stream, s, buf, Mode::End)?;
            }
            Act::CudaMalloc { buf } => {
                self.allocate(buf);
                self.buffer(buf).from_malloc_async = false;
            }
            // R27, R31, R35: the life ends at the call, on the host.
            // R67: so does the memory's life as memory that the device reaches.
            Act::CudaFree { buf } | Act::FreePinned { buf } | Act::Unregister { buf } => {
                self.host_access(here, &Part::whole(buf), Mode::End);
            }
            Act::Elapsed { a, b } => self.elapsed(here, a, b)?,
            // R12: the handle is now a never-recorded event; waits keep the record that they were given.
            Act::CreateEvent { ev } | Act::DestroyEvent { ev } => {
                self.events.insert(ev.clone(), Event::Empty);
            }
            Act::CreateStream { st } => {
                let (kind, device) = self.prog.stream(st);
                if kind == StreamKind::Legacy {
                    self.outside.push((here.op, "a default stream created"));
                } else {
                    let id = self.new_stream(kind, device);
                    self.stream_of_name.insert(st.clone(), id);
                }
            }
            Act::DestroyStream { st } => {
                let stream = self.stream(st);
                self.streams[stream].destroyed = true;
                if self.capturing(stream).is_some() {
                    self.outside.push((here.op, "a capturing stream destroyed"));
                }
            }
            Act::SetDevice { dev } => {
                self.device_of_thread.insert(here.thread.clone(), *dev);
            }
            Act::BeginCapture { s } => {
                let stream = self.stream(s);
                if self.streams[stream].kind == StreamKind::Legacy {
                    return Err("StreamCaptureUnsupported");
                }
                if self.capturing(stream).is_some() {
                    self.outside
                        .push((here.op, "begin_capture on a capturing stream"));
                    return Ok(());
                }
                self.captures.push(Capture {
                    origin: stream,
                    thread: here.thread.clone(),
                    running: true,
                    work: Vec::new(),
                });
                self.streams[stream].capture = Some(self.captures.len() - 1);
                self.streams[stream].captured.clear();
            }
            Act::EndCapture { s } => {
                let stream = self.stream(s);
                // R48. Reading: of several failures, the first of: not captured, begun in another stream, another thread, unjoined work.
                let capture = match self.capturing(stream) {
                    Some(capture) if self.captures[capture].origin == stream => capture,
                    Some(_) => return Err("StreamCaptureUnmatched"),
                    None => return Err("IllegalState"),
                };
                if self.captures[capture].thread != here.thread {
                    return Err("StreamCaptureWrongThread");
                }
                if self.unjoined(capture) {
                    return Err("StreamCaptureUnjoined");
                }
                self.captures[capture].running = false;
                for s in &mut self.streams {
                    if s.capture == Some(capture) {
                        s.capture = None;
                        s.captured.clear();
                    }
                }
            }
            Act::PoolGet { count, first, last } => self.pool_get(here, *count, first, last),
            // These ops control the simulated device and the allocator; they order nothing.
            Act::SimHold { .. } | Act::SimRelease { .. } | Act::SetCapacity { .. } => {}
        }
        Ok(())
    }

    pub(super) fn host_access(&mut self, here: &mut Here, part: &Part, mode: Mode) {
        let node = self.host_point(here);
        let thread = here.thread.clone();
        let side = Side {
            stream: None,
            shown: &thread,
            host: true,
        };
        self.access(here, node, part, mode, &side);
    }

    /// R19, R20, R21, R23: cudaMemcpy in the legacy stream of the caller's device.
    pub(super) fn blocking_copy(
        &mut self,
        here: &mut Here,
        from: &Part,
        to: &Part,
    ) -> Result<(), &'static str> {
        let device = self.device(&here.thread);
        let legacy = self.legacy(device);
        let shown = self.legacy_name(device);
        self.implicit(legacy)?;
        let from_kind = self.prog.buffer(&from.buf).0;
        let upload = self.on_host(from) && !self.on_host(to);
        if upload && from_kind == MemKind::Pageable {
            // R19: first a sync of the legacy stream (which covers the blocking streams, R16); then the caller reads
            // the source into staging memory, which is a host access of the calling thread; the transfer runs later
            // in the legacy stream, and the call does not wait for it.
            let before = self.sync_targets(legacy, 19);
            let node = self.host_point(here);
            for (earlier, _) in before {
                self.graph.add_edge(earlier, node, 19);
            }
            let thread = here.thread.clone();
            let side = Side {
                stream: None,
                shown: &thread,
                host: true,
            };
            self.access(here, node, from, Mode::Read, &side);
            self.submit_work(here, legacy, &shown, &[], std::slice::from_ref(to), false)?;
            return Ok(());
        }
        let node = self
            .submit_work(
                here,
                legacy,
                &shown,
                std::slice::from_ref(from),
                std::slice::from_ref(to),
                false,
            )?
            .expect("the legacy stream never captures");
        // Reading: the device makes the accesses of every other blocking copy, also from host to host, in the legacy
        // stream.
        match (self.on_host(from), self.on_host(to)) {
            (true, true) => here.returns_after.push((node, 23)),
            (true, false) => here.returns_after.push((node, 19)),
            (false, true) => here.returns_after.push((node, 21)),
            (false, false) => {} // R20
        }
        Ok(())
    }

    pub(super) fn alloc(
        &mut self,
        here: &mut Here,
        buf: &str,
        s: Option<&str>,
        over: Option<&Part>,
        after_events: bool,
    ) {
        let home = s.map(|s| self.stream(s));
        let (mem, size) = self.prog.buffer(buf);
        let bytes = match over {
            None => Bytes {
                region: self.fresh_region(),
                lo: 0,
                hi: size,
            },
            Some(part) => {
                let under = self.bytes(part);
                if size > under.hi - under.lo {
                    self.outside
                        .push((here.op, "a block larger than what it lies on"));
                }
                // Reading: a smaller block is at the start of the range.
                Bytes {
                    region: under.region,
                    lo: under.lo,
                    hi: (under.lo + size).min(under.hi),
                }
            }
        };
        if after_events && let Some(part) = over {
            // R53: the events of the free of `over` were polled and are complete. Only that free's, not those of
            // earlier tenants.
            let records = self.buffer(&part.buf).free_records.clone();
            here.returns_after
                .extend(records.into_iter().map(|r| (r, 53)));
        }
        self.buffers.insert(
            buf.to_string(),
            Buffer {
                bytes,
                mem,
                allocated: true,
                from_malloc_async: false,
                home,
                noted: Vec::new(),
                free_records: Vec::new(),
            },
        );
        // R52: no order comes from the hand-out itself, and neither `alloc` nor `free` is an access.
    }

    /// `malloc_async` and `free_async`: stream ops (R33, R34) that touch the whole buffer.
    pub(super) fn lifetime_on_stream(
        &mut self,
        here: &mut Here,
        stream: usize,
        shown: &str,
        buf: &str,
        mode: Mode,
    ) -> Result<(), &'static str> {
        self.implicit(stream)?;
        if self.capturing(stream).is_some() {
            self.outside
                .push((here.op, "malloc_async or free_async in a capture"));
            self.capture_work(stream);
            return Ok(());
        }
        if mode == Mode::Birth {
            self.allocate(buf);
            self.buffer(buf).from_malloc_async = true;
        }
        let node = self.submit(here, stream, false);
        let side = Side {
            stream: Some(stream),
            shown,
            host: false,
        };
        self.access(here, node, &Part::whole(buf), mode, &side);
        Ok(())
    }

    pub(super) fn elapsed(
        &mut self,
        here: &mut Here,
        a: &str,
        b: &str,
    ) -> Result<(), &'static str> {
        if self.prog.event(a) == EventKind::NoTiming || self.prog.event(b) == EventKind::NoTiming {
            return Err("InvalidResourceHandle");
        }
        match (self.event(a), self.event(b)) {
            (Event::Empty, _) | (_, Event::Empty) => Err("InvalidResourceHandle"),
            (
                Event::Recorded {
                    op: op_a,
                    node: node_a,
                    device: device_a,
                },
                Event::Recorded {
                    op: op_b,
                    node: node_b,
                    device: device_b,
                },
            ) => {
                // R43: an undeclared event belongs to the device that it was recorded on.
                if device_a != device_b {
                    return Err("InvalidResourceHandle");
                }
                self.timings
                    .push((here.op, here.call, [(op_a, node_a), (op_b, node_b)]));
                Ok(())
            }
            _ => {
                self.outside.push((here.op, "elapsed on a captured event"));
                Ok(())
            }
        }
    }

    /// R51: 32 streams per pool, handed out in turn. Reading: there is one pool per device, that of the caller's
    /// current device is used, and the lint counts all streams that the program has requested from it so far.
    pub(super) fn pool_get(&mut self, here: &Here, count: u64, first: &str, last: &str) {
        let device = self.device(&here.thread);
        if !self.pools.contains_key(&device) {
            let streams = (0..POOL)
                .map(|_| self.new_stream(StreamKind::NonBlocking, device))
                .collect();
            self.pools.insert(device, (streams, 0));
        }
        let (streams, asked) = self.pools.get_mut(&device).expect("just put there");
        let slot = |n: u64| streams[usize::try_from(n % POOL).expect("small")];
        let (first_stream, last_stream) = (slot(*asked), slot(*asked + count - 1));
        *asked += count;
        if *asked > POOL {
            self.lints.push(("STREAM_POOL_ALIAS", here.op));
        }
        self.stream_of_name.insert(first.to_string(), first_stream);
        self.stream_of_name.insert(last.to_string(), last_stream);
    }

    pub(super) fn sync_in_loop(&mut self, op: usize) {
        if let Some(site) = &self.prog.ops[op].site {
            let (count, work) = self.syncs_at_site.entry(site.clone()).or_default();
            if self.work.len() > *work {
                *work = self.work.len();
                *count += 1;
                if *count == 3 {
                    self.lints.push(("SYNC_IN_LOOP", op));
                }
            }
        }
    }
}

/// R64. Values here are small, so the differences that the comparison takes do not wrap around.
fn ends_wait(found: u64, awaited: u64, when: Option<&str>) -> bool {
    match when {
        Some("eq") => found == awaited,
        Some("and") => found & awaited != 0,
        Some("nor") => !(found | awaited) & 0xffff_ffff != 0,
        _ => found >= awaited,
    }
}
