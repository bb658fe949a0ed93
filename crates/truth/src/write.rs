//! A run as PyTorch's profiler writes it.

use std::fmt::Write as _;

use crate::draw::Draw;
use crate::job::Job;
use crate::run::{Ran, Row, What};

/// When the trace begins, on its own clock.
const START_NS: u64 = 4_329_803_305_000_000;
/// The thread of the program, and the process.
const PROCESS: u32 = 4242;

/// The trace of a run that was recorded, as JSON.
pub fn trace(job: &Job, ran: &Ran) -> Vec<u8> {
    let mut out = String::with_capacity(ran.rows.len() * 220 + 400);
    let _ = write!(
        out,
        "{{\"schemaVersion\":1,\"deviceProperties\":[{{\"id\":0,\"name\":\"{}\",\"numSms\":{}}}],\
         \"displayTimeUnit\":\"ms\",\"traceEvents\":[\n\
         {{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{PROCESS},\"tid\":0,\"ts\":0,\"args\":{{\"name\":\"python\"}}}}",
        job.profile.name, job.profile.sms
    );
    for (at, row) in ran.rows.iter().enumerate() {
        // Steps are few, and written last.
        let may_be_lost = !matches!(row.what, What::Step(_) | What::Range(_));
        let lost = job.recorder.lost;
        if may_be_lost && lost > 0.0 && Draw::at(job.seed, at, u32::MAX).happens(lost) {
            continue;
        }
        out.push_str(",\n");
        line(&mut out, job, row);
    }
    out.push_str("\n]}\n");
    out.into_bytes()
}

fn line(out: &mut String, job: &Job, row: &Row) {
    let correlation = row.correlation;
    let sms = job.profile.sms;
    let host = |cat| (cat, PROCESS, i64::from(PROCESS));
    let (cat, pid, tid) = match &row.what {
        What::Step(_) | What::Range(_) => host("user_annotation"),
        What::Operator(_) => host("cpu_op"),
        What::Call(_) => host("cuda_runtime"),
        What::Kernel { stream, .. } => ("kernel", 0, i64::from(*stream)),
        What::Copy { stream, .. } => ("gpu_memcpy", 0, i64::from(*stream)),
        What::Wait { stream, .. } => ("cuda_sync", 0, i64::from(*stream)),
    };
    let _ = write!(out, "{{\"ph\":\"X\",\"cat\":\"{cat}\",\"name\":\"");
    let _ = match &row.what {
        What::Step(step) => write!(out, "ProfilerStep#{step}"),
        What::Range(name) | What::Operator(name) | What::Call(name) => write!(out, "{name}"),
        What::Kernel { is_small: true, .. } => {
            write!(
                out,
                "void at::native::vectorized_elementwise_kernel<4, float>"
            )
        }
        What::Kernel { .. } => write!(out, "sm90_xmma_gemm_f32f32_tn_n_tilesize128x128x32"),
        What::Copy {
            is_upload,
            is_pinned,
            ..
        } => {
            let memory = if *is_pinned { "Pinned" } else { "Pageable" };
            match is_upload {
                true => write!(out, "Memcpy HtoD ({memory} -> Device)"),
                false => write!(out, "Memcpy DtoH (Device -> {memory})"),
            }
        }
        What::Wait { .. } => write!(out, "Stream Wait Event"),
    };
    let (start, end) = (START_NS + row.start_ns, START_NS + row.end_ns);
    let (start, end) = match job.recorder.is_whole_us {
        true => (start / 1000 * 1000, end / 1000 * 1000),
        false => (start, end),
    };
    let ns = end - start;
    let _ = write!(
        out,
        "\",\"pid\":{pid},\"tid\":{tid},\"ts\":{}.{:03},\"dur\":{}.{:03},\"args\":{{",
        start / 1000,
        start % 1000,
        ns / 1000,
        ns % 1000
    );
    let _ = match &row.what {
        What::Step(_) | What::Range(_) | What::Operator(_) => Ok(()),
        What::Call(_) => write!(out, "\"correlation\":{correlation}"),
        What::Kernel {
            stream,
            share,
            graph,
            ..
        } => {
            let blocks = if *share >= 1.0 { 16.0 } else { *share } * sms;
            // So many warps keep every scheduler of their multiprocessors busy.
            let _ = write!(
                out,
                "\"device\":0,\"context\":1,\"stream\":{stream},\"correlation\":{correlation},\
                 \"registers per thread\":32,\"shared memory\":0,\"grid\":[{},1,1],\"block\":[1024,1,1]",
                blocks.ceil()
            );
            match graph {
                0 => Ok(()),
                graph => write!(out, ",\"graph id\":{graph}"),
            }
        }
        What::Copy { stream, bytes, .. } => write!(
            out,
            "\"device\":0,\"context\":1,\"stream\":{stream},\"correlation\":{correlation},\"bytes\":{bytes}"
        ),
        What::Wait { stream, record } => write!(
            out,
            "\"device\":0,\"context\":1,\"stream\":{stream},\"correlation\":{correlation},\
             \"wait_on_stream\":0,\"wait_on_cuda_event_record_corr_id\":{record}"
        ),
    };
    out.push_str("}}");
}
