//! The kernels that are measured.

use sidestream::engine::Profile;
use sidestream::kernel::{Kernel, Read, Value, Write};

use crate::overlap::job::Job;

/// Does nothing. It has no parameter, and takes no notice of what it is given.
pub type Empty = Kernel<(Write<u32>,)>;
/// The kernel of the overlap job: input, output, elements, work.
pub type Step = Kernel<(Read<f32>, Write<f32>, Value<u64>, Value<u32>)>;

pub const EMPTY: &str = "empty";
pub const STEP: &str = "overlap_step";

pub fn empty() -> Empty {
    // SAFETY: the entry has no parameters, so that the driver reads none of those it is given, and
    // it touches no memory.
    let kernel = unsafe { Empty::from_ptx(EMPTY_PTX, EMPTY) };
    kernel.and_on_host(|_, _| ())
}

/// The kernel of a job. `profile` is that of the simulated device, if it is one: only times are
/// simulated there.
pub fn step(job: &Job, profile: Option<&Profile>) -> Step {
    // SAFETY: the entry has these parameters, reads so many elements of the first and writes as many
    // of the second; who launches it passes views of that length.
    let kernel = unsafe { Step::from_ptx(STEP_PTX, STEP) };
    let Some(profile) = profile else {
        return kernel;
    };
    let cost = job.kernel(profile);
    kernel.and_on_host(|_, _| ()).with_cost(move |_| cost)
}

pub const EMPTY_PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry empty() { ret; }
";

pub const STEP_PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry overlap_step(
    .param .u64 input, .param .u64 output, .param .u64 elements, .param .u32 work)
{
    .reg .pred %stop;
    .reg .b32 %block, %size, %thread, %blocks, %steps, %step;
    .reg .b64 %in, %out, %n, %i, %own, %stride, %byte, %at;
    .reg .f32 %v;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    ld.param.u64 %n, [elements];
    ld.param.u32 %steps, [work];
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %blocks, %nctaid.x;
    mul.wide.u32 %i, %block, %size;
    cvt.u64.u32 %own, %thread;
    add.u64 %i, %i, %own;
    mul.wide.u32 %stride, %blocks, %size;
next:
    setp.ge.u64 %stop, %i, %n;
    @%stop bra done;
    shl.b64 %byte, %i, 2;
    add.u64 %at, %in, %byte;
    ld.global.f32 %v, [%at];
    mov.u32 %step, 0;
again:
    setp.ge.u32 %stop, %step, %steps;
    @%stop bra store;
    fma.rn.f32 %v, %v, 0f3F800347, 0f38D1B717;
    add.u32 %step, %step, 1;
    bra again;
store:
    add.u64 %at, %out, %byte;
    st.global.f32 [%at], %v;
    add.u64 %i, %i, %stride;
    bra next;
done:
    ret;
}
";
