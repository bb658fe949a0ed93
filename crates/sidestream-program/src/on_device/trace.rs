//! Converts a recorded run to a trace with the names of its program.

use std::collections::HashMap;

use sidestream::device::Device;
use sidestream::log::{Error, Reader, Record};
use sidestream::op::{OpId, ThreadId};
use sidestream::trace::{Call, Trace, Waits, What, Work};

use super::OWN_STREAM;
use super::plan::Plan;

/// Maps each operation of the recording to the op of the program in which it was called. Each op is a span, whose
/// name begins with the op's number.
pub(super) fn called(recording: &[u8]) -> Result<HashMap<OpId, usize>, Error> {
    let mut called = HashMap::new();
    let mut within: HashMap<ThreadId, Vec<Option<usize>>> = HashMap::new();
    let mut log = Reader::new(recording)?;
    let mut record = Record::default();
    while log.read_into(&mut record)? {
        match &record {
            Record::Span { thread, enters } => {
                let spans = within.entry(*thread).or_default();
                match enters {
                    Some(name) => spans.push(number(name)),
                    None => _ = spans.pop(),
                }
            }
            Record::Op(op) => {
                let span = within.get(&op.thread).and_then(|spans| spans.last());
                if let Some(&Some(at)) = span {
                    called.insert(op.id, at);
                }
            }
            _ => {}
        }
    }
    Ok(called)
}

fn number(span: &str) -> Option<usize> {
    span.split(' ').next()?.parse().ok()
}

/// Gives the trace of a recording the ops, names and threads of the program. Operations that no op has called are
/// dropped.
pub(super) fn of_program(
    mut trace: Trace,
    called: &HashMap<OpId, usize>,
    plan: &Plan<'_>,
    devices: &[Device],
) -> Trace {
    let program = plan.program;
    let op_of = |op: OpId| called.get(&op).map(|&at| OpId(at as u32));
    for device in &mut trace.devices {
        if let Some(opened) = devices.get(device.id.0 as usize) {
            device.name = opened.name().to_owned();
            device.memory_bytes = opened.caps().memory_bytes;
        }
    }
    trace.streams.retain(|stream| stream.name != OWN_STREAM);
    trace.spans.clear();
    let (mut calls, mut work) = (Vec::<Call>::new(), Vec::<Work>::new());
    for mut call in trace.calls {
        let Some(op) = op_of(call.op) else { continue };
        call.op = op;
        if let Some(Waits::Event { recorded_by }) = &mut call.waits {
            *recorded_by = recorded_by.and_then(op_of);
        }
        // An op with several calls is shown as one.
        let before = calls.iter_mut().rev().find(|c| c.thread == call.thread);
        match before.filter(|before| before.op == op) {
            Some(before) => {
                before.end_ns = before.end_ns.max(call.end_ns);
                before.waits = before.waits.or(call.waits);
            }
            None => calls.push(call),
        }
    }
    for mut one in trace.work {
        let Some(op) = op_of(one.op) else { continue };
        if let What::Wait { recorded_by } = &mut one.what {
            *recorded_by = recorded_by.and_then(op_of);
        }
        let before = work.iter_mut().rev().find(|w| w.stream == one.stream);
        if let Some(before) = before.filter(|before| before.op == op && before.what == one.what) {
            before.end_ns = before.end_ns.max(one.end_ns);
            continue;
        }
        one.op = op;
        one.name = program.name_of(op).to_owned();
        one.label = format!("{} {}", op.0, one.name);
        work.push(one);
    }
    trace.threads.retain_mut(|thread| {
        let call = calls.iter().find(|call| call.thread == thread.id);
        let Some(call) = call else { return false };
        let caller = program.ops[call.op.0 as usize].thread;
        thread.name.clone_from(&program.threads[caller.0 as usize]);
        true
    });
    Trace {
        calls,
        work,
        ..trace
    }
}
