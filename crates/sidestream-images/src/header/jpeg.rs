//! Reads the segments of a JPEG up to its first scan (ITU-T T.81, annex B).

use super::exif::{self, Orientation};
use super::{Coding, Format, Header, big16};
use crate::{Broken, Size};

/// Marker codes of table B.1 in the annex.
const RST0: u8 = 0xD0;
const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;
const DRI: u8 = 0xDD;
const APP1: u8 = 0xE1;
const APP14: u8 = 0xEE;
const TEM: u8 = 0x01;

/// Columns and rows that NVIDIA's hardware decoders accept, as drivers report to GStreamer's `nvjpegdec`. One picture
/// that the engines refuse makes its whole batch fall back.
const ENGINE_COLUMNS: std::ops::RangeInclusive<u32> = 64..=32_768;
const ENGINE_ROWS: std::ops::RangeInclusive<u32> = 64..=16_384;

/// The contents of the frame header.
#[derive(Clone, Copy)]
struct Frame {
    /// Number of blocks of 8 × 8 samples over all channels.
    blocks: u64,
    /// Name and number of blocks of each channel.
    of_channel: [(u8, u64); 4],
    /// Number of units (MCUs) in a scan of all channels. A unit has the blocks of one or two rows and columns of
    /// luma.
    units: u64,
    /// Whether the engines of GPUs support this kind of frame.
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

/// Returns whether the file ends before the picture does, without decoding: the end marker is missing, or the bytes
/// before it are too few for the number of blocks.
pub(super) fn is_cut(bytes: &[u8]) -> bool {
    let Ok((_, frame, first_scan)) = walk(bytes) else {
        return true;
    };
    let Some(end) = end_of_picture(bytes, first_scan) else {
        return true;
    };
    frame.needs_more_than(end - first_scan)
}

/// Maximum number of block visits per bit of a file. The first coefficient of each block takes at least one bit, and
/// no scan of the others needs more than 15 for 32,767 blocks. libjpeg and mozjpeg write at most 3, for pictures of a
/// single colour.
const VISITS_A_BIT: u64 = 16;

/// Refuses a file whose scans visit far more blocks than its bytes can describe. A decoder visits each block of the
/// picture in each scan, even if the file has no data for it, so a file of 2 KB could take a minute.
///
/// Everything that looks like a scan counts, from the first one to the end of the file, since decoders differ in what
/// they skip.
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
        // With arithmetic coding one bit may encode any number of blocks.
        Coding::Arithmetic => bits.max(frame.blocks),
        Coding::Sequential | Coding::Progressive | Coding::Lossless => bits,
    });
    match visits > most {
        true => Err(Broken::Damaged(format!(
            "its scans ({count}) visit {visits} blocks of 8 × 8 samples, and at most {most} are decoded for a file of this length"
        ))),
        false => Ok(()),
    }
}

impl Frame {
    /// Returns the number of blocks that the scan with this segment visits.
    fn blocks_of(&self, scan: &[u8]) -> u64 {
        let channels = scan.get(2).copied().unwrap_or(0).into();
        let names = scan.get(3..).unwrap_or(&[]).chunks_exact(2);
        let blocks = names.take(channels).map(|pair| {
            let named = self.of_channel.iter().filter(|(name, _)| *name == pair[0]);
            named.map(|(_, blocks)| *blocks).max()
        });
        // A scan that names no channel, or an unknown one, counts as a scan of all channels.
        let sum: Option<u64> = blocks.sum();
        sum.filter(|blocks| *blocks > 0).unwrap_or(self.blocks)
    }

    /// Returns whether the blocks cannot fit into this many bytes.
    fn needs_more_than(&self, size_bytes: usize) -> bool {
        // Minimum bits per block: one for the code of the first coefficient, and one for the others unless other
        // scans contain them (where one code may describe many blocks).
        let least = match self.coding {
            Coding::Sequential => 2 * self.blocks,
            Coding::Progressive => self.blocks,
            Coding::Lossless | Coding::Arithmetic => 0,
        };
        least > size_bytes as u64 * 8
    }
}

/// Returns the file up to the end of its picture if it is one scan of a kind that the engines of GPUs support, and
/// complete by its markers: the scan contains only the restart markers that the restart interval demands, in order.
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
            // An escaped 0xFF in the coefficients.
            0 => at += 1,
            // A fill byte.
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

/// Returns the position of the end marker, searching from the first scan.
fn end_of_picture(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        // A segment begins here; the first one is a scan's, whose marker was read.
        at = at.checked_add(big16(bytes, at)?.into())?;
        let code = loop {
            at += memchr::memchr(0xFF, bytes.get(at..)?)? + 1;
            match *bytes.get(at)? {
                // An escaped 0xFF in the coefficients, a restart marker, or a fill byte.
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

/// Returns the header, its frame, and the position of the first scan's segment.
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
            // The codes of all frame headers; three codes between them have other meanings.
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

/// Returns the next marker and the position after it. Bytes before the marker are skipped, as decoders do, and it may
/// be preceded by fill bytes (0xFF).
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
        // The number of rows may follow the first scan (marker DNL); no decoder that is used for training supports
        // that.
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
        // Channels with these names are RGB, not luma and chroma.
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
    // The sampling factors of a single channel have no effect.
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
