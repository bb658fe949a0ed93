//! The state that the workers share: the unfinished batches in order, and which task comes next.
//!
//! A batch goes through these stages; one worker moves it from each stage to the next, outside the lock:
//!
//! 1. *Reading*: any worker reads the file of a picture and its header.
//! 2. *Laying out*: now all sizes are known. The slab is made large enough while it is still empty, and cut into
//!    pieces.
//! 3. *Decoding*: any worker decodes a picture into its piece, or copies its file there for a GPU's engines.
//! 4. *Finishing*: broken pictures are skipped or replaced.
//! 5. *Done*: the batch waits for the caller to take it.
//!
//! The place of a picture depends only on the sizes of those before it, so neither the number of workers nor their
//! speed matters. Tasks of older batches come first. At most `depth` batches are unfinished or wait to be taken; this
//! bounds how far the workers run ahead if the caller takes none.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::{Condvar, Mutex};

use super::slab::{Piece, Slab, Whole};
use super::{At, Batch, Plan};
use crate::header::Header;
use crate::{Broken, Error, Key, Placed, Region, Result, Size};

/// Larger file buffers are not kept for reuse.
const KEPT_BYTES: usize = 4 << 20;

pub(super) struct Desk<S: Slab> {
    pub plan: Plan,
    depth: usize,
    /// The process that started the workers. Threads do not survive a fork, and locks that they had taken stay
    /// locked.
    process: u32,
    state: Mutex<State<S>>,
    /// Workers wait here for tasks.
    tasks: Condvar,
    /// The caller waits here for a batch.
    done: Condvar,
}

struct State<S: Slab> {
    /// Number of the first batch in `batches`. Numbers are never reused, so that the result of a worker for a batch
    /// that was discarded is recognised.
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
    /// The first picture that no worker has taken in this stage, and how many have not finished the stage.
    next: usize,
    open: usize,
    stage: Stage<S>,
}

enum Stage<S: Slab> {
    Reading,
    Decoding(Whole<S>),
    /// A worker has the batch's data.
    Away,
    Done(Result<Batch<S>>),
}

/// A picture of an unfinished batch.
pub(super) enum Picture<S> {
    /// Nothing has been done yet, or a worker has it.
    Open,
    Read(Read),
    Cut(Read, Placed, Piece<S>),
    Decoded(Placed, Key),
    /// The file is in the slab, for a GPU's engines.
    Encoded(Placed, Key, Range<u64>),
    Broken(Broken),
    Failed(Error),
}

/// A file that was read, and the region of the picture to decode.
pub(super) struct Read {
    pub key: Key,
    pub bytes: Vec<u8>,
    /// Whether a GPU's engines will decode the file.
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

    /// Waits for the next task and returns it; returns none when the loader has been dropped.
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

    /// Stores a picture that has finished the stage: it was read or decoded, or failed.
    pub fn put(&self, batch: u64, index: usize, picture: Picture<S>, buffer: Option<Vec<u8>>) {
        let mut state = self.state.lock();
        if let Some(buffer) = buffer {
            state.keep(buffer, self.plan.batch as usize * 2);
        }
        let Some(work) = state.work(batch) else {
            return;
        };
        if matches!(work.stage, Stage::Done(_)) {
            // A worker panicked on another picture of the batch.
            return;
        }
        work.pictures[index] = picture;
        work.open -= 1;
        if work.open == 0 {
            self.tasks.notify_one();
        }
    }

    /// Stores the pieces of all pictures and starts decoding.
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

    /// Marks the batch as done, with its pictures or an error.
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

    /// Waits until the next batch is done, at most until `until`, and returns whether it is done.
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

    /// Returns the next batch, and where it begins.
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

    /// Discards all batches that were prepared, and continues from `at`.
    pub fn go_to(&self, at: At) {
        if !self.is_here() {
            return;
        }
        let mut state = self.state.lock();
        state.first += state.batches.len() as u64;
        state.next = at;
        // Dropped batches give back their slabs, for which they need the lock.
        let old = std::mem::take(&mut state.batches);
        drop(state);
        drop(old);
        self.tasks.notify_all();
    }

    /// Takes a slab for reuse by another batch. Slabs beyond the size of the ring are freed.
    pub fn give_back(&self, slab: S) {
        if !self.is_here() {
            // The memory belongs to the process that this one was forked from.
            std::mem::forget(slab);
            return;
        }
        let mut state = self.state.lock();
        if state.free.len() <= self.depth && !state.closed {
            state.free.push(slab);
            return;
        }
        drop(state);
        // Freeing pinned memory may take long, so the lock is not held.
        drop(slab);
    }

    /// Returns whether the workers run in this process.
    pub fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the id of the process in which the workers run.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Returns the number of slabs that no batch uses.
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
    /// Finds the oldest batch with work to do, and returns the task.
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
