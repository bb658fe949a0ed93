//! Repeats a program as a loop, with each iteration as a step of the trace.

use sidestream::op::ThreadId;
use sidestream::trace::{Place, Span, Trace};

use crate::program::Program;

impl Program {
    /// Returns the program with its ops repeated `times` times, one after another, as in a loop: the iterations wait
    /// only where the ops wait. The result expects nothing of a checker, since `expect` refers to the first iteration
    /// alone. Flags that were raised stay raised.
    pub fn repeated(&self, times: usize) -> Program {
        let mut again = self.ops.clone();
        for op in &mut again {
            (op.fields.must_alias, op.fields.must_not_alias) = (None, None);
        }
        let mut ops = self.ops.clone();
        for _ in 1..times {
            ops.extend_from_slice(&again);
        }
        Program {
            ops,
            ..self.clone()
        }
    }
}

/// Marks the steps of a repeated program as PyTorch's profiler marks those of a loop. Each step has `ops` ops, and on
/// the host it lasts from its first call to the first call of the next step.
pub fn mark_steps(trace: &mut Trace, ops: usize) {
    let mut begins: Vec<Option<(u64, ThreadId)>> = Vec::new();
    let mut over_ns = 0;
    for call in &trace.calls {
        let step = call.op.0 as usize / ops.max(1);
        if begins.len() <= step {
            begins.resize(step + 1, None);
        }
        let begin = (call.start_ns, call.thread);
        begins[step] = begins[step]
            .map(|earlier| earlier.min(begin))
            .or(Some(begin));
        over_ns = over_ns.max(call.end_ns);
    }
    let begins: Vec<(u64, ThreadId)> = begins.into_iter().flatten().collect();
    let ends = begins.iter().skip(1).map(|next| next.0).chain([over_ns]);
    let first = trace.spans.iter().map(|span| span.number + 1).max();
    let numbers = first.unwrap_or(0)..;
    let steps = begins.iter().zip(ends).zip(numbers).enumerate();
    let spans: Vec<Span> = steps
        .map(|(step, (((start_ns, thread), end_ns), number))| Span {
            name: format!("ProfilerStep#{step}"),
            number,
            place: Place::Thread(*thread),
            start_ns: *start_ns,
            end_ns: end_ns.max(*start_ns),
        })
        .collect();
    trace.spans.splice(0..0, spans);
}
