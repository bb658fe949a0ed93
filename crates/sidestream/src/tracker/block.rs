//! A piece of memory with its history.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::elsewhere::{drop_elsewhere, is_host_func, is_kernel};
use super::memory::Grant;
use super::runtime::{Place, Runtime};
use super::stream::Core;
use super::uses::Uses;
use crate::backend::Address;
use crate::log::Pen;
use crate::op::{BufferId, DeviceId, Memory, Mode, StreamId};

/// Memory that one owner holds. When it goes it takes its pending uses to the allocator; nothing
/// waits and the driver is not called.
pub(crate) struct Block {
    pub runtime: Arc<Runtime>,
    pub memory: Memory,
    pub device: DeviceId,
    pub address: Address,
    pub size_bytes: u64,
    pub home: Option<StreamId>,
    /// Where it was allocated.
    pub at: Place,
    pub state: Mutex<BlockState>,
    /// What the allocator knows it by, or the program's own memory.
    pub grant: Grant,
}

/// What the lock of a block guards.
#[derive(Default)]
pub(crate) struct BlockState {
    pub uses: Uses,
    /// Streams that foreign code uses it on: what they were given until it is dropped is a use, too.
    pub noted: SmallVec<[Arc<Core>; 1]>,
    name: Option<BufferId>,
}

impl BlockState {
    pub fn new(uses: Uses) -> BlockState {
        BlockState {
            uses,
            ..BlockState::default()
        }
    }

    /// What the log calls the block.
    pub fn name(&mut self, block: &Block, pen: &mut Pen<'_>) -> BufferId {
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

    pub fn known_name(&self) -> Option<BufferId> {
        self.name
    }
}

impl Block {
    /// Whether it would wait, where it is dropped, for a lock that is held by who waits for the calling code: a kernel is
    /// run by whoever asks the device, with any locks. For a function on the host a call may wait that finds the queue of
    /// the driver full, with the lock of the log and of its stream.
    fn has_to_leave(&mut self) -> bool {
        is_kernel()
            || is_host_func()
                && (self.runtime.live.is_on() || !self.state.get_mut().noted.is_empty())
    }

    /// The locks that it takes to give memory back may be held by whoever waits for the code that drops it.
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
        // R54: the work of a noted stream up to here. Whoever waits for it records the event.
        for core in state.noted.drain(..) {
            // As a read: it stands beside the other uses, not behind them.
            uses.note(0..self.size_bytes, Mode::Read, core.noted_end());
        }
        let memories = self.runtime.memories(self.memory, self.device);
        if self.runtime.live.is_on() {
            memories.tell_free(self);
        }
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
