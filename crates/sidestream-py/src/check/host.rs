//! Observes the host's own loads and stores of pinned memory that a copy uses, which no operator reports.
//!
//! From the copy on, the whole pages inside its range are protected ([`host_guard`]), until the checker's clocks say
//! that the host is ordered after the copy, or until the storage is gone. The accesses that the guard records
//! meanwhile are reported to the checker like any other host access, with the line that made them. For small ranges,
//! and for the ends of others, the bytes of an upload are saved, and compared when the host is about to be ordered
//! after it: this shows a store, but not which line made it. Loads there are not seen.

use std::sync::atomic::{AtomicU64, Ordering};

use host_guard::hits;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde_json::{Value, json};
use sidestream::check::Findings;
use sidestream::log::Record;
use sidestream::op::{Access, Kind, Memory, Mode, OpId, StreamId};

use super::memory::Piece;
use super::plan::{Plan, Touched};
use super::spine::{Core, Site};
use super::streams::RawStream;
use super::touch::Touch;
use super::{Recorder, idle};
use crate::frames;

/// The name of the host access that frees a pageable source while a copy may still read it.
pub(super) const END_OF_SOURCE: &str = "the end of the tensor";

/// The maximum number of bytes that are protected for one copy: the time to set page protection grows with the number
/// of pages.
const MOST_BYTES: usize = 64 << 20;
/// The longest range that is saved in full where it cannot be protected.
const MOST_KEPT: usize = 64 << 10;
/// The bytes that are saved at each end of a longer source that is not pinned. In all tests, CUDA had read sources of
/// up to [`MOST_KEPT`] bytes when the call returned; it does not specify when longer ones are read.
const ENDS_KEPT: usize = 4 << 10;
/// The maximum number of bytes that are saved in all: they are compared whenever the host waits.
const MOST_KEPT_IN_ALL: usize = 1 << 20;

/// Copies that the host is not yet ordered after.
#[derive(Default)]
pub struct Watch {
    /// Whether memory may be protected.
    on: bool,
    copies: Vec<Copy>,
    kept_bytes: usize,
    /// Why protection ended early, if it did.
    ended: Option<String>,
    /// The stack of a call that failed because the kernel could not access protected memory.
    refused: Option<u32>,
    seen: Seen,
}

/// How many of the copied bytes were watched.
#[derive(Default)]
struct Seen {
    /// The number of asynchronous copies of pinned memory, and their bytes.
    copies: u64,
    bytes: u64,
    /// The bytes of these copies whose pages were protected, and those that were compared.
    guarded: u64,
    compared: u64,
    /// The number of accesses that earlier checks lost for lack of room.
    lost_before: u64,
}

struct Copy {
    stream: StreamId,
    /// The number of this copy among the steps of its stream.
    step: u32,
    start: usize,
    end: usize,
    upload: bool,
    pinned: bool,
    piece: Option<host_guard::Piece>,
    kept: Vec<Kept>,
}

/// Bytes as they were when the copy was submitted.
struct Kept {
    start: usize,
    bytes: Vec<u8>,
}

impl Kept {
    /// # Safety
    /// The memory from `start` to `end` is readable.
    unsafe fn of(start: usize, end: usize) -> Kept {
        let mut bytes = vec![0; end - start];
        // SAFETY: the caller guarantees it. The program may store there meanwhile, so the C library does the reading,
        // and any mix of old and new bytes is acceptable.
        unsafe { libc::memcpy(bytes.as_mut_ptr().cast(), start as *const _, bytes.len()) };
        Kept { start, bytes }
    }

    /// The address of the first byte that differs from the memory now, and the address after the last.
    ///
    /// # Safety
    /// As for [`Kept::of`].
    unsafe fn differs(&self) -> Option<(usize, usize)> {
        let size = self.bytes.len();
        // SAFETY: the caller guarantees it, as above.
        if unsafe { libc::memcmp(self.bytes.as_ptr().cast(), self.start as *const _, size) } == 0 {
            return None;
        }
        // SAFETY: as above.
        let now = unsafe { Kept::of(self.start, self.start + size) };
        let differ = |at: &usize| self.bytes[*at] != now.bytes[*at];
        let (first, last) = ((0..size).find(differ)?, (0..size).rev().find(differ)?);
        Some((self.start + first, self.start + last + 1))
    }
}

impl Watch {
    /// The counts for the report.
    pub fn shown(&self) -> Value {
        let seen = &self.seen;
        json!({
            "copies": seen.copies,
            "bytes": seen.bytes,
            "guarded_bytes": seen.guarded,
            "compared_bytes": seen.compared,
            "unwatched_bytes": seen.bytes - seen.guarded - seen.compared,
            "lost": hits::lost() - seen.lost_before,
            "refused": self.refused,
            "problem": self.on.then(host_guard::why_off).flatten().or(self.ended.clone()),
        })
    }

    fn release(&mut self, which: impl Fn(&Copy) -> bool) {
        let mut at = 0;
        while at < self.copies.len() {
            if !which(&self.copies[at]) {
                at += 1;
                continue;
            }
            let copy = self.copies.swap_remove(at);
            self.kept_bytes -= copy.kept.iter().map(|kept| kept.bytes.len()).sum::<usize>();
            if let Some(piece) = copy.piece {
                host_guard::release(piece);
            }
        }
    }

    /// Whether an upload from memory that is not pinned may still read these bytes, according to what CUDA specifies.
    fn may_be_read(&self, start: u64, end: u64) -> bool {
        let (start, end) = (start as usize, end as usize);
        let reads = |copy: &Copy| !copy.pinned && copy.upload && copy.end - copy.start > MOST_KEPT;
        let mut all = self.copies.iter().filter(|copy| reads(copy));
        all.any(|copy| copy.start < end && start < copy.end)
    }

    /// The device writes these bytes, in the order of its stream: what was saved of them says nothing about the host
    /// any more.
    pub fn drop_kept(&mut self, start: u64, end: u64) {
        let (start, end) = (start as usize, end as usize);
        for copy in &mut self.copies {
            let pinned = copy.pinned;
            copy.kept.retain(|kept| {
                let size = kept.bytes.len();
                let stays = kept.start + size <= start || end <= kept.start;
                if !stays {
                    self.kept_bytes -= size;
                    self.seen.compared -= if pinned { size as u64 } else { 0 };
                }
                stays
            });
        }
    }

    /// Saves bytes of an upload, if there is room.
    ///
    /// # Safety
    /// The memory is readable until the storage is gone.
    unsafe fn keep(&mut self, start: usize, end: usize, kept: &mut Vec<Kept>) {
        let size = end - start;
        if size == 0 || size > MOST_KEPT || self.kept_bytes + size > MOST_KEPT_IN_ALL {
            return;
        }
        // SAFETY: the caller guarantees it.
        kept.push(unsafe { Kept::of(start, end) });
        self.kept_bytes += size;
    }
}

impl Watch {
    /// Starts or stops watching memory that copies use.
    pub fn turn(&mut self, on: bool) {
        if on {
            self.seen.lost_before = hits::lost();
            self.refused = None;
        } else {
            self.ended = host_guard::why_off();
        }
        self.on = on;
        self.release(|_| !on);
    }

    /// Watches the host memory of an asynchronous copy that was reported, the step `step` of its stream. Memory that is
    /// not pinned is never protected, since the driver reads it on the CPU.
    ///
    /// # Safety
    /// The memory belongs to the storage, and is readable and writable until [`Watch::gone`] is called for it.
    unsafe fn copy(&mut self, (stream, step): (StreamId, u32), touch: &Touch, pinned: bool) {
        let (start, end) = (touch.ptr as usize, touch.end as usize);
        let upload = !touch.write;
        if !self.on || start >= end {
            return;
        }
        if pinned {
            self.seen.copies += 1;
            self.seen.bytes += (end - start) as u64;
        }
        let same = |copy: &Copy| {
            copy.stream == stream && (copy.start, copy.end, copy.upload) == (start, end, upload)
        };
        // This copy replaces earlier ones of the same memory on the same stream: the host is ordered after them once
        // it is ordered after this one.
        self.release(same);
        let (first, last) = host_guard::whole_pages(start, end);
        let last = last.min(first + MOST_BYTES);
        let piece = if pinned && host_guard::is_ready() {
            // SAFETY: these are whole pages of the storage, as the caller guarantees; `watch_host` was called only
            // where no device uses the host's page tables.
            unsafe { host_guard::protect(first, last, !upload) }
        } else {
            None
        };
        let mut kept = Vec::new();
        let ends = match piece {
            Some(_) => {
                self.seen.guarded += (last - first) as u64;
                [(start, first), (last, end)]
            }
            None if !pinned && end - start > MOST_KEPT => {
                [(start, start + ENDS_KEPT), (end - ENDS_KEPT, end)]
            }
            None => [(start, end), (end, end)],
        };
        for (from, to) in ends.into_iter().filter(|_| upload) {
            // SAFETY: the caller guarantees it.
            unsafe { self.keep(from, to, &mut kept) };
        }
        if pinned {
            let bytes = kept.iter().map(|kept| kept.bytes.len() as u64);
            self.seen.compared += bytes.sum::<u64>();
        }
        if piece.is_some() || !kept.is_empty() {
            self.copies.push(Copy {
                stream,
                step,
                start,
                end,
                upload,
                pinned,
                piece,
                kept,
            });
        }
    }

    /// Releases the copies that the host is ordered after by now.
    pub fn settle(&mut self, findings: &Findings) {
        if !self.copies.is_empty() {
            self.release(|copy| findings.steps_known_to_host(copy.stream) >= copy.step);
        }
    }

    /// The storage with these bytes is gone.
    pub fn gone(&mut self, start: u64, end: u64) {
        let (start, end) = (start as usize, end as usize);
        self.release(|copy| copy.start < end && start < copy.end);
    }

    /// The saved bytes within these bounds.
    fn kept(&mut self, start: usize, end: usize) -> impl Iterator<Item = &mut Kept> {
        let all = self.copies.iter_mut().flat_map(|copy| &mut copy.kept);
        all.filter(move |kept| kept.start < end && start < kept.start + kept.bytes.len())
    }

    /// A host operator stored to these bytes, and this was reported: they are saved again.
    pub fn stored(&mut self, touch: &Touch) {
        if touch.write {
            for kept in self.kept(touch.ptr as usize, touch.end as usize) {
                // SAFETY: copies are released before their storage goes.
                *kept = unsafe { Kept::of(kept.start, kept.start + kept.bytes.len()) };
            }
        }
    }

    /// The ranges of uploaded bytes, within these bounds, that changed since the copy was submitted. Each is returned
    /// once.
    fn changed(&mut self, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        if !self.on || self.kept_bytes == 0 {
            return all;
        }
        for kept in self.kept(start as usize, end as usize) {
            // SAFETY: copies are released before their storage goes.
            unsafe {
                if let Some((first, last)) = kept.differs() {
                    all.push((first as u64, last as u64));
                    *kept = Kept::of(kept.start, kept.start + kept.bytes.len());
                }
            }
        }
        all
    }
}

impl Core {
    /// Registers a piece of host memory at its first use in an asynchronous copy.
    pub fn host_buffer(&mut self, start: u64, end: u64, memory: Memory, storage: (u64, u64)) {
        let buffer = self.space.next_buffer();
        let bytes = end.saturating_sub(start);
        let record = Record::buffer(memory, bytes, None, "");
        self.feed.sink.take(&record);
        let piece = Piece {
            end,
            buffer,
            memory,
            storage,
        };
        self.host.insert(start, piece);
    }

    /// Reports that the host itself reads or writes memory that copies use.
    pub fn host_access(&mut self, site: Site, touch: &Touch) -> bool {
        let Some((buffer, base)) = self.host.locate(touch.ptr) else {
            return false;
        };
        if self.is_capturing() {
            return false;
        }
        self.operations += 1;
        self.noticed.idle.host_used(buffer, touch.write);
        let accesses = &mut self.feed.op.accesses;
        accesses.clear();
        self.notes.add(accesses, touch, buffer, base);
        let touches = std::slice::from_ref(touch);
        self.notes.note(OpId(self.feed.next), touches);
        self.host.watch.stored(touch);
        self.push(Kind::HostAccess, site);
        self.found()
    }

    /// The life of pinned memory ends, even if it is still used.
    pub fn host_unpinned(&mut self, site: Site, start: u64, end: u64) -> bool {
        let all = self.host.within(start, end);
        if all.is_empty() || self.is_capturing() {
            return false;
        }
        self.operations += 1;
        let whole = |(from, to, buffer)| Access {
            buffer,
            start: 0,
            end: to - from,
            mode: Mode::Write,
        };
        let accesses = &mut self.feed.op.accesses;
        accesses.clear();
        accesses.extend(all.into_iter().map(whole));
        self.push(Kind::FreePinned, site);
        self.found()
    }

    /// Watches the host memory of an asynchronous copy that was reported.
    ///
    /// # Safety
    /// As for [`Watch::copy`].
    pub unsafe fn watch_copy(&mut self, stream: RawStream, memory: Memory, touch: &Touch) {
        if touch.rows.is_none() && !self.is_capturing() {
            let stream = self.stream(stream);
            let at = (stream, self.findings.steps(stream));
            // SAFETY: the caller guarantees it.
            unsafe { self.host.watch.copy(at, touch, memory == Memory::Pinned) };
        }
    }

    /// Reports that the host touched these bytes, in all storages that they belong to. Returns whether a race was
    /// found.
    fn host_touched(&mut self, site: Site, start: u64, end: u64, write: bool) -> bool {
        let mut found = false;
        for (from, to, _) in self.host.within(start, end) {
            let touch = Touch::of(from.max(start), to.min(end), -1, write);
            found |= self.host_access(site, &touch);
        }
        found
    }
}

/// What the recorder knows of the guard.
#[derive(Default)]
pub struct Guard {
    /// The number of host accesses that the guard had recorded at the last report to the checker.
    fetched: AtomicU64,
    /// Accesses that are reported later.
    later: Mutex<Vec<Box<hits::Hit>>>,
    /// Registers a callback for the end of a storage's life.
    keep: Mutex<Option<Py<PyAny>>>,
}

impl Recorder {
    /// Whether the guard has recorded host accesses that were not reported yet.
    #[inline]
    pub(super) fn has_heard(&self) -> bool {
        hits::noted() != self.guard.fetched.load(Ordering::Relaxed)
    }

    /// Reports the recorded accesses, except those of the operator that has just run.
    #[cold]
    pub(super) fn tell_heard(&self, py: Python<'_>, but: &[Touch]) -> PyResult<()> {
        self.tell_heard_at(py, but, ALL)
    }

    /// Reports those between two addresses. The others are reported later, and so are those of other threads while one of these
    /// runs an operator: they may be its own.
    fn tell_heard_at(
        &self,
        py: Python<'_>,
        but: &[Touch],
        (low, high): (u64, u64),
    ) -> PyResult<()> {
        let noted = hits::noted();
        self.guard.fetched.store(noted, Ordering::Relaxed);
        let mut all = std::mem::take(&mut *self.guard.later.lock());
        hits::take(|hit| all.push(Box::new(*hit)));
        let (this, is_another_inside) = (hits::this_thread(), idle::is_another_inside());
        let mut first = Ok(());
        let mut later = Vec::new();
        for hit in all {
            let own = |touch: &Touch| {
                let inside = touch.ptr <= hit.start as u64 && hit.end as u64 <= touch.end;
                touch.device < 0 && inside && (touch.write || !hit.store)
            };
            if but.iter().any(own) || !self.is_on() {
                continue;
            }
            // A call that was refused has no bytes.
            let is_there = (hit.start as u64) < high && low < (hit.end as u64).max(1);
            if !is_there || (is_another_inside && hit.thread != this) {
                later.push(hit);
                continue;
            }
            let site = self.site_of(py, &hit);
            let mut core = self.core.lock();
            if hit.call == Some(hits::REFUSED) {
                core.host.watch.refused = Some(site.stack);
                continue;
            }
            let (start, end) = (hit.start as u64, hit.end as u64);
            if hit.store {
                // Most likely the line also stored to the saved bytes next to its pages, and one mistake is reported
                // once.
                let page = host_guard::page() as u64;
                let around = Touch::of(start.saturating_sub(page), end + page, -1, true);
                core.host.watch.stored(&around);
            }
            let found = core.host_touched(site, start, end, hit.store);
            drop(core);
            // All are reported; the first race is raised.
            first = first.and(self.look(py, found, &[], &[]));
        }
        if !later.is_empty() {
            self.guard.later.lock().append(&mut later);
            let is_heard_again = noted.wrapping_sub(1);
            self.guard.fetched.store(is_heard_again, Ordering::Relaxed);
        }
        first
    }

    /// Like [`Recorder::tell_heard`], after an operator whose own accesses were reported.
    #[cold]
    pub(super) fn tell_heard_in<'py>(
        &self,
        plan: &Plan,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        result: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let mut touched = Touched::default();
        plan.touched(&self.torch.asked, args, kwargs, result, &mut touched);
        self.tell_heard(args.py(), &touched.touches)
    }

    /// The place of a recorded access.
    fn site_of(&self, py: Python<'_>, hit: &hits::Hit) -> Site {
        let what = match (hit.call, hit.store) {
            (None, true) => "store",
            (None, false) => "load",
            (Some(call), _) => call,
        };
        let name = match hit.function() {
            Some(function) => format!("{what} ({function})"),
            None => what.to_owned(),
        };
        // This runs Python code, which may re-enter this function while `stacks` is locked; the inner call records no stack.
        let stack = self.in_stacks(|stacks| stacks.of_lines(py, hit.frames.lines()));
        let name = self.names.lock().operator(name);
        let thread = self.thread_of(py, hit.thread);
        Site {
            name,
            stack: stack.unwrap_or(0),
            thread,
            waits_by_itself: false,
        }
    }

    /// The host is about to wait, or to drop a storage: stores to saved bytes are reported first, since they came
    /// before.
    pub(super) fn compare(
        &self,
        py: Python<'_>,
        bounds: (u64, u64),
        site: impl FnOnce() -> Site,
    ) -> PyResult<()> {
        if self.has_heard() {
            // A storage may be dropped while an operator runs, whose own accesses are reported after it.
            self.tell_heard_at(py, &[], bounds)?;
        }
        let changed = self.core.lock().host.watch.changed(bounds);
        if changed.is_empty() {
            return Ok(());
        }
        let mut site = site();
        {
            let mut names = self.names.lock();
            let name = format!("a store before this {}", names.of(site.name));
            site.name = names.operator(name);
        }
        for (start, end) in changed {
            let mut core = self.core.lock();
            // It is unknown which thread stored.
            let threads = core.threads.take();
            let found = core.host_touched(site, start, end, true);
            core.threads = threads;
            drop(core);
            self.look(py, found, &[], &[])?;
        }
        Ok(())
    }
}

/// The range of all addresses.
pub const ALL: (u64, u64) = (0, u64::MAX);

#[pymethods]
impl Recorder {
    /// Starts to observe the host's own loads and stores of pinned memory. `keep` is called with each tracked
    /// storage, its bounds and its identity, and calls `host_memory_gone` when the storage is gone.
    fn watch_host(&self, py: Python<'_>, keep: Py<PyAny>) {
        frames::learn(py);
        self.guard.fetched.store(hits::noted(), Ordering::Relaxed);
        hits::take(|_| ());
        host_guard::begin(false);
        *self.guard.keep.lock() = Some(keep);
        self.core.lock().host.watch.turn(true);
    }

    /// The replacement of the C library function at this address; `None` if it is not replaced.
    #[staticmethod]
    fn stand_in(address: usize) -> Option<usize> {
        host_guard::in_place_of(address)
    }

    /// Turns the observation off, for this reason.
    #[expect(clippy::unused_self, reason = "a method, like the functions beside it")]
    fn leave_host(&self, why: &str) {
        host_guard::off(why);
    }

    /// The program's own memory is no longer pinned: this many bytes, starting at `start`.
    fn host_unpinned(&self, py: Python<'_>, start: u64, bytes: u64) -> PyResult<()> {
        if !self.is_on() {
            return Ok(());
        }
        let end = start.saturating_add(bytes);
        let site = || self.named(py, "cudaHostUnregister");
        self.compare(py, (start, end), site)?;
        let site = site();
        let found = self.core.lock().host_unpinned(site, start, end);
        let looked = self.look(py, found, &[], &[]);
        self.forget(py, start, end);
        looked
    }

    /// Stops observing the host's accesses.
    fn unwatch_host(&self, py: Python<'_>) -> PyResult<()> {
        let told = self.compare(py, ALL, || self.named(py, "end of the check"));
        let late = self.raises.late.lock().take().filter(|_| self.raises.on);
        let kept = self.guard.keep.lock().take();
        if kept.is_some() {
            self.core.lock().host.watch.turn(false);
            host_guard::end();
        }
        told?;
        late.map_or(Ok(()), Err)
    }

    /// A storage is gone; `frees` says whether its memory was freed with it.
    fn host_memory_gone(
        &self,
        py: Python<'_>,
        start: u64,
        end: u64,
        who: u64,
        frees: bool,
    ) -> PyResult<()> {
        let is_its_own = {
            let core = self.core.lock();
            let piece = core.host.piece(start);
            piece.is_some_and(|(_, piece)| piece.storage.0 == who)
        };
        if is_its_own {
            self.compare(py, (start, end), || self.named(py, "end of the tensor"))?;
            let is_read = frees && self.core.lock().host.watch.may_be_read(start, end);
            if is_read {
                let site = self.named(py, END_OF_SOURCE);
                let found = self.core.lock().host_touched(site, start, end, true);
                self.look(py, found, &[], &[])?;
            }
            self.core.lock().host.watch.gone(start, end);
        }
        Ok(())
    }
}

impl Recorder {
    /// Tracks pinned memory until its storage is gone.
    pub(super) fn keep_storage(
        &self,
        storage: &Bound<'_, PyAny>,
        (start, end, who): (u64, u64, u64),
    ) {
        let py = storage.py();
        let keep = (self.guard.keep.lock().as_ref()).map(|keep| keep.clone_ref(py));
        if let Some(keep) = keep {
            let _none = keep.bind(py).call1((storage, start, end, who));
        }
    }
}
