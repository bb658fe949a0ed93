//! The host's side of copies: who touches, ends or reuses memory of the host that a copy in flight uses.
//!
//! No call shows that. Whole pages of pinned memory are protected while a copy uses them ([`host_guard`]). The driver itself reads
//! and writes memory that is not pinned, which is never protected: its end is heard from the allocator, and the bytes of a source
//! are saved, and compared once the host waits for the copy.
//!
//! What is watched here is only a guess of what is in flight, by events, streams and waits: what touches memory for longer than it
//! must be watched costs time, and the command judges by the rules whether it races.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use host_guard::hits;
use host_guard::lines::{self, Frames};
use host_guard::{Piece, ends};

use crate::areas::{Area, Copied};
use crate::calls::{ApiCall, Does, Made, PARAMETER};
use crate::hold::{COMPARED, Hold};
use crate::in_flight::{InFlight, stream};
use crate::python;
use crate::ring::SharedRing;
use crate::sites::Sites;
use crate::system::{self, Library};
use crate::wire::{Heard, Tag};

/// The maximum number of bytes that are protected for one copy: the time for it grows with the number of pages.
const MOST_BYTES: usize = 64 << 20;
/// The longest range that is saved in full.
const MOST_KEPT: usize = 64 << 10;
/// The bytes that are saved at each end of a longer one.
const ENDS_KEPT: usize = 4 << 10;
/// The maximum number of bytes that are saved in all.
const MOST_KEPT_IN_ALL: usize = 1 << 20;
/// The maximum number of copies that are watched at a time.
const MOST_COPIES: usize = 256;

/// What a process has in flight.
#[derive(Default)]
pub struct Host {
    state: Mutex<State>,
    /// How many accesses had been recorded when they were last fetched.
    fetched: AtomicU64,
    /// Whether a thread waits for copies.
    waits: AtomicBool,
}

#[derive(Default)]
struct State {
    /// For how many milliseconds copies are held back, if at all.
    provoke: Option<u64>,
    hold: Option<Hold>,
    /// Copies for which these threads are waiting: other threads may touch their memory too early until then.
    waited_for: Vec<(u32, Flying)>,
    /// By first address: the end and the kind of memory that calls made known.
    memory: BTreeMap<u64, (u64, Made)>,
    in_flight: InFlight,
    copies: Vec<Flying>,
    kept_bytes: usize,
    /// How many captures are going on: what is submitted then may not be executed.
    captures: u32,
    /// Whether it was asked on which page tables devices work.
    knows_devices: bool,
    watched: Coverage,
}

/// How many of the bytes of copies between pinned memory and devices were watched.
#[derive(Default)]
struct Coverage {
    copies: u64,
    bytes: u64,
    guarded: u64,
    compared: u64,
}

/// A copy after which the host is not known to be ordered.
struct Flying {
    number: u32,
    stream: u64,
    side: HostSide,
    piece: Option<Piece>,
    owner: Option<ends::Watched>,
    kept: Vec<Kept>,
    held: Option<Held>,
    /// How many accesses had been recorded when it was submitted.
    noted: u64,
}

/// A copy that is held back.
struct Held {
    /// What an upload is to copy.
    submitted: Kept,
    /// Where what has arrived is copied to.
    slot: Option<usize>,
    touched: Vec<Touched>,
}

/// What the host did to a copy's memory: the call site, and what was there before.
#[derive(Clone, Copy)]
struct Touched {
    heard: Heard,
    start: usize,
    end: usize,
    site: u32,
    before: u64,
}

/// The host's side of a copy.
#[derive(Clone, Copy)]
struct HostSide {
    start: usize,
    end: usize,
    is_upload: bool,
    is_pinned: bool,
    /// Whether nothing is between its rows: what the host does there is its own affair.
    is_dense: bool,
}

impl HostSide {
    fn meets(&self, start: usize, end: usize) -> bool {
        self.start < end && start < self.end
    }
}

/// Bytes as they were when the copy was submitted.
#[derive(Default)]
struct Kept {
    start: usize,
    bytes: Vec<u8>,
}

impl Kept {
    fn of(start: usize, end: usize) -> Option<Kept> {
        let mut bytes = vec![0; end - start];
        host_guard::read(start, &mut bytes).then_some(Kept { start, bytes })
    }

    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    fn meets(&self, start: usize, end: usize) -> bool {
        self.start < end && start < self.end()
    }
}

/// The calling thread, and where to write what it did.
#[derive(Clone, Copy)]
pub struct Teller<'a> {
    /// The ring.
    pub ring: &'a SharedRing,
    /// The places.
    pub sites: &'a Sites,
}

impl Host {
    /// Begins to watch, and to hold copies back for some milliseconds if that is asked for.
    pub fn begin(provoke: Option<u64>) -> Host {
        lines::come_from(lines::Source {
            place: || python::line().map_or((0, 0), |place| (place.id as usize, 0)),
            read: line_of_python,
            stack: true,
        });
        // What is worked out once must not be worked out in a signal handler.
        python::line();
        host_guard::begin(true);
        let host = Host::default();
        host.state().provoke = provoke;
        host
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what was heard until the process ends, and why nothing was watched, if so.
    pub fn end(&self, to: Teller<'_>) {
        let mut state = self.state();
        state.fetch(to);
        state.complete(|_| true, to);
        let of = &state.watched;
        let counts = [of.copies, of.bytes, of.guarded, of.compared, hits::lost()];
        let why = host_guard::why_off().unwrap_or_default();
        to.ring.write_text(Tag::HostEnd, &counts, why.as_bytes());
    }

    /// Takes note of a call before it is written, with what the host did until then.
    pub fn before(&self, call: &ApiCall, words: &[u64], per_thread: bool, to: Teller<'_>) {
        let noted = hits::noted();
        let has_hits = self.fetched.swap(noted, Ordering::Relaxed) != noted;
        if !has_hits && !matters(call) {
            return;
        }
        let mut state = self.state();
        if has_hits {
            state.fetch(to);
        }
        state.call(call, words, per_thread, to);
        if !call.waits() {
            // What a query has answered is known at once.
            state.complete(|of| of == system::thread(), to);
        }
        let waits = !state.waited_for.is_empty();
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Takes note that a call of this thread that waited has returned.
    pub fn returned(&self, to: Teller<'_>) {
        if self.waits.load(Ordering::Relaxed) {
            let mut state = self.state();
            let noted = hits::noted();
            if self.fetched.swap(noted, Ordering::Relaxed) != noted {
                state.fetch(to);
            }
            let thread = system::thread();
            state.complete(|of| of == thread, to);
        }
    }

    /// Holds a copy back that is about to be submitted, if that is asked for.
    pub fn hold(&self, call: &ApiCall, words: &[u64], per_thread: bool) {
        let Some(to) = call.copies_in() else { return };
        let mut state = self.state();
        let Some(millis) = state.provoke.filter(|_| state.captures == 0) else {
            return;
        };
        let copies = call.copies(words);
        let is_watched = |copied: &Copied| state.side(copied, call.is_of_device()).is_some();
        if !copies.iter().any(is_watched) {
            return;
        }
        if state.hold.is_none() {
            state.hold = Hold::begin(millis);
        }
        match &state.hold {
            Some(hold) => hold.stream(handle(words, to, per_thread)),
            None => state.provoke = None,
        }
    }

    /// Takes note of a copy that was submitted.
    pub fn submitted(&self, call: &ApiCall, words: &[u64], per_thread: bool) {
        let Some(to) = call.copies_in() else { return };
        let mut state = self.state();
        if state.captures > 0 {
            return;
        }
        let handle = handle(words, to, per_thread);
        for copied in call.copies(words) {
            if let Some(side) = state.side(&copied, call.is_of_device())
                && state.copies.len() < MOST_COPIES
            {
                state.watch(handle, &copied, side);
            }
        }
    }
}

/// Whether a call changes what is in flight.
fn matters(call: &ApiCall) -> bool {
    !matches!(
        call.what,
        Does::Context(..)
            | Does::Unload
            | Does::Memset(..)
            | Does::Memset2D(..)
            | Does::HostFunction(_)
            | Does::WriteValue(..)
            | Does::WaitValue(..)
            | Does::Values(..)
            | Does::NodeSet(..)
            | Does::Edges(_)
            | Does::CaptureInfo(..)
            | Does::CaptureDependencies(..)
    )
}

fn line_of_python(into: &mut Frames) {
    if let Some(place) = python::line()
        && let Some(line) = into.next((place.id as usize, 0))
    {
        let mut text = [0; 512];
        line.number = place.line() as i32;
        let len = place.file(&mut text);
        line.file.keep_end(&text[..len]);
        let len = place.function(&mut text);
        line.name.keep_end(&text[..len]);
    }
}

impl State {
    fn call(&mut self, call: &ApiCall, words: &[u64], per_thread: bool, to: Teller<'_>) {
        let word = |at: u8| words.get(usize::from(at)).copied().unwrap_or(0);
        let of = |at| stream(word(at), per_thread);
        match call.what {
            Does::StreamCreate(at, flags) | Does::StreamCreateIn(at, flags, _) => {
                self.in_flight.created(word(at), word(flags) & 1 == 0);
            }
            Does::StreamDestroy(at) => self.in_flight.destroyed(word(at)),
            Does::EventRecord(event, at) => {
                let after = self.in_flight.acts(of(at)).clone();
                self.in_flight.recorded(word(event), after);
            }
            Does::ContextRecord(_, event) => {
                self.in_flight.recorded(word(event), self.in_flight.all())
            }
            Does::EventDestroy(event) => self.in_flight.recorded(word(event), Vec::new()),
            Does::EventWait(at, event) => self.in_flight.waits(of(at), word(event)),
            Does::StreamSynchronize(at) | Does::StreamQuery(at) => {
                let after = self.in_flight.of_stream(of(at));
                self.settle(&after, to);
            }
            Does::EventSynchronize(event)
            | Does::EventQuery(event)
            | Does::EventElapsed(_, event) => {
                let after = self.in_flight.of_event(word(event));
                self.settle(&after, to);
            }
            Does::ContextSynchronize => self.settle(&self.in_flight.all(), to),
            Does::BeginCapture(..) => self.captures += 1,
            Does::EndCapture(..) => self.captures = self.captures.saturating_sub(1),
            // What a graph writes is not known.
            Does::GraphLaunch(..) => self.device_writes(0, usize::MAX),
            Does::Launch(..) | Does::LaunchEx(..) if self.kept_bytes > 0 => {
                let rest = words.get(call.end(words)..).unwrap_or_default();
                for pair in rest.get(1..).unwrap_or_default().chunks_exact(2) {
                    if pair[0] & PARAMETER != 0
                        && let Some((start, end, _)) = self.memory_at(pair[1])
                    {
                        self.device_writes(start as usize, end as usize);
                    }
                }
            }
            Does::Free(at, _) | Does::FreeAsync(at, _) => {
                if let Some((end, kind)) = self.memory.remove(&word(at))
                    && matches!(kind, Made::Pinned | Made::Registered)
                {
                    let (start, end) = (word(at) as usize, end as usize);
                    self.release(|copy| copy.side.meets(start, end));
                }
            }
            _ => self.makes_or_copies(call, words, per_thread, to),
        }
    }

    fn makes_or_copies(&mut self, call: &ApiCall, words: &[u64], per_thread: bool, to: Teller<'_>) {
        let word = |at: u8| words.get(usize::from(at)).copied().unwrap_or(0);
        if let Some((start, bytes)) = call.makes(words) {
            let kind = match call.what {
                Does::Alloc(.., kind) | Does::Register(.., kind) => kind,
                _ => Made::Device,
            };
            self.memory
                .insert(start, (start.saturating_add(bytes), kind));
        }
        let copies = call.copies(words);
        for copied in &copies {
            // What changed since an earlier copy like this one did so before the host waited for that.
            if let Some((at, side)) = call.copies_in().zip(self.side(copied, call.is_of_device())) {
                let of = stream(word(at), per_thread);
                let like = self.copies.iter_mut().filter(|copy| copy.is_like(of, side));
                like.for_each(|copy| copy.compare(to));
            }
            let (start, end) = copied.to.bounds();
            self.device_writes(start as usize, end as usize);
        }
        // The host waits for a copy with a side of its own.
        let is_of_host = |copied: &Copied| {
            [copied.to, copied.from].iter().any(
                |area| !matches!(self.memory_at(area.start), Some((.., kind)) if !is_host(kind)),
            )
        };
        if call.copies_in().is_none() && copies.iter().any(is_of_host) {
            let after = self.in_flight.acts(stream(0, per_thread)).clone();
            self.settle(&after, to);
        }
    }

    /// The start, the end and the kind of the memory that contains an address.
    fn memory_at(&self, address: u64) -> Option<(u64, u64, Made)> {
        let (&start, &(end, kind)) = self.memory.range(..=address).next_back()?;
        (address < end).then_some((start, end, kind))
    }

    /// The host's side of a copy between it and a device, if that is to be watched.
    fn side(&self, copied: &Copied, of_device: (bool, bool)) -> Option<HostSide> {
        let memory = |area: Area, of_device: bool| match self.memory_at(area.start) {
            Some((.., kind)) if is_host(kind) => Some(true),
            Some(_) => None,
            None => (!of_device).then_some(false),
        };
        let to = memory(copied.to, of_device.0);
        let from = memory(copied.from, of_device.1);
        let (area, is_upload, is_pinned) = match (to, from) {
            (None, Some(is_pinned)) => (copied.from, true, is_pinned),
            (Some(is_pinned), None) => (copied.to, false, is_pinned),
            // On the host alone: it returns when it is complete. On devices alone: nothing of the host's.
            _ => return None,
        };
        let (start, end) = area.bounds();
        let (start, end) = (start as usize, end as usize);
        let is_late = match copied.order {
            // By the driver's choice, which CUDA leaves open; it has read up to 64 KiB when the call returns.
            None => is_upload && end.saturating_sub(start) > MOST_KEPT,
            Some(order) => !is_upload || order != 2,
        };
        (start < end && (is_pinned || is_late)).then_some(HostSide {
            start,
            end,
            is_upload,
            is_pinned,
            is_dense: area.is_dense(),
        })
    }

    fn watch(&mut self, handle: u64, copied: &Copied, side: HostSide) {
        let of = stream(handle, false);
        let HostSide {
            start,
            end,
            is_upload,
            is_pinned,
            is_dense,
        } = side;
        if !self.knows_devices {
            self.knows_devices = true;
            if uses_host_page_tables() {
                host_guard::off("a GPU works on the host's page tables");
            }
        }
        let (first, last) = host_guard::whole_pages(start, end);
        let last = last.min(first + MOST_BYTES);
        // The host is ordered after an earlier one like it once it is ordered after this one.
        let earlier = self.copies.iter().position(|copy| copy.is_like(of, side));
        let mut earlier = earlier.map(|at| self.copies.swap_remove(at));
        let noted = hits::noted();
        // No page of it was opened since.
        let piece = earlier.as_mut().filter(|copy| copy.noted == noted);
        let piece = piece.and_then(|copy| copy.piece.take());
        if let Some(mut copy) = earlier {
            copy.leave();
            self.forget(copy);
        }
        let piece = if piece.is_some() {
            piece
        } else if is_pinned && is_dense && host_guard::is_ready() {
            // SAFETY: these are whole pages of memory that the program has pinned, and no device works on the host's page tables.
            // It is released when a call unpins or frees it.
            unsafe { host_guard::protect(first, last, !is_upload) }
        } else {
            None
        };
        let is_pageable_and_long = !is_pinned && end - start > MOST_KEPT;
        let parts = match piece {
            Some(_) => [(start, first), (last, end)],
            None if is_pageable_and_long => [(start, start + ENDS_KEPT), (end - ENDS_KEPT, end)],
            None => [(start, end), (end, end)],
        };
        let mut kept = Vec::new();
        for (from, to) in parts.into_iter().filter(|_| is_upload && is_dense) {
            let bytes = to - from;
            if bytes > 0
                && bytes <= MOST_KEPT
                && self.kept_bytes + bytes <= MOST_KEPT_IN_ALL
                && let Some(part) = Kept::of(from, to)
            {
                self.kept_bytes += bytes;
                kept.push(part);
            }
        }
        if is_pinned {
            let bytes: usize = kept.iter().map(|part| part.bytes.len()).sum();
            let of = &mut self.watched;
            of.copies += 1;
            of.bytes += (end - start) as u64;
            of.guarded += if piece.is_some() {
                (last - first) as u64
            } else {
                0
            };
            of.compared += bytes as u64;
        }
        let is_registered = matches!(self.memory_at(start as u64), Some((.., Made::Registered)));
        let owner = (!is_pinned || is_registered)
            .then(|| ends::watch(start, end))
            .flatten();
        if piece.is_none() && owner.is_none() && kept.is_empty() {
            return;
        }
        let held = self.hold.as_mut().map(|hold| {
            let bytes = (end - start).min(COMPARED);
            let (to, _) = copied.to.bounds();
            let submitted = Kept::of(start, start + bytes).filter(|_| is_upload && is_dense);
            let slot = submitted.as_ref().filter(|_| copied.to.is_dense());
            Held {
                slot: slot.and_then(|_| hold.arrives(to, bytes, handle)),
                submitted: submitted.unwrap_or_default(),
                touched: Vec::new(),
            }
        });
        let number = self.in_flight.submitted(of);
        self.copies.push(Flying {
            number,
            stream: of,
            side,
            piece,
            owner,
            kept,
            held,
            noted,
        });
    }

    /// The host has waited for these copies.
    fn settle(&mut self, all: &[u32], to: Teller<'_>) {
        for number in all {
            let Some(at) = self.copies.iter().position(|copy| copy.number == *number) else {
                continue;
            };
            let mut copy = self.copies.swap_remove(at);
            // Memory that is gone may belong to others by now.
            if copy.leave() {
                copy.compare(to);
            }
            if let Some(hold) = &self.hold {
                hold.release();
            }
            self.in_flight.done(copy.number);
            if copy.held.is_none() && host_guard::is_alone() {
                // No thread can touch its memory while the only one waits. So the pages are opened meanwhile.
                self.forget(copy);
            } else {
                self.waited_for.push((system::thread(), copy));
            }
        }
    }

    /// Some threads have waited for their copies.
    fn complete(&mut self, of: impl Fn(u32) -> bool, to: Teller<'_>) {
        while let Some(at) = self.waited_for.iter().position(|(thread, _)| of(*thread)) {
            let (_, mut copy) = self.waited_for.swap_remove(at);
            if let Some(held) = &mut copy.held {
                let slot = self.hold.as_ref().zip(held.slot);
                let arrived = slot.and_then(|(hold, slot)| {
                    let at = hold.slot(slot);
                    Kept::of(at, at + held.submitted.bytes.len())
                });
                for touched in &held.touched {
                    prove(touched, &held.submitted, arrived.as_ref(), to);
                }
            }
            self.forget(copy);
        }
    }

    fn forget(&mut self, copy: Flying) {
        self.in_flight.done(copy.number);
        if let Some((hold, slot)) = self.hold.as_mut().zip(copy.held.and_then(|held| held.slot)) {
            hold.free(slot);
        }
        self.kept_bytes -= copy.kept.iter().map(|kept| kept.bytes.len()).sum::<usize>();
        if let Some(piece) = copy.piece {
            host_guard::release(piece);
        }
    }

    fn release(&mut self, which: impl Fn(&Flying) -> bool) {
        while let Some(at) = self.waited_for.iter().position(|(_, copy)| which(copy)) {
            let (_, mut copy) = self.waited_for.swap_remove(at);
            // What arrives may still be on its way into the slot.
            copy.held = None;
            self.forget(copy);
        }
        while let Some(at) = self.copies.iter().position(&which) {
            let mut copy = self.copies.swap_remove(at);
            copy.held = None;
            copy.leave();
            self.forget(copy);
        }
    }

    /// The device writes these bytes, in the order of a stream: what was saved of them says nothing about the host any more.
    fn device_writes(&mut self, start: usize, end: usize) {
        if self.kept_bytes == 0 {
            return;
        }
        for copy in self.copies.iter_mut().filter(|copy| copy.side.is_pinned) {
            copy.kept.retain(|kept| {
                let stays = !kept.meets(start, end);
                self.kept_bytes -= if stays { 0 } else { kept.bytes.len() };
                stays
            });
        }
    }

    /// Writes the accesses that were recorded.
    fn fetch(&mut self, to: Teller<'_>) {
        hits::take(|hit| {
            // The driver's own access is a part of the call that the program made. What it calls, host functions, it calls in the
            // order of a stream.
            let Some(site) = to.sites.of(hit, to.ring) else {
                return;
            };
            let what = match (hit.call, hit.store) {
                (Some(hits::REFUSED), _) => Heard::Refused,
                (Some(name), _) if ends_memory(name) => Heard::End,
                (_, true) => Heard::Store,
                (_, false) => Heard::Load,
            };
            let touched = Touched {
                heard: what,
                start: hit.start,
                end: hit.end,
                site,
                before: word(&hit.before),
            };
            let thread = hit.thread as u32;
            touched.write(thread, 0, hit.call.unwrap_or_default(), to);
            // What a call of the system read is not known.
            if what == Heard::Load && hit.before_len == 0 {
                return;
            }
            let waited_for = self.waited_for.iter_mut().map(|(_, copy)| copy);
            for copy in self.copies.iter_mut().chain(waited_for) {
                if copy.side.meets(hit.start, hit.end) {
                    copy.held
                        .iter_mut()
                        .for_each(|held| held.touched.push(touched));
                }
            }
            if hit.store {
                self.stored_around(hit.start, hit.end);
            }
        });
    }

    /// What stored there most likely stored to the bytes beside its pages, too, and one mistake is told once.
    fn stored_around(&mut self, start: usize, end: usize) {
        let page = host_guard::page();
        let around = (start.saturating_sub(page), end.saturating_add(page));
        for kept in self.copies.iter_mut().flat_map(|copy| &mut copy.kept) {
            if kept.meets(around.0, around.1) {
                host_guard::read(kept.start, &mut kept.bytes);
            }
        }
    }
}

impl Flying {
    fn is_like(&self, stream: u64, side: HostSide) -> bool {
        let place = |side: HostSide| (side.start, side.end, side.is_upload);
        self.stream == stream && place(self.side) == place(side)
    }

    /// Writes which of the bytes that were saved have changed.
    fn compare(&mut self, to: Teller<'_>) {
        for kept in &self.kept {
            let change = changed(kept, to);
            let held = self.held.as_mut().zip(change);
            held.into_iter()
                .for_each(|(held, change)| held.touched.push(change));
        }
    }

    /// Hears no more of the memory's end. Returns whether it is still there.
    fn leave(&mut self) -> bool {
        self.owner.take().is_none_or(ends::leave)
    }
}

/// Whether memory belongs to its owner no more after this call.
fn ends_memory(call: &str) -> bool {
    const ENDS: [&str; 5] = ["free", "realloc", "reallocarray", "munmap", "mremap"];
    ENDS.contains(&call) || call.starts_with("operator delete")
}

fn is_host(kind: Made) -> bool {
    matches!(kind, Made::Pinned | Made::Registered)
}

/// The first bytes, as a word.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_ne_bytes(word)
}

/// The first position and that after the last at which bytes differ.
fn difference(one: &[u8], other: &[u8]) -> Option<(usize, usize)> {
    let differs = |at: &usize| one[*at] != other[*at];
    let len = one.len().min(other.len());
    Some(((0..len).find(differs)?, (0..len).rev().find(differs)? + 1))
}

/// Writes that bytes were changed since they were saved, if they were.
fn changed(kept: &Kept, to: Teller<'_>) -> Option<Touched> {
    let now = Kept::of(kept.start, kept.end())?;
    let (first, last) = difference(&kept.bytes, &now.bytes)?;
    let touched = Touched {
        heard: Heard::Changed,
        start: kept.start + first,
        end: kept.start + last,
        site: to.sites.here(to.ring),
        before: word(&kept.bytes[first..last]),
    };
    touched.write(system::thread(), word(&now.bytes[first..last]), "", to);
    Some(touched)
}

/// Writes that other bytes arrived than were submitted, or that other bytes arrived than were read, if so.
fn prove(touched: &Touched, submitted: &Kept, arrived: Option<&Kept>, to: Teller<'_>) {
    let (start, right, wrong) = if touched.heard == Heard::Load {
        let Some(now) = Kept::of(touched.start, touched.start + 1) else {
            return;
        };
        (
            touched.start,
            u64::from(now.bytes[0]),
            touched.before & 0xff,
        )
    } else {
        let Some(arrived) = arrived else { return };
        let from = touched.start.saturating_sub(submitted.start);
        let until = touched
            .end
            .saturating_sub(submitted.start)
            .min(submitted.bytes.len());
        let (Some(right), Some(wrong)) = (
            submitted.bytes.get(from..until),
            arrived.bytes.get(from..until),
        ) else {
            return;
        };
        let Some((first, _)) = difference(right, wrong) else {
            return;
        };
        let start = submitted.start + from + first;
        (start, u64::from(right[first]), u64::from(wrong[first]))
    };
    if right == wrong {
        return;
    }
    let words = [
        touched.heard as u64,
        start as u64,
        u64::from(touched.site),
        right,
        wrong,
    ];
    to.ring.write_text(Tag::Proof, &words, &[]);
}

impl Touched {
    fn write(&self, thread: u32, now: u64, call: &str, to: Teller<'_>) {
        let words = [
            u64::from(thread) | (self.heard as u64) << 32,
            self.start as u64,
            self.end as u64,
            u64::from(self.site),
            self.before,
            now,
        ];
        to.ring.write_text(Tag::Host, &words, call.as_bytes());
    }
}

/// The stream's handle for a call that does not know the thread's own default stream by zero.
fn handle(words: &[u64], at: u8, per_thread: bool) -> u64 {
    match words.get(usize::from(at)).copied().unwrap_or(0) {
        0 if per_thread => 2,
        other => other,
    }
}

/// Whether a device works on the host's page tables: it would fault on pages that are protected.
fn uses_host_page_tables() -> bool {
    // `CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES`.
    const ATTRIBUTE: i32 = 100;
    type CountFn = unsafe extern "C" fn(*mut i32) -> i32;
    type AttributeFn = unsafe extern "C" fn(*mut i32, i32, i32) -> i32;
    let Some(driver) = Library::loaded("libcuda.so.1") else {
        return false;
    };
    // SAFETY: the types are those of CUDA's header, and the pointers are valid for the calls.
    unsafe {
        let (Some(count), Some(attribute)) = (
            driver.function::<CountFn>(c"cuDeviceGetCount"),
            driver.function::<AttributeFn>(c"cuDeviceGetAttribute"),
        ) else {
            return false;
        };
        let (mut devices, mut value) = (0, 0);
        count(&mut devices);
        (0..devices).any(|device| attribute(&mut value, ATTRIBUTE, device) == 0 && value != 0)
    }
}
