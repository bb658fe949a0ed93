//! What a function of CUDA's, or of HIP's, does to the host and to the device.

/// A function, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Api {
    /// What it does.
    pub kind: ApiKind,
    /// Whether it belongs to the driver's interface, which the runtime is built on.
    pub is_driver: bool,
}

/// What a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiKind {
    /// Launches a kernel.
    Launch,
    /// Launches a graph.
    GraphLaunch,
    /// Copies and holds up the host until the bytes have moved.
    Copy,
    /// Copies in a stream. Pageable memory holds up the host even so.
    CopyAsync,
    /// Sets memory and may hold up the host.
    Memset,
    /// Sets memory in a stream.
    MemsetAsync,
    /// Holds up the host until the device is done.
    SyncDevice,
    /// Holds up the host until a stream is done.
    SyncStream,
    /// Holds up the host until an event has happened.
    SyncEvent,
    /// Asks whether a stream or an event is done, and returns at once.
    Query,
    /// Records an event.
    RecordEvent,
    /// Makes a stream wait for an event.
    WaitEvent,
    /// Takes memory of the device, which may hold up host and device.
    Malloc,
    /// Gives memory of the device back, which waits for the device.
    Free,
    /// Takes or gives back memory of a stream's pool.
    PoolMemory,
    /// Takes, gives back, pins or unpins memory of the host.
    HostMemory,
    /// Puts a function of the host into a stream.
    HostFunc,
    /// Loads code.
    Module,
    /// Anything else.
    Other,
}

impl ApiKind {
    /// Whether the function exists to hold up the host until something on the device is over.
    pub fn is_sync(self) -> bool {
        matches!(
            self,
            ApiKind::SyncDevice | ApiKind::SyncStream | ApiKind::SyncEvent
        )
    }

    /// Whether the function puts work on a device.
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

/// A function's name without what only tells versions apart: `cudaMemcpy_v3020` is `cudaMemcpy`,
/// `cuMemcpyHtoDAsync_v2_ptsz` is `cuMemcpyHtoDAsync_v2`.
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
    /// What the function of this name does.
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
        // The driver's interface has a second version of most functions.
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
        // HIP's blocks, whatever its name leads one to expect.
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
