//! Decodes JPEGs with libjpeg-turbo, through its C interface: whole pictures, or a region without the rest.
//!
//! Known behaviour of the library, which this module takes into account:
//! - A header that is cut in the middle can leave a handle that refuses all later pictures. After any error a new
//!   handle is created.
//! - A header can state 65,000 × 65,000 pixels. Sizes are compared with ours before each call that writes, and memory
//!   and scans are limited.
//! - A region must begin at a whole block of the coarsest channel, and the chroma of its two outermost columns differs
//!   from that of the whole picture. So extra columns are decoded on both sides, and dropped.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use turbojpeg_sys as sys;

use super::{Damage, Options, copy_rows, kept};
use crate::header::{Coding, Format, Header};
use crate::{Broken, Region, Size};

pub(super) struct Jpeg {
    options: Options,
    handle: Option<Handle>,
    /// Rows including the extra columns, or rows of four channels.
    wide: Vec<u8>,
}

/// An instance of the library's decompressor, destroyed when dropped.
struct Handle(NonNull<std::ffi::c_void>);

// SAFETY: an instance is bound to no thread; `&mut` guarantees that only one thread at a time uses it.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: `tj3Init` returned it, and it is destroyed only here.
        unsafe { sys::tj3Destroy(self.0.as_ptr()) };
    }
}

/// Number of extra columns that are decoded on each side.
const MARGIN: u32 = 2;
/// Multiple of all block widths of the library (8, 16, 32).
const ALIGN: u32 = 32;

impl Jpeg {
    pub fn new(options: Options) -> Jpeg {
        Jpeg {
            options,
            handle: None,
            wide: Vec::new(),
        }
    }

    pub fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        region: Region,
        into: &mut [u8],
    ) -> Result<(), Broken> {
        if header.precision_bits != 8 {
            let why = "it has more or fewer than 8 bits a channel; convert it to 8";
            return Err(Broken::Unsupported(why.into()));
        }
        let mut handle = match self.handle.take() {
            Some(handle) => handle,
            None => Handle::new(self.options)?,
        };
        let mut wide = std::mem::take(&mut self.wide);
        handle.decode(bytes, header, region, into, &mut wide, self.options.damage)?;
        // A handle is reused only if it had no error.
        self.handle = Some(handle);
        self.wide = kept(wide);
        Ok(())
    }
}

impl Handle {
    fn new(options: Options) -> Result<Handle, Broken> {
        // SAFETY: no precondition; the function may return null.
        let handle = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let none = || Broken::Unsupported("libjpeg-turbo has no memory for a decompressor".into());
        let handle = Handle(NonNull::new(handle).ok_or_else(none)?);
        let most = c_int::try_from(options.max_pixels).unwrap_or(c_int::MAX);
        handle.set(sys::TJPARAM_TJPARAM_MAXPIXELS, most)?;
        handle.set(sys::TJPARAM_TJPARAM_SCANLIMIT, options.max_scans as c_int)?;
        Ok(handle)
    }

    fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        region: Region,
        into: &mut [u8],
        wide: &mut Vec<u8>,
        damage: Damage,
    ) -> Result<(), Broken> {
        // Coefficients of a progressive picture: two bytes for each of at most four channels.
        let Size { width, height } = header.size;
        let coefficients = u64::from(width) * u64::from(height) * 8 / (1 << 20);
        self.set(sys::TJPARAM_TJPARAM_MAXMEMORY, coefficients as c_int + 64)?;
        // SAFETY: the library reads `len` bytes from the address.
        let code = unsafe {
            sys::tj3DecompressHeader(self.0.as_ptr(), bytes.as_ptr(), bytes.len() as sys::size_t)
        };
        self.judge(code, damage)?;
        let (found_width, found_height) = (
            self.get(sys::TJPARAM_TJPARAM_JPEGWIDTH),
            self.get(sys::TJPARAM_TJPARAM_JPEGHEIGHT),
        );
        if (i64::from(found_width), i64::from(found_height))
            != (i64::from(width), i64::from(height))
        {
            return Err(Broken::Damaged(
                "two frame headers contradict each other".into(),
            ));
        }
        let colours = self.get(sys::TJPARAM_TJPARAM_COLORSPACE) as sys::TJCS;
        let four = colours == sys::TJCS_TJCS_CMYK || colours == sys::TJCS_TJCS_YCCK;
        let (format, channels) = match four {
            true => (sys::TJPF_TJPF_CMYK, 4),
            false => (sys::TJPF_TJPF_RGB, 3),
        };
        let decoded = self.choose(header, region)?;
        if decoded == region && !four {
            return self.pixels(bytes, format, channels, decoded.size, into, damage);
        }
        wide.resize(decoded.size.area() as usize * channels, 0);
        self.pixels(bytes, format, channels, decoded.size, wide, damage)?;
        if four {
            from_cmyk(wide);
        }
        let row = decoded.size.width as usize;
        let skipped = (region.top - decoded.top) as usize * row * 3;
        let left = (region.left - decoded.left) as usize;
        copy_rows(
            &wide[skipped..],
            row,
            left,
            region.size.width as usize,
            into,
        );
        Ok(())
    }

    /// Chooses what is decoded so that the region comes out bit for bit, and sets it as the library's cropping
    /// region.
    fn choose(&self, header: &Header, region: Region) -> Result<Region, Broken> {
        let lossless = matches!(
            header.format,
            Format::Jpeg {
                coding: Coding::Lossless,
                ..
            }
        ) || self.get(sys::TJPARAM_TJPARAM_LOSSLESS) == 1;
        let unknown = self.get(sys::TJPARAM_TJPARAM_SUBSAMP) == sys::TJSAMP_TJSAMP_UNKNOWN;
        let all = Region::whole(header.size);
        let chosen = match lossless || unknown {
            true => all,
            false => {
                let left = region.left.saturating_sub(MARGIN) / ALIGN * ALIGN;
                let end = (region.left + region.size.width).saturating_add(MARGIN);
                Region {
                    left,
                    top: region.top,
                    size: Size::new(end.min(header.size.width) - left, region.size.height),
                }
            }
        };
        // All zeros select the whole picture, and reset the region of an earlier picture.
        let asked = match chosen == all {
            true => sys::tjregion {
                x: 0,
                y: 0,
                w: 0,
                h: 0,
            },
            false => sys::tjregion {
                x: chosen.left as c_int,
                y: chosen.top as c_int,
                w: chosen.size.width as c_int,
                h: chosen.size.height as c_int,
            },
        };
        // SAFETY: the handle is alive and has read a header.
        match unsafe { sys::tj3SetCroppingRegion(self.0.as_ptr(), asked) } {
            0 => Ok(chosen),
            _ => Err(self.error()),
        }
    }

    fn pixels(
        &self,
        bytes: &[u8],
        format: sys::TJPF,
        channels: usize,
        size: Size,
        into: &mut [u8],
        damage: Damage,
    ) -> Result<(), Broken> {
        let row = size.width as usize * channels;
        let pitch = c_int::try_from(row)
            .map_err(|_| Broken::Unsupported("its rows are too long".into()))?;
        assert_eq!(into.len(), row * size.height as usize);
        // SAFETY: the library reads the given bytes, and writes `height` rows of `pitch` bytes, which fit: the size
        // is that of the region which it has accepted.
        let code = unsafe {
            sys::tj3Decompress8(
                self.0.as_ptr(),
                bytes.as_ptr(),
                bytes.len() as sys::size_t,
                into.as_mut_ptr(),
                pitch,
                format,
            )
        };
        self.judge(code, damage)
    }

    fn judge(&self, code: c_int, damage: Damage) -> Result<(), Broken> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the handle is alive.
        let warning =
            unsafe { sys::tj3GetErrorCode(self.0.as_ptr()) } == sys::TJERR_TJERR_WARNING as c_int;
        match warning && damage == Damage::Accept {
            true => Ok(()),
            false => Err(self.error()),
        }
    }

    fn error(&self) -> Broken {
        // SAFETY: the handle is alive; the text belongs to the library, ends with a zero and is copied before any
        // other call.
        let text = unsafe { CStr::from_ptr(sys::tj3GetErrorStr(self.0.as_ptr())) };
        let text = text.to_string_lossy();
        match text.contains("Premature end") {
            true => Broken::Truncated,
            false => Broken::Damaged(text.into_owned()),
        }
    }

    fn set(&self, parameter: sys::TJPARAM, value: c_int) -> Result<(), Broken> {
        // SAFETY: the handle is alive.
        match unsafe { sys::tj3Set(self.0.as_ptr(), parameter as c_int, value) } {
            0 => Ok(()),
            _ => Err(self.error()),
        }
    }

    fn get(&self, parameter: sys::TJPARAM) -> c_int {
        // SAFETY: the handle is alive.
        unsafe { sys::tj3Get(self.0.as_ptr(), parameter as c_int) }
    }
}

/// Converts four channels to three, at the front of the same memory. As in Pillow, the channels are taken as
/// inverted, which is how nearly all such files are written: a byte is the amount of remaining light.
fn from_cmyk(pixels: &mut [u8]) {
    for pixel in 0..pixels.len() / 4 {
        let [cyan, magenta, yellow, black] =
            [0, 1, 2, 3].map(|channel| u32::from(pixels[pixel * 4 + channel]));
        for (channel, ink) in [cyan, magenta, yellow].into_iter().enumerate() {
            pixels[pixel * 3 + channel] = ((ink * black + 127) / 255) as u8;
        }
    }
}
