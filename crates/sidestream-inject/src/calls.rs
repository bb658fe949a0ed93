//! The calls that are heard, and what of each is written.
//!
//! The numbers of calls and the order of their arguments are NVIDIA's: `cupti_driver_cbid.h` and `generated_cuda_meta.h` of
//! CUPTI, which adds to both and changes nothing. CUPTI passes the arguments as a C structure, of which all those that matter here
//! are a sequence of words of 8 bytes; two arguments of 4 bytes in a row share a word.

/// A call of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApiCall {
    /// CUPTI's number of the call, and that of its variant in which a null stream means the thread's own default stream;
    /// zero if there is none.
    pub ids: [u16; 2],
    /// Its name.
    pub name: &'static str,
    /// What it does, and which words of its arguments say to what.
    pub what: Does,
    /// The number of words of its arguments.
    pub words: u8,
    /// When it is written: before the driver executes it, if it may wait; else after it, with its result.
    pub at: Moment,
    /// What is behind pointers among its arguments; written after the arguments.
    pub behind: &'static [Behind],
}

/// When a call is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Before the driver executes it.
    Enter,
    /// After that.
    Exit,
}

/// What a pointer points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// So many words, by the pointer at this position. If it is null, they are zero.
    Words(Word, u8),
    /// An array: the position of the pointer and of the number of elements, and the words of each element. The number of
    /// words comes before them.
    Array(Word, Word, u8),
}

/// A position among the words: first the arguments, then what is behind pointers.
pub type Word = u8;
/// No word.
const NONE: Word = Word::MAX;

/// What a call does, with the positions of its operands. Numbers of 4 bytes are in the lower half of their word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// A context of a device comes to be: context, device, and the bit at which the device begins.
    Context(Word, Word, u8),
    /// Handles of kernels may be used again from here on.
    Unload,
    /// Stream, flags.
    StreamCreate(Word, Word),
    /// Stream, flags, green context.
    StreamCreateIn(Word, Word, Word),
    /// Context, event: of all streams of the context.
    ContextRecord(Word, Word),
    /// Context, event.
    ContextWait(Word, Word),
    /// Context, the green context that it is.
    ContextOf(Word, Word),
    /// Stream.
    StreamDestroy(Word),
    /// Stream.
    StreamSynchronize(Word),
    /// Stream.
    StreamQuery(Word),
    /// The context of the thread.
    ContextSynchronize,
    /// Event, flags.
    EventCreate(Word, Word),
    /// Event.
    EventDestroy(Word),
    /// Event, stream.
    EventRecord(Word, Word),
    /// Stream, event.
    EventWait(Word, Word),
    /// Event.
    EventSynchronize(Word),
    /// Event.
    EventQuery(Word),
    /// Two events.
    EventElapsed(Word, Word),
    /// Memory that the call returns: address, bytes, kind.
    Alloc(Word, Word, Made),
    /// Address, pitch, height.
    AllocPitch(Word, Word, Word),
    /// Address, bytes, stream.
    AllocAsync(Word, Word, Word),
    /// Memory that the program names: address, bytes, kind.
    Register(Word, Word, Made),
    /// Address, kind.
    Free(Word, Made),
    /// Address, stream.
    FreeAsync(Word, Word),
    /// Destination, source, bytes, stream. Without a stream, the caller waits for the copy.
    Copy(Word, Word, Word, Option<Word>),
    /// The first word of a `CUDA_MEMCPY2D`, stream.
    Copy2D(Word, Option<Word>),
    /// The first word of a `CUDA_MEMCPY3D` or `CUDA_MEMCPY3D_PEER`, stream.
    Copy3D(Word, Option<Word>),
    /// Address, number of values, bytes of each, stream.
    Memset(Word, Word, u8, Option<Word>),
    /// Address, pitch, width, height, bytes of each value, stream.
    Memset2D(Word, Word, Word, Word, u8, Option<Word>),
    /// Kernel, stream, parameters, extra parameters; at the end, see [`PARAMETER`].
    Launch(Word, Word, Word, Option<Word>),
    /// Kernel, first word of a `CUlaunchConfig`, parameters, extra parameters; then its attributes as an array.
    LaunchEx(Word, Word, Word, Word),
    /// Stream.
    HostFunction(Word),
    /// A batch of copies, as arrays: the first, of destinations; then come sources, sizes, `CUmemcpyAttributes`, and for each of
    /// these the first copy that has them. The stream.
    CopyBatch(Word, Word),
    /// Destination, source, bytes, the first word of a `CUmemcpyAttributes`, stream.
    CopyWith(Word, Word, Word, Word, Word),
    /// Stream, address, value, the flags and the bit at which they begin.
    WriteValue(Word, Word, Word, Word, u8),
    /// Likewise.
    WaitValue(Word, Word, Word, Word, u8),
    /// Stream, `CUstreamBatchMemOpParams` as an array.
    Values(Word, Word),
    /// An event that another process records.
    EventOpen(Word),
    /// A stream that waits for what another process or library signals.
    WaitOutside(Word),
    /// Stream; if the capture is one into a graph: the graph, and the nodes to depend on, as an array.
    BeginCapture(Word, Word, Word),
    /// Stream, graph.
    EndCapture(Word, Word),
    /// Stream, graph.
    CaptureInfo(Word, Word),
    /// Stream, nodes as an array.
    CaptureDependencies(Word, Word),
    /// Clone, original.
    GraphClone(Word, Word),
    /// Graph.
    GraphDestroy(Word),
    /// An executable graph comes to be, or changes: its handle, graph.
    GraphInstantiate(Word, Word),
    /// Executable graph.
    GraphExecDestroy(Word),
    /// Executable graph, stream.
    GraphLaunch(Word, Word),
    /// Node, graph, the nodes that it depends on as an array, what it does.
    NodeAdd(Word, Word, Word, Part),
    /// Node, what it does from here on; the executable graph, if in that only.
    NodeSet(Word, Part, Option<Word>),
    /// Graph, whose edges change.
    Edges(Word),
}

/// What a node of a graph does, and the first word that says more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A `CUDA_KERNEL_NODE_PARAMS`, and whether it may name the kernel by a `CUkernel`.
    Kernel(Word, bool),
    /// A `CUDA_MEMCPY3D`.
    Copy(Word),
    /// A `CUDA_MEMSET_NODE_PARAMS`.
    Memset(Word),
    /// A graph, which is copied.
    Child(Word),
    /// A `CUDA_MEM_ALLOC_NODE_PARAMS`.
    Alloc(Word),
    /// An address.
    Free(Word),
    /// An event that is recorded, which launches of the graph do as well.
    Record(Word),
    /// An event that is waited for, likewise.
    Wait(Word),
    /// A `CUDA_CONDITIONAL_NODE_PARAMS`; the graphs of its bodies come at the end of the record.
    Conditional(Word),
    /// A `CUgraphNodeParams`, which says what.
    Any(Word),
    /// Nothing that touches known memory.
    Nothing,
}

impl Part {
    /// Returns what a node does, if its parameters say so.
    #[rustfmt::skip]
    pub fn said(self, words: &[u64]) -> Part {
        use Part::*;
        let Any(first) = self else {
            return self;
        };
        // By `CUgraphNodeType`.
        let at = first + 2;
        let parts = [
            Kernel(at, true), Copy(at + 2), Memset(at), Nothing, Child(at), Nothing, Wait(at), Record(at), Nothing, Nothing,
            Alloc(at), Free(at), Nothing, Conditional(at),
        ];
        let number = words.get(usize::from(first)).map(|word| *word as u32);
        number.and_then(|number| parts.get(number as usize).copied()).unwrap_or(Nothing)
    }
}

/// The kind of memory that a call makes or ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the field's")]
pub enum Made {
    Device,
    Pinned,
    Managed,
    /// The program's own memory, page-locked.
    Registered,
    /// Device memory mapped to addresses that were reserved.
    Mapped,
    /// A variable of a module.
    Global,
    /// Memory of another process.
    Foreign,
}

/// After the other words of a launch comes a number that differs if parameters that are no addresses do. Then each word of the
/// parameters that may be an address, as two: this bit, the number of the parameter (from bit 32 on) and the offset in it in bytes;
/// and the word.
pub const PARAMETER: u64 = 1 << 63;

use Behind::{Array, Words};
use Does::*;
use Moment::{Enter, Exit};

const fn call(
    ids: [u16; 2],
    name: &'static str,
    words: u8,
    at: Moment,
    what: Does,
    behind: &'static [Behind],
) -> ApiCall {
    ApiCall {
        ids,
        name,
        what,
        words,
        at,
        behind,
    }
}

/// What is added to the number of a call of the CUDA runtime.
pub const RUNTIME: u16 = 1024;

/// All calls that are heard. A record names a call by its position here.
#[rustfmt::skip]
pub const CALLS: &[ApiCall] = &[
    call([386, 0], "cuDevicePrimaryCtxRetain", 2, Exit, Context(2, 1, 0), &[Words(0, 1)]),
    call([235, 0], "cuCtxCreate_v2", 2, Exit, Context(2, 1, 32), &[Words(0, 1)]),
    call([645, 0], "cuCtxCreate_v3", 4, Exit, Context(4, 3, 0), &[Words(0, 1)]),
    call([757, 0], "cuCtxCreate_v4", 3, Exit, Context(3, 2, 32), &[Words(0, 1)]),
    call([22, 0], "cuModuleUnload", 1, Exit, Unload, &[]),
    call([680, 0], "cuLibraryUnload", 1, Exit, Unload, &[]),

    call([124, 0], "cuStreamCreate", 2, Exit, StreamCreate(2, 1), &[Words(0, 1)]),
    call([367, 0], "cuStreamCreateWithPriority", 2, Exit, StreamCreate(2, 1), &[Words(0, 1)]),
    call([758, 0], "cuGreenCtxStreamCreate", 3, Exit, StreamCreateIn(3, 2, 1), &[Words(0, 1)]),
    call([127, 0], "cuStreamDestroy", 1, Exit, StreamDestroy(0), &[]),
    call([326, 0], "cuStreamDestroy_v2", 1, Exit, StreamDestroy(0), &[]),
    call([126, 440], "cuStreamSynchronize", 1, Enter, StreamSynchronize(0), &[]),
    call([125, 439], "cuStreamQuery", 1, Exit, StreamQuery(0), &[]),
    call([17, 0], "cuCtxSynchronize", 0, Enter, ContextSynchronize, &[]),
    call([800, 0], "cuCtxSynchronize_v2", 1, Enter, ContextSynchronize, &[]),

    call([118, 0], "cuEventCreate", 2, Exit, EventCreate(2, 1), &[Words(0, 1)]),
    call([122, 0], "cuEventDestroy", 1, Exit, EventDestroy(0), &[]),
    call([325, 0], "cuEventDestroy_v2", 1, Exit, EventDestroy(0), &[]),
    call([749, 0], "cuGreenCtxRecordEvent", 2, Exit, ContextRecord(0, 1), &[]),
    call([750, 0], "cuGreenCtxWaitEvent", 2, Exit, ContextWait(0, 1), &[]),
    call([755, 0], "cuCtxRecordEvent", 2, Exit, ContextRecord(0, 1), &[]),
    call([756, 0], "cuCtxWaitEvent", 2, Exit, ContextWait(0, 1), &[]),
    call([753, 0], "cuCtxFromGreenCtx", 2, Exit, ContextOf(2, 1), &[Words(0, 1)]),
    call([119, 441], "cuEventRecord", 2, Exit, EventRecord(0, 1), &[]),
    call([587, 588], "cuEventRecordWithFlags", 3, Exit, EventRecord(0, 1), &[]),
    call([295, 436], "cuStreamWaitEvent", 3, Exit, EventWait(0, 1), &[]),
    call([121, 0], "cuEventSynchronize", 1, Enter, EventSynchronize(0), &[]),
    call([120, 0], "cuEventQuery", 1, Exit, EventQuery(0), &[]),
    call([123, 0], "cuEventElapsedTime", 3, Exit, EventElapsed(1, 2), &[]),
    call([780, 0], "cuEventElapsedTime_v2", 3, Exit, EventElapsed(1, 2), &[]),

    call([243, 0], "cuMemAlloc_v2", 2, Exit, Alloc(2, 1, Made::Device), &[Words(0, 1)]),
    call([244, 0], "cuMemAllocPitch_v2", 5, Exit, AllocPitch(5, 6, 3), &[Words(0, 1), Words(1, 1)]),
    call([371, 0], "cuMemAllocManaged", 3, Exit, Alloc(3, 1, Made::Managed), &[Words(0, 1)]),
    call([294, 0], "cuMemAllocHost_v2", 2, Exit, Alloc(2, 1, Made::Pinned), &[Words(0, 1)]),
    call([39, 0], "cuMemHostAlloc", 3, Exit, Alloc(3, 1, Made::Pinned), &[Words(0, 1)]),
    call([598, 599], "cuMemAllocAsync", 3, Exit, AllocAsync(3, 1, 2), &[Words(0, 1)]),
    call([611, 612], "cuMemAllocFromPoolAsync", 4, Exit, AllocAsync(4, 1, 3), &[Words(0, 1)]),
    call([241, 0], "cuModuleGetGlobal_v2", 4, Exit, Alloc(4, 5, Made::Global), &[Words(0, 1), Words(1, 1)]),
    call([684, 0], "cuLibraryGetGlobal", 4, Exit, Alloc(4, 5, Made::Global), &[Words(0, 1), Words(1, 1)]),
    call([301, 0], "cuMemHostRegister", 3, Exit, Register(0, 1, Made::Registered), &[]),
    call([379, 0], "cuMemHostRegister_v2", 3, Exit, Register(0, 1, Made::Registered), &[]),
    call([551, 0], "cuMemMap", 5, Exit, Register(0, 1, Made::Mapped), &[]),
    call([245, 0], "cuMemFree_v2", 1, Enter, Free(0, Made::Device), &[]),
    call([38, 0], "cuMemFreeHost", 1, Enter, Free(0, Made::Pinned), &[]),
    call([302, 0], "cuMemHostUnregister", 1, Enter, Free(0, Made::Registered), &[]),
    call([552, 0], "cuMemUnmap", 2, Enter, Free(0, Made::Mapped), &[]),
    call([330, 0], "cuIpcCloseMemHandle", 1, Enter, Free(0, Made::Foreign), &[]),
    call([600, 601], "cuMemFreeAsync", 2, Exit, FreeAsync(0, 1), &[]),

    call([276, 397], "cuMemcpyHtoD_v2", 3, Enter, Copy(0, 1, 2, None), &[]),
    call([278, 398], "cuMemcpyDtoH_v2", 3, Enter, Copy(0, 1, 2, None), &[]),
    call([280, 399], "cuMemcpyDtoD_v2", 3, Enter, Copy(0, 1, 2, None), &[]),
    call([305, 408], "cuMemcpy", 3, Enter, Copy(0, 1, 2, None), &[]),
    call([318, 409], "cuMemcpyPeer", 5, Enter, Copy(0, 2, 4, None), &[]),
    call([277, 421], "cuMemcpyHtoDAsync_v2", 4, Enter, Copy(0, 1, 2, Some(3)), &[]),
    call([279, 422], "cuMemcpyDtoHAsync_v2", 4, Enter, Copy(0, 1, 2, Some(3)), &[]),
    call([281, 423], "cuMemcpyDtoDAsync_v2", 4, Enter, Copy(0, 1, 2, Some(3)), &[]),
    call([306, 418], "cuMemcpyAsync", 4, Enter, Copy(0, 1, 2, Some(3)), &[]),
    call([319, 426], "cuMemcpyPeerAsync", 6, Enter, Copy(0, 2, 4, Some(5)), &[]),
    call([287, 405], "cuMemcpy2D_v2", 1, Enter, Copy2D(1, None), &[Words(0, 16)]),
    call([288, 406], "cuMemcpy2DUnaligned_v2", 1, Enter, Copy2D(1, None), &[Words(0, 16)]),
    call([289, 424], "cuMemcpy2DAsync_v2", 2, Enter, Copy2D(2, Some(1)), &[Words(0, 16)]),
    call([290, 407], "cuMemcpy3D_v2", 1, Enter, Copy3D(1, None), &[Words(0, 25)]),
    call([291, 425], "cuMemcpy3DAsync_v2", 2, Enter, Copy3D(2, Some(1)), &[Words(0, 25)]),
    call([320, 410], "cuMemcpy3DPeer", 1, Enter, Copy3D(1, None), &[Words(0, 25)]),
    call([321, 427], "cuMemcpy3DPeerAsync", 2, Enter, Copy3D(2, Some(1)), &[Words(0, 25)]),

    call([249, 411], "cuMemsetD8_v2", 3, Enter, Memset(0, 2, 1, None), &[]),
    call([250, 412], "cuMemsetD16_v2", 3, Enter, Memset(0, 2, 2, None), &[]),
    call([251, 413], "cuMemsetD32_v2", 3, Enter, Memset(0, 2, 4, None), &[]),
    call([216, 428], "cuMemsetD8Async", 4, Exit, Memset(0, 2, 1, Some(3)), &[]),
    call([218, 429], "cuMemsetD16Async", 4, Exit, Memset(0, 2, 2, Some(3)), &[]),
    call([220, 430], "cuMemsetD32Async", 4, Exit, Memset(0, 2, 4, Some(3)), &[]),
    call([252, 414], "cuMemsetD2D8_v2", 5, Enter, Memset2D(0, 1, 3, 4, 1, None), &[]),
    call([253, 415], "cuMemsetD2D16_v2", 5, Enter, Memset2D(0, 1, 3, 4, 2, None), &[]),
    call([254, 416], "cuMemsetD2D32_v2", 5, Enter, Memset2D(0, 1, 3, 4, 4, None), &[]),
    call([222, 431], "cuMemsetD2D8Async", 6, Exit, Memset2D(0, 1, 3, 4, 1, Some(5)), &[]),
    call([224, 432], "cuMemsetD2D16Async", 6, Exit, Memset2D(0, 1, 3, 4, 2, Some(5)), &[]),
    call([226, 433], "cuMemsetD2D32Async", 6, Exit, Memset2D(0, 1, 3, 4, 4, Some(5)), &[]),

    call([307, 442], "cuLaunchKernel", 8, Exit, Launch(0, 5, 6, Some(7)), &[]),
    call([477, 478], "cuLaunchCooperativeKernel", 7, Exit, Launch(0, 5, 6, None), &[]),
    call([652, 653], "cuLaunchKernelEx", 4, Exit, LaunchEx(1, 4, 2, 3), &[Words(0, 7), Array(9, 10, 9)]),
    call([776, 777], "cuMemcpyBatchAsync", 9, Enter, CopyBatch(9, 8), &[Array(0, 3, 1), Array(1, 3, 1), Array(2, 3, 1), Array(4, 6, 3), Array(5, 6, 1)]),
    call([796, 797], "cuMemcpyBatchAsync_v2", 8, Enter, CopyBatch(8, 7), &[Array(0, 3, 1), Array(1, 3, 1), Array(2, 3, 1), Array(4, 6, 3), Array(5, 6, 1)]),
    call([837, 838], "cuMemcpyWithAttributesAsync", 5, Enter, CopyWith(0, 1, 2, 5, 4), &[Words(3, 3)]),
    call([460, 461], "cuStreamWriteValue32", 3, Exit, WriteValue(0, 1, 2, 2, 32), &[]),
    call([663, 664], "cuStreamWriteValue32_v2", 3, Exit, WriteValue(0, 1, 2, 2, 32), &[]),
    call([475, 476], "cuStreamWriteValue64", 4, Exit, WriteValue(0, 1, 2, 3, 0), &[]),
    call([665, 666], "cuStreamWriteValue64_v2", 4, Exit, WriteValue(0, 1, 2, 3, 0), &[]),
    call([458, 459], "cuStreamWaitValue32", 3, Exit, WaitValue(0, 1, 2, 2, 32), &[]),
    call([659, 660], "cuStreamWaitValue32_v2", 3, Exit, WaitValue(0, 1, 2, 2, 32), &[]),
    call([473, 474], "cuStreamWaitValue64", 4, Exit, WaitValue(0, 1, 2, 3, 0), &[]),
    call([661, 662], "cuStreamWaitValue64_v2", 4, Exit, WaitValue(0, 1, 2, 3, 0), &[]),
    call([462, 463], "cuStreamBatchMemOp", 4, Exit, Values(0, 4), &[Array(2, 1, 6)]),
    call([667, 668], "cuStreamBatchMemOp_v2", 4, Exit, Values(0, 4), &[Array(2, 1, 6)]),
    call([335, 0], "cuIpcOpenEventHandle", 9, Exit, EventOpen(9), &[Words(0, 1)]),
    call([492, 493], "cuWaitExternalSemaphoresAsync", 4, Exit, WaitOutside(3), &[]),
    call([527, 528], "cuLaunchHostFunc", 3, Exit, HostFunction(0), &[]),
    call([831, 832], "cuLaunchHostFunc_v2", 4, Exit, HostFunction(0), &[]),
    // The CUDA runtime adds its callbacks by a function that no number names.
    call([RUNTIME + 197, RUNTIME + 248], "cudaStreamAddCallback", 4, Exit, HostFunction(0), &[]),
    call([345, 437], "cuStreamAddCallback", 4, Exit, HostFunction(0), &[]),

    call([539, 540], "cuStreamBeginCapture_v2", 2, Exit, BeginCapture(0, NONE, NONE), &[]),
    call([720, 721], "cuStreamBeginCaptureToGraph", 6, Exit, BeginCapture(0, 1, 6), &[Array(2, 4, 1)]),
    call([497, 498], "cuStreamEndCapture", 2, Exit, EndCapture(0, 2), &[Words(1, 1)]),
    call([629, 630], "cuStreamGetCaptureInfo_v2", 6, Exit, CaptureInfo(0, 6), &[Words(3, 1)]),
    call([729, 730], "cuStreamGetCaptureInfo_v3", 7, Exit, CaptureInfo(0, 7), &[Words(3, 1)]),
    call([631, 632], "cuStreamUpdateCaptureDependencies", 4, Exit, CaptureDependencies(0, 4), &[Array(1, 2, 1)]),
    call([731, 732], "cuStreamUpdateCaptureDependencies_v2", 5, Exit, CaptureDependencies(0, 5), &[Array(1, 3, 1)]),

    call([523, 0], "cuGraphClone", 2, Exit, GraphClone(2, 1), &[Words(0, 1)]),
    call([517, 0], "cuGraphDestroy", 1, Exit, GraphDestroy(0), &[]),
    call([578, 0], "cuGraphInstantiate_v2", 5, Exit, GraphInstantiate(5, 1), &[Words(0, 1)]),
    call([643, 0], "cuGraphInstantiateWithFlags", 3, Exit, GraphInstantiate(3, 1), &[Words(0, 1)]),
    call([656, 657], "cuGraphInstantiateWithParams", 3, Exit, GraphInstantiate(3, 1), &[Words(0, 1)]),
    call([561, 0], "cuGraphExecUpdate", 4, Exit, GraphInstantiate(0, 1), &[]),
    call([696, 0], "cuGraphExecUpdate_v2", 3, Exit, GraphInstantiate(0, 1), &[]),
    call([516, 0], "cuGraphExecDestroy", 1, Exit, GraphExecDestroy(0), &[]),
    call([514, 515], "cuGraphLaunch", 2, Exit, GraphLaunch(0, 1), &[]),

    call([502, 0], "cuGraphAddKernelNode", 5, Exit, NodeAdd(5, 1, 13, Part::Kernel(6, false)), &[Words(0, 1), Words(4, 7), Array(2, 3, 1)]),
    call([689, 0], "cuGraphAddKernelNode_v2", 5, Exit, NodeAdd(5, 1, 15, Part::Kernel(6, true)), &[Words(0, 1), Words(4, 9), Array(2, 3, 1)]),
    call([504, 0], "cuGraphAddMemcpyNode", 6, Exit, NodeAdd(6, 1, 32, Part::Copy(7)), &[Words(0, 1), Words(4, 25), Array(2, 3, 1)]),
    call([506, 0], "cuGraphAddMemsetNode", 6, Exit, NodeAdd(6, 1, 12, Part::Memset(7)), &[Words(0, 1), Words(4, 5), Array(2, 3, 1)]),
    call([530, 0], "cuGraphAddHostNode", 5, Exit, NodeAdd(5, 1, 6, Part::Nothing), &[Words(0, 1), Array(2, 3, 1)]),
    call([525, 0], "cuGraphAddChildGraphNode", 5, Exit, NodeAdd(5, 1, 6, Part::Child(4)), &[Words(0, 1), Array(2, 3, 1)]),
    call([526, 0], "cuGraphAddEmptyNode", 4, Exit, NodeAdd(4, 1, 5, Part::Nothing), &[Words(0, 1), Array(2, 3, 1)]),
    call([589, 0], "cuGraphAddEventRecordNode", 5, Exit, NodeAdd(5, 1, 6, Part::Record(4)), &[Words(0, 1), Array(2, 3, 1)]),
    call([590, 0], "cuGraphAddEventWaitNode", 5, Exit, NodeAdd(5, 1, 6, Part::Wait(4)), &[Words(0, 1), Array(2, 3, 1)]),
    call([638, 0], "cuGraphAddMemAllocNode", 5, Exit, NodeAdd(5, 1, 21, Part::Alloc(6)), &[Words(0, 1), Words(4, 15), Array(2, 3, 1)]),
    call([639, 0], "cuGraphAddMemFreeNode", 5, Exit, NodeAdd(5, 1, 6, Part::Free(4)), &[Words(0, 1), Array(2, 3, 1)]),
    call([712, 0], "cuGraphAddNode", 5, Exit, NodeAdd(5, 1, 38, Part::Any(6)), &[Words(0, 1), Words(4, 32), Array(2, 3, 1)]),
    call([723, 0], "cuGraphAddNode_v2", 6, Exit, NodeAdd(6, 1, 39, Part::Any(7)), &[Words(0, 1), Words(5, 32), Array(2, 4, 1)]),
    call([863, 0], "cuGraphAddNode_v3", 6, Exit, NodeAdd(6, 1, 39, Part::Any(7)), &[Words(0, 1), Words(5, 32), Array(2, 4, 1)]),
    call([691, 0], "cuGraphKernelNodeSetParams_v2", 2, Exit, NodeSet(0, Part::Kernel(2, true), None), &[Words(1, 9)]),
    call([520, 0], "cuGraphMemcpyNodeSetParams", 2, Exit, NodeSet(0, Part::Copy(2), None), &[Words(1, 25)]),
    call([508, 0], "cuGraphMemsetNodeSetParams", 2, Exit, NodeSet(0, Part::Memset(2), None), &[Words(1, 5)]),
    call([713, 0], "cuGraphNodeSetParams", 2, Exit, NodeSet(0, Part::Any(2), None), &[Words(1, 32)]),
    call([864, 0], "cuGraphNodeSetParams_v2", 2, Exit, NodeSet(0, Part::Any(2), None), &[Words(1, 32)]),
    call([522, 0], "cuGraphDestroyNode", 1, Exit, NodeSet(0, Part::Nothing, None), &[]),
    call([692, 0], "cuGraphExecKernelNodeSetParams_v2", 3, Exit, NodeSet(1, Part::Kernel(3, true), Some(0)), &[Words(2, 9)]),
    call([562, 0], "cuGraphExecMemcpyNodeSetParams", 4, Exit, NodeSet(1, Part::Copy(4), Some(0)), &[Words(2, 25)]),
    call([563, 0], "cuGraphExecMemsetNodeSetParams", 4, Exit, NodeSet(1, Part::Memset(4), Some(0)), &[Words(2, 5)]),
    call([586, 0], "cuGraphExecChildGraphNodeSetParams", 3, Exit, NodeSet(1, Part::Child(2), Some(0)), &[]),
    call([714, 0], "cuGraphExecNodeSetParams", 3, Exit, NodeSet(1, Part::Any(3), Some(0)), &[Words(2, 32)]),
    // Whether it does anything from here on is not followed.
    call([650, 0], "cuGraphNodeSetEnabled", 3, Exit, NodeSet(1, Part::Nothing, Some(0)), &[]),
    call([518, 0], "cuGraphAddDependencies", 4, Exit, Edges(0), &[]),
    call([727, 0], "cuGraphAddDependencies_v2", 5, Exit, Edges(0), &[]),
    call([519, 0], "cuGraphRemoveDependencies", 4, Exit, Edges(0), &[]),
    call([728, 0], "cuGraphRemoveDependencies_v2", 5, Exit, Edges(0), &[]),
];

impl ApiCall {
    /// Whether the destination and the source are in the memory of a device, by the call's name.
    pub fn is_of_device(&self) -> (bool, bool) {
        let is = |way| self.name.starts_with(way);
        (
            is("cuMemcpyHtoD") || is("cuMemcpyDtoD"),
            is("cuMemcpyDtoH") || is("cuMemcpyDtoD"),
        )
    }

    /// Whether the call may wait, and is written before it does.
    pub fn waits(&self) -> bool {
        self.at == Enter
            && matches!(
                self.what,
                StreamSynchronize(_)
                    | ContextSynchronize
                    | EventSynchronize(_)
                    | Copy(.., None)
                    | Copy2D(_, None)
                    | Copy3D(_, None)
            )
    }

    /// Returns what the call makes a node of a graph do.
    pub fn part(&self, words: &[u64]) -> Option<Part> {
        match self.what {
            NodeAdd(.., part) | NodeSet(_, part, _) => Some(part.said(words)),
            _ => None,
        }
    }

    /// Returns the kernel that the call launches, or of which it makes a node, and the pointers to its parameters and extra
    /// parameters.
    pub fn kernel(&self, words: &[u64]) -> Option<[u64; 3]> {
        let word = |at: Word| words.get(usize::from(at)).copied().unwrap_or(0);
        let places = match (self.what, self.part(words)) {
            (Launch(kernel, _, parameters, extra), _) => {
                [kernel, parameters, extra.unwrap_or(NONE)]
            }
            (LaunchEx(kernel, _, parameters, extra), _) => [kernel, parameters, extra],
            (_, Some(Part::Kernel(at, true))) if word(at) == 0 => [at + 7, at + 5, at + 6],
            (_, Some(Part::Kernel(at, _))) => [at, at + 5, at + 6],
            _ => return None,
        };
        Some(places.map(word))
    }

    /// The stream into which the call launches kernels or a graph.
    pub fn launches_into(&self) -> Option<Word> {
        match self.what {
            Launch(_, stream, ..) | GraphLaunch(_, stream) => Some(stream),
            // `hStream` in the structure.
            LaunchEx(_, config, ..) => Some(config + 4),
            _ => None,
        }
    }

    /// Returns the position after the arguments and what is behind them.
    pub fn end(&self, words: &[u64]) -> usize {
        let from = usize::from(self.words);
        self.behind.iter().fold(from, |at, behind| match *behind {
            Words(_, count) => at + usize::from(count),
            Array(..) => words
                .get(at)
                .map_or(at, |count| (*count as usize).saturating_add(at + 1)),
        })
    }

    /// The address and the size of memory that a call with these words makes known.
    pub fn makes(&self, words: &[u64]) -> Option<(u64, u64)> {
        let word = |at: Word| words.get(usize::from(at)).copied();
        match self.what {
            Alloc(at, bytes, _) | AllocAsync(at, bytes, _) | Register(at, bytes, _) => {
                Some((word(at)?, word(bytes)?))
            }
            AllocPitch(at, pitch, height) => {
                Some((word(at)?, word(pitch)?.checked_mul(word(height)?)?))
            }
            _ => match self.part(words)? {
                Part::Alloc(first) => Some((word(first + 14)?, word(first + 13)?)),
                _ => None,
            },
        }
    }
}
