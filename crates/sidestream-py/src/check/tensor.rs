//! Determines which bytes a tensor covers, through Python's C interface.
//!
//! This code runs for every tensor of every operator, so the attribute names are interned.

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{ffi, intern};

use super::touch::Touch;

/// The rows of a tensor that is not dense, of `chunk` bytes each.
#[derive(Clone, Debug)]
pub struct Rows {
    chunk: u64,
    /// The count and the pitch in bytes of each outer dimension.
    outer: Vec<(u64, u64)>,
}

impl Rows {
    /// The number of rows.
    pub fn count(&self) -> u64 {
        let counts = self.outer.iter().map(|(count, _)| *count);
        counts.fold(1, u64::saturating_mul)
    }

    /// Calls `each` with the first address of every row and the address after its end.
    pub fn each(&self, ptr: u64, mut each: impl FnMut(u64, u64)) {
        let mut at = vec![0; self.outer.len()];
        loop {
            let offsets = at.iter().zip(&self.outer).map(|(i, (_, pitch))| i * pitch);
            let start = ptr + offsets.sum::<u64>();
            each(start, start + self.chunk);
            let mut digit = 0;
            loop {
                let Some(place) = at.get_mut(digit) else {
                    return;
                };
                *place += 1;
                if *place < self.outer[digit].0 {
                    break;
                }
                *place = 0;
                digit += 1;
            }
        }
    }
}

/// The span of a tensor in bytes, and its rows if it has gaps.
pub fn layout(sizes: &[u64], strides: &[u64], item: u64) -> (u64, Option<Rows>) {
    if sizes.contains(&0) {
        return (0, None);
    }
    let mut dims: Vec<(u64, u64)> = sizes
        .iter()
        .zip(strides)
        .filter(|(size, stride)| **size > 1 && **stride > 0)
        .map(|(&size, &stride)| (size, stride.saturating_mul(item)))
        .collect();
    dims.sort_by_key(|dim| dim.1);
    let last = dims
        .iter()
        .map(|(size, pitch)| (size - 1).saturating_mul(*pitch));
    let span = last.fold(item, u64::saturating_add);
    let mut chunk = item;
    let mut dense = 0;
    for (size, pitch) in &dims {
        if *pitch > chunk {
            break;
        }
        // The union of overlapping windows is dense as well.
        chunk = chunk.saturating_add((size - 1).saturating_mul(*pitch));
        dense += 1;
    }
    let outer = dims.split_off(dense);
    let rows = (!outer.is_empty()).then_some(Rows { chunk, outer });
    (span, rows)
}

/// What is asked of tensors.
pub struct Asked {
    /// Whether the CPU plays the role of device 0, for tests without a GPU.
    pub pretend: bool,
    /// The ranges that then count as pinned memory.
    pub pretended_pinned: Mutex<Vec<(u64, u64)>>,
}

impl Asked {
    pub fn new(pretend: bool) -> Asked {
        let pretended_pinned = Mutex::default();
        Asked {
            pretend,
            pretended_pinned,
        }
    }

    /// The bytes of a tensor. `None` if the object is not a tensor, or has no memory.
    #[inline]
    pub fn touch(&self, tensor: &Bound<'_, PyAny>, write: bool) -> Option<Touch> {
        let py = tensor.py();
        let ptr = call(tensor, intern!(py, "data_ptr")).and_then(unsigned)?;
        if ptr == 0 {
            return None;
        }
        let mut device = call(tensor, intern!(py, "get_device")).and_then(signed)? as i32;
        if self.pretend {
            device = if self.is_pretended(ptr) { -1 } else { 0 };
        }
        let contiguous = call(tensor, intern!(py, "is_contiguous"))?
            .is_truthy()
            .ok()?;
        let (bytes, rows) = if contiguous {
            (get(tensor, intern!(py, "nbytes")).and_then(unsigned)?, None)
        } else {
            self.layout_of(tensor)?
        };
        if bytes == 0 {
            return None;
        }
        let whole = Touch::of(ptr, ptr.saturating_add(bytes), device, write);
        Some(Touch { rows, ..whole })
    }

    #[cold]
    fn layout_of(&self, tensor: &Bound<'_, PyAny>) -> Option<(u64, Option<Box<Rows>>)> {
        let py = tensor.py();
        let sizes: Vec<u64> = get(tensor, intern!(py, "shape"))?.extract().ok()?;
        let strides: Vec<u64> = call(tensor, intern!(py, "stride"))?.extract().ok()?;
        let item = get(tensor, intern!(py, "itemsize")).and_then(unsigned)?;
        let (bytes, rows) = layout(&sizes, &strides, item);
        Some((bytes, rows.map(Box::new)))
    }

    /// Whether a tensor is a boolean mask.
    pub fn is_mask(&self, tensor: &Bound<'_, PyAny>) -> bool {
        let py = tensor.py();
        let kind = get(tensor, intern!(py, "dtype")).and_then(|dtype| dtype.str().ok());
        kind.is_some_and(|kind| kind == "torch.bool" || kind == "torch.uint8")
    }

    /// Whether a tensor is in host memory.
    pub fn is_on_host(&self, tensor: &Bound<'_, PyAny>) -> bool {
        self.touch(tensor, false)
            .is_some_and(|touch| touch.device < 0)
    }

    /// Whether a tensor has exactly one element.
    pub fn is_one(&self, tensor: &Bound<'_, PyAny>) -> bool {
        let py = tensor.py();
        let bytes = get(tensor, intern!(py, "nbytes")).and_then(unsigned);
        bytes.is_some() && bytes == get(tensor, intern!(py, "itemsize")).and_then(unsigned)
    }

    /// Whether a copy between host and device uses the host tensor's own memory. Otherwise PyTorch puts a pageable buffer
    /// of the host between: for elements in another order, and, if the copy blocks, for another type, which a copy that
    /// does not block converts on the device.
    pub fn is_direct(
        &self,
        (target, source): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
        host: &Touch,
        free: bool,
    ) -> bool {
        let py = target.py();
        let ask = || -> Option<bool> {
            let same_type =
                get(target, intern!(py, "dtype"))?.is(&get(source, intern!(py, "dtype"))?);
            let sizes = |of| get(of, intern!(py, "shape"))?.extract::<Vec<u64>>().ok();
            let (to, from) = (sizes(target)?, sizes(source)?);
            let own = if host.write { target } else { source };
            if call(own, intern!(py, "is_contiguous"))?.is_truthy().ok()? {
                let count = |sizes: &[u64]| sizes.iter().product::<u64>();
                // The device repeats the elements of its own side, the host those of the other.
                let once = host.write || count(&to) == count(&from);
                return Some(once && (same_type || free));
            }
            let strides = (
                call(target, intern!(py, "stride"))?,
                call(source, intern!(py, "stride"))?,
            );
            let same = same_type && to == from && strides.0.eq(&strides.1).ok()?;
            Some(same && host.rows.is_none())
        };
        ask().unwrap_or(false)
    }

    fn is_pretended(&self, ptr: u64) -> bool {
        let all = self.pretended_pinned.lock();
        all.iter().any(|(start, end)| (*start..*end).contains(&ptr))
    }

    pub fn is_pinned(&self, tensor: &Bound<'_, PyAny>) -> bool {
        let py = tensor.py();
        if self.pretend {
            let ptr = call(tensor, intern!(py, "data_ptr")).and_then(unsigned);
            return ptr.is_some_and(|ptr| self.is_pretended(ptr));
        }
        call(tensor, intern!(py, "is_pinned"))
            .is_some_and(|answer| answer.is_truthy().unwrap_or(false))
    }
}

/// Calls a method without arguments; `None` if the call fails.
#[inline]
fn call<'py>(of: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> Option<Bound<'py, PyAny>> {
    // SAFETY: both objects are live, and the argument list ends with a null pointer. The result is a new
    // reference or null with an error set.
    unsafe {
        let null = std::ptr::null_mut::<ffi::PyObject>();
        let got = ffi::PyObject_CallMethodObjArgs(of.as_ptr(), name.as_ptr(), null);
        owned(of.py(), got)
    }
}

#[inline]
fn get<'py>(of: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> Option<Bound<'py, PyAny>> {
    // SAFETY: both objects are live. The result is a new reference or null with an error set.
    unsafe { owned(of.py(), ffi::PyObject_GetAttr(of.as_ptr(), name.as_ptr())) }
}

/// # Safety
/// `got` is a new reference, or null with an error set.
#[inline]
unsafe fn owned(py: Python<'_>, got: *mut ffi::PyObject) -> Option<Bound<'_, PyAny>> {
    // SAFETY: the caller guarantees it; a pending error is cleared.
    unsafe {
        if got.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(Bound::from_owned_ptr(py, got))
    }
}

#[inline]
fn unsigned(number: Bound<'_, PyAny>) -> Option<u64> {
    number.extract().ok()
}

#[inline]
fn signed(number: Bound<'_, PyAny>) -> Option<i64> {
    number.extract().ok()
}
