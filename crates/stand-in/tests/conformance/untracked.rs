//! Memory and streams of the explicit style, as its scenarios use them.

use sidestream::device::Device;
use sidestream::explicit::{DeviceMemory, HostMemory, Stream};

use crate::kernels::{expect_pattern, fill_explicit, patterned};

/// Values in each piece of memory.
pub const LEN: usize = 4096;
/// Bytes in each piece of memory.
pub const BYTES: u64 = 4 * LEN as u64;

/// A stream without implicit order.
pub fn stream(device: &Device, name: &str) -> Stream {
    Stream::non_blocking(device, name, 0).unwrap()
}

/// Returns device memory with a pattern, whose work is complete.
pub fn filled(device: &Device, seed: u32) -> DeviceMemory {
    let memory = DeviceMemory::malloc(device, BYTES).unwrap();
    let stream = stream(device, "fill");
    // SAFETY: the memory has no other use, and the stream is waited for.
    unsafe { fill_explicit(&stream, memory.all(), seed) };
    stream.synchronize().unwrap();
    memory
}

/// Returns pinned memory with a pattern.
pub fn pinned(device: &Device, seed: u32) -> HostMemory {
    let memory = HostMemory::pinned(device, BYTES).unwrap();
    memory.write(0, &patterned(LEN, seed));
    memory
}

/// Returns pageable memory with a pattern.
pub fn pageable(device: &Device, bytes: u64, seed: u32) -> HostMemory {
    let memory = HostMemory::pageable(device, bytes).unwrap();
    memory.write(0, &patterned(bytes as usize / 4, seed));
    memory
}

/// Compares the current contents of host memory with a pattern.
#[track_caller]
pub fn expect_host(memory: &HostMemory, seed: u32) {
    let mut found = vec![0u32; memory.size_bytes() as usize / 4];
    memory.read(0, &mut found);
    expect_pattern(&found, seed);
}

/// Compares the contents of device memory with a pattern, once all work of the device is complete.
#[track_caller]
pub fn expect_device(device: &Device, memory: &DeviceMemory, seed: u32) {
    sidestream::explicit::synchronize(device).unwrap();
    let host = HostMemory::pinned(device, memory.size_bytes()).unwrap();
    let stream = stream(device, "read");
    // SAFETY: the device was waited for, and so is the stream; the host memory has no other use.
    unsafe { stream.memcpy(memory.all(), host.all()) }.unwrap();
    stream.synchronize().unwrap();
    expect_host(&host, seed);
}
