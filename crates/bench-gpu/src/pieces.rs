//! Many small pieces of pinned memory, uploaded at once.

use sidestream::buffer::{DeviceBuf, Pinned};
use sidestream::device::Device;
use sidestream::stream::Stream;
use sidestream_cli::failure::Failure;
use sidestream_cli::measure::raw::{self, Gpu, Memory};
use sidestream_cli::measure::rounds::{Clock, Side, interleaved};

use super::Bench;
use super::table::{Bar, Row};

const PIECES: usize = 500;
const PIECE_BYTES: usize = 16 << 10;

/// The rows about pieces.
pub fn rows(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let raw = bench.gpu.as_ref().map(Raw::new).transpose()?;
    let mut own = Own::new(&bench.own.device)?;
    let clock = &bench.own.clock;
    let mut sides: Vec<Side<'_>> = vec![Box::new(|| own.timed(clock))];
    if let Some(raw) = &raw {
        sides.push(Box::new(|| raw.timed(clock, Raw::one_copy)));
        sides.push(Box::new(|| raw.timed(clock, Raw::many_copies)));
    }
    let times = interleaved(bench.rounds.calls, &mut sides)?;
    let row = |raw: &str, side: usize, bar: Option<Bar>| {
        let what = format!("{PIECES} pieces of 16 KiB as one batch, raw: {raw}");
        let raw = times.get(side).map(Vec::as_slice);
        Row::new(what, "us", raw, &times[0], bar)
    };
    Ok(vec![
        row("one copy", 1, Some(Bar::Ratio(1.2))),
        row("500 copies", 2, None),
    ])
}

/// The runtime's side.
struct Own {
    stream: Stream,
    pieces: Option<Vec<Pinned<u8>>>,
    to: DeviceBuf<u8>,
}

impl Own {
    fn new(device: &Device) -> Result<Own, Failure> {
        let stream = device.stream("pieces")?;
        let pieces = (0..PIECES).map(|_| device.pinned(PIECE_BYTES));
        Ok(Own {
            pieces: Some(pieces.collect::<Result<_, _>>()?),
            to: stream.alloc(PIECES * PIECE_BYTES)?,
            stream,
        })
    }

    /// Microseconds until all pieces have arrived.
    fn timed(&mut self, clock: &Clock) -> Result<f64, Failure> {
        self.stream.synchronize()?;
        let pieces = self.pieces.take().unwrap_or_default();
        let start_ns = clock.now_ns();
        let sent = self.stream.upload_pieces(pieces, self.to.view_mut());
        let sent = sent.map_err(sidestream::error::Error::from)?;
        let back = sent.synchronize()?;
        let end_ns = clock.now_ns();
        self.pieces = Some(back);
        Ok((end_ns - start_ns) as f64 / 1e3)
    }
}

/// The driver's side.
struct Raw<'a> {
    gpu: &'a Gpu,
    stream: raw::Stream,
    host: Memory,
    device: Memory,
}

impl Raw<'_> {
    fn new(gpu: &Gpu) -> Result<Raw<'_>, Failure> {
        Ok(Raw {
            gpu,
            stream: gpu.stream()?,
            host: gpu.pinned(PIECES * PIECE_BYTES)?,
            device: gpu.memory(PIECES * PIECE_BYTES)?,
        })
    }

    /// Microseconds until all pieces have arrived.
    fn timed(
        &self,
        clock: &Clock,
        upload: fn(&Self) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        self.gpu.enter()?;
        self.gpu.synchronize_all()?;
        let start_ns = clock.now_ns();
        upload(self)?;
        self.gpu.synchronize(self.stream)?;
        Ok((clock.now_ns() - start_ns) as f64 / 1e3)
    }

    fn one_copy(&self) -> Result<(), Failure> {
        self.gpu.copy(self.host, self.device, self.stream)
    }

    fn many_copies(&self) -> Result<(), Failure> {
        for piece in 0..PIECES {
            let part = |memory: Memory| memory.part(piece * PIECE_BYTES, PIECE_BYTES);
            self.gpu
                .copy(part(self.host), part(self.device), self.stream)?;
        }
        Ok(())
    }
}
