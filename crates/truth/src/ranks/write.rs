//! Writes a rank's part of a run as PyTorch's profiler does, with its own clock.

use std::fmt::Write as _;

use super::run::{Did, Exchanged, Kind};
use super::{Numbers, RankJob, RankRun};
use crate::draw::Draw;
use crate::write::event;

/// Returns the trace of a rank.
pub fn rank_trace(job: &RankJob, run: &RankRun, rank: usize) -> Vec<u8> {
    let mut draw = Draw::at(job.seed, rank, 3);
    let offset = draw.between(0.0, 5e7) + 4.329e15;
    let drift = draw.between(-2e-5, 2e-5);
    let clock = |ns: f64| (offset + ns * (1.0 + drift)) as u64;
    let rows = &run.rows[rank];
    let mut out = String::with_capacity(rows.len() * 300 + 400);
    let world = job.world();
    let _ = write!(
        out,
        "{{\"schemaVersion\":1,\"deviceProperties\":[{{\"id\":0,\"name\":\"NVIDIA H100\",\"numSms\":132}}],\
         \"distributedInfo\":{{\"backend\":\"nccl\",\"rank\":{rank},\"world_size\":{world}}},\"traceEvents\":[\n\
         {{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":77,\"tid\":0,\"ts\":0,\"args\":{{\"name\":\"python\"}}}}"
    );
    for row in rows {
        let (start, end) = (clock(row.start_ns), clock(row.end_ns));
        let ns = end.saturating_sub(start);
        let number = row.number;
        let step;
        let (cat, name, lane) = match &row.what {
            Did::Step(number) => {
                step = format!("ProfilerStep#{number}");
                ("user_annotation", &*step, None)
            }
            Did::Range(name) => ("user_annotation", *name, None),
            Did::Launch => ("cuda_runtime", "cudaLaunchKernel", None),
            Did::CopyCall => ("cuda_runtime", "cudaMemcpyAsync", None),
            Did::Synchronize => ("cuda_runtime", "cudaStreamSynchronize", None),
            Did::Operator(_) => ("cpu_op", "record_param_comms", None),
            Did::Kernel => ("kernel", "sm90_xmma_gemm_f32f32_tn_n", Some(7)),
            Did::Upload { is_pinned } => {
                let name = match is_pinned {
                    true => "Memcpy HtoD (Pinned -> Device)",
                    false => "Memcpy HtoD (Pageable -> Device)",
                };
                ("gpu_memcpy", name, Some(7))
            }
            Did::Download => ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", Some(7)),
            Did::Exchange(e) => {
                let name = match e.peer {
                    Some(_) => "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                    None => {
                        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                    }
                };
                let lane = 20 + 2 * run.groups[e.group].0 as u32 + u32::from(e.peer.is_some());
                ("kernel", name, Some(lane))
            }
        };
        out.push_str(",\n");
        let place = lane.map_or((77, 77), |lane| (0, lane));
        event(&mut out, cat, name, place, start, ns);
        if let Some(lane) = lane {
            let _ = write!(
                out,
                "\"External id\":{number},\"device\":0,\"context\":1,\"stream\":{lane},\"correlation\":{number}"
            );
        }
        let _ = match &row.what {
            Did::Launch | Did::CopyCall => {
                write!(out, "\"External id\":{number},\"correlation\":{number}")
            }
            Did::Kernel => write!(out, ",\"grid\":[528,1,1],\"block\":[256,1,1]"),
            Did::Upload { .. } => write!(out, ",\"bytes\":{}", ns * 20),
            Did::Download => write!(out, ",\"bytes\":4"),
            Did::Exchange(e) => {
                let _ = write!(out, ",\"grid\":[16,1,1],\"block\":[512,1,1],");
                said(&mut out, job, run, e, job.numbers == Numbers::OnKernels);
                Ok(())
            }
            Did::Operator(e) => {
                let _ = write!(out, "\"External id\":{number},");
                said(&mut out, job, run, e, job.numbers != Numbers::Nowhere);
                Ok(())
            }
            _ => Ok(()),
        };
        out.push_str("}}");
    }
    out.push_str("\n]}\n");
    out.into_bytes()
}

/// Writes the fields of an exchange.
fn said(out: &mut String, job: &RankJob, run: &RankRun, e: &Exchanged, is_numbered: bool) {
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
    let ranks = match members.len() > 30 {
        true => format!(
            "{}, ..., {}",
            list(&members[..29]),
            members[members.len() - 1]
        ),
        false => list(members),
    };
    let _ = write!(
        out,
        "\"Collective name\":\"{}\",\"In msg nelems\":{},\"Out msg nelems\":{},\"Group size\":{},\"dtype\":\"Float\",\
         \"Process Group Name\":\"{}\",\"Process Group Description\":\"{description}\",\"Process Group Ranks\":\"[{ranks}]\"",
        e.operation,
        e.elements,
        e.elements,
        members.len(),
        e.group + 1
    );
    if let Some(peer) = e.peer {
        let key = if e.operation == "send" {
            "Dst Rank"
        } else {
            "Src Rank"
        };
        let _ = write!(out, ",\"{key}\":{peer}");
    }
    if is_numbered {
        let _ = write!(out, ",\"Seq\":{}", e.seq);
    }
}
