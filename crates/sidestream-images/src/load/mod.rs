//! Loads pictures: worker threads decode the pictures of an epoch into slabs, and the batches come out in order.
//!
//! ```
//! use std::sync::Arc;
//! use sidestream_images::load::{Loader, Options};
//! use sidestream_images::source::{self, Dataset};
//! use sidestream_images::{Region, Size};
//!
//! let pictures = source::samples(1).into_iter();
//! let pictures = pictures.map(|sample| (sample.name, sample.bytes, Some(sample.label)));
//! let data = Dataset::memory(pictures.collect())?;
//!
//! let options = Options { batch: 16, ..Options::default() };
//! // The upper left quarter of each picture: only that has to be decoded.
//! let quarter = |_key, size: Size| Region {
//!     left: 0,
//!     top: 0,
//!     size: Size { width: size.width / 2, height: size.height / 2 },
//! };
//! let mut loader = Loader::new(Arc::new(data), options, quarter, |bytes| Ok(vec![0; bytes]))?;
//! let mut many = 0;
//! while let Some(batch) = loader.next()? {
//!     let first = batch.placed()[0];
//!     assert_eq!(batch.pixels(0).len() as u32, first.held.size.width * first.held.size.height * 3);
//!     many += batch.len();
//! }
//! assert_eq!(many, 40);
//! # Ok::<(), sidestream_images::Error>(())
//! ```

mod desk;
mod slab;
mod state;
mod work;

pub use slab::Slab;
pub use state::State;
pub use work::ALIGN_BYTES;

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::decode::{self, size_bytes};
use crate::order::{Order, Uneven};
use crate::random::philox;
use crate::source::Dataset;
use crate::{Broken, Error, Key, Placed, Region, Result, Size};
use desk::Desk;
use work::Shared;

/// How pictures are loaded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of pictures per batch.
    pub batch: u32,
    /// Whether an incomplete batch at the end of an epoch is dropped.
    pub drop_last: bool,
    /// Seed of the order, and part of each picture's [`Key`].
    pub seed: u64,
    /// Whether the samples are shuffled; otherwise they come in the order of the data set.
    pub shuffle: bool,
    /// Rank of this process, below `world`.
    pub rank: u32,
    /// Number of ranks that share an epoch.
    pub world: u32,
    /// What happens to samples that cannot be divided evenly among the ranks.
    pub uneven: Uneven,
    /// Number of threads that read and decode. 0 means one per processor.
    pub workers: usize,
    /// Number of batches that are prepared ahead, at least 1.
    pub depth: usize,
    /// What happens to broken pictures.
    pub broken: OnBroken,
    /// How pictures are decoded.
    pub decode: decode::Options,
    /// Maximum bytes of a slab, and of the pixels of a batch including those that engines write.
    pub max_slab_bytes: u64,
    /// Share of the baseline JPEGs that is left to a GPU's [engines](decode::nvjpeg): 0, the default, is none, and 1
    /// is all. The workers decode the others concurrently. The number of a sample alone decides whether it belongs to
    /// the share, so no result depends on timing.
    ///
    /// A file for the engines is complete by its markers and need not be turned. The slab contains the file instead
    /// of its pixels: [`Batch::encoded`].
    pub engine_share: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            batch: 64,
            drop_last: false,
            seed: 0,
            shuffle: true,
            rank: 0,
            world: 1,
            uneven: Uneven::Drop,
            workers: 0,
            depth: 3,
            broken: OnBroken::Fail,
            decode: decode::Options::default(),
            max_slab_bytes: 2 << 30,
            engine_share: 0.0,
        }
    }
}

impl Options {
    /// Returns which decoders produce the pixels. A [`State`] is valid for these decoders only.
    pub fn decoder(&self) -> String {
        let processor = decode::identity();
        match self.engine_share {
            0.0 => processor.into(),
            share => format!("engines of nvJPEG for {share} of baseline JPEG, else {processor}"),
        }
    }

    /// Returns whether this sample goes to the engines if they support its file.
    fn engines_take(&self, sample: u64) -> bool {
        let [word, ..] = philox([sample as u32, (sample >> 32) as u32, 0, 0], ENGINES);
        f64::from(word) < self.engine_share * (f64::from(u32::MAX) + 1.0)
    }

    fn threads(&self) -> usize {
        match self.workers {
            0 => thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        }
    }
}

/// The key that selects the engines' share of the samples, different from every key that draws other numbers.
const ENGINES: [u32; 2] = [0x6A70_6567, 0x656E_6769];

/// What happens to a picture that cannot be decoded. In each case it is reported by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnBroken {
    /// `next` returns [`Error::Picture`], which names the first broken picture of the batch.
    #[default]
    Fail,
    /// The batch has one picture fewer. A batch with no good picture is skipped.
    Skip,
    /// The next good picture of the epoch replaces it, and so appears twice. Batches keep their size.
    Replace,
}

/// A broken picture that was skipped or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenPicture {
    /// Index in the unshuffled list.
    pub sample: u64,
    /// Path, or archive and member.
    pub name: String,
    /// What is wrong with the picture.
    pub why: Broken,
    /// The sample that replaces the broken one, if any.
    pub replaced_by: Option<u64>,
}

/// Returns the region of a picture to decode, given its key and size.
type Chooses = dyn Fn(Key, Size) -> Region + Send + Sync;
/// Allocates a slab of at least this many bytes, or returns why it cannot.
type Makes<S> = dyn Fn(usize) -> Result<S, String> + Send + Sync;

/// A position in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    pub epoch: u64,
    /// Place in this rank's part of the epoch.
    pub place: u64,
}

/// How an epoch is divided into batches.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub batch: u64,
    places: u64,
    drop_last: bool,
}

impl Plan {
    /// Returns the number of pictures in the batch that begins here, or none at the end of the epoch.
    fn many(&self, at: At) -> Option<u64> {
        let left = self.places.saturating_sub(at.place);
        let least = if self.drop_last { self.batch } else { 1 };
        (left >= least).then_some(left.min(self.batch))
    }

    /// Returns where the next batch begins, in this epoch or the next, and its number of pictures.
    fn from(&self, at: At) -> (At, u64) {
        let next = At {
            epoch: at.epoch + 1,
            place: 0,
        };
        match self.many(at) {
            Some(many) => (at, many),
            None => (next, self.many(next).unwrap_or(1)),
        }
    }
}

/// Loads pictures in batches. Dropping the loader ends its workers.
///
/// Equal data, seed and options give equal batches, independent of the number of workers, the depth and timing.
pub struct Loader<S: Slab = Vec<u8>> {
    shared: Arc<Shared<S>>,
    threads: Vec<JoinHandle<()>>,
    at: At,
    broken: u64,
    loaded: u64,
}

impl<S: Slab> Loader<S> {
    /// Starts the workers.
    ///
    /// `choose` returns the region of a picture to decode. Its result must depend on the key and the size alone, or
    /// results depend on the workers. `make` allocates slabs of at least the given number of bytes. The workers call
    /// both.
    ///
    /// # Memory
    /// There are `depth` slabs, since at most `depth` batches are prepared or wait, and one more for each batch that
    /// the caller holds. A slab that is too small for a batch is replaced by one with a quarter more than that batch
    /// needs, up to `max_slab_bytes`. Files are in memory from when they are read until they are decoded: those of at
    /// most `depth` batches.
    ///
    /// # Errors
    /// [`Error::Options`] if an option is invalid, [`Error::Worker`] if threads cannot be started.
    pub fn new(
        dataset: Arc<Dataset>,
        options: Options,
        choose: impl Fn(Key, Size) -> Region + Send + Sync + 'static,
        make: impl Fn(usize) -> Result<S, String> + Send + Sync + 'static,
    ) -> Result<Loader<S>> {
        let order = Order {
            samples: dataset.len(),
            seed: options.seed,
            shuffle: options.shuffle,
            rank: options.rank,
            world: options.world,
            uneven: options.uneven,
        };
        let order = order.checked()?;
        let refused = |why: String| Err(Error::Options(why));
        if options.batch == 0 {
            return refused(
                "`batch` is 0; give the number of pictures in a batch, at least 1".into(),
            );
        }
        if options.depth == 0 {
            return refused(
                "`depth` is 0; give the number of batches to prepare ahead, at least 1".into(),
            );
        }
        let plan = Plan {
            batch: options.batch.into(),
            places: order.len(),
            drop_last: options.drop_last,
        };
        if plan.many(At::default()).is_none() {
            return refused(format!(
                "an epoch of {} samples has no whole batch of {}; ask for smaller batches, or keep the last one",
                order.len(),
                options.batch
            ));
        }
        let share = options.engine_share;
        if !(0.0..=1.0).contains(&share) {
            return refused(format!(
                "`engine_share` is {share}; give a share of the pictures, from 0 to 1"
            ));
        }
        let workers = options.threads();
        let shared = Arc::new(Shared {
            dataset,
            order,
            desk: Desk::new(plan, options.depth),
            options,
            choose: Box::new(choose),
            make: Box::new(make),
        });
        let mut loader = Loader {
            shared,
            threads: Vec::with_capacity(workers),
            at: At::default(),
            broken: 0,
            loaded: 0,
        };
        for worker in 0..workers {
            let shared = Arc::clone(&loader.shared);
            let named = thread::Builder::new().name(format!("images-{worker}"));
            let started = named.spawn(move || work::work(&shared));
            // Dropping the loader ends the threads that were started.
            let started =
                started.map_err(|error| Error::Worker(format!("it cannot be started: {error}")))?;
            loader.threads.push(started);
        }
        Ok(loader)
    }

    /// Returns the next batch of the epoch; `None` once at its end, after which the next epoch begins.
    ///
    /// # Ordering
    /// Blocks until the batch is ready. The workers continue to prepare batches, also beyond the end of an epoch.
    ///
    /// # Errors
    /// The error of this batch. The next call returns the batch after it.
    #[expect(
        clippy::should_implement_trait,
        reason = "an epoch ends, and another begins; an iterator ends once"
    )]
    pub fn next(&mut self) -> Result<Option<Batch<S>>> {
        self.same_process()?;
        loop {
            let Some(many) = self.shared.desk.plan.many(self.at) else {
                self.at = At {
                    epoch: self.at.epoch + 1,
                    place: 0,
                };
                return Ok(None);
            };
            let (at, result) = self.shared.desk.take();
            debug_assert_eq!(at, self.at);
            self.at.place += many;
            let batch = result?;
            self.broken += batch.broken.len() as u64;
            self.loaded += batch.len() as u64;
            if !batch.is_empty() {
                return Ok(Some(batch));
            }
        }
    }

    /// Loads a batch again with all its pictures decoded on the CPU, for a batch whose files the engines
    /// refused. Broken pictures are treated as in any batch; returns none if all pictures are broken.
    ///
    /// # Ordering
    /// Reads and decodes on additional threads, concurrently with the workers, and blocks until that is done.
    ///
    /// # Errors
    /// As `next`.
    pub fn on_processor(&mut self, batch: &Batch<S>) -> Result<Option<Batch<S>>> {
        self.same_process()?;
        let at = At {
            epoch: batch.epoch,
            place: batch.first_place,
        };
        // The given batch is not used, and may have been passed here before.
        self.broken = self.broken.saturating_sub(batch.broken.len() as u64);
        self.loaded = self.loaded.saturating_sub(batch.len() as u64);
        let many = self.shared.desk.plan.many(at).unwrap_or(0);
        let batch = self.shared.on_processor(at, many)?;
        self.broken += batch.broken.len() as u64;
        self.loaded += batch.len() as u64;
        Ok(Some(batch).filter(|batch| !batch.is_empty()))
    }

    /// Blocks until [`next`](Loader::next) would return at once, but at most for this long. Returns whether it would.
    ///
    /// # Errors
    /// As `next` if the loader belongs to another process.
    pub fn ready(&self, within: Duration) -> Result<bool> {
        self.same_process()?;
        if self.shared.desk.plan.many(self.at).is_none() {
            return Ok(true);
        }
        Ok(self.shared.desk.wait(Some(Instant::now() + within)))
    }

    /// Continues at the beginning of an epoch. Batches that the workers have prepared are discarded.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.go_to(At { epoch, place: 0 });
    }

    pub(crate) fn go_to(&mut self, at: At) {
        if at != self.at {
            self.shared.desk.go_to(at);
            self.at = at;
        }
    }

    /// Returns the number of the epoch that the next batch belongs to, if there is one left in it.
    pub fn epoch(&self) -> u64 {
        self.at.epoch
    }

    /// Returns the number of batches in a whole epoch.
    pub fn batches(&self) -> u64 {
        let plan = self.shared.desk.plan;
        if plan.drop_last {
            plan.places / plan.batch
        } else {
            plan.places.div_ceil(plan.batch)
        }
    }

    /// Returns the number of pictures that were returned so far.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Returns the number of broken pictures that were skipped or replaced so far. [`Batch::broken`] names them.
    pub fn broken(&self) -> u64 {
        self.broken
    }

    /// Returns the data set.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.shared.dataset
    }

    /// Returns the order of the samples.
    pub fn order(&self) -> &Order {
        &self.shared.order
    }

    /// Returns the options that the loader was made with.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Returns the number of slabs that are not in use by a worker or by the caller.
    pub fn idle_slabs(&self) -> usize {
        self.shared.desk.idle_slabs()
    }

    /// Gives back a slab that was taken out of a batch, for reuse by another one.
    pub fn give_back(&self, slab: S) {
        self.shared.desk.give_back(slab);
    }

    pub(crate) fn plan(&self) -> Plan {
        self.shared.desk.plan
    }

    pub(crate) fn at(&self) -> At {
        self.at
    }

    fn same_process(&self) -> Result<()> {
        if self.shared.desk.is_here() {
            Ok(())
        } else {
            Err(Error::Worker(format!(
                "its threads run in process {}, from which this one was forked; make a loader in each process",
                self.shared.desk.process()
            )))
        }
    }
}

impl<S: Slab> Drop for Loader<S> {
    fn drop(&mut self) {
        if !self.shared.desk.is_here() {
            // The threads do not exist in this process, and a lock that one of them had taken stays locked forever.
            std::mem::forget(Arc::clone(&self.shared));
            std::mem::take(&mut self.threads)
                .into_iter()
                .for_each(std::mem::forget);
            return;
        }
        self.shared.desk.close();
        for thread in self.threads.drain(..) {
            // The batch on which the worker panicked has reported the panic.
            let _ = thread.join();
        }
    }
}

/// A picture that engines are to decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForEngines {
    /// Index of the picture in the batch.
    pub picture: usize,
    /// Bytes of the slab that are the file.
    pub file: Range<u64>,
}

/// Pictures one after another in a slab. Dropping the batch gives the slab back to the loader.
///
/// With [`Options::engine_share`] the slab begins with the files that the engines decode, and the
/// [pixels](Batch::decoded) of the other pictures follow. Those pixels go to the beginning of a device buffer, and
/// the offsets of [`Placed`] count from there; after them there is room for each picture of the engines.
pub struct Batch<S: Slab = Vec<u8>> {
    /// None after the caller took the slab out.
    slab: Option<S>,
    home: Weak<Shared<S>>,
    epoch: u64,
    first_place: u64,
    decoded: Range<u64>,
    encoded: Vec<ForEngines>,
    pixels_bytes: u64,
    placed: Vec<Placed>,
    keys: Vec<Key>,
    labels: Vec<Option<u32>>,
    broken: Vec<BrokenPicture>,
}

impl<S: Slab> Batch<S> {
    /// Returns the number of pictures.
    pub fn len(&self) -> usize {
        self.placed.len()
    }

    /// Returns whether the batch has no pictures, which [`Loader::next`] never returns.
    pub fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    /// Returns where each picture is. Offsets are multiples of [`ALIGN_BYTES`].
    pub fn placed(&self) -> &[Placed] {
        &self.placed
    }

    /// Returns the key of each picture's random numbers.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns the label of each picture, if the data has any.
    pub fn labels(&self) -> &[Option<u32>] {
        &self.labels
    }

    /// Returns the pictures that were skipped or replaced in this batch.
    pub fn broken(&self) -> &[BrokenPicture] {
        &self.broken
    }

    /// Returns the epoch that the batch belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns where in this rank's part of the epoch the batch begins.
    pub fn first_place(&self) -> u64 {
        self.first_place
    }

    /// Returns how many bytes of the slab are used, from its beginning. The slab is longer.
    pub fn used_bytes(&self) -> u64 {
        self.decoded.end
    }

    /// Returns the range of the pixels in the slab: from its beginning, unless there are files for engines before
    /// them.
    pub fn decoded(&self) -> Range<u64> {
        self.decoded.clone()
    }

    /// Returns the pictures that engines are to decode, each to the place in its [`Placed`].
    pub fn encoded(&self) -> &[ForEngines] {
        &self.encoded
    }

    /// Returns the number of bytes in the pixels of all pictures, including those of the engines.
    pub fn pixels_bytes(&self) -> u64 {
        self.pixels_bytes
    }

    /// Returns the slab, or an empty slice if it was taken out.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.slab.as_mut().map_or(&mut [], |slab| slab.bytes())
    }

    /// Puts a slab into a batch that has none; it goes back to the loader with the batch.
    pub fn put_slab(&mut self, slab: S) {
        self.slab.get_or_insert(slab);
    }

    /// Takes the slab out, to hand it to a stream. Give it back with [`Loader::give_back`] when it is idle again;
    /// otherwise the loader allocates another one.
    pub fn take_slab(&mut self) -> Option<S> {
        self.slab.take()
    }
}

impl<S: Slab + AsRef<[u8]>> Batch<S> {
    /// Returns the pixels of a picture: rows of red, green and blue bytes.
    ///
    /// # Panics
    /// If there are not as many pictures, the picture is for engines, or the slab was taken out.
    #[track_caller]
    pub fn pixels(&self, picture: usize) -> &[u8] {
        let placed = self.placed[picture];
        let slab = self.slab.as_ref().expect("the slab is still in the batch");
        let decoded = self.decoded.start as usize..self.decoded.end as usize;
        &slab.as_ref()[decoded][placed.offset as usize..][..size_bytes(placed.held.size) as usize]
    }
}

impl<S: Slab> Drop for Batch<S> {
    fn drop(&mut self) {
        if let (Some(slab), Some(home)) = (self.slab.take(), self.home.upgrade()) {
            home.desk.give_back(slab);
        }
    }
}
