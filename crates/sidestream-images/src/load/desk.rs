//! What the workers share: the batches in work, in order, and who does what next.
//!
//! A batch goes through these stages, and one worker leads it from each to the next, outside the lock:
//!
//! 1. *Reading*: each picture's file is read and its header looked at, by any worker.
//! 2. *Laying out*: now all sizes are known. The slab is made large enough before anything is in it, and cut into pieces.
//! 3. *Decoding*: each picture is decoded into its piece, by any worker; or its file is copied there, for a GPU's engines.
//! 4. *Finishing*: broken pictures are dealt with.
//! 5. *Done*: it waits for its turn.
//!
//! Where a picture lies depends on the sizes before it and on nothing else, so it does not matter how many workers there
//! are, nor which of them was faster. Tasks of older batches come first. At most `depth` batches are in work or wait, which
//! is what holds the workers back if nobody takes any.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::{Condvar, Mutex};

use super::slab::{Piece, Slab, Whole};
use super::{At, Batch, Plan};
use crate::header::Header;
use crate::{Broken, Error, Key, Placed, Region, Result, Size};

/// Buffers for files that are larger than this are not kept.
const KEPT_BYTES: usize = 4 << 20;

pub(super) struct Desk<S: Slab> {
    pub plan: Plan,
    depth: usize,
    /// Threads do not survive a fork; what they had locked stays locked.
    process: u32,
    state: Mutex<State<S>>,
    /// Workers wait here for tasks.
    tasks: Condvar,
    /// The caller waits here for a batch.
    done: Condvar,
}

struct State<S: Slab> {
    /// The number of the first batch of `batches`. Numbers are never used again, so that what a worker brings for a batch that
    /// was thrown away is recognised.
    first: u64,
    batches: VecDeque<InWork<S>>,
    /// Where the next batch begins.
    next: At,
    free: Vec<S>,
    buffers: Vec<Vec<u8>>,
    closed: bool,
}

struct InWork<S: Slab> {
    at: At,
    pictures: Vec<Picture<S>>,
    /// The first one that nobody has taken in this stage, and how many are not through with it.
    next: usize,
    open: usize,
    stage: Stage<S>,
}

enum Stage<S: Slab> {
    Reading,
    Decoding(Whole<S>),
    /// A worker has what belongs to it.
    Away,
    Done(Result<Batch<S>>),
}

/// A picture of a batch in work.
pub(super) enum Picture<S> {
    /// Nothing has been done yet, or a worker has it.
    Open,
    Read(Read),
    Cut(Read, Placed, Piece<S>),
    Decoded(Placed, Key),
    /// Its file is in the slab, for a GPU's engines.
    Encoded(Placed, Key, Range<u64>),
    Broken(Broken),
    Failed(Error),
}

/// A file that was read, and what is wanted of it.
pub(super) struct Read {
    pub key: Key,
    pub bytes: Vec<u8>,
    /// A GPU's engines will decode it.
    pub for_engines: bool,
    pub header: Header,
    pub size: Size,
    pub region: Region,
}

pub(super) enum Task<S: Slab> {
    Read {
        batch: u64,
        index: usize,
        at: At,
        buffer: Vec<u8>,
    },
    LayOut {
        batch: u64,
        pictures: Vec<Picture<S>>,
        slab: Option<S>,
    },
    Decode {
        batch: u64,
        index: usize,
        read: Read,
        placed: Placed,
        piece: Piece<S>,
    },
    Finish {
        batch: u64,
        at: At,
        pictures: Vec<Picture<S>>,
        whole: Whole<S>,
    },
}

impl<S: Slab> Task<S> {
    pub fn batch(&self) -> u64 {
        match self {
            Task::Read { batch, .. }
            | Task::LayOut { batch, .. }
            | Task::Decode { batch, .. }
            | Task::Finish { batch, .. } => *batch,
        }
    }
}

impl<S: Slab> Desk<S> {
    pub fn new(plan: Plan, depth: usize) -> Desk<S> {
        Desk {
            plan,
            depth,
            process: std::process::id(),
            state: Mutex::new(State {
                first: 0,
                batches: VecDeque::new(),
                next: At::default(),
                free: Vec::new(),
                buffers: Vec::new(),
                closed: false,
            }),
            tasks: Condvar::new(),
            done: Condvar::new(),
        }
    }

    // -------------------------------------------------------------- for workers

    /// The next task, which may be long in coming; none when the loader is gone.
    pub fn task(&self) -> Option<Task<S>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(task) = state.find() {
                return Some(task);
            }
            if state.batches.len() < self.depth {
                state.begin(&self.plan);
                self.tasks.notify_all();
                continue;
            }
            self.tasks.wait(&mut state);
        }
    }

    /// A picture is through with the stage: it was read or decoded, or failed.
    pub fn put(&self, batch: u64, index: usize, picture: Picture<S>, buffer: Option<Vec<u8>>) {
        let mut state = self.state.lock();
        if let Some(buffer) = buffer {
            state.keep(buffer, self.plan.batch as usize * 2);
        }
        let Some(work) = state.work(batch) else {
            return;
        };
        if matches!(work.stage, Stage::Done(_)) {
            // A worker panicked over another of its pictures.
            return;
        }
        work.pictures[index] = picture;
        work.open -= 1;
        if work.open == 0 {
            self.tasks.notify_one();
        }
    }

    /// All pictures have their pieces.
    pub fn laid_out(&self, batch: u64, pictures: Vec<Picture<S>>, whole: Whole<S>) {
        let mut state = self.state.lock();
        if let Some(work) = state.work(batch) {
            work.next = 0;
            work.open = pictures
                .iter()
                .filter(|picture| matches!(picture, Picture::Cut(..)))
                .count();
            work.pictures = pictures;
            work.stage = Stage::Decoding(whole);
            self.tasks.notify_all();
        }
    }

    /// The batch is over, well or not.
    pub fn finished(&self, batch: u64, result: Result<Batch<S>>) {
        let mut state = self.state.lock();
        match state.work(batch) {
            Some(work) => {
                work.pictures = Vec::new();
                work.stage = Stage::Done(result);
                self.done.notify_all();
            }
            None => {
                drop(state);
                drop(result);
            }
        }
    }

    // -------------------------------------------------------------- for the caller

    /// Waits until the next batch is there, for so long or for ever; whether it is.
    pub fn wait(&self, until: Option<std::time::Instant>) -> bool {
        let mut state = self.state.lock();
        loop {
            if matches!(state.batches.front(), Some(work) if matches!(work.stage, Stage::Done(_))) {
                return true;
            }
            match until {
                None => self.done.wait(&mut state),
                Some(until) => {
                    if self.done.wait_until(&mut state, until).timed_out() {
                        return false;
                    }
                }
            }
        }
    }

    /// The next batch, and where it begins.
    pub fn take(&self) -> (At, Result<Batch<S>>) {
        loop {
            self.wait(None);
            let mut state = self.state.lock();
            let front = state.batches.pop_front();
            state.first += u64::from(front.is_some());
            self.tasks.notify_one();
            if let Some(InWork {
                at,
                stage: Stage::Done(result),
                ..
            }) = front
            {
                return (at, result);
            }
        }
    }

    /// Throws away all that was prepared, and goes on from there.
    pub fn go_to(&self, at: At) {
        if !self.is_here() {
            return;
        }
        let mut state = self.state.lock();
        state.first += state.batches.len() as u64;
        state.next = at;
        // Batches give their slabs back when they are dropped, for which they need the lock.
        let old = std::mem::take(&mut state.batches);
        drop(state);
        drop(old);
        self.tasks.notify_all();
    }

    /// A slab for another batch. Those beyond what the ring can use are freed.
    pub fn give_back(&self, slab: S) {
        if !self.is_here() {
            // Its memory belongs to the process that this one was forked from.
            std::mem::forget(slab);
            return;
        }
        let mut state = self.state.lock();
        if state.free.len() <= self.depth && !state.closed {
            state.free.push(slab);
            return;
        }
        drop(state);
        // To free pinned memory may take long.
        drop(slab);
    }

    /// Whether this is the process that the workers run in.
    pub fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// In which process they run.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// How many slabs lie idle.
    pub fn idle_slabs(&self) -> usize {
        self.state.lock().free.len()
    }

    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let old = (
            std::mem::take(&mut state.batches),
            std::mem::take(&mut state.free),
        );
        drop(state);
        drop(old);
        self.tasks.notify_all();
    }
}

impl<S: Slab> State<S> {
    /// The oldest batch that has something to do, and what.
    fn find(&mut self) -> Option<Task<S>> {
        let numbers = self.first..;
        for (work, batch) in self.batches.iter_mut().zip(numbers) {
            match work.stage {
                Stage::Reading if work.next < work.pictures.len() => {
                    let index = work.next;
                    work.next += 1;
                    return Some(Task::Read {
                        batch,
                        index,
                        at: At {
                            epoch: work.at.epoch,
                            place: work.at.place + index as u64,
                        },
                        buffer: self.buffers.pop().unwrap_or_default(),
                    });
                }
                Stage::Reading if work.open == 0 => {
                    work.stage = Stage::Away;
                    return Some(Task::LayOut {
                        batch,
                        pictures: std::mem::take(&mut work.pictures),
                        slab: self.free.pop(),
                    });
                }
                Stage::Decoding(_) => {
                    while let Some(picture) = work.pictures.get_mut(work.next) {
                        let index = work.next;
                        work.next += 1;
                        match std::mem::replace(picture, Picture::Open) {
                            Picture::Cut(read, placed, piece) => {
                                return Some(Task::Decode {
                                    batch,
                                    index,
                                    read,
                                    placed,
                                    piece,
                                });
                            }
                            other => *picture = other,
                        }
                    }
                    if work.open == 0 {
                        let stage = std::mem::replace(&mut work.stage, Stage::Away);
                        if let Stage::Decoding(whole) = stage {
                            return Some(Task::Finish {
                                batch,
                                at: work.at,
                                pictures: std::mem::take(&mut work.pictures),
                                whole,
                            });
                        }
                    }
                }
                Stage::Reading | Stage::Away | Stage::Done(_) => {}
            }
        }
        None
    }

    fn begin(&mut self, plan: &Plan) {
        let (at, many) = plan.from(self.next);
        let pictures = (0..many).map(|_| Picture::Open).collect();
        self.batches.push_back(InWork {
            at,
            pictures,
            next: 0,
            open: many as usize,
            stage: Stage::Reading,
        });
        self.next = At {
            place: at.place + many,
            ..at
        };
    }

    fn work(&mut self, batch: u64) -> Option<&mut InWork<S>> {
        let index = batch.checked_sub(self.first)?;
        self.batches.get_mut(usize::try_from(index).ok()?)
    }

    fn keep(&mut self, buffer: Vec<u8>, most: usize) {
        if buffer.capacity() <= KEPT_BYTES && self.buffers.len() < most {
            self.buffers.push(buffer);
        }
    }
}
