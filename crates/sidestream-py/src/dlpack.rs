//! DLPack: exchanging arrays with other libraries without a copy.
//!
//! A capsule carries an address, a shape and a deleter, and no stream. The deleter is called when the last tensor
//! over the memory is dropped: on any thread, without the interpreter, perhaps with work in flight. Here, the deleter
//! only drops its reference to the lease; when the last reference is dropped, an event is recorded on each stream
//! that the batch was handed to.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::array::Held;

/// `kDLCPU`.
const HOST: i32 = 1;
/// `kDLCUDA`.
pub const CUDA: i32 = 2;

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// The capsule form that the consumer understands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The form before version 1.0.
    Legacy,
    /// The form of version 1.
    Versioned,
}

/// The supported types by name, with DLPack's code and their bits. The frequent ones come first.
const TYPES: [(&str, u8, u8); 15] = [
    ("float32", 2, 32),
    ("int64", 0, 64),
    ("uint8", 1, 8),
    ("bfloat16", 4, 16),
    ("float16", 2, 16),
    ("bool", 6, 8),
    ("int32", 0, 32),
    ("float64", 2, 64),
    ("int16", 0, 16),
    ("int8", 0, 8),
    ("uint16", 1, 16),
    ("uint32", 1, 32),
    ("uint64", 1, 64),
    ("complex64", 5, 64),
    ("complex128", 5, 128),
];

/// A scalar type, as DLPack describes it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DataType {
    /// Untyped bytes.
    pub const BYTES: DataType = DataType {
        code: 1,
        bits: 8,
        lanes: 1,
    };

    /// Returns the type with this name in numpy or PyTorch; `None` if DLPack has no type for it that all libraries
    /// know.
    pub fn named(name: &str) -> Option<DataType> {
        let (_, code, bits) = *TYPES.iter().find(|(known, ..)| *known == name)?;
        Some(DataType {
            code,
            bits,
            lanes: 1,
        })
    }

    /// The name, if [`DataType::named`] knows one.
    fn name(self) -> Option<&'static str> {
        let mut each = TYPES.iter();
        let found =
            each.find(|(_, code, bits)| (self.code, self.bits, self.lanes) == (*code, *bits, 1));
        found.map(|(name, ..)| *name)
    }

    /// The size of one value in bytes.
    pub fn size_bytes(self) -> u64 {
        u64::from(self.bits) / 8
    }

    /// The type character for `__cuda_array_interface__`; `None` for types that numpy does not have.
    pub fn letter(self) -> Option<char> {
        match self.code {
            0 => Some('i'),
            1 => Some('u'),
            2 => Some('f'),
            5 => Some('c'),
            6 => Some('b'),
            _ => None,
        }
    }
}

#[repr(C)]
struct Device {
    kind: i32,
    ordinal: i32,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What a capsule points to, with the owners that it keeps alive. The consumer sees the first field.
#[repr(C)]
struct Exported<M> {
    managed: M,
    /// The sizes and strides that `managed` points to.
    _shape: Shape,
    _held: Arc<Held>,
}

/// The sizes and then the strides of an array, by address: moving a box would invalidate pointers into it.
struct Shape(*mut [i64]);

impl Shape {
    fn of(shape: &[i64]) -> Shape {
        let values: Box<[i64]> = shape.iter().copied().chain(strides(shape)).collect();
        Shape(Box::into_raw(values))
    }

    fn sizes(&self) -> *mut i64 {
        self.0.cast()
    }

    fn strides(&self) -> *mut i64 {
        // SAFETY: the slice has two values for each dimension.
        unsafe { self.sizes().add(self.0.len() / 2) }
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box in `of`, and everything that pointed into it is gone.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Makes a capsule of a contiguous array at this address of a CUDA device. The lease lives as long as the capsule or
/// any tensor made from it.
pub fn capsule<'py>(
    py: Python<'py>,
    held: &Arc<Held>,
    address: u64,
    dtype: DataType,
    shape: &[i64],
    form: Form,
) -> PyResult<Bound<'py, PyAny>> {
    let ordinal = held.ordinal().ok_or_else(|| {
        PyBufferError::new_err(
            "a simulated device has no memory that other libraries can reach; take the values with numpy()",
        )
    })?;
    let values = Shape::of(shape);
    let tensor = Tensor {
        data: address as usize as *mut c_void,
        device: Device {
            kind: CUDA,
            ordinal: ordinal as i32,
        },
        ndim: shape.len() as i32,
        dtype,
        shape: values.sizes(),
        strides: values.strides(),
        byte_offset: 0,
    };
    match form {
        Form::Legacy => {
            let managed = Managed {
                tensor,
                context: std::ptr::null_mut(),
                deleter: Some(delete),
            };
            wrapped(py, managed, values, held, LEGACY, destroy_legacy)
        }
        Form::Versioned => {
            let managed = ManagedVersioned {
                major: 1,
                minor: 0,
                context: std::ptr::null_mut(),
                deleter: Some(delete),
                flags: 0,
                tensor,
            };
            wrapped(py, managed, values, held, VERSIONED, destroy_versioned)
        }
    }
}

fn wrapped<'py, M>(
    py: Python<'py>,
    managed: M,
    shape: Shape,
    held: &Arc<Held>,
    name: &'static CStr,
    destroy: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    let exported = Box::into_raw(Box::new(Exported {
        managed,
        _shape: shape,
        _held: Arc::clone(held),
    }));
    // SAFETY: the pointer is not null, the name lives forever, and the interpreter is attached. If no capsule was made, the
    // box is still ours.
    unsafe {
        let capsule = ffi::PyCapsule_New(exported.cast(), name.as_ptr(), Some(destroy));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| drop(Box::from_raw(exported)))
    }
}

/// The deleter of both capsule forms.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: `managed` is the first field of a box that `wrapped` made, and the consumer calls its deleter once.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
    }
}

unsafe extern "C" fn destroy_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: `capsule` made this capsule with a `Managed` in it.
    unsafe { destroy::<Managed>(capsule, LEGACY) }
}

unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule has a `ManagedVersioned` in it.
    unsafe { destroy::<ManagedVersioned>(capsule, VERSIONED) }
}

/// Destroys a capsule. A consumer that has taken the content has renamed the capsule, and calls the deleter later.
///
/// # Safety
/// A capsule with this name points to an `Exported<M>`.
unsafe fn destroy<M>(capsule: *mut ffi::PyObject, name: &CStr) {
    // SAFETY: the interpreter passes a capsule that it destroys. If the capsule still has its first name, no consumer has
    // taken the content.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast::<M>());
        }
    }
}

/// The limit of PyTorch and numpy.
const MOST_DIMENSIONS: usize = 64;

/// An array of another library, in host memory.
pub struct OnHost {
    pub address: u64,
    pub bytes: u64,
    pub shape: Vec<i64>,
    pub name: &'static str,
}

/// What another library's capsule points to, if that is contiguous host memory with a type that has a name here. The
/// capsule is not consumed.
pub fn on_host(capsule: &Bound<'_, PyAny>) -> Option<OnHost> {
    // SAFETY: under its first name a DLPack capsule points to a `DLManagedTensor`, which lives as long as the
    // capsule; its shape, and its strides if given, have as many values as it has dimensions. Their values may still
    // be invalid.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), LEGACY.as_ptr()) != 1 {
            return None;
        }
        let managed = ffi::PyCapsule_GetPointer(capsule.as_ptr(), LEGACY.as_ptr());
        let tensor = &(*managed.cast::<Managed>()).tensor;
        let dimensions = usize::try_from(tensor.ndim).ok()?;
        if dimensions > MOST_DIMENSIONS || (dimensions > 0 && tensor.shape.is_null()) {
            return None;
        }
        let of = |at: *const i64| match (dimensions, at.is_null()) {
            (0, _) | (_, true) => &[][..],
            (_, false) => std::slice::from_raw_parts(at, dimensions),
        };
        let (shape, given) = (of(tensor.shape), of(tensor.strides));
        let is_contiguous = given.is_empty() || is_contiguous(shape, given);
        let name = tensor.dtype.name()?;
        if tensor.device.kind != HOST || !is_contiguous {
            return None;
        }
        let sizes = shape.iter().map(|&size| u64::try_from(size).ok());
        let mut sizes = sizes.chain([Some(tensor.dtype.size_bytes())]);
        let bytes = sizes.try_fold(1, |all: u64, size| all.checked_mul(size?))?;
        let address = tensor.data.expose_provenance() as u64;
        let address = address.checked_add(tensor.byte_offset)?;
        address.checked_add(bytes)?;
        Some(OnHost {
            address,
            bytes,
            shape: shape.to_vec(),
            name,
        })
    }
}

/// Whether the strides are those of a contiguous array. Strides of dimensions of size 1, and of an array without
/// values, are ignored.
fn is_contiguous(shape: &[i64], given: &[i64]) -> bool {
    let expected = strides(shape);
    let mut each = shape.iter().zip(given).zip(&expected);
    shape.contains(&0) || each.all(|((&size, given), expected)| size == 1 || given == expected)
}

/// The strides of a contiguous array, in values.
fn strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(shape[at].max(1));
    }
    strides
}
