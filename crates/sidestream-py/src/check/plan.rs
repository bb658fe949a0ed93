//! What a PyTorch operator does with its arguments, worked out once from its schema.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::tensor::Asked;
use super::touch::Touch;

/// What is reported of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Nothing: the operator makes a view or uninitialized memory, or is a query.
    Silent,
    /// Its reads and writes.
    Kernel,
    /// Its reads and writes, by cuBLAS, which needs a workspace.
    Product,
    /// Its reads and writes, and that the host waits for the result.
    Waits,
    /// Its reads and writes of some elements; the host waits for the result if the index requires it.
    Indexed,
    /// `copy_(self, src, non_blocking)`.
    Copy,
    /// `_to_copy(self, …, non_blocking)`.
    ToCopy,
    /// `_foreach_copy_(self, src, non_blocking)`.
    Copies,
    /// `record_stream(self, stream)`.
    RecordStream,
}

/// One argument that has tensors: its index and name, whether it is written, and whether it is a list.
type Argument = (usize, Py<PyString>, bool, bool);

/// The plan of one operator.
pub struct Plan {
    /// The operator.
    pub op: Py<PyAny>,
    /// The number of the operator's name.
    pub name: u32,
    /// What is reported of the operator.
    pub class: Class,
    /// Whether the operator adds one tensor to another.
    pub adds: bool,
    /// Whether the operator puts values at the places of an index.
    puts: bool,
    /// Whether the operator writes its arguments only in training, which its sixth argument says.
    trains: bool,
    arguments: Vec<Argument>,
    /// For each result, whether it is new memory; a list of tensors counts as one result.
    results: Vec<bool>,
}

/// A plan as Python passes it: operator, name, class, arguments, results.
pub type Given = (Py<PyAny>, String, String, Vec<Argument>, Vec<bool>);

impl Plan {
    /// Converts a plan that Python made.
    pub fn new(given: Given, name: impl FnOnce(String) -> u32) -> PyResult<Plan> {
        let (op, text, class, arguments, results) = given;
        let class = match class.as_str() {
            "silent" => Class::Silent,
            "kernel" => Class::Kernel,
            "product" => Class::Product,
            "waits" => Class::Waits,
            "indexed" => Class::Indexed,
            "copy" => Class::Copy,
            "to_copy" => Class::ToCopy,
            "copies" => Class::Copies,
            "record_stream" => Class::RecordStream,
            other => {
                let why = format!("`{other}` is not a class of operators");
                return Err(pyo3::exceptions::PyValueError::new_err(why));
            }
        };
        Ok(Plan {
            op,
            adds: matches!(text.as_str(), "add" | "add_") && arguments.len() == 2,
            puts: text.contains("put"),
            trains: text.ends_with("batch_norm"),
            name: name(text),
            class,
            arguments,
            results,
        })
    }

    /// Collects what the operator touched, with the tensors.
    pub fn touched<'py>(
        &self,
        asked: &Asked,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        result: &Bound<'py, PyAny>,
        into: &mut Touched<'py>,
    ) {
        let training = || {
            let value = value(5, intern!(args.py(), "training"), args, kwargs);
            value.is_some_and(|value| value.is_truthy().unwrap_or(true))
        };
        let writes = !self.trains || training();
        for (index, name, write, list) in &self.arguments {
            if let Some(value) = value(*index, name.bind(args.py()), args, kwargs) {
                into.add(asked, value, *write && writes, *list);
            }
        }
        match self.results[..] {
            [] => {}
            [fresh] => {
                if fresh {
                    into.add_any(asked, result.clone());
                }
            }
            _ => {
                if let Ok(results) = result.cast::<PyTuple>() {
                    for (value, _) in results.iter().zip(&self.results).filter(|(_, new)| **new) {
                        into.add_any(asked, value);
                    }
                }
            }
        }
    }

    /// Whether the host waits in the call. A mask is first converted to a list of indices, whose length the host must
    /// know; and an index on the host is copied to the device. One host value that is put at the places of a mask is
    /// filled in without either.
    pub fn waits(
        &self,
        asked: &Asked,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> bool {
        if self.class != Class::Indexed {
            return self.class == Class::Waits;
        }
        let py = args.py();
        let list = value(1, intern!(py, "indices"), args, kwargs);
        let Some(list) = list.and_then(|list| list.try_iter().ok()) else {
            return false;
        };
        let indices = list.filter_map(|index| index.ok().filter(|index| !index.is_none()));
        let indices: Vec<(bool, bool)> = indices
            .map(|index| (asked.is_mask(&index), asked.is_on_host(&index)))
            .collect();
        let accumulates = || {
            let given = value(3, intern!(py, "accumulate"), args, kwargs);
            given.is_some_and(|value| value.is_truthy().unwrap_or(false))
        };
        let is_one = || {
            let given = value(2, intern!(py, "values"), args, kwargs);
            given.is_some_and(|value| asked.is_on_host(&value) && asked.is_one(&value))
        };
        if self.puts && indices == [(true, false)] && !accumulates() && is_one() {
            return false;
        }
        indices.iter().any(|&(mask, host)| mask || host)
    }
}

/// The argument with an index in the schema, positional or by keyword.
#[inline]
pub fn value<'py>(
    at: usize,
    name: &Bound<'py, PyString>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> Option<Bound<'py, PyAny>> {
    if at < args.len() {
        return args.get_item(at).ok();
    }
    kwargs?.get_item(name).ok().flatten()
}

/// What one operator touched.
#[derive(Default)]
pub struct Touched<'py> {
    /// The byte ranges.
    pub touches: Vec<Touch>,
    /// The tensors, one per range.
    pub tensors: Vec<Bound<'py, PyAny>>,
}

impl<'py> Touched<'py> {
    /// Adds an argument: a tensor, or a list of tensors.
    pub fn add(&mut self, asked: &Asked, value: Bound<'py, PyAny>, write: bool, list: bool) {
        if !list {
            self.add_one(asked, value, write);
        } else if let Ok(values) = value.cast::<PyList>() {
            (values.iter()).for_each(|value| self.add_one(asked, value, write));
        } else if let Ok(values) = value.cast::<PyTuple>() {
            (values.iter()).for_each(|value| self.add_one(asked, value, write));
        }
    }

    /// Adds a result: a tensor, or several.
    fn add_any(&mut self, asked: &Asked, value: Bound<'py, PyAny>) {
        let list = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
        self.add(asked, value, true, list);
    }

    #[inline]
    fn add_one(&mut self, asked: &Asked, value: Bound<'py, PyAny>, write: bool) {
        if value.is_none() {
            return;
        }
        if let Some(touch) = asked.touch(&value, write) {
            self.touches.push(touch);
            self.tensors.push(value);
        }
    }

    /// The device of the operator: that of its first device tensor.
    pub fn device(&self) -> Option<u32> {
        let mut devices = self.touches.iter().map(|touch| touch.device);
        devices
            .find(|device| *device >= 0)
            .map(|device| device as u32)
    }
}
