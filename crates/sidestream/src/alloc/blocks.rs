//! Which block of cached memory an allocation gets.
//!
//! A freed block may still be in use on a device, so handing it out again needs a reason why that
//! is safe. The reasons are tried in the order of what they cost (the idea of RMM's stream-ordered
//! resources):
//! 1. a block of the same home stream: its stream's own order is enough, once the other streams
//!    that were noted for it are seen done;
//! 2. a block of another stream on which everything is seen done;
//! 3. new memory, up to the limit;
//! 4. a block of another stream whose last uses the taker waits for, on the device.

use crate::op::StreamId;

/// Blocks of one size. `T` is a token for "this use is over"; the caller can tell whether it is.
#[derive(Clone, Debug)]
pub struct Blocks<T> {
    blocks: Vec<Block<T>>,
    limit: Option<usize>,
}

#[derive(Clone, Debug)]
struct Block<T> {
    home: Option<StreamId>,
    is_free: bool,
    /// The last uses: which stream, and the token.
    uses: Vec<(StreamId, T)>,
}

/// What an allocation gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Grant {
    /// This block; nothing has to be waited for.
    Block(usize),
    /// This block, after the home stream of the taker waits for these streams.
    After(usize, Vec<StreamId>),
}

/// All blocks are handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// How many there are.
    pub blocks: usize,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Blocks {
            blocks: Vec::new(),
            limit: None,
        }
    }
}

impl<T> Blocks<T> {
    /// From here on there is room for this many blocks.
    pub fn set_limit(&mut self, blocks: usize) {
        self.limit = Some(blocks);
    }

    /// Hands out a block whose home is `home` (none for pinned memory, which only the host takes).
    ///
    /// # Errors
    /// If the limit is reached and no block is free that the taker could wait for.
    pub fn alloc(
        &mut self,
        home: Option<StreamId>,
        is_done: impl Fn(&T) -> bool,
    ) -> Result<Grant, OutOfMemory> {
        let done_but_for = |block: &Block<T>, but_for: Option<StreamId>| {
            let uses = block.uses.iter();
            uses.filter(|(stream, _)| Some(*stream) != but_for)
                .all(|(_, token)| is_done(token))
        };
        let free = |at: &usize| self.blocks[*at].is_free;
        let all = 0..self.blocks.len();
        let own = all.clone().filter(free).find(|&at| {
            let block = &self.blocks[at];
            block.home == home && done_but_for(block, home)
        });
        let finished = || {
            let done = |&at: &usize| done_but_for(&self.blocks[at], None);
            all.clone().filter(free).find(done)
        };
        let room = self.limit.is_none_or(|limit| self.blocks.len() < limit);
        let grant = if let Some(at) = own.or_else(finished) {
            Grant::Block(at)
        } else if room {
            self.blocks.push(Block {
                home,
                is_free: false,
                uses: Vec::new(),
            });
            Grant::Block(self.blocks.len() - 1)
        } else if let Some(at) = all.clone().find(|at| home.is_some() && free(at)) {
            let uses = self.blocks[at].uses.iter();
            let pending = uses.filter(|(stream, token)| Some(*stream) != home && !is_done(token));
            Grant::After(at, pending.map(|(stream, _)| *stream).collect())
        } else {
            return Err(OutOfMemory {
                blocks: self.blocks.len(),
            });
        };
        let (Grant::Block(at) | Grant::After(at, _)) = &grant;
        self.blocks[*at] = Block {
            home,
            is_free: false,
            uses: Vec::new(),
        };
        Ok(grant)
    }

    /// Gives a block back with its last uses. Nothing waits.
    pub fn free(&mut self, block: usize, uses: Vec<(StreamId, T)>) {
        let block = &mut self.blocks[block];
        (block.is_free, block.uses) = (true, uses);
    }
}
