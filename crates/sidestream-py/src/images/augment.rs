//! Plans of augmentations. `sidestream.images` has the operators for users, with torchvision's arguments; here they
//! become the library's operators, and tensors become addresses.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt};
use sidestream::error::Error;
use sidestream::explicit::DeviceMemory;
use sidestream_images::augment::{
    Argument, Batch, Buffers, Drawn, Form, Kind, Layout, Operator, Plan, Row, TABLE, Value,
};
use sidestream_images::{Key, Placed, Region, Size};

use crate::devices;
use crate::failure::of_runtime;
use crate::stream::stream_of;

/// A validated list of operators.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct AugmentPlan(Plan);

/// A batch whose random parameters are drawn.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct AugmentBatch(Drawn);

/// Where a picture is: the address of its first byte; left, top, width and height of the part that is present; full
/// width and height.
type Lies = (u64, u32, u32, u32, u32, u32, u32);

/// A piece of memory: its address and its size in bytes.
type Piece = (u64, u64);

#[pymethods]
impl AugmentPlan {
    /// Makes a plan of operators, each with its name and its arguments.
    #[new]
    fn new(operators: Vec<(String, Bound<'_, PyDict>)>, fuse: bool) -> PyResult<AugmentPlan> {
        let operators: PyResult<Vec<_>> = operators
            .iter()
            .map(|(name, given)| operator(name, given))
            .collect();
        let plan = Plan::new(operators?).map_err(of_runtime)?;
        Ok(AugmentPlan(if fuse { plan } else { plan.unfused() }))
    }

    /// Left, top, width and height of the region of a picture that its result depends on.
    fn region(
        &self,
        key: (u64, u64, u64),
        height: u32,
        width: u32,
    ) -> PyResult<(u32, u32, u32, u32)> {
        let region = self.0.region(key_of(key), Size { width, height });
        let region = region.map_err(of_runtime)?;
        let Size { width, height } = region.size;
        Ok((region.left, region.top, width, height))
    }

    /// Draws the parameters for pictures of one height and width. `samples` has the index of each picture's sample.
    fn draw(
        &self,
        py: Python<'_>,
        size: (u32, u32),
        is_nhwc: bool,
        seed: u64,
        epoch: u64,
        samples: Vec<u64>,
    ) -> PyResult<AugmentBatch> {
        let drawn = py.detach(|| {
            let (height, width) = size;
            let batch = Batch::uniform(Size { width, height }, samples.len(), layout(is_nhwc));
            let key = |sample: u64| key_of((seed, epoch, sample));
            let keys: Vec<_> = samples.into_iter().map(key).collect();
            self.0.draw(&batch, &keys)
        });
        drawn.map(AugmentBatch).map_err(of_runtime)
    }

    /// Like `draw`, for pictures of different sizes, one after another in one piece of memory.
    fn draw_placed(
        &self,
        py: Python<'_>,
        placed: Vec<Lies>,
        seed: u64,
        epoch: u64,
        samples: Vec<u64>,
    ) -> PyResult<AugmentBatch> {
        let drawn = py.detach(|| {
            let placed: Vec<Placed> = placed.into_iter().map(placed_of).collect();
            let key = |sample: u64| key_of((seed, epoch, sample));
            let keys: Vec<_> = samples.into_iter().map(key).collect();
            self.0.draw(&Batch::placed(&placed), &keys)
        });
        drawn.map(AugmentBatch).map_err(of_runtime)
    }
}

impl AugmentPlan {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.0
    }
}

#[pymethods]
impl AugmentBatch {
    /// Height and width of each result.
    #[getter]
    fn size(&self) -> (u32, u32) {
        let Size { width, height } = self.0.size();
        (height, width)
    }

    /// The number of launches that write pictures.
    #[getter]
    fn passes(&self) -> usize {
        self.0.passes()
    }

    /// Writes the kernel arguments of the batch to host memory. The caller owns the memory, and shares it with no
    /// other thread.
    fn records(&self, room: Piece) -> PyResult<()> {
        let records = self.0.records();
        if room.1 as usize != records.len() {
            return Err(PyValueError::new_err(format!(
                "the records have {} bytes, and the room has {}; make it as large as `needs` returns",
                records.len(),
                room.1
            )));
        }
        // SAFETY: the Python package has a new tensor of that many bytes there, which it keeps alive during the call.
        unsafe { std::slice::from_raw_parts_mut(room.0 as *mut u8, records.len()) }
            .copy_from_slice(records);
        Ok(())
    }

    /// The size in bytes of the records, of the buffers between even and odd passes, and of the statistics.
    fn needs(&self) -> (usize, usize, usize, usize) {
        let needs = self.0.needs();
        let [even, odd] = needs.between_bytes;
        let statistics = needs.statistics_bytes * needs.measured;
        (needs.records_bytes, even, odd, statistics)
    }

    /// For each picture, the index of the picture that is mixed in, and the picture's own share.
    fn mixed(&self) -> Vec<(usize, f64)> {
        let mixed = self.0.mixed().iter();
        mixed.map(|mixed| (mixed.partner, mixed.share)).collect()
    }

    /// Computes the results on the CPU. The caller keeps both pieces alive, and nothing writes them meanwhile.
    fn host(
        &self,
        py: Python<'_>,
        input: Piece,
        output: Piece,
        kind: &str,
        is_nhwc: bool,
    ) -> PyResult<()> {
        let form = form(kind, is_nhwc)?;
        let (read, room) = (input.1 as usize, output.1 as usize);
        // SAFETY: the Python package has tensors of that many bytes there, which it keeps alive during the call; the
        // one for results is new, so no other code knows it, and nothing writes the other, as for any PyTorch
        // operator.
        let (input, output) = unsafe {
            (
                std::slice::from_raw_parts(input.0 as *const u8, read),
                std::slice::from_raw_parts_mut(output.0 as *mut u8, room),
            )
        };
        py.detach(|| self.0.host_into(input, form, output))
            .map_err(of_runtime)
    }

    /// Launches the kernels in a stream: `None` is PyTorch's current one. The pieces are input, records, the buffers
    /// between even and odd passes, statistics, and results. All belong to PyTorch, whose allocator knows in which
    /// stream they are used.
    fn launch(
        &self,
        py: Python<'_>,
        device: &str,
        stream: &Bound<'_, PyAny>,
        pieces: [Piece; 6],
        kind: &str,
        is_nhwc: bool,
    ) -> PyResult<()> {
        let form = form(kind, is_nhwc)?;
        let device = devices::open(device)?;
        let stream = stream_of(&device, stream)?;
        py.detach(|| {
            // SAFETY: the caller has tensors there, on this device. PyTorch's allocator reuses their memory in the
            // order of the current stream, which is this one.
            let memory =
                pieces.map(|(at, bytes)| unsafe { DeviceMemory::from_raw(&device, at, bytes) });
            let [input, records, even, odd, statistics, output] = &memory;
            let buffers = Buffers {
                input: input.all(),
                records: records.all(),
                between: [even.all(), odd.all()],
                statistics: statistics.all(),
                output: output.all(),
            };
            // SAFETY: the stream is PyTorch's current one: the copy of the records and the zeroing of the statistics
            // are in it, and a caller that passes a tensor to an operator has ordered the operator after the tensor's
            // last write.
            unsafe { self.0.launch_explicit(&stream, form, &buffers) }
        })
        .map_err(of_runtime)
    }
}

/// Refuses invalid arguments of an operator. The error names the operator and the argument.
#[pyfunction]
pub fn check_operator(name: &str, given: &Bound<'_, PyDict>) -> PyResult<()> {
    let made = operator(name, given).map_err(|error| {
        let why = error.value(given.py()).to_string();
        PyValueError::new_err(format!("{name}: {why}"))
    })?;
    made.check().map_err(words)
}

/// Every operator: its name, its description, and its arguments, each with its possible values and its default.
#[pyfunction]
pub fn operators() -> Vec<(&'static str, &'static str, Vec<Described>)> {
    let argument = |argument: &Argument| (argument.name, argument.kind(), argument.default);
    let row = |row: &Row| {
        let arguments = row.arguments.iter().map(argument);
        (row.name, row.about.trim(), arguments.collect())
    };
    TABLE.iter().map(row).collect()
}

type Described = (&'static str, String, Option<&'static str>);

/// The error without the name of the Rust function.
fn words(error: Error) -> PyErr {
    match error {
        Error::Invalid { why, .. } => PyValueError::new_err(why),
        error => of_runtime(error),
    }
}

fn key_of((seed, epoch, sample): (u64, u64, u64)) -> Key {
    Key::new(seed, epoch, sample)
}

fn placed_of((offset, left, top, width, height, full_width, full_height): Lies) -> Placed {
    Placed {
        offset,
        held: Region {
            left,
            top,
            size: Size { width, height },
        },
        full: Size::new(full_width, full_height),
    }
}

fn layout(is_nhwc: bool) -> Layout {
    if is_nhwc { Layout::Nhwc } else { Layout::Nchw }
}

fn form(kind: &str, is_nhwc: bool) -> PyResult<Form> {
    let kind = match kind {
        "uint8" => Kind::U8,
        "float16" => Kind::F16,
        "bfloat16" => Kind::Bf16,
        "float32" => Kind::F32,
        _ => {
            return Err(PyValueError::new_err(format!(
                "results of {kind} cannot be made; ask for float32, float16, bfloat16 or uint8"
            )));
        }
    };
    Ok(Form {
        layout: layout(is_nhwc),
        kind,
    })
}

/// Makes an operator from the attributes of its Python class.
fn operator(name: &str, given: &Bound<'_, PyDict>) -> PyResult<Operator> {
    if TABLE.iter().all(|row| row.name != name) {
        return Err(PyValueError::new_err(format!(
            "{name} is not an operator of sidestream.images"
        )));
    }
    // If `side`, the length of the shorter side, is given, it replaces height and width.
    let side = given.get_item("side")?.filter(|side| !side.is_none());
    let mut arguments = Vec::new();
    for (key, held) in given {
        let (key, held) = match (key.extract::<String>()?, &side) {
            (key, _) if key == "side" => continue,
            (key, Some(side)) if key == "size" => ("side".to_owned(), side.clone()),
            (key, _) => (key, held),
        };
        let value = value(&held).ok_or_else(|| {
            PyValueError::new_err(format!("{key} is {held}, which is out of range"))
        })?;
        let (key, value) = match (&*key, &value) {
            ("side", _) => ("size", value),
            ("bilinear", Value::Word(word)) if word == "True" => {
                ("interpolation", word_of("bilinear"))
            }
            ("bilinear", _) => ("interpolation", word_of("nearest")),
            (key, _) => (key, value),
        };
        arguments.push((Some(key.to_owned()), value));
    }
    Operator::new(name, arguments).map_err(words)
}

fn word_of(word: &str) -> Value {
    Value::Word(word.to_owned())
}

/// Converts an attribute; `None` if it is out of range. The classes of the package ensure the right type.
fn value(held: &Bound<'_, PyAny>) -> Option<Value> {
    if held.is_none() {
        Some(word_of("None"))
    } else if let Ok(flag) = held.cast::<PyBool>() {
        Some(word_of(if flag.is_true() { "True" } else { "False" }))
    } else if held.is_instance_of::<PyInt>() {
        Some(Value::Number(held.extract::<u32>().ok()?.into()))
    } else if let Ok(number) = held.extract() {
        Some(Value::Number(number))
    } else {
        let each = held.try_iter().ok()?;
        let all = each.map(|one| value(&one.ok()?));
        Some(Value::List(all.collect::<Option<_>>()?))
    }
}
