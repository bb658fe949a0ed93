//! A GPU's engines for JPEG, behind `sidestream.images.Loader(decode="gpu")`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use sidestream_images::decode::nvjpeg::{self, Encoded, Engines};
use sidestream_images::decode::{Decoder, Options};
use sidestream_images::load::Batch;

use super::load::{ImageBatch, Memory};
use crate::failure::DeviceError;
use crate::process::PerProcess;

/// The engines of each GPU that were opened, by its number. A process has them once: calls of several at a time may never return.
static OPENED: PerProcess<HashMap<u32, Arc<Mutex<Engines>>>> = PerProcess::new();

/// The engines of a GPU; on a simulated one the processor stands in for them.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct ImageEngines(Option<Arc<Mutex<Engines>>>);

#[pymethods]
impl ImageEngines {
    /// Opens the engines of this GPU, whose context is current, with nvJPEG as the system has it or else from one of these files.
    /// Without a GPU they are simulated.
    #[new]
    fn new(py: Python<'_>, ordinal: Option<u32>, files: Vec<PathBuf>) -> PyResult<ImageEngines> {
        let Some(ordinal) = ordinal else {
            return Ok(ImageEngines(None));
        };
        // Loading the library takes long.
        let opened = py.detach(|| {
            let mut opened = OPENED.get().lock();
            if let Some(engines) = opened.get(&ordinal) {
                return Ok(Arc::clone(engines));
            }
            let by_name = nvjpeg::FILES.map(PathBuf::from).into_iter();
            // SAFETY: nvJPEG by its names, and as the packages of NVIDIA have it. The context is current, says the caller, and is the
            // primary one, which PyTorch never destroys; these engines stay until the process ends.
            let engines = unsafe { Engines::open(&by_name.chain(files).collect::<Vec<_>>()) }?;
            let engines = Arc::new(Mutex::new(engines));
            opened.insert(ordinal, Arc::clone(&engines));
            Ok(engines)
        });
        let refused =
            |why: nvjpeg::EngineError| DeviceError::new_err(format!("cuda:{ordinal}: {why}"));
        opened
            .map(|engines| ImageEngines(Some(engines)))
            .map_err(refused)
    }

    /// Decodes the files of a batch: from the slab, which lies there, to the memory of the device that begins there. What is put into
    /// the stream from here on finds them decoded. Answers why they were refused, if they were. Other threads run meanwhile.
    ///
    /// The caller keeps both until the stream has come past this call. Nobody writes the slab until then, and nobody else uses the memory
    /// of the device: nor does anything that the stream has still to do, for which the engines do not wait.
    fn decode(
        &self,
        py: Python<'_>,
        batch: &ImageBatch,
        slab: usize,
        to: u64,
        stream: u64,
    ) -> Option<String> {
        py.detach(|| {
            let batch = batch.batch().lock();
            match &self.0 {
                Some(engines) => decode(&mut engines.lock(), &batch, slab, to, stream),
                None => simulate(&batch, slab, to),
            }
        })
        .err()
    }
}

/// A file of a batch.
fn file<'a>(slab: usize, file: &std::ops::Range<u64>) -> &'a [u8] {
    let at = std::ptr::with_exposed_provenance(slab + file.start as usize);
    // SAFETY: the loader put the file there, and the caller of `decode` keeps the slab.
    unsafe { std::slice::from_raw_parts(at, (file.end - file.start) as usize) }
}

fn decode(
    engines: &mut Engines,
    batch: &Batch<Memory>,
    slab: usize,
    to: u64,
    stream: u64,
) -> Result<(), String> {
    let pictures = batch.encoded().iter().map(|one| {
        let placed = batch.placed()[one.picture];
        Encoded {
            bytes: file(slab, &one.file),
            size: placed.full,
            to: to + placed.offset,
        }
    });
    let pictures: Vec<_> = pictures.collect();
    // SAFETY: the stream is PyTorch's, on the engines' device, of whose context this thread's calls are. Each picture has its own
    // place in a tensor of `pixels_bytes`, which the caller keeps to itself as the method says, and the slab with it. The
    // loader gives baseline files with the size in their header.
    unsafe { engines.decode(&pictures, stream) }.map_err(|why| why.to_string())
}

fn simulate(batch: &Batch<Memory>, slab: usize, to: u64) -> Result<(), String> {
    let mut decoder = Decoder::new(Options::default());
    for one in batch.encoded() {
        let (bytes, placed) = (file(slab, &one.file), batch.placed()[one.picture]);
        let size_bytes = 3 * placed.full.width as usize * placed.full.height as usize;
        let at = std::ptr::with_exposed_provenance_mut((to + placed.offset) as usize);
        // SAFETY: memory of a simulated device is the host's, and each picture has its own place in it, as above.
        let into = unsafe { std::slice::from_raw_parts_mut(at, size_bytes) };
        let header = decoder.look(bytes);
        let decoded = header.and_then(|header| decoder.decode(bytes, &header, placed.held, into));
        decoded.map_err(|why| why.to_string())?;
    }
    Ok(())
}
