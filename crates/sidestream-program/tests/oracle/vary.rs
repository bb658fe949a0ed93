//! Changes random programs where the generator is too tidy.
//!
//! The generator never lets two ranges overlap by a single byte. It waits for a flag right after raising it, and seldom
//! uses an event again that was destroyed. Each change here leaves a valid program; the oracle decides whether it is
//! still ordered.

use super::generate::Rng;
use super::prog::{Act, Part, Prog};

/// Returns the program with some of its ops changed, drawn from the seed.
pub fn varied(prog: &Prog, seed: u64) -> Prog {
    let mut rng = Rng::new(seed ^ 0x7a21_ed00_1f2e_3d4c);
    let mut prog = prog.clone();
    let sizes = prog.clone();
    let mut raised: Vec<String> = Vec::new();
    for op in &mut prog.ops {
        for part in parts_mut(&mut op.act) {
            let size = sizes.buffer(&part.buf).1;
            if rng.percent(50) {
                widen(part, size, rng.percent(50));
            }
        }
        match &mut op.act {
            Act::SetFlag { flag } => {
                reuse(flag, &raised, &mut rng);
                raised.push(flag.clone());
            }
            Act::HostFunc {
                sets: Some(flag), ..
            } => raised.push(flag.clone()),
            // The flag that the op waits for may have been renamed.
            Act::WaitFlag { flag }
                if !raised.is_empty() && (!raised.contains(flag) || rng.percent(30)) =>
            {
                *flag = rng.pick(&raised);
            }
            Act::Alloc {
                over: Some(_),
                after_events,
                ..
            } => *after_events ^= rng.percent(50),
            Act::Record { ev, .. } if rng.percent(8) => {
                let ev = ev.clone();
                op.act = if rng.percent(50) {
                    Act::CreateEvent { ev }
                } else {
                    Act::DestroyEvent { ev }
                };
            }
            _ => {}
        }
    }
    prog
}

/// Extends a range by one byte at one of its ends, where the buffer has one.
fn widen(part: &mut Part, size: u64, at_the_end: bool) {
    if let Some((lo, hi)) = &mut part.range
        && lo < hi
    {
        if at_the_end {
            *hi = (*hi + 1).min(size)
        } else {
            *lo = lo.saturating_sub(1)
        }
    }
}

fn reuse(flag: &mut String, raised: &[String], rng: &mut Rng) {
    if !raised.is_empty() && rng.percent(25) {
        *flag = rng.pick(raised);
    }
}

/// Returns the accesses of an op, except those that begin or end a life, which are always of whole buffers.
fn parts_mut(act: &mut Act) -> Vec<&mut Part> {
    match act {
        Act::Kernel {
            r,
            w,
            may_write,
            atomic,
            ..
        }
        | Act::GraphLaunch {
            r,
            w,
            may_write,
            atomic,
            ..
        } => r
            .iter_mut()
            .chain(w)
            .chain(may_write)
            .chain(atomic)
            .collect(),
        Act::HostFunc { r, w, .. } => r.iter_mut().chain(w).collect(),
        Act::CopyAsync { from, to, .. }
        | Act::CopyBatch { from, to, .. }
        | Act::CopyPeer { from, to, .. }
        | Act::Copy { from, to } => vec![from, to],
        Act::MemsetAsync { to, .. } | Act::Memset { to } => vec![to],
        Act::HostRead { buf } | Act::HostWrite { buf } => vec![buf],
        _ => Vec::new(),
    }
}
