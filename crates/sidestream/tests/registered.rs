//! Memory of the program that is pinned in place: who owns it when, and when it is freed.

use sidestream::check::OnRace;
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::explicit::{self, DeviceMemory, HostMemory};
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::sim::Schedule;
use sidestream::stream::Stream;

use crate::refusing::Refusing;

const LEN: usize = 4096;

/// Opens a device on which pending work stays pending until a thread waits.
fn open() -> (std::sync::Arc<Refusing>, Device, Stream) {
    let (backend, device) = Refusing::open(Schedule::Adversarial);
    let stream = device.stream("work").unwrap();
    (backend, device, stream)
}

#[test]
fn a_vector_is_uploaded_and_downloaded_where_it_is_and_comes_back() {
    for schedule in [
        Schedule::InOrder,
        Schedule::Seeded(1),
        Schedule::Adversarial,
    ] {
        let options = Options::new().schedule(schedule);
        let device = Device::open_with("sim:h200", &options).unwrap();
        let findings = device.checked(OnRace::Report);
        let (up, down) = (device.stream("up").unwrap(), device.stream("down").unwrap());
        let values: Vec<u32> = (0..LEN as u32).collect();
        let place = values.as_ptr();
        let mut data = up.alloc::<u32>(LEN).unwrap();
        let sent = up.upload(device.register(values).unwrap(), data.view_mut());
        let got = down.download(data.view(), device.register(vec![0; LEN]).unwrap());
        let got = got.unwrap().synchronize().unwrap().into_vec().unwrap();
        let mut sent = sent.unwrap().synchronize().unwrap();
        assert_eq!(got, sent[..]);
        assert_eq!(got[7], 7);
        sent[7] = 8;
        let sent = sent.into_vec().unwrap();
        assert_eq!((sent.as_ptr(), sent.len(), sent[7]), (place, LEN, 8));
        assert!(findings.report().races.is_empty(), "{}", findings.text());
        assert_eq!(findings.ended(), None);
    }
}

#[test]
fn pieces_and_rows_and_graphs_take_registered_memory() {
    let (backend, device, stream) = open();
    let pieces = [vec![1u32, 2, 3], vec![4]].map(|piece| device.register(piece).unwrap());
    let mut data = stream.alloc(4).unwrap();
    let sent = stream
        .upload_pieces(pieces.into(), data.view_mut())
        .unwrap();
    let mut nodes = device.graph();
    let key = nodes.own(data).unwrap();
    let back = nodes.own_pinned(device.register(vec![0u32; 4]).unwrap());
    let back = back.unwrap();
    nodes.download(key.view(), back).unwrap();
    let mut graph = nodes.build().unwrap();
    graph.launch(&stream).unwrap();
    let mut buffers = graph.into_buffers();
    let back = buffers
        .synchronize_pinned(back)
        .unwrap()
        .into_vec()
        .unwrap();
    assert_eq!(back, [1, 2, 3, 4]);
    for piece in sent.synchronize().unwrap() {
        piece.into_vec().unwrap();
    }
    assert_eq!(backend.registered(), 0);
}

#[test]
fn memory_of_the_allocator_is_refused_as_a_vector_and_comes_back() {
    let (_, device, _) = open();
    let mut page = device.pinned::<u32>(4).unwrap();
    page.fill(3);
    let refused = page.into_vec().unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    assert_eq!(refused.value.unwrap()[..], [3; 4]);
}

#[test]
fn a_vector_that_the_driver_does_not_pin_comes_back_with_its_code() {
    let (backend, device, _) = open();
    backend.refuse_to_pin(true);
    let refused = device.register(vec![1, 2, 3]).unwrap_err();
    let code = |error: &Error| matches!(error, Error::Refused { code: 712, .. });
    assert!(code(&refused.error), "{refused}");
    assert_eq!(refused.value.unwrap(), [1, 2, 3]);
    let refused = HostMemory::register(&device, vec![4u8]).unwrap_err();
    assert!(code(&refused.error), "{refused}");
    assert_eq!(refused.value.unwrap(), [4]);
    backend.refuse_to_pin(false);
    assert_eq!(device.register(vec![5]).unwrap().into_vec().unwrap(), [5]);
}

#[test]
fn an_empty_vector_is_registered_without_the_driver() {
    let (backend, device, stream) = open();
    backend.refuse_to_pin(true);
    let none = device.register(Vec::<u32>::new()).unwrap();
    let mut data = stream.alloc::<u32>(0).unwrap();
    let none = stream.upload(none, data.view_mut()).unwrap();
    assert!(none.synchronize().unwrap().into_vec().unwrap().is_empty());
    let room: Vec<u32> = Vec::with_capacity(100);
    let place = room.as_ptr();
    let room = device.register(room).unwrap().into_vec().unwrap();
    assert_eq!((room.as_ptr(), room.capacity()), (place, 100));
    let none = HostMemory::register(&device, Vec::new()).unwrap();
    assert!(none.into_vec().unwrap().is_empty());
}

#[test]
fn dropped_in_flight_it_stays_pinned_until_its_copy_is_complete() {
    let (backend, device, stream) = open();
    let data = stream.alloc_zeroed::<u32>(LEN).unwrap();
    let page = device.register(vec![1; LEN]).unwrap();
    let waits = backend.endless_waits();
    drop(stream.download(data.view(), page).unwrap());
    // The copy is not complete: no thread has waited. Registering more memory neither waits nor frees the copy's
    // memory.
    let other = device.register(vec![2u32; LEN]).unwrap();
    assert_eq!((backend.registered(), backend.endless_waits()), (2, waits));
    stream.synchronize().unwrap();
    assert_eq!(backend.registered(), 2, "a drop leaves it to a later call");
    let third = device.register(vec![3u32; LEN]).unwrap();
    assert_eq!(backend.registered(), 2);
    drop(stream.download(data.view(), other).unwrap());
    device.empty_cache().unwrap();
    assert_eq!(backend.registered(), 1);
    drop(third);
    assert_eq!(backend.registered(), 1);
    drop((stream, data, device));
    assert_eq!(backend.registered(), 0, "the machine is gone");
}

#[test]
fn a_lost_device_keeps_memory_that_it_may_still_use() {
    let (backend, device, stream) = open();
    let trap = Kernel::<(Write<u32>,)>::on_host("trap", |_, _| {
        std::panic::resume_unwind(Box::new("trapped"))
    });
    let mut data = stream.alloc_zeroed::<u32>(LEN).unwrap();
    let idle = device.register(vec![9u32]).unwrap();
    let explicit = HostMemory::register(&device, vec![1u8]).unwrap();
    let args = (data.view_mut(),);
    stream.launch(&trap, Grid::new(1, 1), args).unwrap();
    let page = device.register(vec![1; LEN]).unwrap();
    drop(stream.download(data.view(), page).unwrap());
    assert!(matches!(stream.synchronize(), Err(Error::DeviceLost(_))));
    let refused = idle.into_vec().unwrap_err();
    assert!(matches!(refused.error, Error::DeviceLost(_)), "{refused}");
    assert!(refused.value.is_none());
    drop(explicit);
    // The vector was never given to the device, and belongs to the program.
    let refused = device.register(vec![5]).unwrap_err();
    assert_eq!(refused.value.unwrap(), [5]);
    assert!(device.empty_cache().is_err());
    drop((stream, data, device));
    assert_eq!(backend.registered(), 3);
}

#[test]
fn a_host_function_may_not_pin_and_loses_nothing() {
    let (backend, device, stream) = open();
    let page = device.register(vec![1u32]).unwrap();
    let inside = device.clone();
    let asked = stream.host_func(Some(page), move |page| {
        let refused = inside.register(vec![2u32]).unwrap_err();
        assert_eq!(refused.value.unwrap(), [2]);
        let refused = page.take().unwrap().into_vec().unwrap_err();
        *page = refused.value;
    });
    let page = asked.unwrap().synchronize().unwrap().unwrap();
    assert_eq!(page.into_vec().unwrap(), [1]);
    assert_eq!(backend.registered(), 0);
}

#[test]
fn a_checker_sees_no_race_where_another_thread_registers_it_again() {
    let device = Device::open("sim:h200").unwrap();
    let findings = device.checked(OnRace::Report);
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let mut data = a.alloc::<u32>(LEN).unwrap();
    let page = device.register(vec![1; LEN]).unwrap();
    let page = a.upload(page, data.view_mut()).unwrap();
    let values = page.synchronize().unwrap().into_vec().unwrap();
    std::thread::scope(|scope| {
        let again = scope.spawn(|| {
            let zeros = b.alloc_zeroed::<u32>(LEN).unwrap();
            let page = device.register(values).unwrap();
            let page = b.download(zeros.view(), page).unwrap();
            page.synchronize().unwrap().into_vec().unwrap()
        });
        assert_eq!(again.join().unwrap(), [0; LEN]);
    });
    assert!(findings.report().races.is_empty(), "{}", findings.text());
    assert_eq!(findings.ended(), None);
}

#[test]
fn the_explicit_style_registers_and_gives_back() {
    let (backend, device, _) = open();
    let work = explicit::Stream::non_blocking(&device, "work", 0).unwrap();
    let bytes = HostMemory::register(&device, vec![7u8; LEN]).unwrap();
    let data = DeviceMemory::malloc(&device, LEN as u64).unwrap();
    let back = HostMemory::register(&device, vec![0u8; LEN]).unwrap();
    // SAFETY: one stream, whose work is complete before the memory is freed.
    unsafe {
        work.memcpy(bytes.all(), data.all()).unwrap();
        work.memcpy(data.all(), back.all()).unwrap();
    }
    work.synchronize().unwrap();
    assert_eq!(back.into_vec().unwrap(), [7; LEN]);
    assert_eq!(backend.registered(), 1);
    drop(bytes);
    assert_eq!(backend.registered(), 0);
    let ours = HostMemory::pinned(&device, 4).unwrap();
    let refused = ours.into_vec().unwrap_err();
    assert_eq!(refused.value.unwrap().size_bytes(), 4);
}

#[test]
fn a_kernel_is_made_ready_or_has_no_form_here() {
    let (_, device, _) = open();
    let copy = Kernel::<(Read<u32>, Write<u32>)>::on_host("copy", |_, (x, y)| {
        y.copy_from_slice(x);
    });
    device.prepare(&copy).unwrap();
    // SAFETY: the kernel is never launched.
    let ptx = unsafe { Kernel::<(Write<u32>,)>::from_ptx(".version 8.0", "fill") };
    let error = device.prepare(&ptx).unwrap_err();
    assert!(
        matches!(&error, Error::NoForm { kernel, .. } if kernel == "fill"),
        "{error}"
    );
}
