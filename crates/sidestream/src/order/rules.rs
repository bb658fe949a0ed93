//! The rules themselves: what each call is ordered after, and whether it blocks its caller.

use super::{
    After, Block, Chain, Code, Early, Edge, Event, Last, Misuse, Order, Outside, Performs,
    RecordId, Runs, Step, Steps, Stream, Word, Written, grow, host_waits, misuse, observed,
    promised, push_step, stream_edge,
};
use crate::op::{
    Access, BufferId, DeviceId, EventId, FlagId, GraphId, Kind, Memory, Op, SourceOrder, StreamId,
    StreamKind, ThreadId,
};

impl Order {
    /// Processes the next call. `steps` is cleared and filled with the steps of the call.
    ///
    /// # Errors
    /// A call that CUDA refuses returns a [`Misuse`] with CUDA's code and changes nothing.
    pub fn push(&mut self, op: &Op, steps: &mut Steps) -> Result<Runs, Misuse> {
        steps.clear();
        self.present = op.id;
        self.calls += 1;
        let thread = op.thread;
        match op.kind {
            Kind::Kernel { stream, .. } => {
                let runs = self.work(stream, thread, None, steps)?;
                self.streams[stream.0 as usize].after_kernel = runs == Runs::Now;
                Ok(runs)
            }
            Kind::DependentKernel { stream, may_wait } => {
                let follows_kernel = self.streams[stream.0 as usize].after_kernel;
                let runs = self.work(stream, thread, None, steps)?;
                if runs == Runs::Now {
                    self.streams[stream.0 as usize].after_kernel = true;
                    if follows_kernel {
                        steps[0].early = Early::Kernels { may_wait };
                    }
                }
                Ok(runs)
            }
            Kind::CopyPeer { stream, .. }
            | Kind::Memset { stream }
            | Kind::MallocAsync { stream }
            | Kind::FreeAsync { stream } => self.work(stream, thread, None, steps),
            Kind::Copy { stream, from, to } => {
                let runs = self.work(stream, thread, None, steps)?;
                if runs == Runs::Now {
                    let bytes = op.accesses.first().map_or(0, Access::len_bytes);
                    async_copy_and_host(stream, thread, from, to, bytes, steps);
                }
                Ok(runs)
            }
            Kind::CopyBatch { stream, source, .. } => {
                let runs = self.work(stream, thread, None, steps)?;
                match (runs, source) {
                    (Runs::Captured, _) | (_, SourceOrder::Stream) => {}
                    // R62: like a caller that copies the source to staging memory.
                    (Runs::Now, SourceOrder::DuringCall) => {
                        steps[0].performs = Performs::Writes;
                        let mut read = Step::on(Chain::Thread(thread));
                        read.performs = Performs::Reads;
                        steps.insert(0, read);
                    }
                    (Runs::Now, SourceOrder::Any) => steps[0].early = Early::Reads,
                }
                Ok(runs)
            }
            Kind::HostFunc { stream, raises } => {
                let runs = self.work(stream, thread, None, steps)?;
                if let (Runs::Now, Some(flag)) = (runs, raises) {
                    self.raise(flag, &mut steps[0]);
                }
                Ok(runs)
            }
            Kind::GraphLaunch { stream, graph } => self.graph_launch(stream, graph, thread, steps),
            Kind::CopyBlocking { from, to } => self.copy_blocking(thread, from, to, steps),
            Kind::MemsetBlocking { to } => {
                let legacy = self.legacy_stream(self.current_device(thread));
                let runs = self.work(legacy, thread, None, steps)?;
                if matches!(to, Memory::Pinned | Memory::Managed) {
                    steps.push(host_waits(thread, stream_edge(legacy, 24)));
                }
                Ok(runs)
            }
            Kind::Record { event, stream } => self.record(event, stream, thread, steps),
            Kind::Wait { stream, event } => self.wait(stream, event, thread, steps),
            Kind::WaitStream { stream, source } => self.wait_stream(stream, source, thread, steps),
            Kind::SyncStream { stream } => self.sync_stream(stream, true, thread, steps),
            Kind::QueryStream { stream, done } => self.sync_stream(stream, done, thread, steps),
            Kind::SyncEvent { event } => self.sync_event(event, true, thread, steps),
            Kind::QueryEvent { event, done } => self.sync_event(event, done, thread, steps),
            Kind::SyncDevice { device } => {
                let device = device.unwrap_or_else(|| self.current_device(thread));
                if self.device(device).capturing > 0 {
                    return Err(misuse(
                        Code::StreamCaptureUnsupported,
                        46,
                        "a stream of the device is being captured; synchronize after the capture",
                    ));
                }
                steps.push(host_waits(thread, promised(After::Device(device), 9)));
                Ok(Runs::Now)
            }
            Kind::SetFlag { flag } => {
                let step = push_step(Chain::Thread(thread), steps);
                self.raise(flag, step);
                Ok(Runs::Now)
            }
            Kind::WaitFlag { flag } => {
                let raised = self.take(flag);
                steps.push(host_waits(thread, promised(After::Record(raised), 28)));
                Ok(Runs::Now)
            }
            Kind::WriteValue {
                stream,
                word,
                value,
                fenced,
            } => {
                let runs = self.work(stream, thread, None, steps)?;
                if runs == Runs::Now {
                    self.write_value(stream, word, value, fenced, steps);
                }
                Ok(runs)
            }
            Kind::WaitValue {
                stream,
                word,
                value,
                compare,
            } => {
                let also = self.released_by(word, |found| compare.holds(found, value));
                let runs = self.work(stream, thread, also.flatten(), steps)?;
                if runs == Runs::Now && also.is_none() {
                    steps[0].outside = Outside::Waits(Some(word));
                    let waits = &mut self.words[word.0 as usize].waits;
                    if waits.len() >= WRITES {
                        waits.pop_front();
                    }
                    waits.push_back((stream, value, compare));
                }
                Ok(runs)
            }
            Kind::WaitOutside { stream: None } => {
                push_step(Chain::Thread(thread), steps).outside = Outside::Waits(None);
                Ok(Runs::Now)
            }
            Kind::WaitOutside {
                stream: Some(stream),
            } => {
                let runs = self.work(stream, thread, None, steps)?;
                if runs == Runs::Now {
                    steps[0].outside = Outside::Waits(None);
                }
                Ok(runs)
            }
            Kind::HostAccess => {
                let mut step = Step::on(Chain::Thread(thread));
                step.performs = Performs::All;
                steps.push(step);
                Ok(Runs::Now)
            }
            Kind::Alloc {
                buffer,
                stream,
                saw_events_of,
            } => {
                self.alloc(buffer, stream, saw_events_of, thread, steps);
                Ok(Runs::Now)
            }
            Kind::RecordStream { buffer, stream } => {
                let block: &mut Block = grow(&mut self.blocks, buffer.0);
                if block.home != Some(stream) && !block.noted.contains(&stream) {
                    block.noted.push(stream);
                }
                Ok(Runs::Now)
            }
            Kind::Free { buffer } => {
                self.free(buffer, thread, steps);
                Ok(Runs::Now)
            }
            Kind::CudaFree { stream_ordered } => {
                self.end_of_life(thread, !stream_ordered, 31, steps);
                Ok(Runs::Now)
            }
            Kind::FreePinned => {
                self.end_of_life(thread, true, 27, steps);
                Ok(Runs::Now)
            }
            Kind::HostUnregister => {
                self.end_of_life(thread, false, 67, steps);
                Ok(Runs::Now)
            }
            Kind::Elapsed { from, to } => self.elapsed(from, to),
            Kind::CreateEvent { event } | Kind::DestroyEvent { event } => {
                self.events[event.0 as usize].last = Last::Never;
                Ok(Runs::Now)
            }
            Kind::SetDevice { device } => {
                if self.current.len() <= thread.0 as usize {
                    self.current.resize(thread.0 as usize + 1, DeviceId(0));
                }
                self.current[thread.0 as usize] = device;
                Ok(Runs::Now)
            }
            Kind::BeginCapture { stream } => self.begin_capture(stream, thread),
            Kind::EndCapture { stream } => self.end_capture(stream, thread),
            // R13, R31: these calls add no order and wait for nothing.
            Kind::CudaMalloc | Kind::CreateStream { .. } | Kind::DestroyStream { .. } => {
                Ok(Runs::Now)
            }
        }
    }

    /// Work in a stream: ordered after the thread that submits it and, for a legacy or blocking stream, after the other
    /// side of the legacy rule.
    fn work(
        &mut self,
        stream: StreamId,
        thread: ThreadId,
        also: Option<Edge>,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        self.refuse_legacy_beside_capture(stream)?;
        if let Some(capture) = self.capture_of(stream) {
            self.capture(capture).add_node(stream);
            return Ok(Runs::Captured);
        }
        let step = self.action(stream, thread, steps);
        step.performs = Performs::All;
        if let Some(edge) = also {
            step.edges.push(edge);
        }
        Ok(Runs::Now)
    }

    /// An action in a stream: work, a record or a wait (R3, R14).
    #[inline]
    fn action<'a>(
        &mut self,
        stream: StreamId,
        thread: ThreadId,
        steps: &'a mut Steps,
    ) -> &'a mut Step {
        let step = push_step(Chain::Stream(stream), steps);
        step.edges
            .push(promised(After::Chain(Chain::Thread(thread)), 3));
        let Stream {
            kind,
            device,
            ref mut after_kernel,
            ref link,
            ..
        } = self.streams[stream.0 as usize];
        *after_kernel = false;
        if link.is_kept() {
            self.acts(stream);
        }
        if kind == StreamKind::Legacy {
            step.edges.push(promised(After::Blocking(device), 14));
        } else if kind.is_blocking()
            && let Some(legacy) = self.devices[device.0 as usize].legacy
        {
            let rule = if kind == StreamKind::PerThread {
                18
            } else {
                14
            };
            step.edges.push(stream_edge(legacy, rule));
        }
        step
    }

    /// R49: an executable graph never overlaps itself.
    fn graph_launch(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        let known = *grow(&mut self.graphs, graph.0);
        let earlier = known.map(|record| promised(After::Record(record), 49));
        let runs = self.work(stream, thread, earlier, steps)?;
        if runs == Runs::Now {
            let record = known.unwrap_or_else(|| self.new_record());
            self.graphs[graph.0 as usize] = Some(record);
            steps[0].freezes = Some(record);
        }
        Ok(runs)
    }

    /// R19 to R21, R23, R26: `cudaMemcpy`.
    fn copy_blocking(
        &mut self,
        thread: ThreadId,
        from: Memory,
        to: Memory,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        let device = self.current_device(thread);
        let legacy = self.legacy_stream(device);
        self.refuse_legacy_beside_capture(legacy)?;
        match (from.is_host(), to.is_host()) {
            // R19, pageable: a stream synchronisation, the caller copies to staging memory, and
            // the transfer into the device may still run when the call returns.
            (true, false) if from == Memory::Pageable => {
                let mut staging = host_waits(thread, stream_edge(legacy, 19));
                staging.edges.push(promised(After::Blocking(device), 16));
                staging.performs = Performs::Reads;
                steps.push(staging);
                let transfer = self.action(legacy, thread, steps);
                transfer.performs = Performs::Writes;
            }
            // R20, R26: neither side is host memory; the call returns at once.
            (false, false) => {
                self.work(legacy, thread, None, steps)?;
            }
            (from_host, to_host) => {
                self.work(legacy, thread, None, steps)?;
                let rule = match (from_host, to_host) {
                    (true, false) => 19,
                    (false, true) => 21,
                    _ => 23,
                };
                steps.push(host_waits(thread, stream_edge(legacy, rule)));
            }
        }
        Ok(Runs::Now)
    }

    /// R5, R38: the event captures the stream's content at the call.
    fn record(
        &mut self,
        event: EventId,
        stream: StreamId,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        let at = self.device_of(stream);
        let created_on = self.events[event.0 as usize].device;
        if created_on.is_some_and(|device| device != at) {
            return Err(misuse(
                Code::InvalidResourceHandle,
                38,
                "the event belongs to another device than the stream; record an event created there",
            ));
        }
        self.refuse_legacy_beside_capture(stream)?;
        if let Some(capture) = self.capture_of(stream) {
            let seen = self.capture(capture).record(stream);
            self.events[event.0 as usize].last = Last::Capture(capture, seen);
            return Ok(Runs::Captured);
        }
        let slot = match self.events[event.0 as usize].slot {
            Some(slot) => slot,
            None => self.new_record(),
        };
        let event = &mut self.events[event.0 as usize];
        event.slot = Some(slot);
        event.last = Last::Stream(at);
        self.action(stream, thread, steps).freezes = Some(slot);
        Ok(Runs::Now)
    }

    /// R6 to R8, R17, R40, R47, R48.
    fn wait(
        &mut self,
        stream: StreamId,
        event: EventId,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        self.refuse_legacy_beside_capture(stream)?;
        let Event { last, slot, .. } = &self.events[event.0 as usize];
        match (self.capture_of(stream), last) {
            (None, Last::Capture(capture, seen)) => {
                let (capture, seen) = (*capture, seen.clone());
                self.join_capture(stream, capture, &seen)?;
                Ok(Runs::Captured)
            }
            // R8: a wait for an event without a record has no effect.
            (None, Last::Never) => Ok(Runs::Now),
            (None, Last::Stream(_)) => {
                let record = *slot;
                let step = self.action(stream, thread, steps);
                if let Some(slot) = record {
                    step.edges.push(promised(After::Record(slot), 6));
                }
                Ok(Runs::Now)
            }
            (Some(_), Last::Never) => Ok(Runs::Captured),
            (Some(_), Last::Stream(_)) => Err(misuse(
                Code::StreamCaptureIsolation,
                47,
                "the event was recorded outside the capture; record it inside, or wait before the capture begins",
            )),
            (Some(mine), Last::Capture(other, seen)) => {
                let (other, seen) = (*other, seen.clone());
                if mine == other {
                    self.capture(mine).wait(stream, &seen);
                    return Ok(Runs::Captured);
                }
                self.refuse_ended(other)?;
                Err(misuse(
                    Code::StreamCaptureMerge,
                    47,
                    "the event belongs to another capture; two captures cannot be merged",
                ))
            }
        }
    }

    /// R50: a record in `source` and a wait in `stream`, with a separate event.
    fn wait_stream(
        &mut self,
        stream: StreamId,
        source: StreamId,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        self.refuse_legacy_beside_capture(source)?;
        self.refuse_legacy_beside_capture(stream)?;
        match (self.capture_of(source), self.capture_of(stream)) {
            (None, None) => {
                self.action(source, thread, steps);
                let wait = self.action(stream, thread, steps);
                wait.edges.push(stream_edge(source, 50));
                Ok(Runs::Now)
            }
            (None, Some(_)) => Err(misuse(
                Code::StreamCaptureIsolation,
                47,
                "the awaited stream takes no part in the capture; fork it from the capture first",
            )),
            (Some(from), to) => {
                if to.is_some_and(|to| to != from) {
                    return Err(misuse(
                        Code::StreamCaptureMerge,
                        47,
                        "the two streams belong to different captures, which cannot be merged",
                    ));
                }
                let seen = self.capture(from).record(source);
                self.join_capture(stream, from, &seen)?;
                Ok(Runs::Captured)
            }
        }
    }

    /// R9, R10, R16, R46: the host waits for a stream, or a query reports that it is complete.
    fn sync_stream(
        &mut self,
        stream: StreamId,
        done: bool,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        self.refuse_legacy_beside_capture(stream)?;
        if self.capture_of(stream).is_some() {
            return Err(misuse(
                Code::StreamCaptureUnsupported,
                46,
                "the stream is being captured, so its work does not run; make the call after the capture",
            ));
        }
        if done {
            let mut step = host_waits(thread, stream_edge(stream, 9));
            if self.kind_of(stream) == StreamKind::Legacy {
                let device = self.device_of(stream);
                step.edges.push(promised(After::Blocking(device), 16));
            }
            steps.push(step);
        }
        Ok(Runs::Now)
    }

    /// R7 to R10, R39, R46: the host waits for an event, or a query reports that it is complete.
    fn sync_event(
        &mut self,
        event: EventId,
        done: bool,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        let Event { last, slot, .. } = &self.events[event.0 as usize];
        match last {
            Last::Capture(capture, _) => {
                self.refuse_ended(*capture)?;
                return Err(misuse(
                    Code::CapturedEvent,
                    46,
                    "the event was recorded in a capture that still runs, so it never completes",
                ));
            }
            Last::Stream(_) if done => {
                let record = slot.map(|slot| promised(After::Record(slot), 9));
                steps.extend(record.map(|edge| host_waits(thread, edge)));
            }
            _ => {}
        }
        Ok(Runs::Now)
    }

    /// R11, R43: the errors of `cudaEventElapsedTime`. Whether both events are complete depends on the order, which the
    /// checker examines.
    fn elapsed(&self, from: EventId, to: EventId) -> Result<Runs, Misuse> {
        let device_of = |id: EventId| {
            let event = &self.events[id.0 as usize];
            match event.last {
                Last::Never => Err("an event has never been recorded; record both first"),
                _ if !event.timing => Err("an event was created without timing"),
                Last::Stream(device) => Ok(device),
                Last::Capture(..) => Err("an event was last recorded in a capture"),
            }
        };
        let refuse = |why| misuse(Code::InvalidResourceHandle, 11, why);
        if device_of(from).map_err(refuse)? != device_of(to).map_err(refuse)? {
            return Err(misuse(
                Code::InvalidResourceHandle,
                43,
                "the events were recorded on two devices, whose clocks cannot be compared",
            ));
        }
        Ok(Runs::Now)
    }

    /// R52, R53: a thread that saw the events of the free complete is ordered after them.
    fn alloc(
        &mut self,
        buffer: BufferId,
        home: Option<StreamId>,
        saw_events_of: Option<BufferId>,
        thread: ThreadId,
        steps: &mut Steps,
    ) {
        if let Some(earlier) = saw_events_of {
            let block: &Block = grow(&mut self.blocks, earlier.0);
            let events = block.freed.iter();
            steps.extend(events.map(|&r| host_waits(thread, promised(After::Record(r), 53))));
        }
        let fresh = Block {
            home,
            ..Block::default()
        };
        let before = std::mem::replace(grow(&mut self.blocks, buffer.0), fresh);
        // The buffer id now names the new allocation, so no later call can name the earlier free.
        self.spare.extend(before.freed);
    }

    /// R53, R54: a free records an event in every noted stream, after the work enqueued so far.
    fn free(&mut self, buffer: BufferId, thread: ThreadId, steps: &mut Steps) {
        let noted = std::mem::take(&mut grow(&mut self.blocks, buffer.0).noted);
        for stream in noted {
            // The allocator records no events in a stream that is being captured. In the legacy stream during a
            // capture, it records the event when the capture has ended; that event covers at least the work up to here.
            if self.capture_of(stream).is_some() {
                continue;
            }
            let record = self.new_record_of_free();
            self.action(stream, thread, steps).freezes = Some(record);
            self.blocks[buffer.0 as usize].freed.push(record);
        }
    }

    /// R27, R31, R35: the call frees the memory. It was observed to wait for the device first, where `waits` is set; that
    /// is not guaranteed.
    fn end_of_life(&mut self, thread: ThreadId, waits: bool, rule: u8, steps: &mut Steps) {
        let mut step = Step::on(Chain::Thread(thread));
        step.performs = Performs::All;
        if waits {
            let device = self.current_device(thread);
            step.edges.push(observed(After::Device(device), rule));
        }
        steps.push(step);
    }

    /// R64: stores the point at which a stream writes a word, and ends the waits that were made before.
    fn write_value(
        &mut self,
        stream: StreamId,
        word: FlagId,
        value: u32,
        fenced: bool,
        steps: &mut Steps,
    ) {
        let known = grow(&mut self.words, word.0);
        let is_full = known.written.len() >= WRITES;
        let oldest = is_full.then(|| known.written.pop_front()).flatten();
        let record = oldest.map_or_else(|| self.new_record(), |oldest| oldest.record);
        let Word { written, waits } = &mut self.words[word.0 as usize];
        written.push_back(Written {
            value,
            stream,
            record,
            fenced,
        });
        steps[0].freezes = Some(record);
        waits.retain(|&(waiting, awaited, compare)| {
            let ends = fenced && compare.holds(value, awaited);
            if ends {
                let step = push_step(Chain::Stream(waiting), steps);
                step.edges.push(promised(After::Record(record), 64));
                step.outside = Outside::Ends(word);
            }
            !ends
        });
    }

    /// R64: returns the edge to the write that ends a wait, if a write is known that does. It may be any write after the last
    /// one that does not end the wait; if one stream made all of these, the wait is ordered after the first.
    fn released_by(&mut self, word: FlagId, ends: impl Fn(u32) -> bool) -> Option<Option<Edge>> {
        let written = &grow(&mut self.words, word.0).written;
        let ending = written.iter().rev().take_while(|one| ends(one.value));
        let mut first: Option<&Written> = None;
        let mut is_one = true;
        for one in ending {
            is_one &= first.is_none_or(|known| known.stream == one.stream);
            first = Some(one);
        }
        let first = first?;
        let is_edge = is_one && first.fenced;
        Some(is_edge.then(|| promised(After::Record(first.record), 64)))
    }

    /// R28: the flag is set from this step on. If it was set before, a waiter may be released by either of the two.
    fn raise(&mut self, flag: FlagId, step: &mut Step) {
        step.freezes = Some(self.record_of(flag));
        let flag = &mut self.flags[flag.0 as usize];
        step.beside = std::mem::replace(&mut flag.is_up, true);
    }

    /// R28: a thread has seen the flag set, which clears it.
    fn take(&mut self, flag: FlagId) -> RecordId {
        let record = self.record_of(flag);
        self.flags[flag.0 as usize].is_up = false;
        record
    }

    /// Returns the record that stores the points at which a flag is set.
    fn record_of(&mut self, flag: FlagId) -> RecordId {
        if let Some(known) = grow(&mut self.flags, flag.0).record {
            return known;
        }
        let fresh = self.new_record();
        self.flags[flag.0 as usize].record = Some(fresh);
        fresh
    }
}

/// R22, R23: adds the steps by which an asynchronous copy with host memory blocks its caller.
fn async_copy_and_host(
    stream: StreamId,
    thread: ThreadId,
    from: Memory,
    to: Memory,
    bytes: u64,
    steps: &mut Steps,
) {
    if from.is_host() && to.is_host() {
        steps.push(host_waits(thread, stream_edge(stream, 23)));
    } else if to == Memory::Pageable {
        let edge = observed(After::Chain(Chain::Stream(stream)), 22);
        steps.push(host_waits(thread, edge));
    } else if from == Memory::Pageable {
        if bytes < STAGING_BYTES {
            steps[0].staged = true;
        } else {
            let edge = observed(After::Chain(Chain::Stream(stream)), 22);
            steps.push(host_waits(thread, edge));
        }
    }
}

/// Whether a call that enqueues work in a stream may block its caller until the device has run that work (R19, R21 to
/// R24).
pub fn may_block(call: Kind) -> bool {
    match call {
        Kind::Copy { from, to, .. } => {
            from == Memory::Pageable || to == Memory::Pageable || from.is_host() && to.is_host()
        }
        Kind::CopyBlocking { from, to } => from.is_host() || to.is_host(),
        Kind::MemsetBlocking { to } => matches!(to, Memory::Pinned | Memory::Managed),
        _ => false,
    }
}

/// The number of writes of a word, and of waits for it, that are stored, so that a long run takes no more memory than a short one.
const WRITES: usize = 16;

/// R22: uploads from pageable memory below this size (4 MiB of staging memory per stream) were observed to return early,
/// and larger ones to wait for the stream.
pub const STAGING_BYTES: u64 = 4 << 20;
