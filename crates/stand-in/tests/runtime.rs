//! The safe API on `cuda:0`, with the stand-in in place of the driver.

use sidestream::device::{Device, Options};
use sidestream::kernel::{Grid, Kernel, Read, Value, Write};
use sidestream::ptx::VECTOR_ADD;

#[test]
fn a_program_of_the_safe_api_runs_through_the_back_end_for_cuda() {
    let file = sidestream_stand_in::library().unwrap();
    // SAFETY: the stand-in has the functions of the driver.
    let options = unsafe { Options::new().driver(file) };
    let device = Device::open_with("cuda:0", &options).unwrap();
    assert!(device.caps().name.contains("NVIDIA H200 (stand-in)"));
    let (load, compute) = (
        device.stream("load").unwrap(),
        device.stream("compute").unwrap(),
    );
    // SAFETY: the entry takes three pointers and a number, and accesses fewer elements than that number.
    let add = unsafe {
        Kernel::<(Read<f32>, Read<f32>, Write<f32>, Value<u64>)>::from_ptx(
            &VECTOR_ADD,
            "vector_add",
        )
    };
    let mut host = device.pinned(1024).unwrap();
    host.fill(3.0);
    let mut x = load.alloc(1024).unwrap();
    let mut sum = compute.alloc(1024).unwrap();
    let sent = load.upload(host, x.view_mut()).unwrap();
    // The launch waits for the upload in the other stream.
    let args = (x.view(), x.view(), sum.view_mut(), 1024);
    compute.launch(&add, Grid::cover(1024, 256), args).unwrap();
    let host = sent.synchronize().unwrap();
    let back = compute.download(sum.view(), host).unwrap();
    assert_eq!(back.synchronize().unwrap()[..], [6.0; 1024]);
    assert_eq!(device.waits_inserted(), 1);
    // Many pieces at once are copied by the kernel `gather`.
    let pieces = (0..8).map(|n| {
        let mut piece = device.pinned(128).unwrap();
        piece.fill(n as f32);
        piece
    });
    let sent = load.upload_pieces(pieces.collect(), x.view_mut()).unwrap();
    sent.synchronize().unwrap();
    let host = device.pinned(1024).unwrap();
    let back = load
        .download(x.view(), host)
        .unwrap()
        .synchronize()
        .unwrap();
    let expected: Vec<f32> = (0..1024).map(|i| (i / 128) as f32).collect();
    assert_eq!(back[..], expected);
}

#[test]
fn a_buffer_is_in_one_allocation_of_the_driver_even_where_two_touch() {
    const HALF: usize = 2 << 20;
    let file = sidestream_stand_in::library().unwrap();
    // SAFETY: the stand-in has the functions of the driver.
    let options = unsafe { Options::new().driver(file) };
    let device = Device::open_with("cuda:0", &options).unwrap();
    let stream = device.stream("s").unwrap();
    // Each half takes a separate allocation, and the driver places them one after another.
    let halves = [(); 2].map(|()| stream.alloc_zeroed::<u8>(HALF).unwrap());
    stream.synchronize().unwrap();
    drop(halves);
    let whole = stream.alloc_zeroed::<u8>(2 * HALF).unwrap();
    // The driver refuses a copy that crosses from one to the other.
    let back = stream
        .download(whole.view(), device.pinned(2 * HALF).unwrap())
        .unwrap();
    assert!(back.synchronize().unwrap().iter().all(|byte| *byte == 0));
}
