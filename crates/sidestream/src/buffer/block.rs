//! A piece of memory with its history.

use std::sync::Arc;

use parking_lot::Mutex;

use super::uses::Uses;
use crate::backend::Address;
use crate::device::{Grant, Place, Runtime};
use crate::log::Pen;
use crate::op::{BufferId, DeviceId, Memory, StreamId};

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
    /// What the allocator knows it by.
    pub grant: Grant,
}

/// What the lock of a block guards.
#[derive(Default)]
pub(crate) struct BlockState {
    pub uses: Uses,
    name: Option<BufferId>,
}

impl BlockState {
    pub fn new(uses: Uses) -> BlockState {
        BlockState { uses, name: None }
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

impl Drop for Block {
    fn drop(&mut self) {
        let Some(mut piece) = self.grant.take() else {
            return;
        };
        let uses = std::mem::take(&mut self.state.get_mut().uses);
        let memories = self.runtime.memories(self.memory, self.device);
        if self.runtime.live.is_on() {
            memories.tell_free(self, &mut piece);
        }
        memories.give(piece, uses);
    }
}
