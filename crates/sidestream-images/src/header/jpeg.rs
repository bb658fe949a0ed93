//! The segments of a JPEG up to its first scan (ITU-T T.81, annex B).

use super::exif::{self, Orientation};
use super::{Coding, Format, Header, big16};
use crate::{Broken, Size};

/// Marker codes, of the annex's table B.1.
const RST0: u8 = 0xD0;
const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;
const DRI: u8 = 0xDD;
const APP1: u8 = 0xE1;
const APP14: u8 = 0xEE;
const TEM: u8 = 0x01;

/// How many columns and rows NVIDIA's decoders take of a JPEG, as drivers answer GStreamer's `nvjpegdec`. A picture that engines
/// refuse costs its whole batch.
const ENGINE_COLUMNS: std::ops::RangeInclusive<u32> = 64..=32_768;
const ENGINE_ROWS: std::ops::RangeInclusive<u32> = 64..=16_384;

/// What the frame header says.
#[derive(Clone, Copy)]
struct Frame {
    /// How many blocks of 8 × 8 samples there are, over all channels.
    blocks: u64,
    /// Of each channel its name and its blocks.
    of_channel: [(u8, u64); 4],
    /// How many units a scan of all channels consists of: each has the blocks of one or two rows and columns of luma.
    units: u64,
    /// It is of a kind that the engines of GPUs know.
    is_for_engines: bool,
    coding: Coding,
    precision_bits: u8,
    size: Size,
    channels: u8,
    sampling: (u8, u8),
}

pub(super) fn read(bytes: &[u8]) -> Result<Header, Broken> {
    walk(bytes).map(|(header, _, _)| header)
}

/// Whether the file ends before the picture does. That no decoder has to tell: the mark of the end is missing, or what lies before
/// it cannot hold so many blocks.
pub(super) fn is_cut(bytes: &[u8]) -> bool {
    let Ok((_, frame, first_scan)) = walk(bytes) else {
        return true;
    };
    let Some(end) = end_of_picture(bytes, first_scan) else {
        return true;
    };
    frame.needs_more_than(end - first_scan)
}

/// How many blocks may be visited for each bit of a file. Each block's first coefficient takes a bit at least, and no scan of the others
/// needs more than 15 for 32,767 blocks. The most that libjpeg and mozjpeg write is 3, of pictures in a single colour.
const VISITS_A_BIT: u64 = 16;

/// Refuses a file whose scans visit far more blocks than its bytes can describe. A decoder visits each block of the picture in each
/// scan, also where the file says nothing of it, so that a file of 2 KB could take a minute.
///
/// Whatever looks like a scan counts, from the first one to the end of the file: decoders differ in what they pass over.
pub(super) fn bound_work(bytes: &[u8], max_scans: u32) -> Result<(), Broken> {
    let (_, frame, first_scan) = walk(bytes)?;
    let end = end_of_picture(bytes, first_scan).unwrap_or(bytes.len());
    let rest = &bytes[first_scan..];
    let scans = memchr::memmem::find_iter(rest, &[0xFF, SOS]).map(|at| at + 2);
    let (mut count, mut visits) = (0u64, 0u64);
    for scan in std::iter::once(0).chain(scans) {
        count += u64::from(first_scan + scan <= end);
        visits = visits.saturating_add(frame.blocks_of(&rest[scan..]));
    }
    if count > max_scans.into() {
        return Err(damaged(&format!(
            "it has {count} scans, and at most {max_scans} are decoded"
        )));
    }
    let bits = 8 * rest.len() as u64;
    let most = VISITS_A_BIT.saturating_mul(match frame.coding {
        // A bit may stand for any number of blocks.
        Coding::Arithmetic => bits.max(frame.blocks),
        Coding::Sequential | Coding::Progressive | Coding::Lossless => bits,
    });
    match visits > most {
        true => Err(Broken::Damaged(format!(
            "its scans ({count}) go over {visits} blocks of 8 × 8 samples, and at most {most} are decoded of so short a file"
        ))),
        false => Ok(()),
    }
}

impl Frame {
    /// How many blocks a scan visits whose segment begins here.
    fn blocks_of(&self, scan: &[u8]) -> u64 {
        let channels = scan.get(2).copied().unwrap_or(0).into();
        let names = scan.get(3..).unwrap_or(&[]).chunks_exact(2);
        let blocks = names.take(channels).map(|pair| {
            let named = self.of_channel.iter().filter(|(name, _)| *name == pair[0]);
            named.map(|(_, blocks)| *blocks).max()
        });
        // What names none or an unknown channel is no scan, or all of them.
        let sum: Option<u64> = blocks.sum();
        sum.filter(|blocks| *blocks > 0).unwrap_or(self.blocks)
    }

    /// Whether its blocks cannot lie in so many bytes.
    fn needs_more_than(&self, size_bytes: usize) -> bool {
        // In bits, per block: of its first coefficient a code of at least one; and, unless other scans bring them (where one code
        // may stand for many blocks), of the others one too.
        let least = match self.coding {
            Coding::Sequential => 2 * self.blocks,
            Coding::Progressive => self.blocks,
            Coding::Lossless | Coding::Arithmetic => 0,
        };
        least > size_bytes as u64 * 8
    }
}

/// The file up to the end of its picture, if that is one scan of a kind which the engines of GPUs know, and whole by its marks: no
/// other stands in the scan than those that the restart interval asks for, in their sequence.
pub(super) fn for_engines(bytes: &[u8]) -> Option<&[u8]> {
    let (header, frame, first_scan) = walk(bytes).ok()?;
    let Format::Jpeg {
        restart_interval,
        adobe_transform: None | Some(1),
        ..
    } = header.format
    else {
        return None;
    };
    let channels = *bytes.get(first_scan + 2)?;
    if !frame.is_for_engines || channels != 3 {
        return None;
    }
    let mut at = first_scan + usize::from(big16(bytes, first_scan)?);
    let mut restarts = 0u64;
    loop {
        at += memchr::memchr(0xFF, bytes.get(at..)?)? + 1;
        match *bytes.get(at)? {
            // A 0xFF among the coefficients.
            0 => at += 1,
            // A filling byte.
            0xFF => {}
            code if code == RST0 + (restarts % 8) as u8 => {
                restarts += 1;
                at += 1;
            }
            EOI => break,
            _ => return None,
        }
    }
    at += 1;
    let asked = match u64::from(restart_interval) {
        0 => 0,
        interval => frame.units.div_ceil(interval) - 1,
    };
    let is_whole = restarts == asked && !frame.needs_more_than(at - first_scan);
    is_whole.then(|| &bytes[..at])
}

/// Where the mark of the end is, from the first scan on.
fn end_of_picture(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        // Here a segment begins: first that of a scan, whose code was read.
        at = at.checked_add(big16(bytes, at)?.into())?;
        let code = loop {
            at += memchr::memchr(0xFF, bytes.get(at..)?)? + 1;
            match *bytes.get(at)? {
                // A 0xFF among the coefficients, a restart marker, or a filling byte.
                0 | RST0..=0xD7 => at += 1,
                0xFF => {}
                code => break code,
            }
        };
        at += 1;
        if code == EOI {
            return Some(at);
        }
    }
}

/// The header, its frame, and where the first scan's segment begins.
fn walk(bytes: &[u8]) -> Result<(Header, Frame, usize), Broken> {
    let mut frame = None;
    let mut orientation = Orientation::Upright;
    let mut restart_interval = 0;
    let mut adobe_transform = None;
    let mut at = 2;
    let frame = loop {
        let (code, next) = marker(bytes, at)?;
        at = next;
        match code {
            SOI | TEM | RST0..=0xD7 => continue,
            EOI => return Err(damaged("it ends before its first scan")),
            SOS => match frame {
                Some(frame) => break frame,
                None => return Err(damaged("a scan begins before a frame header")),
            },
            _ => {}
        }
        let length = big16(bytes, at).ok_or(Broken::Truncated)? as usize;
        if length < 2 {
            return Err(damaged("the length of a segment is less than 2"));
        }
        let segment = bytes.get(at + 2..at + length).ok_or(Broken::Truncated)?;
        at += length;
        match code {
            // All frame headers, but for three codes between them that mean other things.
            0xC0..=0xCF if ![0xC4, 0xC8, 0xCC].contains(&code) => {
                let found = self::frame(code, segment)?;
                if frame.replace(found).is_some() {
                    return Err(damaged("it has two frame headers"));
                }
            }
            DRI => {
                restart_interval =
                    big16(segment, 0).ok_or_else(|| damaged("a restart interval is cut"))?
            }
            APP1 => {
                if let Some(tiff) = segment.strip_prefix(b"Exif\0\0") {
                    orientation = exif::orientation(tiff);
                }
            }
            APP14 if segment.starts_with(b"Adobe") => adobe_transform = segment.get(11).copied(),
            _ => {}
        }
    };
    let header = Header {
        format: Format::Jpeg {
            coding: frame.coding,
            sampling: frame.sampling,
            restart_interval,
            adobe_transform,
        },
        size: frame.size,
        precision_bits: frame.precision_bits,
        channels: frame.channels,
        orientation,
    };
    Ok((header, frame, at))
}

/// The next marker, and where what follows it begins. Bytes before it are passed over, as decoders do, and may be filled
/// up with 0xFF.
fn marker(bytes: &[u8], from: usize) -> Result<(u8, usize), Broken> {
    let rest = bytes.get(from..).ok_or(Broken::Truncated)?;
    let pair = rest
        .windows(2)
        .position(|two| two[0] == 0xFF && two[1] != 0xFF && two[1] != 0);
    let at = from + pair.ok_or(Broken::Truncated)?;
    Ok((bytes[at + 1], at + 2))
}

fn frame(code: u8, segment: &[u8]) -> Result<Frame, Broken> {
    let cut = || damaged("the frame header is cut");
    let [precision_bits, _, _, _, _, channels] = *segment.first_chunk().ok_or_else(cut)?;
    let height = u32::from(big16(segment, 1).ok_or_else(cut)?);
    let width = u32::from(big16(segment, 3).ok_or_else(cut)?);
    if width == 0 {
        return Err(damaged("it has no columns"));
    }
    if height == 0 {
        // The number of rows may follow the first scan (marker DNL); no decoder that is used for training reads that.
        return Err(Broken::Unsupported(
            "its header leaves the number of rows open".into(),
        ));
    }
    let mut largest = (1, 1);
    let mut smallest = (u8::MAX, u8::MAX);
    for channel in 0..usize::from(channels) {
        let factors = *segment.get(6 + channel * 3 + 1).ok_or_else(cut)?;
        let (across, down) = (factors >> 4, factors & 15);
        if !(1..=4).contains(&across) || !(1..=4).contains(&down) {
            return Err(damaged("a sampling factor is not between 1 and 4"));
        }
        largest = (largest.0.max(across), largest.1.max(down));
        smallest = (smallest.0.min(across), smallest.1.min(down));
    }
    let blocks = |channel: usize| {
        let factors = segment.get(6 + channel * 3 + 1).copied().unwrap_or(0x11);
        let samples = |all: u32, factor: u8, largest: u8| {
            let samples = (u64::from(all) * u64::from(factor)).div_ceil(largest.into());
            samples.div_ceil(8)
        };
        samples(width, factors >> 4, largest.0) * samples(height, factors & 15, largest.1)
    };
    let of_channel = std::array::from_fn(|at| match at < channels.into() {
        true => (segment[6 + at * 3], blocks(at)),
        false => (0, 0),
    });
    let blocks = (0..channels.into()).map(blocks).sum();
    let units = |all: u32, largest: u8| u64::from(all.div_ceil(8 * u32::from(largest)));
    let factors_of = |at: usize| {
        let start = 6 + 3 * at;
        Some((*segment.get(start)?, *segment.get(start + 1)?))
    };
    let is_for_engines = match [0, 1, 2].map(factors_of) {
        // Channels that are named so are no brightness and colours.
        [Some((b'R', _)), Some((b'G', _)), Some((b'B', _))] => false,
        [
            Some((_, 0x11 | 0x12 | 0x21 | 0x22)),
            Some((_, 0x11)),
            Some((_, 0x11)),
        ] => {
            let is_baseline = code == 0xC0 && channels == 3 && precision_bits == 8;
            is_baseline && ENGINE_COLUMNS.contains(&width) && ENGINE_ROWS.contains(&height)
        }
        _ => false,
    };
    if ![1, 3, 4].contains(&channels) {
        return Err(Broken::Unsupported(format!("it has {channels} channels")));
    }
    // The factors of a single channel mean nothing.
    let sampling = match channels {
        1 => (1, 1),
        _ => (largest.0 / smallest.0, largest.1 / smallest.1),
    };
    let coding = match code {
        0xC0 | 0xC1 => Coding::Sequential,
        0xC2 => Coding::Progressive,
        0xC3 => Coding::Lossless,
        0xC9..=0xCB => Coding::Arithmetic,
        _ => {
            return Err(Broken::Unsupported(
                "it is coded in a hierarchy of frames".into(),
            ));
        }
    };
    Ok(Frame {
        blocks,
        of_channel,
        units: units(width, largest.0) * units(height, largest.1),
        is_for_engines,
        coding,
        precision_bits,
        size: Size { width, height },
        channels,
        sampling,
    })
}

fn damaged(why: &str) -> Broken {
    Broken::Damaged(why.into())
}
