//! Writes a run as PyTorch's profiler does.

use std::fmt::Write as _;

use crate::draw::Draw;
use crate::job::Job;
use crate::run::{Ran, Row, What};

/// The start of the trace, on its own clock.
const START_NS: u64 = 4_329_803_305_000_000;
/// The ids of the program's thread and process.
const PROCESS: u32 = 4242;

/// Returns the trace of a recorded run, as JSON.
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
    let (cat, name, stream) = match &row.what {
        What::Step(step) => ("user_annotation", format!("ProfilerStep#{step}"), None),
        What::Range(name) => ("user_annotation", (*name).to_owned(), None),
        What::Operator(name) => ("cpu_op", (*name).to_owned(), None),
        What::Call(name) => ("cuda_runtime", (*name).to_owned(), None),
        What::Kernel {
            stream, is_small, ..
        } => {
            let name = match is_small {
                true => "void at::native::vectorized_elementwise_kernel<4, float>",
                false => "sm90_xmma_gemm_f32f32_tn_n_tilesize128x128x32",
            };
            ("kernel", name.to_owned(), Some(*stream))
        }
        What::Copy {
            stream,
            is_upload,
            is_pinned,
            ..
        } => {
            let memory = if *is_pinned { "Pinned" } else { "Pageable" };
            let name = match is_upload {
                true => format!("Memcpy HtoD ({memory} -> Device)"),
                false => format!("Memcpy DtoH (Device -> {memory})"),
            };
            ("gpu_memcpy", name, Some(*stream))
        }
        What::Wait { stream, .. } => ("cuda_sync", "Stream Wait Event".to_owned(), Some(*stream)),
    };
    let (start, end) = (START_NS + row.start_ns, START_NS + row.end_ns);
    let (start, end) = match job.recorder.is_whole_us {
        true => (start / 1000 * 1000, end / 1000 * 1000),
        false => (start, end),
    };
    let lane = stream.map_or((PROCESS, PROCESS), |stream| (0, stream));
    event(out, cat, &name, lane, start, end - start);
    if let Some(stream) = stream {
        let _ = write!(out, "\"device\":0,\"context\":1,\"stream\":{stream},");
    }
    if stream.is_some() || matches!(row.what, What::Call(_)) {
        let _ = write!(out, "\"correlation\":{correlation}");
    }
    let _ = match &row.what {
        What::Kernel { share, graph, .. } => {
            let blocks = if *share >= 1.0 { 16.0 } else { *share } * job.profile.sms;
            // Enough warps to keep every scheduler of their multiprocessors busy.
            let _ = write!(
                out,
                ",\"registers per thread\":32,\"shared memory\":0,\"grid\":[{},1,1],\"block\":[1024,1,1]",
                blocks.ceil()
            );
            match graph {
                0 => Ok(()),
                graph => write!(out, ",\"graph id\":{graph}"),
            }
        }
        What::Copy { bytes, .. } => write!(out, ",\"bytes\":{bytes}"),
        What::Wait { record, .. } => write!(
            out,
            ",\"wait_on_stream\":0,\"wait_on_cuda_event_record_corr_id\":{record}"
        ),
        _ => Ok(()),
    };
    out.push_str("}}");
}

/// Writes an event up to its arguments, on a lane: a process and one of its threads, or a device and one of its streams.
pub(crate) fn event(
    out: &mut String,
    cat: &str,
    name: &str,
    (pid, tid): (u32, u32),
    start: u64,
    ns: u64,
) {
    let _ = write!(
        out,
        "{{\"ph\":\"X\",\"cat\":\"{cat}\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\
         \"ts\":{}.{:03},\"dur\":{}.{:03},\"args\":{{",
        start / 1000,
        start % 1000,
        ns / 1000,
        ns % 1000
    );
}
