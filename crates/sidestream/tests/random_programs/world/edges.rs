//! Other code beside the safe API: it has streams of the program and works there, and it captures them.

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

/// A stream that code beside the safe API uses.
pub(super) struct Other {
    stream: explicit::Stream,
    /// The same one, if it is a stream of the safe API.
    safe: Option<Stream>,
    device: Device,
    /// What it is to other code; none if that does not know it.
    id: Option<StreamId>,
    is_legacy: bool,
    /// Locked before everything else of the world.
    capture: Mutex<Option<Open>>,
}

/// A capture that somebody has begun.
struct Open {
    by: By,
    /// It has to end there, if the program began it.
    thread: usize,
    out: DeviceMemory,
    expected: [u8; OUT],
}

/// Bytes that a capture writes, eight by each of its nodes.
const OUT: usize = 64;

/// So many streams are used at a time.
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
                // SAFETY: the back end makes the stream when it hears of the handle.
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
                let made = match is_blocking {
                    true => explicit::Stream::blocking(&device, "blocking"),
                    false => explicit::Stream::non_blocking(&device, "explicit", 0),
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
        // One that nobody uses now goes.
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
        let is_over = kept.is_some() || self.waits_anyhow(&other, is_told);
        let Some(slot) = guard.as_mut() else { return };
        // What this thread has waited for, no other thread knows. So it goes on, and from then on the use is tracked.
        let is_known =
            kept.is_none() || matches!(work.settles, Settles::Synchronize | Settles::Query);
        let goes_on = match is_known && self.plan.threads == 1 {
            true => Some(()),
            false => self.goes_on(&next, slot, range),
        };
        if !is_over
            || goes_on.is_none() && !(self.plan.threads == 1 && self.waits_anyhow(&other, is_told))
        {
            // The promise cannot be kept: nobody uses it any more.
            self.forgotten
                .lock()
                .extend(guard.take().map(|slot| Box::new(slot) as _));
        }
    }

    /// Somebody else gets memory of this size, which likely is that of a buffer that has just gone.
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
        // SAFETY: nobody else uses it before the promise is kept, since the slot is locked.
        let region = self.beside(other, unsafe { other.stream.lend_mut(view) })?;
        if work.value.is_multiple_of(2) {
            // From here on all that the runtime knows of the stream is over.
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

    /// Asks until it is over.
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

    /// The next use by the safe API, from which on it tracks the memory again.
    fn goes_on(&self, next: &Stream, slot: &mut Slot, range: Range<usize>) -> Option<()> {
        let launched = next.launch(&self.kernels.one, GRID, (slot.view_mut(&range),));
        self.launched(launched, next, &[slot])?;
        reference::one(&mut slot.model[range]);
        Some(())
    }

    /// Whoever worked there waits for the end of it, whatever the runtime refuses.
    fn waits_anyhow(&self, other: &Other, is_told: bool) -> bool {
        match other.id {
            Some(id) if !is_told => self.faults.others_wait(id),
            // The log has to be told.
            _ => (0..200).any(|_| other.stream.synchronize().is_ok()),
        }
    }

    /// A call that panicked may have left work in lent memory, for which nobody has waited.
    pub(super) fn keep_promises(&self) {
        let others = self.others.lock().clone();
        for other in others.iter().filter(|other| !other.is_captured()) {
            let wait = || [true, false].map(|is_told| self.waits_anyhow(other, is_told));
            while catch_unwind(AssertUnwindSafe(wait)).is_err() {}
        }
    }

    /// The value of a call, unless it failed in a way that this plan has. The legacy stream is refused beside captures of
    /// blocking ones, and so is a wait of the explicit style on a stream that others capture.
    fn beside<T>(&self, other: &Other, result: Result<T>) -> Option<T> {
        match result {
            Err(Error::Refused { code: 906, .. }) if other.is_legacy && self.captures() => None,
            Err(Error::Refused { code: 905, .. }) if self.captures() => None,
            result => self.tried(result),
        }
    }

    // -------------------------------------------------------------- captures

    /// Whether somebody may be capturing now.
    pub(super) fn captures(&self) -> bool {
        let may = self.plan.edges.as_ref().is_some_and(|edges| edges.captures);
        may && (self.plan.threads > 1 || self.capturing.load(Ordering::Relaxed) > 0)
    }

    fn begin(&self, thread: usize, stream: usize, by: By) {
        let Some(other) = clone_at(&self.others, stream) else {
            return;
        };
        let mut capture = other.capture.lock();
        // Of a stream that other threads use meanwhile nobody can say which of their calls it captures.
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
        // SAFETY: the memory stays until it was waited for.
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
        match begun {
            false => _ = self.capturing.fetch_sub(1, Ordering::Relaxed),
            true => {
                *capture = Some(Open {
                    by,
                    thread,
                    out,
                    expected: [0; OUT],
                });
            }
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
            // SAFETY: the memory stays as long as the graph.
            _ => self
                .tried(unsafe { other.stream.memset(region, value) })
                .is_some(),
        };
        if is_in {
            open.expected[first..first + 8].fill(value);
        }
    }

    /// Ends it, and looks whether a launch does what was captured and nothing else.
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

    /// Ends a capture of the program's and launches it; false if the driver refused to, so that nothing runs.
    fn end_ours(&self, other: &Other) -> bool {
        let graph = loop {
            match other.stream.end_capture() {
                Ok(graph) => break graph,
                Err(error) => {
                    let is_over = !other.stream.is_captured();
                    if self.tried::<()>(Err(error)).is_none() && (is_over || !self.is_right()) {
                        return false;
                    }
                }
            }
        };
        // SAFETY: the memory stays until the stream was waited for.
        let launched = unsafe { other.stream.launch_graph(&graph) };
        self.tried(launched).is_some()
    }

    fn compare_out(&self, other: &Other, open: &Open) {
        let mut found = [0u8; OUT];
        let Some(host) = self.tried(HostMemory::pageable(&other.device, OUT as u64)) else {
            self.waits_anyhow(other, true);
            return;
        };
        // SAFETY: the stream is waited for before anybody else uses the memory.
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

    /// The thread ends: so do its captures.
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
