//! Listens to a program: the checker reads every call, and so may a test.

use std::sync::Arc;

use parking_lot::Mutex;
use sidestream::check::Checker;
use sidestream::log::{Record, Sink};
use sidestream::op::Op;

/// A listening checker. Clones share it.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

#[derive(Default)]
pub struct Seen {
    pub checker: Checker,
    /// Each declaration with the number of operations before it.
    pub declared: Vec<(usize, Record<'static>)>,
    pub ops: Vec<Op>,
    /// What the rules refuse, and wrong or missing declarations.
    pub wrong: Vec<String>,
}

impl Watch {
    pub fn seen<R>(&self, look: impl FnOnce(&Seen) -> R) -> R {
        look(&self.0.lock())
    }
}

/// Returns a checker that has read everything, without the operations that `skip` names.
pub fn read_again(seen: &Seen, skip: impl Fn(usize) -> bool) -> Checker {
    let mut checker = Checker::new();
    let mut declared = seen.declared.iter().peekable();
    for (at, op) in seen.ops.iter().enumerate() {
        while let Some((_, next)) = declared.next_if(|(before, _)| *before <= at) {
            let _ = checker.take(next);
        }
        if !skip(at) {
            let _ = checker.push(op);
        }
    }
    checker
}

impl Sink for Watch {
    fn take(&mut self, record: &Record<'_>) {
        let mut seen = self.0.lock();
        let declared = match record {
            Record::Stream { kind, device, .. } => Record::stream(*kind, *device, ""),
            Record::Event { timing, device, .. } => Record::event(*timing, *device, ""),
            Record::Buffer {
                memory,
                bytes,
                within,
                ..
            } => Record::buffer(*memory, *bytes, *within, ""),
            Record::Op(op) => {
                if op.id.0 as usize != seen.ops.len() {
                    let wrong = format!("{} is the {}th", op.id, seen.ops.len());
                    seen.wrong.push(wrong);
                }
                if let Err(refused) = seen.checker.push(op) {
                    seen.wrong.push(format!("{op:?}: {}", refused.misuse));
                }
                seen.ops.push(op.clone().into_owned());
                return;
            }
            _ => return,
        };
        let _ = seen.checker.take(&declared);
        let before = seen.ops.len();
        seen.declared.push((before, declared));
    }
}
