//! The functions of NVIDIA's driver that are used here, loaded at run time.
//!
//! The table is our own and not from a binding crate, for three reasons. The driver's codes are plain integers here:
//! a newer driver returns codes that no list has, and a closed enum would then be undefined behaviour at the foreign
//! call. Nothing panics: a missing library, a missing function and a driver that is too old are errors that name the
//! file that was tried. And all functions are resolved when the library is loaded, so no later call can lack its
//! function.
//!
//! Names and types are those of `cuda.h` of CUDA 12.0, which drivers for CUDA 12 and 13 support. Handles are integers
//! that only the driver interprets.

#![expect(
    non_snake_case,
    reason = "functions have the names that `cuda.h` gives them"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

use super::library::{self, NotLoaded};

/// The return type of the driver's functions; zero is success.
pub type Code = c_int;
/// `CUstream`.
pub type CuStream = u64;
/// `CUevent`.
pub type CuEvent = u64;
/// `CUcontext`.
pub type CuContext = u64;
/// `CUmodule`.
pub type CuModule = u64;
/// `CUfunction`.
pub type CuFunction = u64;
/// `CUgraph`.
pub type CuGraph = u64;
/// `CUgraphExec`.
pub type CuGraphExec = u64;
/// `CUgraphNode`.
pub type CuNode = u64;
/// `CUdevice`.
pub type CuDevice = c_int;
/// `CUdeviceptr`: a device address or, under unified addressing, a host address.
pub type CuAddress = u64;
/// `CUhostFn`.
pub type HostFn = unsafe extern "C" fn(*mut c_void);

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles of the driver are 64 bits wide here");

/// Success.
pub const SUCCESS: Code = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: Code = 2;
/// `CU_STREAM_LEGACY`.
pub const STREAM_LEGACY: CuStream = 1;
/// `CU_STREAM_PER_THREAD`.
pub const STREAM_PER_THREAD: CuStream = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC`.
pub const EVENT_BLOCKING_SYNC: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`.
pub const EVENT_INTERPROCESS: c_uint = 4;
/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTREGISTER_PORTABLE`.
pub const HOST_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`.
pub(crate) const HOST_WRITE_COMBINED: c_uint = 4;
/// `CU_MEMORYTYPE_UNIFIED`: the driver derives the kind of memory from the address.
pub const MEMORY_UNIFIED: c_uint = 4;

/// `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcEventHandle(pub [u8; 64]);

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "as in `cuda.h`")]
pub struct Memcpy2d {
    pub src_x_bytes: usize,
    pub src_y: usize,
    pub src_type: c_uint,
    pub src_host: u64,
    pub src_device: CuAddress,
    pub src_array: u64,
    pub src_pitch: usize,
    pub dst_x_bytes: usize,
    pub dst_y: usize,
    pub dst_type: c_uint,
    pub dst_host: u64,
    pub dst_device: CuAddress,
    pub dst_array: u64,
    pub dst_pitch: usize,
    pub width_bytes: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "as in `cuda.h`")]
pub struct Memcpy3d {
    pub src_x_bytes: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_type: c_uint,
    pub src_host: u64,
    pub src_device: CuAddress,
    pub src_array: u64,
    pub reserved0: u64,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x_bytes: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_type: c_uint,
    pub dst_host: u64,
    pub dst_device: CuAddress,
    pub dst_array: u64,
    pub reserved1: u64,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as in `cuda.h`")]
pub struct KernelNode {
    pub function: CuFunction,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kernel: u64,
    pub context: CuContext,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as in `cuda.h`")]
pub struct MemsetNode {
    pub dst: CuAddress,
    pub pitch: usize,
    pub value: c_uint,
    pub element_bytes: c_uint,
    pub width: usize,
    pub height: usize,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "as in `cuda.h`")]
pub struct UpdateResult {
    pub result: c_int,
    pub error_node: CuNode,
    pub error_from_node: CuNode,
}

library::functions! {
    /// The driver's functions.
    ///
    /// The functions are foreign code: the caller guarantees that the arguments meet the requirements of `cuda.h`.
    #[expect(missing_docs, reason = "as in `cuda.h`")]
    pub Driver:
    cuInit: fn(c_uint);
    cuDriverGetVersion: fn(*mut c_int);
    cuGetErrorName: fn(Code, *mut *const c_char);
    cuGetErrorString: fn(Code, *mut *const c_char);

    cuDeviceGetCount: fn(*mut c_int);
    cuDeviceGet: fn(*mut CuDevice, c_int);
    cuDeviceGetName: fn(*mut c_char, c_int, CuDevice);
    cuDeviceTotalMem_v2: fn(*mut usize, CuDevice);
    cuDeviceGetAttribute: fn(*mut c_int, c_int, CuDevice);
    cuDevicePrimaryCtxRetain: fn(*mut CuContext, CuDevice);
    cuDeviceCanAccessPeer: fn(*mut c_int, CuDevice, CuDevice);

    cuCtxGetCurrent: fn(*mut CuContext);
    cuCtxSetCurrent: fn(CuContext);
    cuCtxPushCurrent_v2: fn(CuContext);
    cuCtxPopCurrent_v2: fn(*mut CuContext);
    cuCtxSynchronize: fn();
    cuCtxGetStreamPriorityRange: fn(*mut c_int, *mut c_int);
    cuCtxEnablePeerAccess: fn(CuContext, c_uint);

    cuModuleLoadDataEx: fn(*mut CuModule, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    cuModuleUnload: fn(CuModule);
    cuModuleGetFunction: fn(*mut CuFunction, CuModule, *const c_char);
    cuFuncSetAttribute: fn(CuFunction, c_int, c_int);

    cuStreamCreateWithPriority: fn(*mut CuStream, c_uint, c_int);
    cuStreamDestroy_v2: fn(CuStream);
    cuStreamQuery: fn(CuStream);
    cuStreamSynchronize: fn(CuStream);
    cuStreamWaitEvent: fn(CuStream, CuEvent, c_uint);
    cuStreamBeginCapture_v2: fn(CuStream, c_int);
    cuStreamEndCapture: fn(CuStream, *mut CuGraph);
    cuStreamIsCapturing: fn(CuStream, *mut c_int);
    cuThreadExchangeStreamCaptureMode: fn(*mut c_int);

    cuEventCreate: fn(*mut CuEvent, c_uint);
    cuEventDestroy_v2: fn(CuEvent);
    cuEventRecord: fn(CuEvent, CuStream);
    cuEventQuery: fn(CuEvent);
    cuEventSynchronize: fn(CuEvent);
    cuEventElapsedTime: fn(*mut f32, CuEvent, CuEvent);
    cuIpcGetEventHandle: fn(*mut IpcEventHandle, CuEvent);
    cuIpcOpenEventHandle: fn(*mut CuEvent, IpcEventHandle);

    cuMemGetInfo_v2: fn(*mut usize, *mut usize);
    cuMemAlloc_v2: fn(*mut CuAddress, usize);
    cuMemFree_v2: fn(CuAddress);
    cuMemAllocAsync: fn(*mut CuAddress, usize, CuStream);
    cuMemFreeAsync: fn(CuAddress, CuStream);
    cuMemHostAlloc: fn(*mut u64, usize, c_uint);
    cuMemFreeHost: fn(u64);
    cuMemHostRegister_v2: fn(u64, usize, c_uint);
    cuMemHostUnregister: fn(u64);

    cuMemcpy: fn(CuAddress, CuAddress, usize);
    cuMemcpyAsync: fn(CuAddress, CuAddress, usize, CuStream);
    cuMemcpy2DAsync_v2: fn(*const Memcpy2d, CuStream);
    cuMemsetD8_v2: fn(CuAddress, u8, usize);
    cuMemsetD8Async: fn(CuAddress, u8, usize, CuStream);
    cuMemsetD16Async: fn(CuAddress, u16, usize, CuStream);
    cuMemsetD32Async: fn(CuAddress, c_uint, usize, CuStream);

    cuLaunchKernel: fn(CuFunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CuStream, *mut *mut c_void, *mut *mut c_void);
    cuLaunchHostFunc: fn(CuStream, HostFn, *mut c_void);

    cuGraphCreate: fn(*mut CuGraph, c_uint);
    cuGraphDestroy: fn(CuGraph);
    cuGraphAddKernelNode_v2: fn(*mut CuNode, CuGraph, *const CuNode, usize, *const KernelNode);
    cuGraphAddMemcpyNode: fn(*mut CuNode, CuGraph, *const CuNode, usize, *const Memcpy3d, CuContext);
    cuGraphAddMemsetNode: fn(*mut CuNode, CuGraph, *const CuNode, usize, *const MemsetNode, CuContext);
    cuGraphInstantiateWithFlags: fn(*mut CuGraphExec, CuGraph, u64);
    cuGraphExecUpdate_v2: fn(CuGraphExec, CuGraph, *mut UpdateResult);
    cuGraphExecDestroy: fn(CuGraphExec);
    cuGraphLaunch: fn(CuGraphExec, CuStream);
}

/// The files that are tried for the driver's library, in this order. The versioned name comes first, since the one
/// without a version may be the stub library of a toolkit. The last is the path in the Windows Subsystem for Linux.
const FILES: &[&str] = &[
    "libcuda.so.1",
    "libcuda.so",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

impl Driver {
    /// Loads the driver's library: this file, or the one that the system finds. Calls no function.
    ///
    /// # Safety
    /// The file is NVIDIA's driver, or a library that may be loaded into this process and whose functions keep to the
    /// driver's types and rules. A library that the system has under the driver's name is assumed to be the driver.
    ///
    /// # Errors
    /// If there is no such library, or it lacks a function.
    pub unsafe fn load(file: Option<&Path>) -> Result<Driver, NotLoaded> {
        // SAFETY: the caller's promise.
        Driver::of(unsafe {
            match file {
                Some(file) => library::open(&[&file.to_string_lossy()])?,
                None => library::open(FILES)?,
            }
        })
    }

    /// Returns the driver's name and description of a code, such as `CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory
    /// access was encountered`.
    pub fn words(&self, code: Code) -> String {
        let word = |ask: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the driver writes the address of a constant string, or null if it does not know the code.
            unsafe {
                if ask(code, &mut text) != SUCCESS || text.is_null() {
                    return None;
                }
                Some(CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (word(self.cuGetErrorName), word(self.cuGetErrorString)) {
            (Some(name), Some(text)) => format!("{name}: {text}"),
            (Some(name), None) => name,
            _ => format!("the driver has no name for code {code}"),
        }
    }
}
