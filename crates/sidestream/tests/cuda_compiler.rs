//! NVRTC and NVTX where they are missing, and kernels in CUDA C++ without a GPU.

use std::path::Path;

use sidestream::cuda::NotLoaded;
use sidestream::cuda::nvrtc::{NotCompiled, Nvrtc};
use sidestream::cuda::nvtx::Ranges;
use sidestream::device::Device;
use sidestream::error::{Error, Result};
use sidestream::kernel::{Grid, Kernel, Write};

fn load(file: &str) -> NotCompiled {
    // SAFETY: the file does not exist, is not a library, or is one that this program has loaded already.
    match unsafe { Nvrtc::load(Some(Path::new(file)), 12_000) } {
        Ok(_) => panic!("{file} is not NVRTC, and was loaded as such"),
        Err(why) => why,
    }
}

#[test]
fn a_missing_compiler_names_the_file_and_the_remedy() {
    let why = load("/nowhere/libnvrtc.so.12");
    let NotCompiled::NoCompiler {
        why: NotLoaded::NoFile { tried },
    } = &why
    else {
        panic!("{why:?}");
    };
    assert_eq!(tried.len(), 1);
    assert_eq!(tried[0].0, "/nowhere/libnvrtc.so.12");
    let text = why.to_string();
    assert!(
        text.starts_with("CUDA C++ needs the compiler NVRTC: "),
        "{text}"
    );
    assert!(text.contains("/nowhere/libnvrtc.so.12 ("), "{text}");
    assert!(text.contains("nvidia-cuda-nvrtc"), "{text}");
}

#[test]
fn a_file_that_is_not_a_library_gives_the_systems_message() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let why = load(file);
    assert!(
        matches!(&why, NotCompiled::NoCompiler { why: NotLoaded::NoFile { tried } }
            if tried[0].0 == file && !tried[0].1.is_empty()),
        "{why:?}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_library_that_is_not_a_compiler_reports_the_missing_function() {
    let text = load("libc.so.6").to_string();
    assert_eq!(
        text,
        "libc.so.6 has no function nvrtcVersion: it is too old, or it is not NVRTC; NVRTC of CUDA 11.2 \
         or later is needed"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn ranges_take_the_first_library_that_can_be_loaded_and_it_has_to_be_nvtx() {
    // SAFETY: the files do not exist, or are loaded by this program already; both lack the functions.
    let load = |files: &[&str]| unsafe { Ranges::load(files).err() };
    let missing = load(&["libnowhere.so.1", "libnowhere.so"]);
    assert!(
        matches!(&missing, Some(NotLoaded::NoFile { tried }) if tried.len() == 2),
        "{missing:?}"
    );
    let other = load(&["libnowhere.so.1", "libc.so.6"]);
    let expected = NotLoaded::NoFunction {
        file: "libc.so.6".into(),
        function: "nvtxRangePushA".into(),
    };
    assert_eq!(other, Some(expected));
}

const ONES: &str = r#"extern "C" __global__ void ones(unsigned* to) { to[threadIdx.x] = 1; }"#;

#[test]
fn a_source_alone_does_not_run_on_the_simulated_gpu() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    // SAFETY: with one block of as many threads as the view has values, it stays within the view.
    let ones = unsafe { Kernel::<(Write<u32>,)>::from_cuda(ONES, "ones") };
    let mut to = stream.alloc(32)?;
    let refused = stream.launch(&ones, Grid::new(1, 32), (to.view_mut(),));
    assert!(
        matches!(&refused, Err(Error::NoForm { kernel, .. }) if kernel == "ones"),
        "{refused:?}"
    );
    Ok(())
}

#[test]
fn a_source_with_its_form_in_rust_runs_on_the_simulated_gpu() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    // SAFETY: with one block of as many threads as the view has values, it stays within the view.
    let ones = unsafe { Kernel::<(Write<u32>,)>::from_cuda(ONES, "ones") };
    let ones = ones.and_on_host(|_, (to,)| to.fill(1));
    let mut to = stream.alloc_zeroed(32)?;
    stream.launch(&ones, Grid::new(1, 32), (to.view_mut(),))?;
    let back = stream.download(to.view(), device.pinned(32)?)?;
    assert_eq!(back.synchronize()?[..], [1; 32]);
    Ok(())
}
