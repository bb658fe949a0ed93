//! Takes nested containers apart into their arrays, and rebuilds them.
//!
//! A batch passes here several times on its way, and for small batches this is most of the host's cost of an
//! iteration. So lists, tuples and dictionaries are taken apart here, and other containers by `_tree.py`, which knows
//! them.

use std::cell::Cell;

use pyo3::exceptions::{PyRecursionError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyNone, PyString, PyTuple, PyType,
};

/// The maximum nesting depth: far deeper than any batch, and safe for the stack of any thread.
const DEEPEST: usize = 200;

/// Python's `sys.modules`.
static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// The structure of a container without its arrays. The structure keeps no array alive.
#[pyclass(frozen, module = "sidestream._sidestream")]
pub struct Shape {
    tree: Node,
    /// Whether the tree has an object that cannot be inspected: it may hold arrays.
    #[pyo3(get)]
    has_objects: bool,
}

enum Node {
    /// The place of an array that was taken out.
    Array,
    /// A value without arrays, which is kept as it is.
    Same(Py<PyAny>),
    /// An object that is not taken apart, and the function that makes its replacement.
    Whole(Py<PyAny>),
    /// A container and its contents.
    Of(Container, Vec<Node>),
}

enum Container {
    List,
    Tuple,
    Dict(Vec<Py<PyAny>>),
    /// A container that `_tree.py` has taken apart.
    Other {
        kind: Py<PyType>,
        names: Py<PyAny>,
        make: Py<PyAny>,
    },
}

/// The array classes of PyTorch and numpy seen so far. Programs may import these modules at any time, so a module is
/// looked up again when another class appears. The lookup is kept rare: `sys.modules` and the modules' dictionaries
/// are large, and out of the processor's caches after each training step.
static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Selects and collects arrays.
struct Arrays<'py> {
    /// Whether numpy arrays are taken out too.
    too: bool,
    open: Bound<'py, PyAny>,
    leaves: Bound<'py, PyList>,
    has_objects: Cell<bool>,
}

/// Return the arrays of a tree in order, and the tree's shape.
///
/// PyTorch tensors are taken out, and, if `arrays`, numpy arrays of numbers. `open` takes other containers apart. For a
/// container it returns the class, the names, the values, and a function. That function returns another one, which
/// builds the container from new values. The values are None if the container can only be rebuilt as a whole; the
/// function then returns what does that. For anything else `open` returns None.
#[pyfunction]
pub fn flatten<'py>(
    tree: &Bound<'py, PyAny>,
    arrays: bool,
    open: Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyList>, Shape)> {
    let out = Arrays {
        too: arrays,
        open,
        leaves: PyList::empty(tree.py()),
        has_objects: Cell::new(false),
    };
    let tree = out.take(tree, 0)?;
    let has_objects = out.has_objects.get();
    Ok((out.leaves, Shape { tree, has_objects }))
}

impl<'py> Arrays<'py> {
    fn take(&self, tree: &Bound<'py, PyAny>, depth: usize) -> PyResult<Node> {
        if depth == DEEPEST {
            return Err(PyRecursionError::new_err(format!(
                "the batch is nested more than {DEEPEST} levels deep, or contains itself"
            )));
        }
        let container = |container, values: &mut dyn Iterator<Item = _>| {
            self.container(tree, values, depth, || Ok(container))
        };
        if let Ok(tuple) = tree.cast_exact::<PyTuple>() {
            return container(Container::Tuple, &mut tuple.iter());
        }
        if let Ok(list) = tree.cast_exact::<PyList>() {
            return container(Container::List, &mut list.iter());
        }
        if let Ok(dict) = tree.cast_exact::<PyDict>() {
            // The items are copied first: code that inspects a value may change the dictionary.
            let items = dict.items();
            let pair = |item: Bound<'py, PyAny>| item.extract::<(Py<PyAny>, Bound<'py, PyAny>)>();
            let pairs: Vec<_> = items.iter().map(pair).collect::<PyResult<_>>()?;
            let (names, values): (Vec<Py<PyAny>>, Vec<_>) = pairs.into_iter().unzip();
            return container(Container::Dict(names), &mut values.into_iter());
        }
        let same = || Node::Same(tree.clone().unbind());
        if is_plain(tree) {
            return Ok(same());
        }
        if self.is_array(tree)? {
            self.leaves.append(tree)?;
            return Ok(Node::Array);
        }
        let opened = self.open.call1((tree,))?;
        if opened.is_none() {
            self.has_objects.set(true);
            return Ok(same());
        }
        let (kind, names, values, make): (
            Py<PyType>,
            Py<PyAny>,
            Option<Bound<'py, PyList>>,
            Bound<'py, PyAny>,
        ) = opened.extract()?;
        let Some(values) = values else {
            // The object may hold arrays that are not visible here.
            self.has_objects.set(true);
            return Ok(Node::Whole(make.call0()?.unbind()));
        };
        self.container(tree, &mut values.iter(), depth, || {
            let make = make.call0()?.unbind();
            Ok(Container::Other { kind, names, make })
        })
    }

    /// A container with these values, or the original object if it holds no array.
    fn container(
        &self,
        tree: &Bound<'py, PyAny>,
        values: &mut dyn Iterator<Item = Bound<'py, PyAny>>,
        depth: usize,
        container: impl FnOnce() -> PyResult<Container>,
    ) -> PyResult<Node> {
        let before = self.leaves.len();
        let children = values.map(|value| self.take(&value, depth + 1));
        let children = children.collect::<PyResult<_>>()?;
        Ok(if self.leaves.len() == before {
            Node::Same(tree.clone().unbind())
        } else {
            Node::Of(container()?, children)
        })
    }

    fn is_array(&self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        let py = value.py();
        if is_a(value, &TENSOR, intern!(py, "torch"), intern!(py, "Tensor"))? {
            return Ok(true);
        }
        if !self.too || !is_a(value, &ARRAY, intern!(py, "numpy"), intern!(py, "ndarray"))? {
            return Ok(false);
        }
        // Arrays of strings, dates and objects are not arrays of numbers.
        let kind = value
            .getattr(intern!(py, "dtype"))?
            .getattr(intern!(py, "kind"))?;
        Ok("biufc".contains(kind.extract::<std::borrow::Cow<'_, str>>()?.as_ref()))
    }
}

/// Whether a value is an instance of a class of a module, if the module was imported.
fn is_a<'py>(
    value: &Bound<'py, PyAny>,
    met: &PyOnceLock<Py<PyType>>,
    module: &Bound<'py, PyString>,
    class: &Bound<'py, PyString>,
) -> PyResult<bool> {
    let py = value.py();
    let kind = value.get_type();
    if met.get(py).is_some_and(|met| kind.is(met)) {
        return Ok(true);
    }
    let modules = MODULES.get_or_try_init(py, || {
        let modules = py.import("sys")?.getattr("modules")?;
        PyResult::Ok(modules.cast_into::<PyDict>()?.unbind())
    })?;
    let Some(module) = modules.bind(py).get_item(module)? else {
        return Ok(false);
    };
    // A module that is still being imported lacks some attributes.
    let Ok(class) = module.getattr(class) else {
        return Ok(false);
    };
    if kind.is(&class) {
        // Another thread may have stored a different class, in a test that replaces the module.
        let _ = met.set(py, kind.unbind());
        return Ok(true);
    }
    value.is_instance(&class)
}

/// Whether a value is one of the common non-array values in a batch, which are not containers.
fn is_plain(value: &Bound<'_, PyAny>) -> bool {
    value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyBytes>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyNone>()
}

#[pymethods]
impl Shape {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.tree.visited(&visit)
    }

    /// Put other arrays in the places of those that were taken out.
    fn unflatten<'py>(&self, leaves: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
        let mut rest = leaves.iter();
        let made = self.tree.make(leaves.py(), &mut rest)?;
        match rest.len() {
            0 => Ok(made),
            more => Err(PyValueError::new_err(format!(
                "there are {more} more arrays than places for them"
            ))),
        }
    }

    /// Whether both trees have equal containers, and equal values apart from the arrays.
    ///
    /// Values that cannot be compared count as different.
    fn is_same(&self, other: &Bound<'_, Shape>) -> bool {
        self.tree.is_same(&other.get().tree, other.py())
    }

    /// The path to the array with this index, as a Python expression; empty if there is none.
    fn path_of(&self, py: Python<'_>, index: usize) -> PyResult<String> {
        let mut left = index;
        Ok(self.tree.path(py, &mut left)?.unwrap_or_default())
    }
}

impl Node {
    /// Reports the references of this object to the garbage collector.
    fn visited(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Node::Array => Ok(()),
            Node::Same(value) | Node::Whole(value) => visit.call(value),
            Node::Of(container, children) => {
                match container {
                    Container::List | Container::Tuple => {}
                    Container::Dict(names) => {
                        names.iter().try_for_each(|name| visit.call(name))?;
                    }
                    Container::Other { kind, names, make } => {
                        visit.call(kind)?;
                        visit.call(names)?;
                        visit.call(make)?;
                    }
                }
                children.iter().try_for_each(|child| child.visited(visit))
            }
        }
    }

    fn make<'py>(
        &self,
        py: Python<'py>,
        leaves: &mut impl Iterator<Item = Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Node::Array => leaves.next().ok_or_else(|| {
                PyValueError::new_err("there are fewer arrays than places for them")
            })?,
            Node::Same(value) => value.bind(py).clone(),
            Node::Whole(make) => make.bind(py).call1((PyList::empty(py),))?,
            Node::Of(container, children) => {
                let values = children.iter().map(|child| child.make(py, leaves));
                container.make(py, values.collect::<PyResult<_>>()?)?
            }
        })
    }

    fn is_same(&self, other: &Node, py: Python<'_>) -> bool {
        match (self, other) {
            (Node::Array, Node::Array) => true,
            (Node::Same(one), Node::Same(other)) => equal(one, other, py),
            (Node::Of(one, ones), Node::Of(other, others)) => {
                let mut pairs = ones.iter().zip(others);
                ones.len() == others.len()
                    && one.is_same(other, py)
                    && pairs.all(|(one, other)| one.is_same(other, py))
            }
            _ => false,
        }
    }

    /// The path to the array with this index; `left` counts down on the way.
    fn path(&self, py: Python<'_>, left: &mut usize) -> PyResult<Option<String>> {
        match self {
            Node::Array if *left == 0 => return Ok(Some(String::new())),
            Node::Array => *left -= 1,
            Node::Same(_) | Node::Whole(_) => {}
            Node::Of(container, children) => {
                for (at, child) in children.iter().enumerate() {
                    if let Some(rest) = child.path(py, left)? {
                        return Ok(Some(container.key(py, at)? + &rest));
                    }
                }
            }
        }
        Ok(None)
    }
}

impl Container {
    fn make<'py>(
        &self,
        py: Python<'py>,
        values: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Container::List => PyList::new(py, values)?.into_any(),
            Container::Tuple => PyTuple::new(py, values)?.into_any(),
            Container::Dict(names) => {
                let dict = PyDict::new(py);
                for (name, value) in names.iter().zip(values) {
                    dict.set_item(name, value)?;
                }
                dict.into_any()
            }
            Container::Other { kind, make, .. } => {
                let made = make.bind(py).call1((PyList::new(py, values)?,));
                made.map_err(|why| cannot_be_made(kind.bind(py), why))?
            }
        })
    }

    fn is_same(&self, other: &Container, py: Python<'_>) -> bool {
        use Container::*;
        match (self, other) {
            (List, List) | (Tuple, Tuple) => true,
            (Dict(names), Dict(others)) => {
                let mut pairs = names.iter().zip(others);
                pairs.all(|(one, other)| equal(one, other, py))
            }
            (
                Other { kind, names, .. },
                Other {
                    kind: k, names: n, ..
                },
            ) => kind.is(k) && equal(names, n, py),
            _ => false,
        }
    }

    /// The Python expression for the key of this place.
    fn key(&self, py: Python<'_>, at: usize) -> PyResult<String> {
        Ok(match self {
            Container::Dict(names) => format!("[{}]", names[at].bind(py).repr()?),
            Container::Other { kind, names, .. } if !names.is_none(py) => {
                let mapping = py
                    .import(intern!(py, "collections.abc"))?
                    .getattr(intern!(py, "Mapping"))?;
                let name = names.bind(py).get_item(at)?;
                if kind.bind(py).is_subclass(&mapping)? {
                    format!("[{}]", name.repr()?)
                } else {
                    format!(".{name}")
                }
            }
            Container::List | Container::Tuple | Container::Other { .. } => format!("[{at}]"),
        })
    }
}

/// Whether two values are equal. The comparison is user code, and may fail.
fn equal(one: &Py<PyAny>, other: &Py<PyAny>, py: Python<'_>) -> bool {
    one.is(other) || one.bind(py).eq(other).unwrap_or(false)
}

/// The error if the constructor of the user's class refuses the values.
fn cannot_be_made(kind: &Bound<'_, PyType>, why: PyErr) -> PyErr {
    let py = kind.py();
    let name = kind
        .name()
        .map_or_else(|_| String::new(), |name| name.to_string());
    let error = PyTypeError::new_err(format!(
        "a {name} cannot be rebuilt with other arrays in it ({}); give the arrays in a dict, a list or a tuple",
        why.value(py)
    ));
    error.set_cause(py, Some(why));
    error
}
