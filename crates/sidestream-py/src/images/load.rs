//! The loader behind `sidestream.images.Loader`.
//!
//! Slabs are this module's own memory, or tensors that PyTorch pinned. For pinned slabs each batch gets a new tensor:
//! PyTorch keeps a released pinned tensor until the copies from it are complete, which is not known here.

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

/// Loads batches of pictures.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct ImageLoader {
    /// `None` once the loader is closed.
    loader: Mutex<Option<Loader<Memory>>>,
    dataset: Arc<Dataset>,
}

/// Pictures, one after another in one slab.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct ImageBatch {
    batch: Mutex<Batch<Memory>>,
}

/// The memory of a slab.
pub enum Memory {
    Own(Vec<u8>),
    /// A tensor that has no other owner yet, its address and its size in bytes.
    Tensor(Py<PyAny>, usize, usize),
}

impl Slab for Memory {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            // SAFETY: the tensor states its address and size, lives as long as this value, and is handed out only
            // after the loader has released the slab.
            Memory::Tensor(_, address, bytes) => unsafe {
                std::slice::from_raw_parts_mut(
                    std::ptr::with_exposed_provenance_mut(*address),
                    *bytes,
                )
            },
        }
    }
}

/// How often a wait checks for signals.
const TURN: Duration = Duration::from_millis(100);

/// The index of a sample, its name, what is wrong with it, and the sample that replaced it.
type Broken = (u64, String, String, Option<u64>);

#[pymethods]
impl ImageLoader {
    /// `pin` makes a tensor of a given number of bytes, and returns it with its address; without it, memory is
    /// pageable. With `augment`, a plan and its seed, only the regions of pictures that the results depend on are
    /// decoded.
    #[new]
    #[pyo3(signature = (paths, *, classes, batch_size, seed, shuffle, drop_last, rank, world, repeat, workers, depth, broken, faulty,
                        orientation, max_pixels, max_file_bytes, max_slab_bytes, pin, augment, engine_share))]
    #[expect(
        clippy::too_many_arguments,
        reason = "each is an option of the class `sidestream.images.Loader`"
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
                let why = format!("`broken` is {other:?}; give \"raise\", \"skip\" or \"replace\"");
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
            // If the region cannot be computed, drawing the batch's parameters reports the reason.
            let key = Key { seed: *seed, ..key };
            plan.region(key, size)
                .unwrap_or_else(|_| Region::whole(size))
        };
        // Folders may be large and on a slow file system.
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

    /// Returns the next batch, or `None` at the end of an epoch. Other threads run meanwhile, and a signal ends the
    /// wait.
    fn next(&self, py: Python<'_>) -> PyResult<Option<ImageBatch>> {
        loop {
            let next = py.detach(|| {
                let mut guard = self.loader.lock();
                let Some(loader) = guard.as_mut() else {
                    return Ok(Err(()));
                };
                if loader.ready(TURN)? {
                    loader.next().map(|batch| Ok(Some(batch)))
                } else {
                    Ok(Ok(None))
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

    /// Decodes a batch again on the CPU, after the engines refused it; `None` if all pictures are broken.
    fn on_processor(&self, py: Python<'_>, batch: &ImageBatch) -> PyResult<Option<ImageBatch>> {
        let made = self.with(py, |loader| loader.on_processor(&batch.batch.lock()))?;
        Ok(made.map(|batch| ImageBatch {
            batch: Mutex::new(batch),
        }))
    }

    /// Ends the workers. Batches that were handed out stay valid.
    fn close(&self, py: Python<'_>) {
        // A worker may be waiting for the interpreter to make a tensor.
        py.detach(|| drop(self.loader.lock().take()));
    }

    /// The position of the loader, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.state().to_json()))
    }

    /// Continues from the position in the state.
    fn load_state(&self, py: Python<'_>, json: &str) -> PyResult<()> {
        self.with(py, |loader| loader.load_state(&State::from_json(json)?))
    }

    /// Moves to the beginning of an epoch.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| {
            loader.set_epoch(epoch);
            Ok(())
        })
    }

    /// The index of the current epoch.
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.epoch()))
    }

    /// The number of batches in an epoch.
    fn batches(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.batches()))
    }

    /// The number of pictures that were returned, and of broken ones that were not.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |loader| Ok((loader.loaded(), loader.broken())))
    }

    /// The names of the classes.
    fn classes(&self) -> Vec<String> {
        self.dataset.classes().to_vec()
    }

    /// The number of samples over all ranks.
    fn samples(&self) -> u64 {
        self.dataset.len()
    }

    /// The name of a sample.
    fn name(&self, sample: u64) -> PyResult<String> {
        if sample >= self.dataset.len() {
            let why = format!(
                "there are {} samples; {sample} is out of range",
                self.dataset.len()
            );
            return Err(pyo3::exceptions::PyIndexError::new_err(why));
        }
        Ok(self.dataset.name(sample))
    }
}

impl ImageBatch {
    /// The loader's batch.
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
            // As in `close`. If the interpreter is finalizing, no worker can attach to it any more either.
            Python::attach(|py| py.detach(|| drop(loader)));
        }
    }
}

#[pymethods]
impl ImageBatch {
    /// The address of the slab, and the number of its bytes that are used.
    fn memory(&self) -> (usize, u64) {
        let mut batch = self.batch.lock();
        let used = batch.used_bytes();
        (batch.bytes().as_mut_ptr().expose_provenance(), used)
    }

    /// Takes the slab's tensor, if PyTorch made it. The first caller becomes its owner; later calls return `None`.
    fn take_tensor(&self) -> Option<Py<PyAny>> {
        let mut batch = self.batch.lock();
        match batch.take_slab()? {
            Memory::Tensor(tensor, ..) => Some(tensor),
            // This memory stays here: it returns to the loader with the batch.
            own @ Memory::Own(_) => {
                batch.put_slab(own);
                None
            }
        }
    }

    /// The offsets in the slab at which the pixels begin and end, the bytes that all pixels take on a device, and the
    /// number of pictures that engines decode.
    fn parts(&self) -> (u64, u64, u64, usize) {
        let batch = self.batch.lock();
        let decoded = batch.decoded();
        let many = batch.encoded().len();
        (decoded.start, decoded.end, batch.pixels_bytes(), many)
    }

    /// For each picture: the offset; column, row, width and height of the part that is present; full width and
    /// height.
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

    /// The index of each sample.
    fn samples(&self) -> Vec<u64> {
        self.batch
            .lock()
            .keys()
            .iter()
            .map(|key| key.sample)
            .collect()
    }

    /// The epoch of the batch.
    fn epoch(&self) -> u64 {
        self.batch.lock().epoch()
    }

    /// The broken samples of the batch.
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

/// Writes sample pictures into a folder.
#[pyfunction]
pub fn write_sample_images(py: Python<'_>, folder: PathBuf, seed: u64) -> PyResult<()> {
    py.detach(|| source::write_samples(folder, seed))
        .map_err(of_images)
}

/// The name of the decoder that was built in.
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
            let why = "`classes` names the sub-folders of one folder; shards have numeric labels";
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
