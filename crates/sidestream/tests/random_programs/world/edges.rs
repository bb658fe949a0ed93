//! Other code outside the safe API: it uses and captures streams of the program.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use sidestream::buffer::DeviceBuf;
use sidestream::device::Device;
use sidestream::error::{Error, Result};
use sidestream::explicit::{self, DeviceMemory, HostMemory};
use sidestream::op::{StreamId, StreamKind};
use sidestream::stream::Stream;

use super::super::edge_act::{By, EdgeAct, Known, Settles, Work};
use super::super::reference;
use super::values::clone_at;
use super::{GRID, Line, Slot, World};

/// A stream that code outside the safe API uses.
pub(super) struct Other {
    stream: explicit::Stream,
    /// The stream in the safe API, if it is one of its streams.
    safe: Option<Stream>,
    device: Device,
    /// Id of the stream for other code; none if other code does not know the stream.
    id: Option<StreamId>,
    is_legacy: bool,
    /// Locked before everything else of the world.
    capture: Mutex<Option<Open>>,
}

/// An open capture.
struct Open {
    by: By,
    /// The thread in which the capture must end, if the program began it.
    thread: usize,
    out: DeviceMemory,
    expected: [u8; OUT],
}

/// Number of bytes that a capture writes, eight by each of its nodes.
const OUT: usize = 64;

/// Maximum number of streams at a time.
const OTHERS: usize = 4;

impl World {
    pub(super) fn edge(&self, thread: usize, act: EdgeAct) {
        match act {
            EdgeAct::Meet(known) => self.meet(known),
            EdgeAct::Work(work) => self.work(work),
            EdgeAct::Begin { stream, by } => self.begin(thread, stream, by),
            EdgeAct::Node { stream, value } => self.capture(stream, value),
            EdgeAct::End { stream } => {
                if let Some(other) = clone_at(&self.others, stream) {
                    self.end(thread, &other);
                }
            }
            EdgeAct::Panic(called) => self.panics(called),
            EdgeAct::Fork => self.fork(),
        }
    }

    fn meet(&self, known: Known) {
        let of = |stream: explicit::Stream, safe: Option<Stream>, device, is_shared: bool| {
            let handle = is_shared.then(|| stream.as_raw().expect("the back end has handles"));
            Other {
                id: handle.map(|handle| self.faults.stream_of(handle)),
                is_legacy: matches!(known, Known::Legacy(_)),
                capture: Mutex::default(),
                stream,
                safe,
                device,
            }
        };
        let other = match known {
            Known::Safe(at) => {
                let Line { stream, .. } = self.stream(at);
                let device = stream.device();
                let explicit = explicit::Stream::of(&stream);
                Some(of(explicit, Some(stream), device, true))
            }
            Known::Adopted(which) => {
                let device = self.device(which);
                let (handle, kind) = (self.faults.new_handle(), StreamKind::NonBlocking);
                // SAFETY: the back end creates the stream when it first gets the handle.
                let adopted =
                    unsafe { explicit::Stream::from_raw(&device, handle, kind, "adopted") };
                let adopted = self.tried(adopted);
                adopted.map(|stream| of(stream, None, device, true))
            }
            Known::Explicit {
                device,
                is_blocking,
                is_shared,
            } => {
                let device = self.device(device);
                let made = if is_blocking {
                    explicit::Stream::blocking(&device, "blocking")
                } else {
                    explicit::Stream::non_blocking(&device, "explicit", 0)
                };
                let made = self.tried(made);
                made.map(|stream| of(stream, None, device, is_shared))
            }
            Known::Legacy(which) => {
                let device = self.device(which);
                let made = self.tried(explicit::Stream::legacy(&device));
                made.map(|stream| of(stream, None, device, true))
            }
        };
        let Some(other) = other else { return };
        let mut others = self.others.lock();
        if other.id.is_some() && others.iter().any(|known| known.id == other.id) {
            return;
        }
        if others.len() < OTHERS {
            others.push(Arc::new(other));
            return;
        }
        // A stream without other users is removed.
        let unused = others
            .iter()
            .position(|other| Arc::strong_count(other) == 1);
        let Some(at) = unused else { return };
        if others[at].capture.lock().is_none() {
            let old = std::mem::replace(&mut others[at], Arc::new(other));
            drop(others);
            drop(old);
        }
    }

    // -------------------------------------------------------------- work

    fn work(&self, work: Work) {
        let Some(other) = clone_at(&self.others, work.on) else {
            return;
        };
        let capture = other.capture.lock();
        let mut guard = self.slots[work.at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let range = slot.range(work.at);
        if capture.is_some() || slot.device != other.device.id() || range.is_empty() {
            return;
        }
        if work.settles == Settles::NoteBefore {
            let noted = explicit::record_stream(&slot.buffer, &other.stream);
            if self.tried(noted).is_none() {
                return;
            }
        }
        let is_told = work.by == By::Program || other.id.is_none();
        let Some(()) = self.fills(&other, slot, range.clone(), work, is_told) else {
            return;
        };
        let next = self.stream_near(work.at.stream, slot);
        let kept = match work.settles {
            Settles::Synchronize => self.beside(&other, other.synchronize()),
            Settles::Query => self.asks(&other),
            Settles::Event => self.beside(&other, other.event_to(&next)),
            Settles::WaitStream => self.beside(&other, other.stream_to(&next)),
            Settles::Note => {
                let noted = explicit::record_stream(&slot.buffer, &other.stream);
                self.tried(noted)
            }
            Settles::NoteBefore => Some(()),
            Settles::Never => return,
        };
        if kept.is_some() && matches!(work.settles, Settles::Note | Settles::NoteBefore) {
            let len = guard.take().map_or(0, |slot| slot.buffer.len());
            drop(guard);
            return self.next_owner(&next, len, work);
        }
        let is_complete = kept.is_some() || self.waits_anyhow(&other, is_told);
        let Some(slot) = guard.as_mut() else { return };
        // Other threads do not know what this thread has waited for. So the stream continues with another use, which
        // is tracked.
        let is_known =
            kept.is_none() || matches!(work.settles, Settles::Synchronize | Settles::Query);
        let goes_on = if is_known && self.plan.threads == 1 {
            Some(())
        } else {
            self.goes_on(&next, slot, range)
        };
        if !is_complete
            || goes_on.is_none() && !(self.plan.threads == 1 && self.waits_anyhow(&other, is_told))
        {
            // The promise cannot be kept, so the buffer is never used again.
            self.forgotten
                .lock()
                .extend(guard.take().map(|slot| Box::new(slot) as _));
        }
    }

    /// Allocates memory of this size, which is likely that of a buffer that was just dropped.
    fn next_owner(&self, stream: &Stream, len: usize, work: Work) {
        let Some(mut buffer) = self.tried(stream.alloc::<u32>(len)) else {
            return;
        };
        let value = !u32::from(work.value);
        if self
            .issued(stream.fill_with(buffer.view_mut(), value))
            .is_some()
        {
            let slot = Slot {
                buffer,
                device: stream.device().id(),
                first: 0,
                model: vec![value; len],
            };
            self.put(work.at.slot, slot);
        }
    }

    /// Lends a part of a slot, and lets it be filled.
    fn fills(
        &self,
        other: &Other,
        slot: &mut Slot,
        range: Range<usize>,
        work: Work,
        is_told: bool,
    ) -> Option<()> {
        let Slot {
            buffer,
            first,
            model,
            ..
        } = slot;
        let buffer: &mut DeviceBuf<u32> = buffer;
        let view = buffer.slice_mut(*first + range.start..*first + range.end);
        // SAFETY: nothing else uses it before the promise is kept, since the slot is locked.
        let region = self.beside(other, unsafe { other.stream.lend_mut(view) })?;
        if work.value.is_multiple_of(2) {
            // From here on all known work of the stream is complete.
            self.beside(other, other.synchronize());
        }
        for n in 0..work.count {
            let value = work.value.wrapping_add(n as u8);
            let is_filled = match other.id {
                Some(id) if !is_told => {
                    let bytes = region.size_bytes();
                    self.faults.others_fill(id, region.address(), bytes, value)
                }
                // SAFETY: as above.
                _ => self
                    .beside(other, unsafe { other.stream.memset(region, value) })
                    .is_some(),
            };
            if is_filled {
                model[range.clone()].fill(u32::from_ne_bytes([value; 4]));
            }
        }
        Some(())
    }

    /// Polls until the stream is idle.
    fn asks(&self, other: &Other) -> Option<()> {
        for _ in 0..5_000 {
            let asked = match &other.safe {
                Some(safe) => safe.query(),
                None => other.stream.query(),
            };
            if self.beside(other, asked)? {
                return Some(());
            }
        }
        self.wrong("a stream is never over".into());
        None
    }

    /// Makes the next use by the safe API, which tracks the memory again from there on.
    fn goes_on(&self, next: &Stream, slot: &mut Slot, range: Range<usize>) -> Option<()> {
        let launched = next.launch(&self.kernels.one, GRID, (slot.view_mut(&range),));
        self.launched(launched, next, &[slot])?;
        reference::one(&mut slot.model[range]);
        Some(())
    }

    /// Waits for the end of the work there, even if the runtime refuses calls.
    fn waits_anyhow(&self, other: &Other, is_told: bool) -> bool {
        match other.id {
            Some(id) if !is_told => self.faults.others_wait(id),
            // The log must record the wait.
            _ => (0..200).any(|_| other.stream.synchronize().is_ok()),
        }
    }

    /// A call that panicked may have left work in lent memory that was not waited for.
    pub(super) fn keep_promises(&self) {
        let others = self.others.lock().clone();
        for other in others.iter().filter(|other| !other.is_captured()) {
            let wait = || [true, false].map(|is_told| self.waits_anyhow(other, is_told));
            while catch_unwind(AssertUnwindSafe(wait)).is_err() {}
        }
    }

    /// Returns the value of a call, unless it failed in a way that this plan has. The legacy stream is refused during
    /// captures of blocking ones, and so is a wait of the explicit style on a stream that other code captures.
    fn beside<T>(&self, other: &Other, result: Result<T>) -> Option<T> {
        match result {
            Err(Error::Refused { code: 906, .. }) if other.is_legacy && self.captures() => None,
            Err(Error::Refused { code: 905, .. }) if self.captures() => None,
            result => self.tried(result),
        }
    }

    // -------------------------------------------------------------- captures

    /// Returns whether a capture may be open now.
    pub(super) fn captures(&self) -> bool {
        let may = self.plan.edges.as_ref().is_some_and(|edges| edges.captures);
        may && (self.plan.threads > 1 || self.capturing.load(Ordering::Relaxed) > 0)
    }

    fn begin(&self, thread: usize, stream: usize, by: By) {
        let Some(other) = clone_at(&self.others, stream) else {
            return;
        };
        let mut capture = other.capture.lock();
        // If other threads use the stream meanwhile, it is unknown which of their calls it captures.
        let is_used = other.safe.is_some() && self.plan.threads > 1;
        if capture.is_some() || other.is_legacy || is_used {
            return;
        }
        let by = if other.id.is_none() { By::Program } else { by };
        if by == By::Program && other.safe.is_some() {
            match other.stream.begin_capture() {
                Err(Error::Invalid { .. }) => {}
                begun => self.wrong(format!("a stream of the safe API is captured: {begun:?}")),
            }
            return;
        }
        let out = self.tried(DeviceMemory::malloc(&other.device, OUT as u64));
        let Some(out) = out else { return };
        // SAFETY: the memory lives until it was waited for.
        let zeroed = unsafe { other.stream.memset(out.all(), 0) };
        let zeroed = self.tried(zeroed.and_then(|()| other.stream.synchronize()));
        if zeroed.is_none() {
            self.waits_anyhow(&other, true);
            return;
        }
        self.capturing.fetch_add(1, Ordering::Relaxed);
        let begun = match (by, other.id) {
            (By::Others, Some(id)) => self.faults.others_begin(id),
            _ => self.tried(other.stream.begin_capture()).is_some(),
        };
        if begun {
            *capture = Some(Open {
                by,
                thread,
                out,
                expected: [0; OUT],
            });
        } else {
            _ = self.capturing.fetch_sub(1, Ordering::Relaxed)
        }
    }

    fn capture(&self, stream: usize, value: u8) {
        let Some(other) = clone_at(&self.others, stream) else {
            return;
        };
        let mut capture = other.capture.lock();
        let Some(open) = &mut *capture else { return };
        let first = usize::from(value) % (OUT - 8);
        let region = open.out.bytes(first as u64..first as u64 + 8);
        let is_in = match (open.by, other.id) {
            (By::Others, Some(id)) => self.faults.others_fill(id, region.address(), 8, value),
            // SAFETY: the memory lives as long as the graph.
            _ => self
                .tried(unsafe { other.stream.memset(region, value) })
                .is_some(),
        };
        if is_in {
            open.expected[first..first + 8].fill(value);
        }
    }

    /// Ends the capture, and checks that a launch performs exactly what was captured.
    fn end(&self, thread: usize, other: &Other) {
        let mut capture = other.capture.lock();
        let is_here = |open: &mut Open| open.by == By::Others || open.thread == thread;
        let Some(open) = capture.take_if(is_here) else {
            return;
        };
        // The machine makes the capture that ended last into the next graph.
        let ends = self.ends.lock();
        let launched = match (open.by, other.id) {
            (By::Others, Some(id)) => match self.faults.others_end(id, other.device.id()) {
                Ok(()) => true,
                Err(error) => {
                    self.wrong(format!("a capture of others was ended: {error}"));
                    false
                }
            },
            _ => self.end_ours(other),
        };
        drop(ends);
        self.capturing.fetch_sub(1, Ordering::Relaxed);
        if launched {
            self.compare_out(other, &open);
        }
        drop(capture);
    }

    /// Ends a capture of the program and launches it; returns false if the driver refused, so that nothing runs.
    fn end_ours(&self, other: &Other) -> bool {
        let graph = loop {
            match other.stream.end_capture() {
                Ok(graph) => break graph,
                Err(error) => {
                    let has_ended = !other.stream.is_captured();
                    if self.tried::<()>(Err(error)).is_none() && (has_ended || !self.is_right()) {
                        return false;
                    }
                }
            }
        };
        // SAFETY: the memory lives until the stream was waited for.
        let launched = unsafe { other.stream.launch_graph(&graph) };
        self.tried(launched).is_some()
    }

    fn compare_out(&self, other: &Other, open: &Open) {
        let mut found = [0u8; OUT];
        let Some(host) = self.tried(HostMemory::pageable(&other.device, OUT as u64)) else {
            self.waits_anyhow(other, true);
            return;
        };
        // SAFETY: the stream is waited for before the memory is used again.
        let copied = unsafe { other.stream.memcpy(open.out.all(), host.all()) };
        let copied = self.tried(copied);
        if !self.waits_anyhow(other, true) {
            self.forgotten.lock().push(Box::new(host));
            return;
        }
        host.read(0, &mut found);
        if copied.is_some() && found != open.expected {
            let expected = open.expected;
            self.wrong(format!("a graph did {found:?} and not {expected:?}"));
        }
    }

    /// Ends the captures of a thread that ends.
    pub fn end_captures(&self, thread: usize) {
        let others = self.others.lock().clone();
        for other in others {
            self.end(thread, &other);
        }
    }
}

impl Other {
    pub(super) fn stream(&self) -> &explicit::Stream {
        &self.stream
    }

    pub(super) fn is_captured(&self) -> bool {
        self.capture.lock().is_some()
    }

    fn synchronize(&self) -> Result<()> {
        match &self.safe {
            Some(safe) => safe.synchronize(),
            None => self.stream.synchronize(),
        }
    }

    /// Makes another stream wait for an event at the end.
    fn event_to(&self, next: &Stream) -> Result<()> {
        if let Some(safe) = &self.safe {
            return next.wait_event(&safe.record_event()?);
        }
        let event = explicit::Event::new(&self.device)?;
        self.stream.record(&event)?;
        explicit::Stream::of(next).wait(&event)
    }

    fn stream_to(&self, next: &Stream) -> Result<()> {
        match &self.safe {
            Some(safe) => next.wait_stream(safe),
            None => explicit::Stream::of(next).wait_stream(&self.stream),
        }
    }
}
