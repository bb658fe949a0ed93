//! Classifies the functions of CUDA and of HIP by their effect on the host and on the device.

/// A function, classified by its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Api {
    /// What it does.
    pub kind: ApiKind,
    /// Whether it belongs to the driver's interface, which the runtime is built on.
    pub is_driver: bool,
}

/// The effect of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiKind {
    /// Launches a kernel.
    Launch,
    /// Launches a graph.
    GraphLaunch,
    /// Copies and blocks the host until the bytes have moved.
    Copy,
    /// Copies in a stream. With pageable memory it still blocks the host.
    CopyAsync,
    /// Sets memory and may block the host.
    Memset,
    /// Sets memory in a stream.
    MemsetAsync,
    /// Blocks the host until the device is idle.
    SyncDevice,
    /// Blocks the host until a stream is idle.
    SyncStream,
    /// Blocks the host until an event is complete.
    SyncEvent,
    /// Queries whether a stream or an event is complete, and returns at once.
    Query,
    /// Records an event.
    RecordEvent,
    /// Makes a stream wait for an event.
    WaitEvent,
    /// Allocates device memory, which may block host and device.
    Malloc,
    /// Frees device memory, which waits for the device.
    Free,
    /// Allocates or frees memory of a stream-ordered pool.
    PoolMemory,
    /// Allocates, frees, pins or unpins host memory.
    HostMemory,
    /// Enqueues a host function in a stream.
    HostFunc,
    /// Loads code.
    Module,
    /// Anything else.
    Other,
}

impl ApiKind {
    /// Returns whether the purpose of the function is to block the host until work on the device is complete.
    pub fn is_sync(self) -> bool {
        matches!(
            self,
            ApiKind::SyncDevice | ApiKind::SyncStream | ApiKind::SyncEvent
        )
    }

    /// Returns whether the function submits work to a device.
    pub fn submits(self) -> bool {
        matches!(
            self,
            ApiKind::Launch
                | ApiKind::GraphLaunch
                | ApiKind::Copy
                | ApiKind::CopyAsync
                | ApiKind::Memset
                | ApiKind::MemsetAsync
        )
    }
}

/// Returns a function's name without its version suffix: `cudaMemcpy_v3020` becomes `cudaMemcpy`, `cuMemcpyHtoDAsync_v2_ptsz`
/// becomes `cuMemcpyHtoDAsync_v2`.
pub fn plain(name: &str) -> &str {
    let mut name = name;
    if let Some((rest, version)) = name.rsplit_once("_v")
        && version.len() >= 4
        && version.bytes().all(|b| b.is_ascii_digit())
    {
        name = rest;
    }
    for suffix in ["_ptsz", "_ptds"] {
        name = name.strip_suffix(suffix).unwrap_or(name);
    }
    name
}

impl Api {
    /// Classifies the function of this name.
    pub fn of(name: &str) -> Api {
        let name = plain(name);
        let is_driver = name.starts_with("cu") && !name.starts_with("cuda")
            || name.starts_with("hipDrv")
            || name.starts_with("hipModule");
        let bare = name
            .strip_prefix("cuda")
            .or_else(|| name.strip_prefix("hip"))
            .or_else(|| name.strip_prefix("cu"))
            .unwrap_or(name);
        // The driver API has a second version of most functions.
        let bare = bare.strip_suffix("_v2").unwrap_or(bare);
        Api {
            kind: kind(bare),
            is_driver,
        }
    }
}

fn kind(bare: &str) -> ApiKind {
    match bare {
        "GraphLaunch" => ApiKind::GraphLaunch,
        "LaunchHostFunc" | "StreamAddCallback" => ApiKind::HostFunc,
        "DeviceSynchronize" | "CtxSynchronize" | "ThreadSynchronize" => ApiKind::SyncDevice,
        "StreamSynchronize" => ApiKind::SyncStream,
        "EventSynchronize" => ApiKind::SyncEvent,
        "StreamQuery" | "EventQuery" => ApiKind::Query,
        "EventRecord" | "EventRecordWithFlags" => ApiKind::RecordEvent,
        "StreamWaitEvent" => ApiKind::WaitEvent,
        "MallocAsync"
        | "MemAllocAsync"
        | "FreeAsync"
        | "MemFreeAsync"
        | "MallocFromPoolAsync"
        | "MemAllocFromPoolAsync" => ApiKind::PoolMemory,
        "Malloc" | "MemAlloc" | "MallocPitch" | "MemAllocPitch" | "Malloc3D" | "MallocManaged"
        | "MemAllocManaged" | "MemCreate" | "MemMap" | "ExtMallocWithFlags" => ApiKind::Malloc,
        "Free" | "MemFree" | "MemUnmap" | "MemRelease" => ApiKind::Free,
        "MallocHost" | "HostAlloc" | "HostMalloc" | "MemHostAlloc" | "MemAllocHost"
        | "HostRegister" | "MemHostRegister" | "HostUnregister" | "MemHostUnregister"
        | "FreeHost" | "HostFree" | "MemFreeHost" => ApiKind::HostMemory,
        // HIP's function blocks, although its name does not suggest so.
        "MemcpyWithStream" => ApiKind::Copy,
        _ if bare.starts_with("MemGetInfo") => ApiKind::Other,
        _ if bare.starts_with("Launch") || bare == "ModuleLaunchKernel" || bare == "ExtLaunch" => {
            ApiKind::Launch
        }
        _ if bare.starts_with("ExtModuleLaunchKernel") || bare.starts_with("ExtLaunch") => {
            ApiKind::Launch
        }
        _ if ["Module", "Library", "Link"]
            .iter()
            .any(|part| bare.starts_with(part)) =>
        {
            ApiKind::Module
        }
        _ if bare.starts_with("Memcpy") && bare.contains("Async") => ApiKind::CopyAsync,
        _ if bare.starts_with("Memcpy") => ApiKind::Copy,
        _ if bare.starts_with("Memset") && bare.contains("Async") => ApiKind::MemsetAsync,
        _ if bare.starts_with("Memset") => ApiKind::Memset,
        _ => ApiKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_of_versions_say_nothing() {
        for (name, bare) in [
            ("cudaMemcpyAsync_v3020", "cudaMemcpyAsync"),
            ("cudaStreamWaitEvent_ptsz_v7000", "cudaStreamWaitEvent"),
            ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync_v2"),
            ("cuMemAlloc_v2", "cuMemAlloc_v2"),
            ("ends_v", "ends_v"),
        ] {
            assert_eq!(plain(name), bare);
        }
    }

    #[test]
    fn functions_are_known_by_their_names() {
        use ApiKind::*;
        for (name, kind) in [
            ("cudaLaunchKernel", Launch),
            ("cudaLaunchKernelExC_v11060", Launch),
            ("cuLaunchKernelEx", Launch),
            ("hipExtModuleLaunchKernel", Launch),
            ("hipModuleLaunchKernel", Launch),
            ("cudaGraphLaunch_v10000", GraphLaunch),
            ("cudaLaunchHostFunc", HostFunc),
            ("cudaMemcpy_v3020", Copy),
            ("cuMemcpyDtoH_v2", Copy),
            ("hipMemcpyWithStream", Copy),
            ("cudaMemcpy2DAsync", CopyAsync),
            ("cuMemcpyHtoDAsync_v2_ptsz", CopyAsync),
            ("cudaMemsetAsync", MemsetAsync),
            ("cudaMemset", Memset),
            ("cuMemsetD8Async", MemsetAsync),
            ("cudaDeviceSynchronize_v3020", SyncDevice),
            ("cuCtxSynchronize", SyncDevice),
            ("cudaStreamSynchronize", SyncStream),
            ("cudaEventSynchronize", SyncEvent),
            ("cudaEventQuery", Query),
            ("cudaEventRecordWithFlags", RecordEvent),
            ("cudaStreamWaitEvent", WaitEvent),
            ("cudaMalloc", Malloc),
            ("cuMemAlloc_v2", Malloc),
            ("cudaFree", Free),
            ("cudaMallocAsync_v11020", PoolMemory),
            ("cudaHostAlloc", HostMemory),
            ("cudaMallocHost", HostMemory),
            ("cuModuleLoadData", Module),
            ("cuLinkAddData_v2", Module),
            ("cudaMemGetInfo", Other),
            ("cudaGetLastError", Other),
        ] {
            assert_eq!(Api::of(name).kind, kind, "{name}");
        }
        assert!(Api::of("cuLaunchKernel").is_driver);
        assert!(!Api::of("cudaLaunchKernel").is_driver);
        assert!(!Api::of("hipLaunchKernel").is_driver);
    }
}
