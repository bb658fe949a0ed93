//! A piece of memory with its history of uses.

use std::collections::HashSet;
use std::sync::Arc;

use super::cached::{Grant, Memories};
use super::elsewhere::{drop_elsewhere, is_kernel, is_program};
use super::runtime::Runtime;
use super::streams::Core;
use super::telling::{Place, plain, write};
use super::threads::as_thread;
use super::uses::Uses;
use crate::backend::Address;
use crate::log::{Pen, Within};
use crate::op::{BufferId, DeviceId, Kind, Memory, Mode, StreamId};
use parking_lot::Mutex;

/// Memory with one owner. When it is dropped its pending uses go to the allocator with it; the drop does not wait and
/// does not call the driver.
pub(crate) struct Block {
    pub runtime: Arc<Runtime>,
    pub memory: Memory,
    pub device: DeviceId,
    pub address: Address,
    pub size_bytes: u64,
    pub home: Option<StreamId>,
    /// The source location of the allocation.
    pub at: Place,
    pub state: Mutex<BlockState>,
    /// The allocator's piece, or the program's own memory.
    pub grant: Grant,
}

/// A range of bytes of a block that a call reads or writes.
#[derive(Clone, Copy)]
pub(crate) struct Touch<'a> {
    pub block: &'a Block,
    pub start: u64,
    pub end: u64,
    pub mode: Mode,
}

impl Touch<'_> {
    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> Address {
        self.block.address.offset(self.start)
    }
}

/// The state that a block's lock guards.
#[derive(Default)]
pub(crate) struct BlockState {
    pub uses: Uses,
    /// Streams on which foreign code uses the block: all work submitted to them before the block is dropped counts as a
    /// use, too.
    noted: Option<Box<Noted>>,
    name: Option<BufferId>,
}

/// A set of streams, boxed because few blocks have one and a block is moved when it is made.
#[derive(Default)]
struct Noted {
    cores: Vec<Arc<Core>>,
    /// Addresses of the streams, used once there are too many for a linear search.
    known: HashSet<usize>,
}

/// Maximum number of streams that are searched linearly.
const FEW_NOTED: usize = 16;

impl BlockState {
    pub(crate) fn new(uses: Uses) -> BlockState {
        BlockState {
            uses,
            ..BlockState::default()
        }
    }

    /// Notes that foreign code uses the block on this stream.
    pub(crate) fn note_on(&mut self, core: &Arc<Core>) {
        let Noted { cores, known } = &mut **self.noted.get_or_insert_default();
        let at = |core: &Arc<Core>| Arc::as_ptr(core).addr();
        let is_new = match cores.len() {
            0..FEW_NOTED => !cores.iter().any(|known| Arc::ptr_eq(known, core)),
            FEW_NOTED => {
                known.extend(cores.iter().map(at));
                known.insert(at(core))
            }
            _ => known.insert(at(core)),
        };
        if is_new {
            cores.push(Arc::clone(core));
        }
    }

    /// Returns the block's id in the log.
    pub(crate) fn name(&mut self, block: &Block, pen: &mut Pen<'_>) -> BufferId {
        if let Some(name) = self.name {
            return name;
        }
        let name = block
            .runtime
            .memories(block.memory, block.device)
            .name(block, pen);
        self.name = Some(name);
        name
    }
}

/// The compiler would copy a larger type with a call of `memcpy`.
#[cfg(all(test, target_pointer_width = "64"))]
const _: () = assert!(size_of::<Block>() <= 128);

/// The whole address space: the largest buffer that a log can have.
const ALL_ADDRESSES: u64 = crate::log::limits::BUFFER_BYTES;

impl Memories {
    /// Returns the log's id for a new block. A range that is repeatedly allocated at one source location has two ids,
    /// used in turn: so the number of ids stays bounded, and a use that outlives its owner can be distinguished from
    /// the next owner's uses.
    fn name(&self, block: &Block, pen: &mut Pen<'_>) -> BufferId {
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
}

impl Block {
    /// Logs the block's allocation, if a sink is attached.
    pub(crate) fn tell_alloc(&self) {
        if self.runtime.live.is_on() {
            self.told_alloc();
        }
    }

    #[cold]
    fn told_alloc(&self) {
        as_thread(&self.runtime, |thread| {
            let mut pen = self.runtime.live.write();
            let Some(open) = &mut pen else { return };
            let buffer = self.state.lock().name(self, open);
            let kind = Kind::Alloc {
                buffer,
                stream: self.home,
                saw_events_of: None,
            };
            let op = plain(thread.id, kind, &mut pen, self.at);
            write(&mut pen, &op);
        });
    }

    /// Logs the block's free.
    #[cold]
    pub(crate) fn tell_free(&self) {
        let Some(buffer) = self.state.lock().name else {
            return;
        };
        as_thread(&self.runtime, |thread| {
            let mut pen = self.runtime.live.write();
            let mut op = plain(thread.id, Kind::Free { buffer }, &mut pen, self.at);
            if let Some(pen) = &mut pen {
                op.site = pen.site_or_drop(self.at, true);
            }
            write(&mut pen, &op);
        });
    }

    /// Returns whether dropping the block here might wait for a lock whose holder waits for the calling code; then the
    /// block is dropped on another thread. A kernel in Rust is run by the thread that asks the device, which may hold
    /// any lock. A function on the host may be waited for by a call that finds the driver's queue full while it has the
    /// locks of the log and of its stream.
    fn has_to_leave(&mut self) -> bool {
        !is_program()
            && (is_kernel() || self.runtime.live.is_on() || self.state.get_mut().noted.is_some())
    }

    /// Drops the block on another thread: a thread that waits for the calling code may hold a lock that is needed to
    /// free the block.
    #[cold]
    fn leave(&mut self, grant: Grant) {
        let state = std::mem::take(self.state.get_mut());
        drop_elsewhere(Box::new(Block {
            runtime: Arc::clone(&self.runtime),
            state: Mutex::new(state),
            grant,
            ..*self
        }));
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let grant = std::mem::take(&mut self.grant);
        let is_nothing = matches!(grant, Grant::Nothing);
        if is_nothing || !self.runtime.backend.is_this_process() {
            return;
        }
        if self.has_to_leave() {
            return self.leave(grant);
        }
        let state = self.state.get_mut();
        let mut uses = std::mem::take(&mut state.uses);
        // R54: a noted stream's work submitted so far is a use. The first wait for that use records its event.
        if let Some(noted) = state.noted.take() {
            // These uses are concurrent with the others, not ordered after them.
            let ends = noted.cores.iter().map(Core::noted_end).collect();
            uses = uses.all();
            uses.join(Uses::before(ends));
        }
        if self.runtime.live.is_on() {
            self.tell_free();
        }
        let memories = self.runtime.memories(self.memory, self.device);
        match grant {
            Grant::Piece(piece) => memories.give(piece, uses),
            Grant::Registered(vector) => {
                let registered = &self.runtime.registered;
                registered.leave(vector, self.size_bytes, uses);
            }
            Grant::Nothing => {}
        }
    }
}
