//! The stand-in in place of CUPTI, the library that `cuInit` loads, and functions that only other programs call.

mod rig;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use libloading::Library;
use rig::{Rig, ok};

/// `CUpti_CallbackData`.
#[repr(C)]
struct CallbackData {
    site: c_int,
    name: *const c_char,
    params: *const c_void,
    result: *const c_int,
    symbol: *const c_char,
    context: u64,
    context_uid: u32,
    correlation_data: *mut u64,
    correlation_id: u32,
}

type Callback = unsafe extern "C" fn(*mut c_void, c_int, u32, *const CallbackData);

const SUCCESS: c_int = 0;
const INVALID_PARAMETER: c_int = 1;
const MULTIPLE_SUBSCRIBERS: c_int = 39;
const DRIVER_API: c_int = 1;

/// The stand-in, loaded again under another name, as a program loads CUPTI beside the driver.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let link = std::env::temp_dir().join(format!("libcupti.so.{}", std::process::id()));
        std::os::unix::fs::symlink(sidestream_stand_in::library().unwrap(), &link).unwrap();
        // SAFETY: the library runs no initialiser.
        let library = unsafe { Library::new(&link) }.unwrap();
        std::fs::remove_file(link).unwrap();
        library
    })
}

/// Returns a function of the stand-in, which has this type.
fn function<F: Copy>(name: &str) -> F {
    // SAFETY: each caller names the type that NVIDIA's headers give the function.
    *unsafe { library().get::<F>(name) }.unwrap()
}

/// Returns the driver after `cuInit` has loaded a library that counts its initialisations.
fn rig() -> (Rig, &'static Library) {
    static INJECTED: OnceLock<Library> = OnceLock::new();
    const SOURCE: &str = "
        static CALLS: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);
        #[unsafe(no_mangle)]
        extern \"C\" fn InitializeInjection() -> i32 { CALLS.fetch_add(1, std::sync::atomic::Ordering::SeqCst); 1 }
        #[unsafe(no_mangle)]
        extern \"C\" fn calls() -> i32 { CALLS.load(std::sync::atomic::Ordering::SeqCst) }
    ";
    let injected = INJECTED.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("injected-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, file) = (folder.join("injected.rs"), folder.join("injected.so"));
        std::fs::write(&source, SOURCE).unwrap();
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition=2024", "--crate-type=cdylib", "-o"]);
        assert!(rustc.args([&file, &source]).status().unwrap().success());
        // SAFETY: no other thread reads the environment: the other tests wait for this one. The library runs no
        // initialiser when it is loaded.
        let library = unsafe {
            std::env::set_var("CUDA_INJECTION64_PATH", &file);
            Library::new(&file).unwrap()
        };
        drop(Rig::new());
        std::fs::remove_dir_all(folder).unwrap();
        library
    });
    (Rig::new(), injected)
}

#[test]
fn the_library_that_the_environment_names_is_initialised_once() {
    let (rig, injected) = rig();
    // SAFETY: the call takes no pointer.
    ok(unsafe { (rig.driver.cuInit)(0) });
    // SAFETY: the function has this type.
    let calls = unsafe { injected.get::<extern "C" fn() -> i32>("calls") };
    assert_eq!(calls.unwrap()(), 1);
}

/// What a callback saw: entered or left, the function's number, the names of the function and of the kernel, some
/// words of the parameters, and the result.
#[derive(PartialEq, Debug)]
struct Seen {
    site: c_int,
    cbid: u32,
    name: String,
    symbol: Option<String>,
    words: Vec<u64>,
    result: Option<c_int>,
    correlation_id: u32,
}

/// The words of eight bytes to keep of the parameters of a function.
const WORDS: &[(&CStr, u32, &[usize])] = &[
    (c"cuMemAlloc_v2", 243, &[1]),
    (c"cuLaunchKernel", 307, &[0, 1, 2, 3, 5]),
    (c"cuMemcpyHtoDAsync_v2", 277, &[0, 1, 2, 3]),
    (c"cuStreamWaitEvent", 295, &[0, 1]),
];

unsafe extern "C" fn see(seen: *mut c_void, domain: c_int, cbid: u32, data: *const CallbackData) {
    assert_eq!(domain, DRIVER_API);
    // SAFETY: the library promises the data, and that they are `userdata` of the test.
    unsafe {
        let (data, seen) = (&*data, &*seen.cast::<Mutex<Vec<Seen>>>());
        let text = |at: *const c_char| CStr::from_ptr(at).to_str().unwrap().to_owned();
        let words = WORDS
            .iter()
            .filter(|known| known.1 == cbid)
            .flat_map(|known| known.2);
        assert_eq!(
            *data.correlation_data, data.site as u64,
            "the word of the call is kept"
        );
        *data.correlation_data = 1;
        assert!(data.context != 0 && data.context_uid == 1);
        seen.lock().unwrap().push(Seen {
            site: data.site,
            cbid,
            name: text(data.name),
            symbol: (!data.symbol.is_null()).then(|| text(data.symbol)),
            words: words
                .map(|&at| *data.params.cast::<u64>().add(at))
                .collect(),
            result: data.result.as_ref().copied(),
            correlation_id: data.correlation_id,
        });
    }
}

const PTX: &CStr = c".version 7.0 .target sm_50 .address_size 64
    .visible .entry _Z5scalePfPKfi(.param .u32 n, .param .u64 to, .param .align 8 .b8 s[12], .param .u8 last) { ret; }
    .visible .entry unknown() { trap; }";

#[test]
fn a_subscriber_sees_the_enabled_calls_with_their_parameters_and_results() {
    type Subscribe = unsafe extern "C" fn(*mut u64, Callback, *mut c_void) -> c_int;
    type Enable = unsafe extern "C" fn(u32, u64, c_int, u32) -> c_int;
    type Name = unsafe extern "C" fn(c_int, u32, *mut *const c_char) -> c_int;
    type Upload = unsafe extern "C" fn(u64, u64, usize, u64) -> c_int;
    let (rig, _) = rig();
    let (seen, mut handle, mut name) = (Mutex::new(Vec::<Seen>::new()), 0, std::ptr::null());
    let userdata = (&raw const seen).cast_mut().cast();
    let subscribe: Subscribe = function("cuptiSubscribe");
    let enable: Enable = function("cuptiEnableCallback");
    // SAFETY: the pointers are to local variables; names are constant texts.
    unsafe {
        ok(subscribe(&mut handle, see, userdata));
        assert_eq!(subscribe(&mut 0, see, userdata), MULTIPLE_SUBSCRIBERS);
        for &(known, cbid, _) in WORDS {
            ok(enable(1, handle, DRIVER_API, cbid));
            ok(function::<Name>("cuptiGetCallbackName")(
                DRIVER_API, cbid, &mut name,
            ));
            assert_eq!(CStr::from_ptr(name), known);
        }
        assert_eq!(enable(1, handle + 1, DRIVER_API, 243), INVALID_PARAMETER);
        assert_eq!(enable(1, handle, DRIVER_API, 1 << 20), INVALID_PARAMETER);
        assert_eq!(enable(1, handle, 7, 243), INVALID_PARAMETER);
    }
    let scale = rig.function(PTX.to_str().unwrap(), c"_Z5scalePfPKfi");
    let (stream, host) = (rig.stream(), rig.pinned(&[0u8; 64]).0);
    let at = rig.memory(64);
    // SAFETY: the memory has 64 bytes.
    unsafe {
        ok(function::<Upload>("cuMemcpyHtoDAsync_v2")(
            at, host, 64, stream,
        ));
        assert_eq!((rig.driver.cuStreamWaitEvent)(stream, 17, 0), 400);
        ok(rig.launch(scale, &[0, 0, 0, 0], stream));
        ok(enable(0, handle, DRIVER_API, 243));
    }
    rig.memory(64);
    ok(rig.synchronize(stream));
    let all = std::mem::take(&mut *seen.lock().unwrap());
    let calls = [
        (0, vec![64], SUCCESS),
        (2, vec![at, host, 64, stream], SUCCESS),
        (3, vec![stream, 17], 400),
        // The blocks and threads are 32 bits wide.
        (
            1,
            vec![scale, 4 | 1 << 32, 1 | 64 << 32, 1 | 1 << 32, stream],
            SUCCESS,
        ),
    ];
    assert_eq!(all.len(), 2 * calls.len());
    for (pair, (place, words, code)) in all.as_chunks::<2>().0.iter().zip(calls) {
        let (name, cbid, _) = WORDS[place];
        for (site, seen) in (0..).zip(pair) {
            assert_eq!(
                (seen.site, seen.cbid, seen.name.as_bytes()),
                (site, cbid, name.to_bytes())
            );
            assert_eq!(
                (&seen.words, seen.result),
                (&words, (site == 1).then_some(code))
            );
            assert_eq!(seen.correlation_id, pair[0].correlation_id);
            let symbol = (name == c"cuLaunchKernel").then_some("_Z5scalePfPKfi");
            assert_eq!(seen.symbol.as_deref(), symbol);
        }
    }
    // SAFETY: neither takes a pointer.
    unsafe {
        let whole: unsafe extern "C" fn(u32, u64, c_int) -> c_int = function("cuptiEnableDomain");
        ok(whole(1, handle, DRIVER_API));
        ok(rig.synchronize(stream));
        assert_eq!(seen.lock().unwrap().len(), 2, "cuStreamSynchronize");
        ok(function::<unsafe extern "C" fn(u64) -> c_int>(
            "cuptiUnsubscribe",
        )(handle));
        ok(rig.synchronize(stream));
        assert_eq!(seen.lock().unwrap().len(), 2);
    }
}

#[test]
fn a_kernel_that_only_returns_needs_no_twin_and_has_its_parameters_places() {
    type Load = unsafe extern "C" fn(
        *mut u64,
        *const c_char,
        *const c_void,
        *const c_void,
        u32,
        *const c_void,
        *const c_void,
        u32,
    ) -> c_int;
    type Get = unsafe extern "C" fn(*mut u64, u64, *const c_char) -> c_int;
    type Info = unsafe extern "C" fn(u64, usize, *mut usize, *mut usize) -> c_int;
    type Name = unsafe extern "C" fn(*mut *const c_char, u64) -> c_int;
    type Find =
        unsafe extern "C" fn(*const c_char, *mut *const c_void, c_int, u64, *mut c_int) -> c_int;
    let (rig, _) = rig();
    let (mut library, mut kernel, mut of, mut unknown) = (0, 0, 0, 0);
    let (none, mut name, mut status) = (std::ptr::null(), std::ptr::null(), 7);
    // SAFETY: the pointers are to local variables; names are constant texts.
    unsafe {
        ok(function::<Load>("cuLibraryLoadData")(
            &mut library,
            PTX.as_ptr(),
            none,
            none,
            0,
            none,
            none,
            0,
        ));
        let get = function::<Get>("cuLibraryGetKernel");
        ok(get(&mut kernel, library, c"_Z5scalePfPKfi".as_ptr()));
        assert_eq!(
            get(&mut unknown, library, c"unknown".as_ptr()),
            500,
            "it does something"
        );
        let by_kernel = function::<Info>("cuKernelGetParamInfo");
        let by_function = function::<Info>("cuFuncGetParamInfo");
        let (mut offset, mut bytes) = (0, 0);
        assert_eq!(
            by_function(kernel, 0, &mut offset, &mut bytes),
            400,
            "a kernel is no function"
        );
        ok(function::<unsafe extern "C" fn(*mut u64, u64) -> c_int>(
            "cuKernelGetFunction",
        )(&mut of, kernel));
        for (at, place) in [(0, 4), (8, 8), (16, 12), (28, 1)].into_iter().enumerate() {
            for (info, handle) in [(by_kernel, kernel), (by_function, of)] {
                ok(info(handle, at, &mut offset, &mut bytes));
                assert_eq!((offset, bytes), place);
            }
        }
        assert_eq!(
            by_kernel(kernel, 4, &mut offset, &mut bytes),
            1,
            "the last was 3"
        );
        ok(rig.launch(kernel, &[0; 4], rig.stream()));
        ok(function::<Name>("cuKernelGetName")(&mut name, kernel));
        assert_eq!(CStr::from_ptr(name), c"_Z5scalePfPKfi");
        let (find, mut at) = (function::<Find>("cuGetProcAddress_v2"), std::ptr::null());
        ok(find(
            c"cuMemAlloc".as_ptr(),
            &mut at,
            13_000,
            0,
            &mut status,
        ));
        let (alloc, of_driver) = (at.expose_provenance(), rig.driver.cuMemAlloc_v2 as usize);
        assert_eq!((alloc, status), (of_driver, 0));
        assert_eq!(
            find(c"cuMem".as_ptr(), &mut at, 13_000, 0, &mut status),
            500
        );
        assert!(at.is_null() && status == 1);
    }
}

#[test]
fn values_order_streams_and_a_batch_copies_all_its_pieces() {
    type Value = unsafe extern "C" fn(u64, u64, u32, u32) -> c_int;
    type Batch = unsafe extern "C" fn(
        *const u64,
        *const u64,
        *const usize,
        usize,
        *const c_void,
        *const usize,
        usize,
        u64,
    ) -> c_int;
    let (rig, _) = rig();
    let spin = rig.function(&rig::SPIN, c"spin");
    let (first, second) = (rig.stream(), rig.stream());
    let (flag, at) = (rig.memory(4), rig.memory(8));
    let (from, to) = (rig.pinned(&[7u8; 8]).0, rig.pinned(&[0u8; 8]));
    let (write, wait) = (
        function::<Value>("cuStreamWriteValue32_v2"),
        function::<Value>("cuStreamWaitValue32_v2"),
    );
    // SAFETY: the lists have as many elements as pieces, and the memory has 8 bytes.
    unsafe {
        assert_eq!(wait(second, flag, 2, 0), 801, "no stream writes it");
        ok((rig.driver.cuMemsetD8_v2)(at, 0, 8));
        ok(rig.launch(spin, &[1_000_000], first));
        let batch = function::<Batch>("cuMemcpyBatchAsync_v2");
        let (pieces, lengths) = ([at, at + 6], [3, 2]);
        // In stream order.
        let (orders, first_of) = ([1u32, 0, 0, 0, 0, 0], 0);
        ok(batch(
            pieces.as_ptr(),
            [from, from].as_ptr(),
            lengths.as_ptr(),
            2,
            orders.as_ptr().cast(),
            &raw const first_of,
            1,
            first,
        ));
        ok(write(first, flag, 3, 0));
        ok(wait(second, flag, 2, 0));
        ok(rig.copy(to.0, at, 8, second));
        ok(rig.synchronize(second));
        assert_eq!(to.1.cast::<[u8; 8]>().read(), [7, 7, 7, 0, 0, 0, 7, 7]);
        assert_eq!(rig.read::<u32>(flag, 1, second), [3]);
        assert_eq!(wait(second, flag, 4, 1), 801, "it was 3");
    }
}
