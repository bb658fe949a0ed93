//! Memory for buffers: the cache, what it asks of the back end, and what the log is told.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::block::{Block, BlockState};
use super::gone::Gone;
use super::runtime::{Place, Runtime, plain, write};
use super::threads::{Thread, as_thread};
use super::uses::{Conflicts, Uses, keep_last};
use super::vector::Vector;
use crate::alloc::{Cache, Granted, Growth, Need, On, Piece, Rules, Segment, Spare, State};
use crate::backend::{Address, Backend, Reserve};
use crate::error::{Error, Result};
use crate::log::{Pen, Within};
use crate::op::{BufferId, DeviceId, Kind, Memory, StreamId};
use crate::order::Epoch;

use crate::alloc::Statistics;

/// The memory of one device, or the pinned memory of the machine.
pub(crate) struct Memories {
    memory: Memory,
    device: DeviceId,
    cache: Mutex<Cache<Carried>>,
    names: Mutex<Names>,
    /// Segments that should go back, and of which nobody could tell whether they are still used.
    kept: Mutex<Vec<Segment<Carried>>>,
    /// Segments that went back, and memory of the program that is not pinned any more, while somebody
    /// listens.
    pub gone: Gone,
}

/// What the log calls things.
#[derive(Default)]
struct Names {
    /// All of this memory: buffers lie within it, at their addresses.
    root: Option<BufferId>,
    /// Where a range was allocated: whose turn it is, and the two names.
    of_ranges: HashMap<Range, (bool, [Option<BufferId>; 2])>,
}

/// Where it starts, how long it is, and where in the source it was allocated.
type Range = (Address, u64, Place);

/// What a block holds.
#[derive(Default)]
pub(crate) enum Grant {
    /// A piece of the cache.
    Piece(Piece),
    /// Memory of the program.
    Registered(Vector),
    /// Nothing any more.
    #[default]
    Nothing,
}

/// The last uses of a piece that nobody holds.
#[derive(Clone, Default)]
pub(crate) struct Carried(Conflicts);

impl crate::alloc::Uses for Carried {
    fn merge(&mut self, other: Carried) {
        self.0.extend(other.0);
        keep_last(&mut self.0);
    }

    #[inline]
    fn on(&self) -> On {
        let mut streams = self.0.iter().map(|mark| mark.stream());
        match streams.next() {
            None => On::Nobody,
            Some(first) if streams.all(|other| other == first) => On::Only(first),
            Some(_) => On::Several,
        }
    }
}

impl Memories {
    pub fn of_device(device: DeviceId, limit_bytes: u64, spare: Option<Spare>) -> Memories {
        let rules = Rules {
            spare,
            ..Rules::device(device, limit_bytes)
        };
        Memories::new(Memory::Device, device, rules)
    }

    pub fn pinned(limit_bytes: u64) -> Memories {
        Memories::new(Memory::Pinned, DeviceId(0), Rules::pinned(limit_bytes))
    }

    fn new(memory: Memory, device: DeviceId, rules: Rules) -> Memories {
        Memories {
            memory,
            device,
            cache: Mutex::new(Cache::new(rules)),
            names: Mutex::default(),
            kept: Mutex::default(),
            gone: Gone::default(),
        }
    }

    /// Memory for somebody who uses it on `home` first; none is the host.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the sizes, or what failed while waiting for what was freed.
    pub fn take(
        &self,
        runtime: &Arc<Runtime>,
        size_bytes: u64,
        home: Option<StreamId>,
        at: Place,
    ) -> Result<Box<Block>> {
        runtime.check()?;
        let granted = loop {
            match self.ask(runtime, size_bytes, home, at) {
                Ok(granted) => break granted,
                Err(Need::Segment(growth)) => self.reserve(runtime, growth)?,
                Err(Need::Wait(uses)) => self.wait_for(runtime, &uses, at)?,
                Err(Need::Release(segments)) => self.release(runtime, segments, at)?,
                Err(Need::OutOfMemory(memory)) => return Err(memory.into()),
            }
        };
        let Granted { piece, carried, .. } = granted;
        let uses = match runtime.is_tracking && !carried.0.is_empty() {
            true => Uses::carried(size_bytes, carried.0),
            false => Uses::default(),
        };
        let block = Box::new(Block {
            runtime: Arc::clone(runtime),
            memory: self.memory,
            device: self.device,
            address: piece.address,
            size_bytes: piece.bytes,
            home,
            at,
            state: Mutex::new(BlockState::new(uses)),
            grant: Grant::Piece(piece),
        });
        if runtime.live.is_on() {
            tell_alloc(&block);
        }
        Ok(block)
    }

    /// Takes memory back from a block that goes. Neither waits nor calls the driver.
    #[inline]
    pub fn give(&self, piece: Piece, uses: Uses) {
        self.cache.lock().free(piece, Carried(uses.all()));
    }

    /// Tells the log that the last reference to a block is gone.
    #[cold]
    pub fn tell_free(&self, block: &Block) {
        let Some(buffer) = block.state.lock().known_name() else {
            return;
        };
        as_thread(&block.runtime, |thread| {
            let mut pen = block.runtime.live.write();
            let op = plain(thread.id, Kind::Free { buffer }, &mut pen, block.at);
            write(&mut pen, &op);
        });
    }

    /// What the log calls a block, from here on. A range that is allocated at one place again and
    /// again has two names that take turns: so there are not more and more of them, and a use that
    /// outlives its owner is told from the next one's.
    pub fn name(&self, block: &Block, pen: &mut Pen<'_>) -> BufferId {
        let mut names = self.names.lock();
        let root = *names.root.get_or_insert_with(|| {
            let name = match self.memory {
                Memory::Device => format!("memory of device {}", self.device.0),
                _ => "pinned memory".to_owned(),
            };
            pen.new_buffer(self.memory, ALL_ADDRESSES, None, &name)
        });
        let range = (block.address, block.size_bytes, block.at);
        let (turn, known) = names.of_ranges.entry(range).or_default();
        *turn = !*turn;
        *known[usize::from(*turn)].get_or_insert_with(|| {
            let name = format!("{}:{}", block.at.file(), block.at.line());
            let within = Within {
                buffer: root,
                start: block.address.0,
            };
            pen.new_buffer(self.memory, block.size_bytes, Some(within), &name)
        })
    }

    /// What was counted, after a look at what is over by now. Where the device cannot say, it counts
    /// as in use.
    pub fn statistics(&self, runtime: &Arc<Runtime>, at: Place) -> Statistics {
        if !runtime.backend.is_this_process() {
            return Statistics::default();
        }
        as_thread(runtime, |thread| {
            let mut pen = runtime.live.write();
            let mut pending = Pending::new();
            let mut cache = self.cache.lock();
            cache.look(|uses| {
                let state = look(runtime, thread, uses, None, &mut pending, &mut pen, at);
                state == Ok(State::Over)
            });
            cache.statistics()
        })
    }

    /// Gives all memory that nobody holds back to the machine, once its uses are over.
    pub fn empty(&self, runtime: &Arc<Runtime>, at: Place) -> Result<()> {
        let segments = self.cache.lock().empty_cache();
        self.release(runtime, segments, at)
    }

    /// Gives everything back: nobody holds any of it. Memory that a device may still use stays
    /// where it is.
    pub fn close(&mut self, backend: &dyn Backend, is_over: bool) {
        self.gone.clear();
        let kept = std::mem::take(self.kept.get_mut());
        for segment in self.cache.get_mut().empty_cache().into_iter().chain(kept) {
            if is_over {
                // SAFETY: the cache has reserved it, nobody holds any of it, and all work is over.
                unsafe { backend.unreserve(self.memory, self.device, segment.address) };
            }
        }
    }

    fn ask(
        &self,
        runtime: &Arc<Runtime>,
        size_bytes: u64,
        home: Option<StreamId>,
        at: Place,
    ) -> Result<Granted<Carried>, Need<Carried>> {
        if let Some(granted) = self.cache.lock().alloc_at_once(size_bytes, home) {
            return Ok(granted);
        }
        // Whoever holds the pen has to be known as a thread before.
        match runtime.live.is_on() {
            false => self.ask_as(runtime, None, size_bytes, home, at),
            true => as_thread(runtime, |thread| {
                self.ask_as(runtime, Some(thread), size_bytes, home, at)
            }),
        }
    }

    #[inline(never)]
    fn ask_as(
        &self,
        runtime: &Arc<Runtime>,
        mut caller: Option<&mut Thread>,
        size_bytes: u64,
        home: Option<StreamId>,
        at: Place,
    ) -> Result<Granted<Carried>, Need<Carried>> {
        // Streams on which something was not over when it was asked about: later work is not either.
        let mut pending = Pending::new();
        let mut pen = caller.as_ref().and_then(|_| runtime.live.write());
        let mut cache = self.cache.lock();
        cache.alloc(size_bytes, home, |uses| {
            let mut look =
                |thread: &mut Thread| look(runtime, thread, uses, home, &mut pending, &mut pen, at);
            let state = match &mut caller {
                Some(thread) => look(thread),
                None => as_thread(runtime, look),
            };
            // To wait is always safe; what is wrong with the device shows at its next use.
            state.unwrap_or(State::Pending)
        })
    }

    fn reserve(&self, runtime: &Runtime, growth: Growth) -> Result<()> {
        let Growth { at, bytes } = growth;
        let wanted = Reserve {
            at,
            ..Reserve::new(self.memory, self.device, bytes)
        };
        let reserved = runtime.beside_captures(|| runtime.backend.reserve(wanted));
        match (runtime.seen(reserved), at) {
            (Ok(address), _) => {
                let uses = Carried(self.gone.come_again(address, bytes));
                self.cache.lock().add_used_segment(address, bytes, uses);
            }
            (Err(Error::OutOfMemory(_)), _) => self.cache.lock().segment_refused(bytes),
            (Err(Error::Refused { .. }), Some(at)) => self.cache.lock().cannot_extend(at),
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }

    fn wait_for(&self, runtime: &Arc<Runtime>, uses: &Carried, at: Place) -> Result<()> {
        let mut marks = uses.0.iter();
        marks.try_for_each(|mark| runtime.synchronize(mark, at))
    }

    fn release(
        &self,
        runtime: &Arc<Runtime>,
        segments: Vec<Segment<Carried>>,
        at: Place,
    ) -> Result<()> {
        if let Err(error) = runtime.refuse_to_give_back() {
            self.kept.lock().extend(segments);
            return Err(error);
        }
        let mut failed = Ok(());
        let kept = std::mem::take(&mut *self.kept.lock());
        let mut rest = Undone::new(&self.kept, kept.into_iter().chain(segments));
        while let Some(segment) = rest.next() {
            let waited = self.wait_for(runtime, &segment.uses, at);
            let Some(segment) = rest.take() else { break };
            match waited {
                Ok(()) => {
                    let Segment {
                        address,
                        bytes,
                        uses,
                    } = segment;
                    if runtime.live.is_on() {
                        self.gone.note(address, bytes, uses.0);
                    }
                    // SAFETY: the cache has reserved it and let go of it, and its uses were waited for. Without
                    // tracking there are none to wait for, and this was promised when the device was opened.
                    unsafe {
                        (runtime.backend).unreserve(self.memory, self.device, address);
                    }
                }
                Err(error) => {
                    self.kept.lock().push(segment);
                    failed = Err(error);
                }
            }
        }
        failed
    }
}

/// What is to be done with each of some things. A wait may panic with what a sink has to say: then what is left is kept.
pub(super) struct Undone<'a, T> {
    /// The next one at the end.
    left: Vec<T>,
    kept: &'a Mutex<Vec<T>>,
}

impl<'a, T> Undone<'a, T> {
    pub fn new(kept: &'a Mutex<Vec<T>>, each: impl Iterator<Item = T>) -> Undone<'a, T> {
        let mut left: Vec<T> = each.collect();
        left.reverse();
        Undone { left, kept }
    }

    pub fn next(&self) -> Option<&T> {
        self.left.last()
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<T> {
        self.left.pop()
    }
}

impl<T> Drop for Undone<'_, T> {
    fn drop(&mut self) {
        if !self.left.is_empty() {
            self.kept.lock().append(&mut self.left);
        }
    }
}

/// Uses that were not over when they were asked about.
type Pending = SmallVec<[Epoch; 8]>;

/// How the uses of a piece look to a taker. Each question is a call of the driver, so what is known
/// to be `pending` is not asked about again.
fn look(
    runtime: &Arc<Runtime>,
    thread: &mut Thread,
    uses: &Carried,
    home: Option<StreamId>,
    pending: &mut Pending,
    pen: &mut Option<Pen<'_>>,
    at: Place,
) -> Result<State> {
    let mut state = State::Over;
    for mark in &uses.0 {
        let epoch = mark.epoch();
        let is_later = |known: &Epoch| known.chain == epoch.chain && known.tick <= epoch.tick;
        if !pending.iter().any(is_later) {
            if runtime.peek(thread, mark, pen, at)? {
                continue;
            }
            pending.push(epoch);
        }
        if home != Some(mark.stream()) {
            return Ok(State::Pending);
        }
        state = State::Ordered;
    }
    Ok(state)
}

#[cold]
pub(super) fn tell_alloc(block: &Block) {
    as_thread(&block.runtime, |thread| {
        let mut pen = block.runtime.live.write();
        let Some(open) = &mut pen else { return };
        let buffer = block.state.lock().name(block, open);
        let kind = Kind::Alloc {
            buffer,
            stream: block.home,
            saw_events_of: None,
        };
        let op = plain(thread.id, kind, &mut pen, block.at);
        write(&mut pen, &op);
    });
}

/// Every address there is: the largest buffer that a log takes.
const ALL_ADDRESSES: u64 = crate::log::limits::BUFFER_BYTES;
