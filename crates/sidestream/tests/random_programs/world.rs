//! What a program works on: every buffer beside a plain vector that goes through the same.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use sidestream::benchmark::{Options, benchmark};
use sidestream::buffer::{DeviceBuf, Pinned, Refused, View, ViewMut};
use sidestream::device::Device;
use sidestream::error::{Error, Lost, Result};
use sidestream::event::{Event, TimedEvent};
use sidestream::kernel::{Grid, Kernel, Write};
use sidestream::op::DeviceId;
use sidestream::stream::{Rows, Stream};

use super::act::{Act, Hosted, Place, Start, Table};
use super::faults::MADE_UP;
use super::flying::{Flying, drop_elsewhere};
use super::plan::Plan;
use super::reference::{self, Kernels};

/// A buffer, and what it has to hold from `first` on. The lock that guards both makes their
/// sequence one.
pub struct Slot {
    buffer: DeviceBuf<u32>,
    device: DeviceId,
    first: usize,
    model: Vec<u32>,
}

/// A stream, and for each thread the number of its last function on the host that ran there.
#[derive(Clone)]
struct Line {
    stream: Stream,
    ran: Arc<[AtomicU64; 4]>,
}

pub struct World {
    pub plan: Plan,
    /// What the program has not dropped.
    devices: Mutex<Vec<Option<Device>>>,
    /// The simulated machine goes on only while somebody asks it, so that in the end all are asked:
    /// a function that never runs would keep what it owns.
    all: Vec<Device>,
    lines: Mutex<Vec<Line>>,
    slots: Vec<RwLock<Option<Slot>>>,
    events: Mutex<Vec<Event>>,
    timed: Mutex<Vec<TimedEvent>>,
    pub flying: Mutex<Vec<Flying>>,
    pub idle: Mutex<Vec<Pinned<u32>>>,
    /// Neither used nor dropped before the end, which is all that the runtime sees of a value that
    /// was forgotten.
    pub forgotten: Mutex<Vec<Box<dyn Any + Send>>>,
    kernels: Kernels,
    pub lost: Mutex<Option<Lost>>,
    wrong: Arc<Mutex<Vec<String>>>,
    functions: AtomicU64,
    accepted: AtomicU64,
    returned: Arc<AtomicU64>,
}

const GRID: Grid = Grid {
    blocks: [1, 1, 1],
    threads: [32, 1, 1],
    shared_bytes: 0,
};

impl Slot {
    fn range(&self, place: Place) -> Range<usize> {
        let len = self.model.len();
        place.from * len / 1000..place.to * len / 1000
    }

    fn view(&self, range: &Range<usize>) -> View<'_, u32> {
        self.buffer
            .slice(self.first + range.start..self.first + range.end)
    }

    fn view_mut(&mut self, range: &Range<usize>) -> ViewMut<'_, u32> {
        let first = self.first;
        self.buffer
            .slice_mut(first + range.start..first + range.end)
    }
}

impl World {
    pub fn new(plan: &Plan, devices: Vec<Device>) -> World {
        World {
            plan: plan.clone(),
            devices: Mutex::new(devices.iter().cloned().map(Some).collect()),
            all: devices,
            lines: Mutex::default(),
            slots: (0..plan.slots).map(|_| RwLock::new(None)).collect(),
            events: Mutex::default(),
            timed: Mutex::default(),
            flying: Mutex::default(),
            idle: Mutex::default(),
            forgotten: Mutex::default(),
            kernels: Kernels::new(),
            lost: Mutex::default(),
            wrong: Arc::default(),
            functions: AtomicU64::new(1),
            accepted: AtomicU64::new(0),
            returned: Arc::default(),
        }
    }

    /// The streams that a program starts with; refused as often as they like.
    pub fn open_streams(&self) {
        for n in 0..self.plan.streams {
            let line = loop {
                if let Some(line) = self.new_line(n, n) {
                    break line;
                }
            };
            self.lines.lock().push(line);
        }
    }

    pub fn act(&self, thread: usize, act: Act) {
        match act {
            Act::Alloc { .. } => self.alloc(act),
            Act::Drop(slot) => drop(self.take(slot)),
            Act::Forget(slot) => {
                if let Some(slot) = self.take(slot) {
                    self.forgotten.lock().push(Box::new(slot));
                }
            }
            Act::DropElsewhere(slot) => drop_elsewhere(self.take(slot)),
            Act::Fill(at, value) => self.write(at, |stream, view| {
                let filled = stream.fill_with(view, value);
                filled.map(|()| move |model: &mut [u32]| model.fill(value))
            }),
            Act::Memset(at, byte) => self.write(at, |stream, view| {
                let set = stream.memset(view, byte);
                let value = u32::from_ne_bytes([byte; 4]);
                set.map(|()| move |model: &mut [u32]| model.fill(value))
            }),
            Act::In(at, value) => self.write(at, |stream, view| {
                let from = pattern(value, view.len());
                let copied = stream.memcpy_h2d(&from, view);
                copied.map(|()| move |model: &mut [u32]| model.copy_from_slice(&from))
            }),
            Act::One(at) => self.launch(at, &self.kernels.one, reference::one),
            Act::Trap(at) => self.launch(at, &self.kernels.trap, |_| ()),
            Act::Span(at) => {
                let device = self.stream(at.stream).stream.device();
                let _outer = device.span("outer");
                self.act(thread, Act::One(at));
                let _inner = device.span("inner");
                self.act(thread, Act::Fill(at, 3));
            }
            Act::Benchmark(at) => self.benchmark(at),
            Act::Out(at) => self.out(at),
            Act::Upload(at, value) => self.upload(at, value),
            Act::Download(at) => self.download(at),
            Act::UploadRows(at, table) => self.upload_rows(at, table),
            Act::DownloadRows(at, table) => self.download_rows(at, table),
            Act::CopyRows(at, from, table) => self.copy_rows(from, at, table),
            Act::Copy(from, at) => self.copy(from, at),
            Act::Within(at) => self.within(at),
            Act::Two(x, at) => self.kernel(x, x, at, |stream, x, _, y| {
                stream.launch(&self.kernels.two, GRID, (x, y))?;
                Ok(|x: &[u32], _: &[u32], y: &mut [u32]| reference::two(x, y))
            }),
            Act::Three(x, z, at) => self.kernel(x, z, at, |stream, x, z, y| {
                stream.launch(&self.kernels.three, GRID, (x, z, y))?;
                Ok(reference::three)
            }),
            Act::Four(x, z, at, n) => self.four(x, z, at, n),
            Act::Halves(at, other, value) => self.halves(at, other, value),
            Act::HostFunc(stream, hosted) => self.host_func(thread, stream, hosted),
            Act::Land(which, how) => {
                let flying = take_at(&self.flying, which);
                if let Some(flying) = flying {
                    self.land(flying, how);
                }
            }
            _ => self.order(act),
        }
    }

    /// Calls that touch no memory.
    fn order(&self, act: Act) {
        match act {
            Act::Record(stream) => {
                let event = self.tried(self.stream(stream).stream.record_event());
                keep(&self.events, event);
            }
            Act::RecordTimed(stream) => {
                let event = self.tried(self.stream(stream).stream.record_timed());
                keep(&self.timed, event);
            }
            Act::Elapsed => {
                if let (Some(end), Some(start)) = (take_at(&self.timed, 1), take_at(&self.timed, 0))
                {
                    match end.elapsed_since(&start) {
                        // Of two devices, whose clocks cannot be compared.
                        Err(Error::Invalid { .. }) if self.plan.devices > 1 => {}
                        elapsed => drop(self.tried(elapsed)),
                    }
                }
            }
            Act::WaitEvent(stream, which) => {
                let event = clone_at(&self.events, which);
                if let Some(event) = event {
                    self.issued(self.stream(stream).stream.wait_event(&event));
                }
            }
            Act::WaitStream(stream, other) => {
                let (stream, other) = (self.stream(stream), self.stream(other));
                self.issued(stream.stream.wait_stream(&other.stream));
            }
            Act::QueryEvent(which) => {
                if let Some(event) = clone_at(&self.events, which) {
                    self.tried(event.query());
                }
            }
            Act::SyncEvent(which) => {
                if let Some(event) = clone_at(&self.events, which) {
                    self.tried(event.synchronize());
                }
            }
            Act::DropEvent(which) => drop(take_at(&self.events, which)),
            Act::QueryStream(stream) => drop(self.tried(self.stream(stream).stream.query())),
            Act::SyncStream(stream) => drop(self.tried(self.stream(stream).stream.synchronize())),
            Act::SyncStreamFor(stream, ns) => {
                let at_most = Duration::from_nanos(u64::from(ns));
                self.tried(self.stream(stream).stream.synchronize_for(at_most));
            }
            Act::SyncDevice(which) => drop(self.tried(self.device(which).synchronize())),
            Act::EmptyCache(which) => drop(self.tried(self.device(which).empty_cache())),
            Act::Statistics => {
                let known = self.device(0).statistics();
                if known.allocated_bytes > known.reserved_bytes
                    || known.reserved_bytes > self.plan.memory_bytes
                    || known.allocated_bytes > known.allocated_peak_bytes
                {
                    self.wrong(format!("{known:?}"));
                }
            }
            Act::NewStream(at, which) => {
                if let Some(line) = self.new_line(at, which) {
                    let mut lines = self.lines.lock();
                    let count = lines.len();
                    let old = std::mem::replace(&mut lines[at % count], line);
                    drop(lines);
                    drop(old);
                }
            }
            Act::DropDevice(which) => {
                let mut devices = self.devices.lock();
                let at = which % devices.len();
                let device = devices[at].take();
                drop(devices);
                drop(device);
            }
            other => self.wrong(format!("{other:?} is not carried out")),
        }
    }
}

// ------------------------------------------------------------------ memory

impl World {
    fn alloc(&self, act: Act) {
        let Act::Alloc {
            slot,
            stream,
            used,
            first,
            spare,
            start,
        } = act
        else {
            return;
        };
        let Line { stream, .. } = self.stream(stream);
        let len = first + used + spare;
        let (mut slot, filled) = match start {
            Start::Zeros => {
                let Some(buffer) = self.tried(stream.alloc_zeroed::<u32>(len)) else {
                    return;
                };
                let model = vec![0; used];
                let zeroed = Slot {
                    buffer,
                    device: stream.device().id(),
                    first,
                    model,
                };
                return self.put(slot, zeroed);
            }
            _ => match self.tried(stream.alloc::<u32>(len)) {
                Some(buffer) => {
                    let model = pattern(used as u32, used);
                    let made = Slot {
                        buffer,
                        device: stream.device().id(),
                        first,
                        model,
                    };
                    (made, slot)
                }
                None => return,
            },
        };
        let at = filled;
        let range = 0..used;
        // Written on another stream than the one that it was asked on, if there is one.
        let Line { stream, .. } = self.stream(at + 1);
        let written = match start {
            Start::Zeros | Start::Fill => {
                slot.model.fill(77);
                self.issued(stream.fill_with(slot.view_mut(&range), 77))
            }
            Start::In => {
                let from = slot.model.clone();
                self.issued(stream.memcpy_h2d(&from, slot.view_mut(&range)))
            }
            Start::Upload => self.pinned(used).and_then(|mut pinned| {
                pinned.copy_from_slice(&slot.model);
                let expected = slot.model.clone();
                let sent = stream.upload(pinned, slot.view_mut(&range));
                let pending = self.accepted(sent)?;
                self.fly(Flying::Pinned(pending, expected));
                Some(())
            }),
        };
        // What was never written has no value that could be compared.
        if written.is_some() {
            self.put(at, slot);
        }
    }

    /// A call that writes a part of a slot: what it does to the model if it was accepted.
    fn write<M: FnOnce(&mut [u32])>(
        &self,
        at: Place,
        call: impl FnOnce(&Stream, ViewMut<'_, u32>) -> Result<M>,
    ) {
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let stream = self.stream_near(at.stream, slot);
        let range = slot.range(at);
        if let Some(model) = self.issued(call(&stream, slot.view_mut(&range))) {
            model(&mut slot.model[range]);
        }
    }

    fn launch(&self, at: Place, kernel: &Kernel<(Write<u32>,)>, model: fn(&mut [u32])) {
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let stream = self.stream_near(at.stream, slot);
        let range = slot.range(at);
        let called = stream.launch(kernel, GRID, (slot.view_mut(&range),));
        if self.launched(called, &stream, &[slot]).is_some() {
            model(&mut slot.model[range]);
        }
    }

    /// A call that reads two slots, which may be one, and writes a third.
    fn kernel<M: FnOnce(&[u32], &[u32], &mut [u32])>(
        &self,
        x: usize,
        z: usize,
        at: Place,
        call: impl FnOnce(&Stream, View<'_, u32>, View<'_, u32>, ViewMut<'_, u32>) -> Result<M>,
    ) {
        if x == at.slot || z == at.slot {
            return;
        }
        let mut held = self.lock(&[x, z], &[at.slot]);
        let mut y = held.take(at.slot);
        let (Some(x), Some(z), Some(y)) = (held.read(x), held.read(z), y.write()) else {
            return;
        };
        let stream = self.stream_near(at.stream, y);
        let (all_x, some_z, range) = (0..x.model.len(), 0..z.model.len() / 2, y.range(at));
        let called = call(&stream, x.view(&all_x), z.view(&some_z), y.view_mut(&range));
        if let Some(model) = self.launched(called, &stream, &[x, z, y]) {
            model(&x.model, &z.model[some_z], &mut y.model[range]);
        }
    }

    fn four(&self, x: usize, z: usize, at: Place, n: u32) {
        if x == at.slot || z == at.slot || x == z {
            return;
        }
        let mut held = self.lock(&[x], &[at.slot, z]);
        let (mut y, mut z) = (held.take(at.slot), held.take(z));
        let (Some(x), Some(y), Some(z)) = (held.read(x), y.write(), z.write()) else {
            return;
        };
        let stream = self.stream_near(at.stream, y);
        let (all_x, range) = (0..x.model.len(), y.range(at));
        let end_z = z.model.len() / 2..z.model.len();
        let args = (x.view(&all_x), y.view_mut(&range), z.view_mut(&end_z), n);
        let called = stream.launch(&self.kernels.four, GRID, args);
        if (self.launched(called, &stream, &[x, y, z])).is_some() {
            reference::four(&x.model, &mut y.model[range], &mut z.model[end_z], n);
        }
    }

    fn copy(&self, from: usize, at: Place) {
        self.pair(from, at, |stream, from, to, range| {
            let n = from.model.len().min(range.len());
            let range = range.start..range.start + n;
            self.issued(stream.memcpy_d2d(from.view(&(0..n)), to.view_mut(&range)))?;
            to.model[range].copy_from_slice(&from.model[..n]);
            Some(())
        });
    }

    fn copy_rows(&self, from: usize, at: Place, table: Table) {
        let (from_rows, to_rows) = table.rows();
        self.pair(from, at, |stream, from, to, range| {
            let (all, fits) = (
                0..from.model.len(),
                needs(from_rows) <= from.model.len() && needs(to_rows) <= range.len(),
            );
            let (view, view_mut) = (from.view(&all), to.view_mut(&range));
            let copied = stream.memcpy_d2d_rows(view, from_rows, view_mut, to_rows);
            self.rows_issued(copied, fits)?;
            scatter(&from.model, from_rows, &mut to.model[range], to_rows);
            Some(())
        });
    }

    fn pair(
        &self,
        from: usize,
        at: Place,
        act: impl FnOnce(&Stream, &Slot, &mut Slot, Range<usize>) -> Option<()>,
    ) {
        if from == at.slot {
            return;
        }
        let Line { stream, .. } = self.stream(at.stream);
        let mut held = self.lock(&[from], &[at.slot]);
        let mut to = held.take(at.slot);
        if let (Some(from), Some(to)) = (held.read(from), to.write()) {
            let range = to.range(at);
            act(&stream, from, to, range);
        }
    }

    fn within(&self, at: Place) {
        let Line { stream, .. } = self.stream(at.stream);
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let len = slot.model.len();
        let n = len / 2;
        let (left, right) = slot.view_mut(&(0..len)).split_at(len - n);
        let copied = stream.memcpy_d2d(left.as_view().slice(..n), right);
        if self.issued(copied).is_some() {
            slot.model.copy_within(..n, len - n);
        }
    }

    /// Both halves of a buffer at once, on two streams, and on two threads if there are several.
    fn halves(&self, at: Place, other: usize, value: u32) {
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let (here, there) = (self.stream_near(at.stream, slot), self.stream(other).stream);
        let len = slot.model.len();
        let slot_device = slot.device;
        let (left, right) = slot.view_mut(&(0..len)).split_at(at.from * len / 1000);
        let is_near = here.device().id() == slot_device;
        let launch = || match here.launch(&self.kernels.one, GRID, (left,)) {
            Err(Error::Invalid { .. }) if !is_near => None,
            launched => self.issued(launched),
        };
        let fill = || self.issued(there.fill_with(right, value));
        let (launched, filled) = match self.plan.threads {
            1 => (launch(), fill()),
            _ => std::thread::scope(|scope| {
                let filled = scope.spawn(fill);
                (launch(), filled.join().expect("a call does not panic"))
            }),
        };
        let (left, right) = slot.model.split_at_mut(at.from * len / 1000);
        if launched.is_some() {
            reference::one(left);
        }
        if filled.is_some() {
            right.fill(value);
        }
    }

    fn benchmark(&self, at: Place) {
        let Line { stream, .. } = self.stream(at.stream);
        self.act(0, Act::Memset(at, 7));
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let range = slot.range(at);
        // The same bytes again, so that it does not matter how many of the calls are refused.
        let bytes = u32::from_ne_bytes([7; 4]);
        if slot.model[range.clone()]
            .iter()
            .any(|&value| value != bytes)
        {
            return;
        }
        let options = Options {
            warm_up: 1,
            runs: 2,
            calls: 2,
            ..Options::default()
        };
        let mut view = slot.view_mut(&range);
        let measured = benchmark(&stream, &options, |stream| {
            stream.memset(view.reborrow(), 7)
        });
        self.tried(measured);
    }
}

// ------------------------------------------------------------------ the host's side

impl World {
    fn out(&self, at: Place) {
        let Line { stream, .. } = self.stream(at.stream);
        let guard = self.slots[at.slot].read();
        let Some(slot) = guard.as_ref() else { return };
        let range = slot.range(at);
        let mut host = vec![0; range.len()];
        if (self.tried(stream.memcpy_d2h(slot.view(&range), &mut host))).is_some() {
            self.compare("a copy to the host", &host, &slot.model[range]);
        }
    }

    fn upload(&self, at: Place, value: u32) {
        self.write(at, |stream, view| {
            let mut pinned = self.pinned(view.len()).ok_or_else(made_up)?;
            pinned.copy_from_slice(&pattern(value, view.len()));
            let sent = pinned.to_vec();
            let pending = self.accepted(stream.upload(pinned, view));
            self.fly(Flying::Pinned(pending.ok_or_else(made_up)?, sent.clone()));
            Ok(move |model: &mut [u32]| model.copy_from_slice(&sent))
        });
    }

    fn download(&self, at: Place) {
        let Line { stream, .. } = self.stream(at.stream);
        let guard = self.slots[at.slot].read();
        let Some(slot) = guard.as_ref() else { return };
        let range = slot.range(at);
        let Some(pinned) = self.pinned(range.len()) else {
            return;
        };
        if let Some(pending) = self.accepted(stream.download(slot.view(&range), pinned)) {
            self.fly(Flying::Pinned(pending, slot.model[range].to_vec()));
        }
    }

    fn upload_rows(&self, at: Place, table: Table) {
        let (from_rows, to_rows) = table.rows();
        let Line { stream, .. } = self.stream(at.stream);
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let range = slot.range(at);
        let Some(mut pinned) = self.pinned(needs(from_rows)) else {
            return;
        };
        pinned.copy_from_slice(&pattern(5, needs(from_rows)));
        let sent = pinned.to_vec();
        let fits = needs(to_rows) <= range.len();
        let copied = stream.upload_rows(pinned, from_rows, slot.view_mut(&range), to_rows);
        if let Some(pending) = self.rows_accepted(copied, fits) {
            scatter(&sent, from_rows, &mut slot.model[range], to_rows);
            self.fly(Flying::Pinned(pending, sent));
        }
    }

    fn download_rows(&self, at: Place, table: Table) {
        // Padded on the device, tight on the host.
        let (to_rows, from_rows) = table.rows();
        let Line { stream, .. } = self.stream(at.stream);
        let guard = self.slots[at.slot].read();
        let Some(slot) = guard.as_ref() else { return };
        let range = slot.range(at);
        let Some(mut pinned) = self.pinned(needs(to_rows)) else {
            return;
        };
        pinned.fill(9);
        let mut expected = pinned.to_vec();
        let fits = needs(from_rows) <= range.len();
        let copied = stream.download_rows(slot.view(&range), from_rows, pinned, to_rows);
        if let Some(pending) = self.rows_accepted(copied, fits) {
            scatter(&slot.model[range], from_rows, &mut expected, to_rows);
            self.fly(Flying::Pinned(pending, expected));
        }
    }

    fn host_func(&self, thread: usize, stream: usize, hosted: Hosted) {
        let Line { stream, ran } = self.stream(stream);
        let number = self.functions.fetch_add(1, Ordering::Relaxed);
        let (returned, wrong) = (Arc::clone(&self.returned), Arc::clone(&self.wrong));
        // Every function counts itself, and sees whether those before it have run.
        let enter = move || {
            returned.fetch_add(1, Ordering::Relaxed);
            if ran[thread].swap(number, Ordering::Relaxed) >= number {
                wrong.lock().push("a function ran too late".to_owned());
            }
        };
        let flying = match hosted {
            Hosted::Values(value) => {
                let given = pattern(value, 5);
                let mut expected = given.clone();
                reference::two(&[value], &mut expected);
                let pending = stream.host_func(given, move |values| {
                    enter();
                    reference::two(&[value], values);
                });
                pending.map(|pending| Flying::Values(pending, expected))
            }
            Hosted::Panics => {
                let pending = stream.host_func(Vec::new(), move |_| {
                    enter();
                    std::panic::resume_unwind(Box::new("not today"));
                });
                pending.map(Flying::Panics)
            }
            Hosted::Buffer(slot) => {
                let Some(slot) = self.take(slot) else { return };
                stream.host_func(slot, move |_| enter()).map(Flying::Buffer)
            }
            Hosted::Pinned(value) => {
                let Some(mut pinned) = self.pinned(6) else {
                    return;
                };
                pinned.copy_from_slice(&pattern(value, 6));
                let mut expected = pinned.to_vec();
                reference::one(&mut expected);
                let pending = stream.host_func(pinned, move |pinned| {
                    enter();
                    reference::one(pinned);
                });
                pending.map(|pending| Flying::Pinned(pending, expected))
            }
            Hosted::Drops(slot) => {
                let captured = (self.take(slot), stream.clone(), take_at(&self.events, 0));
                let pending = stream.host_func(Vec::new(), move |_| {
                    enter();
                    drop(captured);
                });
                pending.map(|pending| Flying::Values(pending, Vec::new()))
            }
        };
        if let Some(flying) = self.issued(flying) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
            self.fly(flying);
        }
    }
}

// ------------------------------------------------------------------ what there is

impl World {
    fn stream(&self, at: usize) -> Line {
        let lines = self.lines.lock();
        lines[at % lines.len()].clone()
    }

    /// This stream, or the next that belongs to the device of the buffer.
    fn stream_near(&self, at: usize, slot: &Slot) -> Stream {
        let near = (at..at + self.plan.streams).map(|at| self.stream(at).stream);
        let mut near = near.filter(|stream| stream.device().id() == slot.device);
        near.next().unwrap_or_else(|| self.stream(at).stream)
    }

    fn device(&self, which: usize) -> Device {
        let devices = self.devices.lock();
        let device = devices[which % devices.len()].clone();
        drop(devices);
        device.unwrap_or_else(|| self.stream(which).stream.device())
    }

    fn new_line(&self, at: usize, which: usize) -> Option<Line> {
        let is_first = self.lines.lock().is_empty();
        let device = match is_first {
            true => self.devices.lock()[0].clone()?,
            false => self.device(which),
        };
        // A few names, so that a stream that nobody holds is found again.
        let name = ["a", "b", "c"][at % 3];
        let stream = self.tried(device.stream_with_priority(name, -(at as i32 % 2)))?;
        let ran = Arc::default();
        Some(Line { stream, ran })
    }

    fn pinned(&self, len: usize) -> Option<Pinned<u32>> {
        let known = take_at(&self.idle, 0).filter(|known| known.len() == len);
        known.or_else(|| self.tried(self.device(0).pinned(len)))
    }

    fn take(&self, slot: usize) -> Option<Slot> {
        self.slots[slot].write().take()
    }

    fn put(&self, at: usize, slot: Slot) {
        let old = self.slots[at].write().replace(slot);
        drop(old);
    }

    /// Puts a buffer where none is; drops it if there is no such place.
    pub fn put_anywhere(&self, slot: Slot) {
        for place in &self.slots {
            let mut place = place.write();
            if place.is_none() {
                *place = Some(slot);
                return;
            }
        }
    }

    pub fn fly(&self, flying: Flying) {
        self.flying.lock().push(flying);
    }

    fn lock(&self, reads: &[usize], writes: &[usize]) -> Held<'_> {
        let wanted: BTreeMap<usize, bool> = (reads.iter().map(|&at| (at, false)))
            .chain(writes.iter().map(|&at| (at, true)))
            .collect();
        let guards = wanted.into_iter().map(|(at, is_written)| {
            let guard = match is_written {
                true => Guard::Write(self.slots[at].write()),
                false => Guard::Read(self.slots[at].read()),
            };
            (at, guard)
        });
        Held(guards.collect())
    }
}

/// Locked slots, by their number.
struct Held<'a>(BTreeMap<usize, Guard<'a>>);

enum Guard<'a> {
    Read(RwLockReadGuard<'a, Option<Slot>>),
    Write(RwLockWriteGuard<'a, Option<Slot>>),
    Nothing,
}

impl<'a> Held<'a> {
    fn read(&self, at: usize) -> Option<&Slot> {
        match self.0.get(&at)? {
            Guard::Read(guard) => guard.as_ref(),
            Guard::Write(guard) => guard.as_ref(),
            Guard::Nothing => None,
        }
    }

    fn take(&mut self, at: usize) -> Guard<'a> {
        self.0.remove(&at).unwrap_or(Guard::Nothing)
    }
}

impl Guard<'_> {
    fn write(&mut self) -> Option<&mut Slot> {
        match self {
            Guard::Write(guard) => guard.as_mut(),
            Guard::Read(_) | Guard::Nothing => None,
        }
    }
}

// ------------------------------------------------------------------ what is wrong

impl World {
    pub fn wrong(&self, what: String) {
        self.wrong.lock().push(what);
    }

    pub fn all_wrong(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }

    pub fn compare(&self, what: &str, found: &[u32], expected: &[u32]) {
        if found != expected {
            self.wrong(format!("{what}: {found:x?} and not {expected:x?}"));
        }
    }

    /// The value of a call, unless it failed in a way that this plan has.
    pub fn tried<T>(&self, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let plan = &self.plan;
        let is_expected = match &error {
            Error::Refused { code, .. } => *code == MADE_UP,
            Error::OutOfMemory(_) => plan.memory_bytes.min(plan.pinned_bytes) < 1 << 30,
            Error::DeviceLost(lost) => {
                let mut known = self.lost.lock();
                plan.traps && known.get_or_insert_with(|| lost.clone()) == lost
            }
            _ => false,
        };
        if !is_expected {
            self.wrong(format!("an error that nothing explains: {error}"));
        }
        None
    }

    /// The same of a call that gives a device something to do: a lost device takes nothing.
    fn issued<T>(&self, result: Result<T>) -> Option<T> {
        if self.plan.threads == 1 && result.is_ok() && self.lost.lock().is_some() {
            self.wrong("a lost device took a call".into());
        }
        self.tried(result)
    }

    /// The same of a launch, whose buffers have to lie on the device of the stream.
    fn launched<T>(&self, result: Result<T>, stream: &Stream, slots: &[&Slot]) -> Option<T> {
        let device = stream.device().id();
        match result {
            Err(Error::Invalid { .. }) if slots.iter().any(|slot| slot.device != device) => None,
            result => self.issued(result),
        }
    }

    /// The same of a call that takes pinned memory: an error gives it back, if the device lives.
    fn accepted<T>(&self, result: Result<T, Refused<Pinned<u32>>>) -> Option<T> {
        match result {
            Ok(value) => self.issued(Ok(value)),
            Err(Refused { error, value }) => {
                if value.is_none() != matches!(error, Error::DeviceLost(_)) {
                    self.wrong(format!(
                        "{error}, and the value is there: {}",
                        value.is_some()
                    ));
                }
                self.idle.lock().extend(value);
                self.tried(Err(error))
            }
        }
    }

    fn rows_accepted<T>(&self, result: Result<T, Refused<Pinned<u32>>>, fits: bool) -> Option<T> {
        match result {
            Err(Refused {
                error: Error::Invalid { .. },
                value,
            }) if !fits => {
                self.idle.lock().extend(value);
                None
            }
            result => self.accepted(result),
        }
    }

    fn rows_issued(&self, result: Result<()>, fits: bool) -> Option<()> {
        match result {
            Err(Error::Invalid { .. }) if !fits => None,
            result => self.issued(result),
        }
    }

    /// Everything comes back and is compared. Nothing fails any more.
    pub fn finish(&self) {
        self.idle.lock().clear();
        while let Some(flying) = take_at(&self.flying, 0) {
            self.land(flying, super::act::Landing::Sync);
        }
        self.idle.lock().clear();
        for at in 0..self.slots.len() {
            self.out(Place {
                slot: at,
                stream: at,
                from: 0,
                to: 1000,
            });
        }
        for device in &self.all {
            self.tried(device.synchronize());
        }
    }

    /// How many functions on the host were accepted, and how many have run.
    pub fn functions(&self) -> (u64, Arc<AtomicU64>) {
        let accepted = self.accepted.load(Ordering::Relaxed);
        (accepted, Arc::clone(&self.returned))
    }

    pub fn waits_inserted(&self) -> u64 {
        self.device(0).waits_inserted()
    }
}

/// Stands for a failure that was looked at already.
fn made_up() -> Error {
    Error::Refused {
        call: "test",
        code: MADE_UP,
        why: String::new(),
    }
}

fn pattern(seed: u32, len: usize) -> Vec<u32> {
    let values = 0..len as u32;
    values
        .map(|at| (seed ^ at).wrapping_mul(0x85eb_ca6b))
        .collect()
}

impl Table {
    /// Tight rows, and the same with gaps.
    fn rows(self) -> (Rows, Rows) {
        let Table { len, count, gap } = self;
        let rows = |pitch| Rows { len, count, pitch };
        (rows(len), rows(len + gap))
    }
}

/// How many values rows reach over.
fn needs(rows: Rows) -> usize {
    match rows.count {
        0 => 0,
        count => (count - 1) * rows.pitch + rows.len,
    }
}

fn scatter(from: &[u32], from_rows: Rows, to: &mut [u32], to_rows: Rows) {
    for row in 0..from_rows.count {
        let (read, written) = (row * from_rows.pitch, row * to_rows.pitch);
        let row = &from[read..read + from_rows.len];
        to[written..written + to_rows.len].copy_from_slice(row);
    }
}

fn take_at<T>(from: &Mutex<Vec<T>>, at: usize) -> Option<T> {
    let mut from = from.lock();
    match from.len() {
        0 => None,
        len => Some(from.remove(at % len)),
    }
}

fn clone_at<T: Clone>(from: &Mutex<Vec<T>>, at: usize) -> Option<T> {
    let from = from.lock();
    from.get(at.checked_rem(from.len())?).cloned()
}

/// Keeps the last eight.
fn keep<T>(into: &Mutex<Vec<T>>, value: Option<T>) {
    let mut into = into.lock();
    into.extend(value);
    if into.len() > 8 {
        let oldest = into.remove(0);
        drop(into);
        drop(oldest);
    }
}
