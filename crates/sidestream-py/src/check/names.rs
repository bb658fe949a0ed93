//! The names of operators and threads, by number.

use std::cell::Cell;
use std::collections::HashMap;

use indexmap::IndexSet;
use pyo3::prelude::*;
use serde_json::{Value, json};

use super::Recorder;
use super::spine::Site;

/// Names of operators and threads, by index.
#[derive(Default)]
pub struct Names {
    operators: IndexSet<String>,
    threads: Vec<String>,
    /// The last thread with each system thread ID.
    natives: HashMap<i32, u32>,
}

impl Names {
    pub fn operator(&mut self, name: String) -> u32 {
        self.operators.insert_full(name).0 as u32
    }

    /// The name of an operator, or of a kernel's argument.
    pub fn of(&self, operator: u32) -> &str {
        self.operators
            .get_index(operator as usize)
            .map_or("", |name| name)
    }

    /// A place for the report.
    pub fn shown(&self, site: Site) -> Value {
        let thread = self.threads.get(site.thread as usize);
        let thread = thread.map_or("", |name| name);
        json!({"operator": self.of(site.name), "thread": thread, "stack": site.stack})
    }
}

thread_local! {
    /// This thread's number, in the recorder that asked last.
    static THREAD: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

impl Recorder {
    /// Like [`Recorder::site`], by the operator's name.
    pub(super) fn named(&self, py: Python<'_>, name: &str) -> Site {
        let name = self.names.lock().operator(name.to_owned());
        self.site(py, name)
    }

    /// The number of the calling thread.
    pub(super) fn thread(&self, py: Python<'_>, in_engine: bool) -> u32 {
        let (recorder, number) = THREAD.get();
        if recorder == self.id {
            return number;
        }
        self.register(if in_engine {
            "backward".to_owned()
        } else {
            self.torch.thread_name(py)
        })
    }

    /// Registers the calling thread, and returns its number.
    pub(super) fn register(&self, name: String) -> u32 {
        let mut names = self.names.lock();
        let number = names.threads.len() as u32;
        names.threads.push(name);
        names
            .natives
            .insert(host_guard::hits::this_thread(), number);
        THREAD.set((self.id, number));
        number
    }

    /// The number of the thread with this system ID.
    pub(super) fn thread_of(&self, py: Python<'_>, native: i32) -> u32 {
        if let Some(&known) = self.names.lock().natives.get(&native) {
            return known;
        }
        let name = || -> PyResult<String> {
            let all = py.import("threading")?.call_method0("enumerate")?;
            for thread in all.try_iter()? {
                let thread = thread?;
                if thread.getattr("native_id")?.extract::<i32>().ok() == Some(native) {
                    return thread.getattr("name")?.extract();
                }
            }
            Ok(format!("thread {native}"))
        };
        let name = name().unwrap_or_default();
        let mut names = self.names.lock();
        match names.threads.iter().position(|known| *known == name) {
            Some(at) => at as u32,
            None => {
                names.threads.push(name);
                names.threads.len() as u32 - 1
            }
        }
    }
}
