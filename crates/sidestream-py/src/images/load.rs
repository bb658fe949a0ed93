//! The loader behind `sidestream.images.Loader`.
//!
//! Slabs are memory of this module's own, or tensors that PyTorch pinned. Of the latter each batch gets a new one: PyTorch
//! keeps a pinned tensor that was let go until the copies from it are over, which nobody here could know.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use sidestream_images::load::{Batch, Loader, OnBroken, Options, Slab, State};
use sidestream_images::order::Uneven;
use sidestream_images::source::{self, Dataset};
use sidestream_images::{Key, Region, Size, decode};

use super::augment::AugmentPlan;
use super::of_images;

/// Batches of pictures.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct ImageLoader {
    /// Nothing once it is closed.
    loader: Mutex<Option<Loader<Memory>>>,
    dataset: Arc<Dataset>,
}

/// Pictures behind each other in one slab.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct ImageBatch {
    batch: Mutex<Batch<Memory>>,
}

/// Where the bytes of a slab are.
pub enum Memory {
    Own(Vec<u8>),
    /// A tensor that nobody else has yet, its address and its bytes.
    Tensor(Py<PyAny>, usize, usize),
}

impl Slab for Memory {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            // SAFETY: the tensor says so of its own memory, stays as long as this, and is handed out only after the loader has
            // let go of the slab.
            Memory::Tensor(_, address, bytes) => unsafe {
                std::slice::from_raw_parts_mut(
                    std::ptr::with_exposed_provenance_mut(*address),
                    *bytes,
                )
            },
        }
    }
}

/// How long a wait lasts before signals are looked at.
const TURN: Duration = Duration::from_millis(100);

/// Which sample, its name, what is wrong with it, and which sample replaced it.
type Broken = (u64, String, String, Option<u64>);

#[pymethods]
impl ImageLoader {
    /// `pin` makes a tensor of so many bytes, and gives it with its address; without it memory is pageable. Of `augment`, a plan and its
    /// seed, pictures are decoded as far as their results need them.
    #[new]
    #[pyo3(signature = (paths, *, classes, batch_size, seed, shuffle, drop_last, rank, world, repeat, workers, depth, broken, faulty,
                        orientation, max_pixels, max_file_bytes, max_slab_bytes, pin, augment, engine_share))]
    #[expect(
        clippy::too_many_arguments,
        reason = "each is an option of the class that Python's users meet"
    )]
    fn new(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        classes: Option<Vec<String>>,
        batch_size: u32,
        seed: u64,
        shuffle: bool,
        drop_last: bool,
        rank: u32,
        world: u32,
        repeat: bool,
        workers: usize,
        depth: usize,
        broken: &str,
        faulty: bool,
        orientation: bool,
        max_pixels: u64,
        max_file_bytes: u64,
        max_slab_bytes: u64,
        pin: Option<Py<PyAny>>,
        augment: Option<(Py<AugmentPlan>, u64)>,
        engine_share: f64,
    ) -> PyResult<ImageLoader> {
        let broken = match broken {
            "raise" => OnBroken::Fail,
            "skip" => OnBroken::Skip,
            "replace" => OnBroken::Replace,
            other => {
                let why =
                    format!("`broken` is {other:?}; it is \"raise\", \"skip\" or \"replace\"");
                return Err(PyValueError::new_err(why));
            }
        };
        let options = Options {
            batch: batch_size,
            drop_last,
            seed,
            shuffle,
            rank,
            world,
            uneven: if repeat { Uneven::Repeat } else { Uneven::Drop },
            workers,
            depth,
            broken,
            decode: decode::Options {
                max_pixels,
                damage: if faulty {
                    decode::Damage::Accept
                } else {
                    decode::Damage::Refuse
                },
                orient: orientation,
                ..decode::Options::default()
            },
            max_slab_bytes,
            engine_share,
        };
        let augment = augment.map(|(plan, seed)| (plan.get().plan().clone(), seed));
        let choose = move |key: Key, size: Size| {
            let Some((plan, seed)) = &augment else {
                return Region::whole(size);
            };
            // Where no region can be said, drawing the batch says why.
            let key = Key { seed: *seed, ..key };
            plan.region(key, size)
                .unwrap_or_else(|_| Region::whole(size))
        };
        // Folders may be large and far away.
        let opened = py.detach(|| {
            let dataset = open(&paths, classes.as_deref())?;
            let dataset = Arc::new(dataset.with_max_file_bytes(max_file_bytes));
            let make = move |bytes| memory(pin.as_ref(), bytes);
            let loader = Loader::new(Arc::clone(&dataset), options, choose, make)?;
            Ok((loader, dataset))
        });
        let (loader, dataset) = opened.map_err(of_images)?;
        Ok(ImageLoader {
            loader: Mutex::new(Some(loader)),
            dataset,
        })
    }

    /// The next batch, or nothing at the end of an epoch. Other threads run meanwhile, and a signal ends the wait.
    fn next(&self, py: Python<'_>) -> PyResult<Option<ImageBatch>> {
        loop {
            let next = py.detach(|| {
                let mut guard = self.loader.lock();
                let Some(loader) = guard.as_mut() else {
                    return Ok(Err(()));
                };
                match loader.ready(TURN)? {
                    true => loader.next().map(|batch| Ok(Some(batch))),
                    false => Ok(Ok(None)),
                }
            });
            match next.map_err(of_images)? {
                Err(()) => return Err(closed()),
                Ok(Some(batch)) => {
                    return Ok(batch.map(|batch| ImageBatch {
                        batch: Mutex::new(batch),
                    }));
                }
                Ok(None) => py.check_signals()?,
            }
        }
    }

    /// The same batch without engines, for one that they refused; nothing if all of it is broken.
    fn on_processor(&self, py: Python<'_>, batch: &ImageBatch) -> PyResult<Option<ImageBatch>> {
        let made = self.with(py, |loader| loader.on_processor(&batch.batch.lock()))?;
        Ok(made.map(|batch| ImageBatch {
            batch: Mutex::new(batch),
        }))
    }

    /// Ends the workers. Batches that were handed out stay.
    fn close(&self, py: Python<'_>) {
        // A worker may just need the interpreter to make a tensor.
        py.detach(|| drop(self.loader.lock().take()));
    }

    /// Where it stands, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.state().to_json()))
    }

    /// Goes where the state says.
    fn load_state(&self, py: Python<'_>, json: &str) -> PyResult<()> {
        self.with(py, |loader| loader.load_state(&State::from_json(json)?))
    }

    /// Goes to the beginning of an epoch.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| {
            loader.set_epoch(epoch);
            Ok(())
        })
    }

    /// The number of the epoch.
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.epoch()))
    }

    /// Batches of an epoch.
    fn batches(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.batches()))
    }

    /// Pictures that came out, and broken ones that did not.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |loader| Ok((loader.loaded(), loader.broken())))
    }

    /// The names of the classes.
    fn classes(&self) -> Vec<String> {
        self.dataset.classes().to_vec()
    }

    /// How many samples there are, for all ranks.
    fn samples(&self) -> u64 {
        self.dataset.len()
    }

    /// What a sample is called.
    fn name(&self, sample: u64) -> PyResult<String> {
        if sample >= self.dataset.len() {
            let why = format!(
                "there are {} samples, and {sample} is none of them",
                self.dataset.len()
            );
            return Err(pyo3::exceptions::PyIndexError::new_err(why));
        }
        Ok(self.dataset.name(sample))
    }
}

impl ImageBatch {
    /// What the loader gave.
    pub fn batch(&self) -> &Mutex<Batch<Memory>> {
        &self.batch
    }
}

impl ImageLoader {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&mut Loader<Memory>) -> sidestream_images::Result<R> + Send,
    ) -> PyResult<R> {
        let answer = py.detach(|| self.loader.lock().as_mut().map(ask));
        answer.ok_or_else(closed)?.map_err(of_images)
    }
}

impl Drop for ImageLoader {
    fn drop(&mut self) {
        if let Some(loader) = self.loader.get_mut().take() {
            // As in `close`. Where the interpreter is ending, no worker gets it any more either.
            Python::attach(|py| py.detach(|| drop(loader)));
        }
    }
}

#[pymethods]
impl ImageBatch {
    /// The address of the slab, and how many of its bytes are used.
    fn memory(&self) -> (usize, u64) {
        let mut batch = self.batch.lock();
        let used = batch.used_bytes();
        (batch.bytes().as_mut_ptr().expose_provenance(), used)
    }

    /// The tensor that is the slab, if PyTorch made it. It can be had once; whoever has it owns it.
    fn take_tensor(&self) -> Option<Py<PyAny>> {
        let mut batch = self.batch.lock();
        match batch.take_slab()? {
            Memory::Tensor(tensor, ..) => Some(tensor),
            // It stays here: it goes back to the loader with the batch.
            own @ Memory::Own(_) => {
                batch.put_slab(own);
                None
            }
        }
    }

    /// Where the pixels of the slab begin and end, how many bytes those of all pictures have on a device, and how many pictures engines
    /// decode.
    fn parts(&self) -> (u64, u64, u64, usize) {
        let batch = self.batch.lock();
        let decoded = batch.decoded();
        let many = batch.encoded().len();
        (decoded.start, decoded.end, batch.pixels_bytes(), many)
    }

    /// Of each picture the offset, then column, row, width and height of what is held, then width and height of all.
    fn placed(&self) -> Vec<(u64, u32, u32, u32, u32, u32, u32)> {
        let batch = self.batch.lock();
        let each = batch.placed().iter().map(|placed| {
            let (held, full) = (placed.held, placed.full);
            let Size { width, height } = held.size;
            (
                placed.offset,
                held.left,
                held.top,
                width,
                height,
                full.width,
                full.height,
            )
        });
        each.collect()
    }

    /// The labels, if there are any.
    fn labels(&self) -> Vec<Option<u32>> {
        self.batch.lock().labels().to_vec()
    }

    /// The number of each sample.
    fn samples(&self) -> Vec<u64> {
        self.batch
            .lock()
            .keys()
            .iter()
            .map(|key| key.sample)
            .collect()
    }

    /// The epoch.
    fn epoch(&self) -> u64 {
        self.batch.lock().epoch()
    }

    /// Pictures that should have been in it.
    fn broken(&self) -> Vec<Broken> {
        let batch = self.batch.lock();
        let each = batch.broken().iter();
        each.map(|broken| {
            (
                broken.sample,
                broken.name.clone(),
                broken.why.to_string(),
                broken.replaced_by,
            )
        })
        .collect()
    }
}

/// Writes the sample pictures into a folder.
#[pyfunction]
pub fn write_sample_images(py: Python<'_>, folder: PathBuf, seed: u64) -> PyResult<()> {
    py.detach(|| source::write_samples(folder, seed))
        .map_err(of_images)
}

/// Which decoders were built in.
#[pyfunction]
pub fn image_decoder() -> &'static str {
    decode::identity()
}

fn open(paths: &[PathBuf], classes: Option<&[String]>) -> sidestream_images::Result<Dataset> {
    match (paths, classes) {
        ([path], None) => Dataset::open(path),
        ([path], Some(classes)) => {
            let classes: Vec<&str> = classes.iter().map(String::as_str).collect();
            Dataset::folder_of_classes(path, &classes)
        }
        (shards, None) => Dataset::shards(shards),
        (_, Some(_)) => {
            let why =
                "`classes` names the sub-folders of one folder; shards have numbers as labels";
            Err(sidestream_images::Error::Options(why.into()))
        }
    }
}

fn memory(pin: Option<&Py<PyAny>>, bytes: usize) -> Result<Memory, String> {
    let Some(pin) = pin else {
        return Ok(Memory::Own(vec![0; bytes]));
    };
    let pinned = Python::attach(|py| pin.call1(py, (bytes,))?.extract::<(Py<PyAny>, usize)>(py));
    let (tensor, address) = pinned.map_err(|error| error.to_string())?;
    Ok(Memory::Tensor(tensor, address, bytes))
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("the loader was closed; make a new one")
}
