//! Worker threads decode the pictures of an epoch into slabs, and batches come out in order.
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
//! // The upper left quarter of each picture: no more of it has to be decoded.
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
    /// How many pictures a batch has.
    pub batch: u32,
    /// Whether an epoch ends before a batch that would have fewer.
    pub drop_last: bool,
    /// What the order is drawn from, and part of each picture's [`Key`].
    pub seed: u64,
    /// Whether there is a drawn order; without it the samples come as the data lists them.
    pub shuffle: bool,
    /// Which rank this is, of `world`.
    pub rank: u32,
    /// How many ranks share an epoch.
    pub world: u32,
    /// What becomes of samples that cannot be shared out evenly.
    pub uneven: Uneven,
    /// How many threads read and decode. 0 stands for as many as there are processors.
    pub workers: usize,
    /// How many batches are prepared ahead, at least 1.
    pub depth: usize,
    /// What becomes of broken pictures.
    pub broken: OnBroken,
    /// How pictures are decoded.
    pub decode: decode::Options,
    /// How many bytes a slab may have, and the pixels of a batch with those that engines write.
    pub max_slab_bytes: u64,
    /// Which part of the baseline JPEGs is left to a GPU's [engines](decode::nvjpeg): 0 none, which is the default, and 1 all. Of
    /// the rest the workers take care beside them. Which file belongs to which part, its number alone decides, so that no
    /// result depends on who was faster.
    ///
    /// What is left is whole by its marks, and not to be turned. Its file comes in the slab instead of its pixels:
    /// [`Batch::encoded`].
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
    /// Which decoders make the pixels. Part of what a [`State`] is bound to.
    pub fn decoder(&self) -> String {
        let processor = decode::identity();
        match self.engine_share {
            0.0 => processor.into(),
            share => format!("engines of nvJPEG for {share} of baseline JPEG, else {processor}"),
        }
    }

    /// Whether engines get this sample, if it is for them.
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

/// The key by which samples are shared out, so that it is none by which anything else is drawn.
const ENGINES: [u32; 2] = [0x6A70_6567, 0x656E_6769];

/// What becomes of a picture that cannot be decoded. In any case it is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnBroken {
    /// The batch is an error, [`Error::Picture`], which names the first of its broken pictures.
    #[default]
    Fail,
    /// The batch has one fewer. A batch of broken pictures alone does not come at all.
    Skip,
    /// The next good picture of the epoch stands in for it, which so comes twice. Batches keep their size.
    Replace,
}

/// A picture that was left out or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenPicture {
    /// Its place in the unshuffled list.
    pub sample: u64,
    /// Its path, or archive and member.
    pub name: String,
    /// What is wrong with it.
    pub why: Broken,
    /// Which sample stands in for it, if one does.
    pub replaced_by: Option<u64>,
}

/// Which part of a picture is wanted, given its key and size.
type Chooses = dyn Fn(Key, Size) -> Region + Send + Sync;
/// Makes a slab of at least so many bytes, or says why not.
type Makes<S> = dyn Fn(usize) -> Result<S, String> + Send + Sync;

/// Where an epoch stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    pub epoch: u64,
    /// In this rank's part of it.
    pub place: u64,
}

/// How an epoch is cut into batches.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub batch: u64,
    places: u64,
    drop_last: bool,
}

impl Plan {
    /// How many pictures the batch has that begins there; none if the epoch is over.
    fn many(&self, at: At) -> Option<u64> {
        let left = self.places.saturating_sub(at.place);
        let least = if self.drop_last { self.batch } else { 1 };
        (left >= least).then_some(left.min(self.batch))
    }

    /// Where the next batch begins, in this epoch or the next, and how many pictures it has.
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

/// Loads pictures in batches. Dropping it ends its workers.
///
/// Equal data, seed and options give equal batches, whatever the number of workers, the depth and the machine's mood.
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
    /// `choose` is asked which part of a picture is wanted; it has to answer from the key and the size alone, or results
    /// depend on the workers. `make` makes slabs of at least so many bytes. Both are called by the workers.
    ///
    /// # Memory
    /// At most `depth` batches are prepared or wait: so many slabs there are, and one more for each batch that the caller
    /// holds. A slab that is too small for a batch is replaced by one with a quarter more than that batch needs, up to
    /// `max_slab_bytes`. Files are in memory from being read to being decoded, which is at most `depth` batches.
    ///
    /// # Errors
    /// [`Error::Options`] for options that cannot be, [`Error::Worker`] if threads cannot be started.
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
                "`batch` is 0; it is how many pictures a batch has, so at least 1".into(),
            );
        }
        if options.depth == 0 {
            return refused(
                "`depth` is 0; it is how many batches are prepared ahead, so at least 1".into(),
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
                "`engine_share` is {share}; it is a part of the pictures, from 0 to 1"
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
            // Those that were started end with the loader.
            let started =
                started.map_err(|error| Error::Worker(format!("it cannot be started: {error}")))?;
            loader.threads.push(started);
        }
        Ok(loader)
    }

    /// The next batch of the epoch; `None` once at its end, after which the next epoch begins.
    ///
    /// # Ordering
    /// It waits until the batch is there. The workers go on preparing what follows, beyond the end of an epoch too.
    ///
    /// # Errors
    /// What befell this batch. The next call gives the batch after it.
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

    /// The same batch with all its pictures decoded on the processor, for one whose files engines refused. What is broken is dealt
    /// with as in any batch; nothing comes if all of it is.
    ///
    /// # Ordering
    /// It reads and decodes on threads of its own, beside the workers, and returns when that is done.
    ///
    /// # Errors
    /// As `next`.
    pub fn on_processor(&mut self, batch: &Batch<S>) -> Result<Option<Batch<S>>> {
        self.same_process()?;
        let at = At {
            epoch: batch.epoch,
            place: batch.first_place,
        };
        // It does not come out, and may have been given here before.
        self.broken = self.broken.saturating_sub(batch.broken.len() as u64);
        self.loaded = self.loaded.saturating_sub(batch.len() as u64);
        let many = self.shared.desk.plan.many(at).unwrap_or(0);
        let batch = self.shared.on_processor(at, many)?;
        self.broken += batch.broken.len() as u64;
        self.loaded += batch.len() as u64;
        Ok(Some(batch).filter(|batch| !batch.is_empty()))
    }

    /// Waits until [`next`](Loader::next) would not wait, but no longer than this; whether it would not.
    ///
    /// # Errors
    /// As `next`, of a loader that belongs to another process.
    pub fn ready(&self, within: Duration) -> Result<bool> {
        self.same_process()?;
        if self.shared.desk.plan.many(self.at).is_none() {
            return Ok(true);
        }
        Ok(self.shared.desk.wait(Some(Instant::now() + within)))
    }

    /// Goes to the beginning of an epoch. What workers have prepared is thrown away.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.go_to(At { epoch, place: 0 });
    }

    pub(crate) fn go_to(&mut self, at: At) {
        if at != self.at {
            self.shared.desk.go_to(at);
            self.at = at;
        }
    }

    /// The number of the epoch that the next batch belongs to, if there is one left in it.
    pub fn epoch(&self) -> u64 {
        self.at.epoch
    }

    /// How many batches an epoch has, from its beginning.
    pub fn batches(&self) -> u64 {
        let plan = self.shared.desk.plan;
        match plan.drop_last {
            true => plan.places / plan.batch,
            false => plan.places.div_ceil(plan.batch),
        }
    }

    /// How many pictures came out so far.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// How many broken pictures were skipped or replaced so far. [`Batch::broken`] names them.
    pub fn broken(&self) -> u64 {
        self.broken
    }

    /// The data.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.shared.dataset
    }

    /// The order of the samples.
    pub fn order(&self) -> &Order {
        &self.shared.order
    }

    /// What it was made with.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Slabs that lie idle. With what is in work and what the caller holds, these are all there are.
    pub fn idle_slabs(&self) -> usize {
        self.shared.desk.idle_slabs()
    }

    /// A slab that was taken out of a batch, for another one.
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
        match self.shared.desk.is_here() {
            true => Ok(()),
            false => Err(Error::Worker(format!(
                "its threads run in process {}, from which this one was forked; make a loader in each process",
                self.shared.desk.process()
            ))),
        }
    }
}

impl<S: Slab> Drop for Loader<S> {
    fn drop(&mut self) {
        if !self.shared.desk.is_here() {
            // There are no threads here, and whoever held the lock holds it for ever.
            std::mem::forget(Arc::clone(&self.shared));
            std::mem::take(&mut self.threads)
                .into_iter()
                .for_each(std::mem::forget);
            return;
        }
        self.shared.desk.close();
        for thread in self.threads.drain(..) {
            // A panic has been told by the batch that it befell.
            let _ = thread.join();
        }
    }
}

/// A picture that engines are to decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForEngines {
    /// Its place in the batch.
    pub picture: usize,
    /// Where its file lies in the slab.
    pub file: Range<u64>,
}

/// Pictures behind each other in a slab. Dropping it gives the slab back to the loader.
///
/// With [`Options::engine_share`] the slab begins with the files of those that engines decode, and the [pixels](Batch::decoded) of the
/// others follow. Those go to the beginning of a device's memory; [`Placed`] counts from there, and behind them there is
/// a place for each picture of the engines.
pub struct Batch<S: Slab = Vec<u8>> {
    /// Taken out by the caller, or here.
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
    /// How many pictures.
    pub fn len(&self) -> usize {
        self.placed.len()
    }

    /// Whether there are none, which [`Loader::next`] does not give.
    pub fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    /// Where each picture lies. Offsets are multiples of [`ALIGN_BYTES`].
    pub fn placed(&self) -> &[Placed] {
        &self.placed
    }

    /// What each picture's random numbers are drawn from.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The label of each picture, if the data has any.
    pub fn labels(&self) -> &[Option<u32>] {
        &self.labels
    }

    /// The pictures that should have been in it.
    pub fn broken(&self) -> &[BrokenPicture] {
        &self.broken
    }

    /// The epoch that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where in this rank's part of the epoch it begins.
    pub fn first_place(&self) -> u64 {
        self.first_place
    }

    /// How many bytes of the slab are used, from its beginning. The slab is longer.
    pub fn used_bytes(&self) -> u64 {
        self.decoded.end
    }

    /// Where the pixels are in the slab: from its beginning, unless there are files for engines before them.
    pub fn decoded(&self) -> Range<u64> {
        self.decoded.clone()
    }

    /// What engines are to decode, each to where its [`Placed`] says.
    pub fn encoded(&self) -> &[ForEngines] {
        &self.encoded
    }

    /// How many bytes the pixels of all pictures have, those of the engines too.
    pub fn pixels_bytes(&self) -> u64 {
        self.pixels_bytes
    }

    /// The slab, or nothing if it was taken out.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.slab.as_mut().map_or(&mut [], |slab| slab.bytes())
    }

    /// Puts a slab in, where there is none: it goes back to the loader with the batch.
    pub fn put_slab(&mut self, slab: S) {
        self.slab.get_or_insert(slab);
    }

    /// Takes the slab out, to hand it to a stream. [`Loader::give_back`] takes it when it is idle again; if it never comes
    /// back, another one is made.
    pub fn take_slab(&mut self) -> Option<S> {
        self.slab.take()
    }
}

impl<S: Slab + AsRef<[u8]>> Batch<S> {
    /// The pixels of a picture: rows of red, green and blue bytes.
    ///
    /// # Panics
    /// If there are not so many, it is for engines, or the slab was taken out.
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
