//! Listens to a program: the checker reads every call, and so may a test.

use std::sync::Arc;

use parking_lot::Mutex;
use sidestream::check::{BufferDecl, Checker, Place};
use sidestream::log::{Sink, Within};
use sidestream::op::{DeviceId, Memory, Op, StreamKind, ThreadId};

/// A checker that reads along. Clones are the same one.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

#[derive(Default)]
pub struct Seen {
    pub checker: Checker,
    pub declared: Vec<Declared>,
    pub ops: Vec<Op>,
    /// What the rules refuse, and what was not declared as it should be.
    pub wrong: Vec<String>,
}

/// A declaration, and before which operation it came.
#[derive(Clone, Debug)]
pub enum Declared {
    Stream(usize, StreamKind, DeviceId),
    Event(usize, bool, DeviceId),
    Buffer(usize, BufferDecl),
}

impl Watch {
    pub fn seen<R>(&self, look: impl FnOnce(&Seen) -> R) -> R {
        look(&self.0.lock())
    }
}

impl Seen {
    fn declare(&mut self, declared: Declared) {
        apply(&mut self.checker, &declared);
        self.declared.push(declared);
    }
}

/// A checker that has read all of it, without the operations that `skip` names.
pub fn read_again(seen: &Seen, skip: impl Fn(usize) -> bool) -> Checker {
    let mut checker = Checker::new();
    let mut declared = seen.declared.iter().peekable();
    for (at, op) in seen.ops.iter().enumerate() {
        while let Some(next) = declared.next_if(|next| next.before() <= at) {
            apply(&mut checker, next);
        }
        if !skip(at) {
            let _ = checker.push(op);
        }
    }
    checker
}

impl Declared {
    pub fn before(&self) -> usize {
        match self {
            Declared::Stream(at, ..) | Declared::Event(at, ..) | Declared::Buffer(at, _) => *at,
        }
    }
}

fn apply(checker: &mut Checker, declared: &Declared) {
    match *declared {
        Declared::Stream(_, kind, device) => {
            checker.order_mut().add_stream(kind, device);
        }
        Declared::Event(_, timing, device) => {
            checker.order_mut().add_event(timing, Some(device));
        }
        Declared::Buffer(_, decl) => {
            checker.add_buffer(decl);
        }
    }
}

impl Sink for Watch {
    fn stream(&mut self, kind: StreamKind, device: DeviceId, _name: &str) {
        let mut seen = self.0.lock();
        let at = seen.ops.len();
        seen.declare(Declared::Stream(at, kind, device));
    }

    fn event(&mut self, timing: bool, device: DeviceId) {
        let mut seen = self.0.lock();
        let at = seen.ops.len();
        seen.declare(Declared::Event(at, timing, device));
    }

    fn buffer(&mut self, memory: Memory, bytes: u64, within: Option<Within>, _name: &str) {
        let place = within.map_or(Place::Fresh, |within| Place::Within {
            buffer: within.buffer,
            start: within.start,
        });
        let decl = BufferDecl {
            memory,
            bytes,
            place,
        };
        let mut seen = self.0.lock();
        let at = seen.ops.len();
        seen.declare(Declared::Buffer(at, decl));
    }

    fn thread(&mut self, _name: &str) {}

    fn site(&mut self, _text: &str) {}

    fn span(&mut self, _thread: ThreadId, _enters: Option<&str>) {}

    fn op(&mut self, op: &Op) {
        let mut seen = self.0.lock();
        if op.id.0 as usize != seen.ops.len() {
            let wrong = format!("{} is the {}th", op.id, seen.ops.len());
            seen.wrong.push(wrong);
        }
        if let Err(refused) = seen.checker.push(op) {
            seen.wrong.push(format!("{op:?}: {}", refused.misuse));
        }
        seen.ops.push(op.clone());
    }
}
