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
    /// Does it does, and which words of its arguments say to what.
    pub what: Does,
    /// The number of words of its arguments.
    pub words: u8,
    /// When it is written: before the driver executes it, if it may wait; else after it, with its result.
    pub at: Moment,
    /// Does is behind pointers among its arguments; written after the arguments.
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

/// Does a pointer points to.
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

/// Does a call does. Numbers of 4 bytes are in the lower half of their word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// A context of a device comes to be: context, device, and the bit at which the device begins.
    Context(Word, Word, u8),
    /// Handles of kernels may be used again from here on.
    Unload,
    /// Stream, flags.
    StreamCreate(Word, Word),
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
    call([127, 0], "cuStreamDestroy", 1, Exit, StreamDestroy(0), &[]),
    call([326, 0], "cuStreamDestroy_v2", 1, Exit, StreamDestroy(0), &[]),
    call([126, 440], "cuStreamSynchronize", 1, Enter, StreamSynchronize(0), &[]),
    call([125, 439], "cuStreamQuery", 1, Exit, StreamQuery(0), &[]),
    call([17, 0], "cuCtxSynchronize", 0, Enter, ContextSynchronize, &[]),
    call([800, 0], "cuCtxSynchronize_v2", 1, Enter, ContextSynchronize, &[]),

    call([118, 0], "cuEventCreate", 2, Exit, EventCreate(2, 1), &[Words(0, 1)]),
    call([122, 0], "cuEventDestroy", 1, Exit, EventDestroy(0), &[]),
    call([325, 0], "cuEventDestroy_v2", 1, Exit, EventDestroy(0), &[]),
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
    call([527, 528], "cuLaunchHostFunc", 3, Exit, HostFunction(0), &[]),
    call([831, 832], "cuLaunchHostFunc_v2", 4, Exit, HostFunction(0), &[]),
    call([345, 437], "cuStreamAddCallback", 4, Exit, HostFunction(0), &[]),
];

impl ApiCall {
    /// Whether the call is heard with `--light`: what orders work, copies, launches, and the little that tells what their
    /// handles and addresses are.
    pub fn is_light(&self) -> bool {
        !matches!(
            self.what,
            StreamQuery(..) | EventQuery(..) | EventElapsed(..)
        )
    }

    /// Whether the words at the end are a kernel's parameters.
    pub fn is_launch(&self) -> bool {
        matches!(self.what, Launch(..) | LaunchEx(..))
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
            _ => None,
        }
    }
}
