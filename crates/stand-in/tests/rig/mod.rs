//! Loads the stand-in as the CUDA back end loads a driver.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

use std::ffi::{CStr, CString, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use sidestream::cuda::driver::{
    Code, CuAddress, CuContext, CuEvent, CuFunction, CuModule, CuStream, Driver,
    STREAM_NON_BLOCKING,
};

pub use sidestream::ptx::{FAULT, GATHER, OVERLAP_STEP, PATTERN, SPIN, VECTOR_ADD};

/// A driver with a current context on the calling thread. The tests of one program run one after another, since they
/// share the devices and their time.
pub struct Rig {
    pub driver: &'static Driver,
    pub contexts: Vec<CuContext>,
    _alone: MutexGuard<'static, ()>,
}

pub fn load() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let file = sidestream_stand_in::library().expect("Cargo has built it beside this test");
        // SAFETY: the stand-in has the functions of the driver.
        unsafe { Driver::load(Some(&file)) }.expect("it has every function")
    })
}

/// Asserts success, or panics with the code.
#[track_caller]
pub fn ok(code: Code) {
    assert_eq!(code, 0, "{}", load().words(code));
}

impl Rig {
    pub fn new() -> Rig {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = load();
        let mut contexts = Vec::new();
        // SAFETY: every pointer is to a local variable of the right type.
        unsafe {
            ok((driver.cuInit)(0));
            let mut count = 0;
            ok((driver.cuDeviceGetCount)(&mut count));
            for device in 0..count {
                let mut context = 0;
                ok((driver.cuDevicePrimaryCtxRetain)(&mut context, device));
                contexts.push(context);
            }
            ok((driver.cuCtxSetCurrent)(contexts[0]));
        }
        Rig {
            driver,
            contexts,
            _alone: alone,
        }
    }

    pub fn stream(&self) -> CuStream {
        self.stream_of(STREAM_NON_BLOCKING)
    }

    pub fn stream_of(&self, flags: u32) -> CuStream {
        let mut stream = 0;
        // SAFETY: the pointer is to a local variable.
        ok(unsafe { (self.driver.cuStreamCreateWithPriority)(&mut stream, flags, 0) });
        stream
    }

    pub fn event(&self) -> CuEvent {
        let mut event = 0;
        // SAFETY: the pointer is to a local variable.
        ok(unsafe { (self.driver.cuEventCreate)(&mut event, 0) });
        event
    }

    pub fn memory(&self, bytes: usize) -> CuAddress {
        let mut at = 0;
        // SAFETY: the pointer is to a local variable.
        ok(unsafe { (self.driver.cuMemAlloc_v2)(&mut at, bytes) });
        at
    }

    /// Returns pinned memory with these values; the pointer is valid for as many.
    pub fn pinned<T: Copy>(&self, values: &[T]) -> (u64, *mut T) {
        let mut at = 0;
        // SAFETY: the pointer is to a local variable; the memory is as long as the values.
        unsafe {
            ok((self.driver.cuMemHostAlloc)(
                &mut at,
                size_of_val(values),
                1,
            ));
            let memory = std::ptr::with_exposed_provenance_mut::<T>(at as usize);
            memory.copy_from_nonoverlapping(values.as_ptr(), values.len());
            (at, memory)
        }
    }

    pub fn function(&self, ptx: &str, name: &CStr) -> CuFunction {
        let (module, mut function) = (self.module(ptx), 0);
        // SAFETY: the pointers are to a local variable and to a string that ends with a zero byte.
        ok(unsafe { (self.driver.cuModuleGetFunction)(&mut function, module, name.as_ptr()) });
        function
    }

    pub fn module(&self, ptx: &str) -> CuModule {
        let (image, mut module) = (CString::new(ptx).unwrap(), 0);
        let none = std::ptr::null_mut();
        // SAFETY: the pointers are to a local variable and to a string that ends with a zero byte; there are no
        // options.
        ok(unsafe {
            let image = image.as_ptr().cast();
            (self.driver.cuModuleLoadDataEx)(&mut module, image, 0, none, std::ptr::null_mut())
        });
        module
    }

    /// Launches a kernel; every value is at least as long as its parameter.
    pub fn launch(&self, function: CuFunction, values: &[u64], stream: CuStream) -> Code {
        let mut values = values.to_vec();
        let pointers = values.iter_mut().map(|value| (value as *mut u64).cast());
        let mut pointers: Vec<*mut c_void> = pointers.collect();
        let extra = std::ptr::null_mut();
        // SAFETY: there are as many values as the kernel has parameters, each eight bytes.
        unsafe {
            let params = pointers.as_mut_ptr();
            (self.driver.cuLaunchKernel)(function, 4, 1, 1, 64, 1, 1, 0, stream, params, extra)
        }
    }

    pub fn copy(&self, to: u64, from: u64, bytes: usize, stream: CuStream) -> Code {
        // SAFETY: a caller that passes addresses of pageable memory has as many bytes there.
        unsafe { (self.driver.cuMemcpyAsync)(to, from, bytes, stream) }
    }

    pub fn synchronize(&self, stream: CuStream) -> Code {
        // SAFETY: the call takes no pointer.
        unsafe { (self.driver.cuStreamSynchronize)(stream) }
    }

    /// Returns the contents of device memory after all work of the stream.
    pub fn read<T: Copy + Default>(&self, at: CuAddress, len: usize, stream: CuStream) -> Vec<T> {
        let mut values = vec![T::default(); len];
        let to = values.as_mut_ptr().expose_provenance() as u64;
        ok(self.copy(to, at, size_of_val(&*values), stream));
        ok(self.synchronize(stream));
        values
    }
}

/// Returns the address of values of the program.
pub fn address<T>(values: &[T]) -> u64 {
    values.as_ptr().expose_provenance() as u64
}
