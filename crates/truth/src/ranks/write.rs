//! Writes a rank's part of a run as PyTorch's profiler does, with its own clock.

use serde_json::{Map, Value, json};

use super::run::{Exchanged, Kind};
use super::{Numbers, RankJob, RankRun};
use crate::draw::Draw;
use crate::write::{Row, What, written};

/// Returns the trace of a rank.
pub fn rank_trace(job: &RankJob, run: &RankRun, rank: usize) -> Vec<u8> {
    let mut draw = Draw::at(job.seed, rank, 3);
    let offset = draw.between(0.0, 5e7) + 4.329e15;
    let drift = draw.between(-2e-5, 2e-5);
    let clock = |ns: f64| (offset + ns * (1.0 + drift)) as u64;
    let world = job.world();
    let info = json!({"backend": "nccl", "rank": rank, "world_size": world});
    let more = |row: &Row| {
        let mut args = Map::new();
        if row.number > 0 {
            args.insert("External id".into(), row.number.into());
        }
        if let Some(exchange) = &row.exchange {
            let is_numbered = match row.what {
                What::Kernel(..) => job.numbers == Numbers::OnKernels,
                _ => job.numbers != Numbers::Nowhere,
            };
            said(&mut args, job, run, exchange, is_numbered);
        }
        args
    };
    let (device, members) = (("NVIDIA H100", 132), json!({"distributedInfo": info}));
    written(77, device, &members, run.rows[rank].iter(), more, clock)
}

/// Adds the fields of an exchange.
fn said(
    args: &mut Map<String, Value>,
    job: &RankJob,
    run: &RankRun,
    e: &Exchanged,
    is_numbered: bool,
) {
    let (kind, members) = &run.groups[e.group];
    let description = match (job.is_described, kind) {
        (false, _) => "undefined",
        (true, Kind::Tensor) => "tp",
        (true, Kind::Pipeline) => "pp",
        (true, Kind::Data) => "dp",
    };
    let list = |members: &[usize]| {
        let each: Vec<String> = members.iter().map(usize::to_string).collect();
        each.join(", ")
    };
    // PyTorch truncates the list after thirty.
    let ranks = if members.len() > 30 {
        let last = members[members.len() - 1];
        format!("{}, ..., {last}", list(&members[..29]))
    } else {
        list(members)
    };
    let mut add = |key: &str, value: Value| _ = args.insert(key.into(), value);
    add("Collective name", e.operation.into());
    add("In msg nelems", e.elements.into());
    add("Out msg nelems", e.elements.into());
    add("Group size", members.len().into());
    add("dtype", "Float".into());
    add("Process Group Name", (e.group + 1).to_string().into());
    add("Process Group Description", description.into());
    add("Process Group Ranks", format!("[{ranks}]").into());
    match (e.peer, e.operation) {
        (Some(peer), "send") => add("Dst Rank", peer.into()),
        (Some(peer), _) => add("Src Rank", peer.into()),
        (None, _) => {}
    }
    if is_numbered {
        add("Seq", e.seq.into());
    }
}
