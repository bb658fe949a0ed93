//! nvJPEG's functions, for programs that load this file in place of nvJPEG too: pictures are decoded on the CPU.
//!
//! As with the hardware engines, the pixels are written during the call, regardless of the work that the stream still
//! has. Codes are nvJPEG's own.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use sidestream::cuda::driver::{Code, CuStream};
use sidestream_images::Region;
use sidestream_images::decode::{Decoder, Options};
use sidestream_images::header::Header;

use crate::arguments::{Out, give, list};
use crate::codes::Answer;
use crate::failing::refuse_asked;
use crate::handles::fresh;
use crate::state::{always, anywhere, call};
use crate::{memory, streams};

const INVALID_PARAMETER: Code = 2;
const BAD_JPEG: Code = 3;
const JPEG_NOT_SUPPORTED: Code = 4;
/// The hardware engines.
const BACKEND_HARDWARE: c_int = 3;
/// Interleaved red, green and blue bytes.
const OUTPUT_RGBI: c_int = 5;

/// `nvjpegImage_t`.
#[repr(C)]
struct Image {
    channel: [u64; 4],
    pitch: [usize; 4],
}

/// The handles and states that were created and not destroyed. A state has the number of pictures that it was
/// initialised for.
static MADE: LazyLock<Mutex<HashMap<u64, usize>>> = LazyLock::new(Mutex::default);

fn made() -> MutexGuard<'static, HashMap<u64, usize>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make(place: Out<u64>) -> Answer<()> {
    give(place, || {
        let handle = fresh();
        made().insert(handle, 0);
        Ok(handle)
    })
}

fn give_back(handle: u64) -> Answer<()> {
    let known = made().remove(&handle);
    known.map(|_| ()).ok_or(INVALID_PARAMETER)
}

#[unsafe(no_mangle)]
extern "C" fn nvjpegCreateEx(
    backend: c_int,
    _device_allocator: *mut c_void,
    _pinned_allocator: *mut c_void,
    _flags: c_uint,
    handle: Out<u64>,
) -> Code {
    call(|_, _| match backend {
        BACKEND_HARDWARE => make(handle),
        _ => Err(INVALID_PARAMETER),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvjpegDestroy(handle: u64) -> Code {
    always(|| give_back(handle))
}

#[unsafe(no_mangle)]
extern "C" fn nvjpegJpegStateCreate(_handle: u64, state: Out<u64>) -> Code {
    call(|_, _| make(state))
}

#[unsafe(no_mangle)]
extern "C" fn nvjpegJpegStateDestroy(state: u64) -> Code {
    always(|| give_back(state))
}

#[unsafe(no_mangle)]
extern "C" fn nvjpegGetHardwareDecoderInfo(
    _handle: u64,
    engines: Out<c_uint>,
    cores: Out<c_uint>,
) -> Code {
    always(|| {
        give(engines, || Ok(7))?;
        give(cores, || Ok(1))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvjpegDecodeBatchedInitialize(
    _handle: u64,
    state: u64,
    pictures: c_int,
    _threads: c_int,
    format: c_int,
) -> Code {
    call(|_, _| {
        let pictures = usize::try_from(pictures).map_err(|_| INVALID_PARAMETER)?;
        let mut made = made();
        let known = made.get_mut(&state).filter(|_| format == OUTPUT_RGBI);
        *known.ok_or(INVALID_PARAMETER)? = pictures;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvjpegDecodeBatched(
    _handle: u64,
    state: u64,
    files: *const *const u8,
    lengths: *const usize,
    images: *const Image,
    stream: CuStream,
) -> Code {
    anywhere(|driver, here| {
        refuse_asked("nvjpegDecodeBatched")?;
        let count = made().get(&state).copied().unwrap_or(0);
        if count == 0 {
            return Err(INVALID_PARAMETER);
        }
        // SAFETY: as `nvjpeg.h` requires of the caller, the lists are as long as the state was initialised for.
        let (files, lengths, images) = unsafe {
            (
                list(files, count)?,
                list(lengths, count)?,
                list(images, count)?,
            )
        };
        streams::stream(driver, here, stream)?;
        let mut decoder = Decoder::new(Options::default());
        for ((&file, &length), image) in files.iter().zip(lengths).zip(images) {
            // SAFETY: as above, the file has this many bytes.
            let file = unsafe { list(file, length)? };
            let header = decoder.look(file).map_err(|_| BAD_JPEG)?;
            if Header::for_engines(file).is_none() {
                return Err(JPEG_NOT_SUPPORTED);
            }
            let row_bytes = header.size.width as usize * 3;
            if image.pitch[0] != row_bytes {
                return Err(INVALID_PARAMETER);
            }
            let whole = Region {
                left: 0,
                top: 0,
                size: header.size,
            };
            let mut pixels = vec![0; row_bytes * header.size.height as usize];
            let decoded = decoder.decode(file, &header, whole, &mut pixels);
            decoded.map_err(|_| BAD_JPEG)?;
            let at = pixels.as_ptr().expose_provenance() as u64;
            memory::copy_blocking(
                driver,
                here,
                memory::row(image.channel[0], at, pixels.len()),
            )?;
        }
        Ok(())
    })
}
