//! A GPU's JPEG engines, behind `sidestream.images.Loader(decode="gpu")`.

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

/// The opened engines of each GPU, by its ordinal. A process opens them once: concurrent calls from several instances
/// may never return.
static OPENED: PerProcess<HashMap<u32, Arc<Mutex<Engines>>>> = PerProcess::new();

/// The JPEG engines of a GPU; for a simulated one, the CPU decodes instead.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct ImageEngines(Option<Arc<Mutex<Engines>>>);

#[pymethods]
impl ImageEngines {
    /// Opens the engines of this GPU, whose context is current, with the nvJPEG library of the system, or else with
    /// one of these files. Without an ordinal the engines are simulated.
    #[new]
    fn new(py: Python<'_>, ordinal: Option<u32>, files: Vec<PathBuf>) -> PyResult<ImageEngines> {
        let Some(ordinal) = ordinal else {
            return Ok(ImageEngines(None));
        };
        // Loading the library is slow.
        let opened = py.detach(|| {
            let mut opened = OPENED.get().lock();
            if let Some(engines) = opened.get(&ordinal) {
                return Ok(Arc::clone(engines));
            }
            let by_name = nvjpeg::FILES.map(PathBuf::from).into_iter();
            // SAFETY: the files are nvJPEG, by its system names or from NVIDIA's packages. The caller guarantees that
            // the context is current and is the primary one, which PyTorch never destroys; these engines stay until
            // the process ends.
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

    /// Decodes the files of a batch from the slab at address `slab` to device memory at address `to`. Work that is
    /// enqueued in the stream after this call finds the pictures decoded. Returns the reason if the engines refused a
    /// file. Other threads run meanwhile.
    ///
    /// The caller keeps both alive until the stream has completed this call. Until then nothing else writes the slab or
    /// uses the device memory, not even work already pending in the stream, for which the engines do not wait.
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

/// The bytes of a file in a batch.
fn file<'a>(slab: usize, file: &std::ops::Range<u64>) -> &'a [u8] {
    let at = std::ptr::with_exposed_provenance(slab + file.start as usize);
    // SAFETY: the loader put the file there, and the caller of `decode` keeps the slab alive.
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
    // SAFETY: the stream is PyTorch's, on the engines' device, whose context is current in this thread. Each picture
    // has its own place in a tensor of `pixels_bytes`, which the caller does not share, as the method requires; it
    // keeps the slab alive too. The loader passes baseline files with the size in their header.
    unsafe { engines.decode(&pictures, stream) }.map_err(|why| why.to_string())
}

fn simulate(batch: &Batch<Memory>, slab: usize, to: u64) -> Result<(), String> {
    let mut decoder = Decoder::new(Options::default());
    for one in batch.encoded() {
        let (bytes, placed) = (file(slab, &one.file), batch.placed()[one.picture]);
        let size_bytes = 3 * placed.full.width as usize * placed.full.height as usize;
        let at = std::ptr::with_exposed_provenance_mut((to + placed.offset) as usize);
        // SAFETY: memory of a simulated device is host memory, and each picture has its own place in it, as above.
        let into = unsafe { std::slice::from_raw_parts_mut(at, size_bytes) };
        let header = decoder.look(bytes);
        let decoded = header.and_then(|header| decoder.decode(bytes, &header, placed.held, into));
        decoded.map_err(|why| why.to_string())?;
    }
    Ok(())
}
