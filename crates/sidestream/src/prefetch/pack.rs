//! Copies within host memory by several threads: one thread alone is slower than the link to a device.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use parking_lot::{Condvar, Mutex};

/// The bytes that a thread copies at a time: many compared to the cost of taking a chunk, few compared to a batch.
const CHUNK_BYTES: usize = 1 << 20;
/// Below this size, one thread has copied all bytes before another thread has woken.
const ALONE_BYTES: usize = 2 << 20;
/// The largest number of threads: eight saturate the link of an H200.
const MOST_THREADS: usize = 8;

/// Bytes to copy, by address: threads pass them on, which references would not allow.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub from: usize,
    pub to: usize,
    pub bytes: usize,
}

/// The copying threads. They start with the first batch that is large enough, and end with the ring.
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

/// Returns the default number of threads: half of the cores, since the loader needs the others.
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

    /// Copies all pieces, and returns when that is done.
    ///
    /// # Safety
    /// All sources are readable and all targets writable, nothing else writes them meanwhile, and no target overlaps any
    /// other piece.
    pub(super) unsafe fn copy(&self, pieces: &[Piece]) {
        let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
        if self.threads == 1 || bytes < ALONE_BYTES {
            // SAFETY: guaranteed by the caller.
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
                // No further thread can be started: the existing ones do the work.
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
    /// Copies chunks that no other thread has taken.
    fn work(&self) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(at) else {
                return;
            };
            // SAFETY: each piece is taken once, and the caller of `Copiers::copy` waits until all are done; until then
            // its guarantee holds.
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
    /// As for [`Copiers::copy`].
    unsafe fn copy(&self) {
        let from = ptr::with_exposed_provenance::<u8>(self.from);
        let to = ptr::with_exposed_provenance_mut::<u8>(self.to);
        // SAFETY: guaranteed by the caller.
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
