//! Copies within host memory by several threads: one alone does not fill the link to a device.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use parking_lot::{Condvar, Mutex};

/// What a thread takes at once: large against the cost of taking it, small against a batch.
const CHUNK_BYTES: usize = 1 << 20;
/// Less than this is copied before another thread has woken.
const ALONE_BYTES: usize = 2 << 20;
/// More threads add nothing: eight fill the link of an H200.
const MOST_THREADS: usize = 8;

/// Bytes to copy, by address: threads hand them on, which references would not allow.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub from: usize,
    pub to: usize,
    pub bytes: usize,
}

/// Threads that copy. They start with the first batch that is large enough, and end with the ring.
pub(super) struct Copiers {
    threads: usize,
    others: Mutex<Vec<Sender<Arc<Job>>>>,
}

struct Job {
    pieces: Vec<Piece>,
    next: AtomicUsize,
    left: Mutex<usize>,
    done: Condvar,
}

/// Half of the cores, since the loader wants the others.
pub(super) fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, MOST_THREADS)
}

impl Copiers {
    pub(super) fn new(threads: usize) -> Copiers {
        Copiers {
            threads: threads.max(1),
            others: Mutex::default(),
        }
    }

    /// Copies all of it, and returns when that is done.
    ///
    /// # Safety
    /// All of it can be read and written, nobody else writes it meanwhile, and no target overlaps anything.
    pub(super) unsafe fn copy(&self, pieces: &[Piece]) {
        let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
        if self.threads == 1 || bytes < ALONE_BYTES {
            // SAFETY: the caller's promise.
            pieces.iter().for_each(|piece| unsafe { piece.copy() });
            return;
        }
        let pieces: Vec<Piece> = pieces.iter().flat_map(|piece| piece.chunks()).collect();
        let job = Arc::new(Job {
            next: AtomicUsize::new(0),
            left: Mutex::new(pieces.len()),
            done: Condvar::new(),
            pieces,
        });
        let mut others = self.others.lock();
        while others.len() + 1 < self.threads {
            match copier() {
                Some(other) => others.push(other),
                // No thread can be had: those that there are do it.
                None => break,
            }
        }
        for other in others.iter() {
            let _ = other.send(Arc::clone(&job));
        }
        job.work();
        let mut left = job.left.lock();
        while *left > 0 {
            job.done.wait(&mut left);
        }
    }
}

fn copier() -> Option<Sender<Arc<Job>>> {
    let (sender, jobs) = channel::<Arc<Job>>();
    let thread = std::thread::Builder::new().name("sidestream-copy".to_owned());
    let run = move || jobs.iter().for_each(|job| job.work());
    thread.spawn(run).ok().map(|_| sender)
}

impl Job {
    /// Copies what nobody else has taken.
    fn work(&self) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(at) else {
                return;
            };
            // SAFETY: each is taken once, and whoever made the job waits until all are done: until then
            // the promise of `Copiers::copy` holds.
            unsafe { piece.copy() };
            let mut left = self.left.lock();
            *left -= 1;
            if *left == 0 {
                self.done.notify_all();
            }
        }
    }
}

impl Piece {
    /// # Safety
    /// As [`Copiers::copy`].
    unsafe fn copy(&self) {
        let from = ptr::with_exposed_provenance::<u8>(self.from);
        let to = ptr::with_exposed_provenance_mut::<u8>(self.to);
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, self.bytes) };
    }

    fn chunks(self) -> impl Iterator<Item = Piece> {
        (0..self.bytes)
            .step_by(CHUNK_BYTES)
            .map(move |start| Piece {
                from: self.from + start,
                to: self.to + start,
                bytes: (self.bytes - start).min(CHUNK_BYTES),
            })
    }
}
