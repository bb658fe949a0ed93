//! Devices, contexts and their attributes.

use sidestream::backend::Backend;
use sidestream::cuda::driver::CuContext;
use sidestream::engine::Profile;
use sidestream::op::DeviceId;

use crate::codes::{Answer, INVALID_DEVICE, INVALID_VALUE, PEER_ACCESS_ALREADY_ENABLED};
use crate::state::{Here, State};

/// `CUDA_VERSION` of CUDA 13.0.
pub const VERSION: i32 = 13_000;

/// Returns a device by its number.
pub fn device(state: &State, number: i32) -> Answer<DeviceId> {
    let count = state.machine.devices().len();
    match u32::try_from(number) {
        Ok(number) if (number as usize) < count => Ok(DeviceId(number)),
        _ => Err(INVALID_DEVICE),
    }
}

pub fn memory_bytes(state: &State, device: DeviceId) -> usize {
    state.machine.devices()[device.0 as usize].memory_bytes as usize
}

/// Returns an attribute by its number in `cuda.h`.
pub fn attribute(attribute: i32, device: DeviceId) -> Answer<i32> {
    let profile = Profile::h200();
    Ok(match attribute {
        // Threads of a block; dimensions of a block; dimensions of a grid.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Shared and constant memory, threads of a warp, pitch, registers.
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 64 << 10,
        // Clock in kHz.
        13 => (profile.clock_ghz * 1e6) as i32,
        14 => 512,
        // Copies concurrent with kernels.
        15 | 19 | 31 | 32 | 41 => 1,
        16 => profile.sms as i32,
        // No time limit, not integrated, no special compute mode.
        17 | 18 | 20 | 35 => 0,
        // The device's PCI bus number.
        33 => 0x10 + device.0 as i32,
        34 | 50 => 0,
        // The memory clock in kHz: two transfers per cycle over the whole bus.
        36 => (profile.memory_bytes_per_s() / (2.0 * f64::from(BUS_BITS / 8)) / 1e3) as i32,
        37 => BUS_BITS,
        38 => (profile.l2_mib * f64::from(1 << 20)) as i32,
        39 => profile.threads_per_sm as i32,
        40 => profile.copy_engines as i32,
        // Compute capability.
        75 => 9,
        76 => 0,
        78 | 79 | 80 | 90 | 91 | 95 | 115 => 1,
        81 => 228 << 10,
        83 | 84 | 86 | 88 | 89 => 0,
        97 => 227 << 10,
        106 => profile.blocks_per_sm as i32,
        _ => {
            eprintln!("stand-in for the CUDA driver: it has no device attribute {attribute}");
            return Err(INVALID_VALUE);
        }
    })
}

const BUS_BITS: i32 = 6144;

/// `cuCtxEnablePeerAccess`: kernels on the current device can access the other's memory from here on.
pub fn enable_peer(state: &State, here: Here, peer: CuContext, flags: u32) -> Answer<()> {
    let device = here.device()?;
    let mut tables = state.tables();
    let peer = tables.device_of(peer)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if peer == device {
        return Err(INVALID_DEVICE);
    }
    if tables.peers.insert((device, peer)) {
        Ok(())
    } else {
        Err(PEER_ACCESS_ALREADY_ENABLED)
    }
}
