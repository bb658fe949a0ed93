//! Many small pieces of pinned memory, uploaded at once.

use super::Bench;
use super::rounds::{Side, interleaved, median};
use super::table::{Bar, Row};
use crate::failure::Failure;
use crate::raw::{Gpu, Memory, Stream};

const PIECES: usize = 500;
const PIECE_BYTES: usize = 16 << 10;

/// The rows about pieces.
pub fn rows(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let raw = bench.gpu.as_ref().map(Raw::new).transpose()?;
    let mut sides: Vec<Side<'_>> = Vec::new();
    if let Some(raw) = &raw {
        sides.push(Box::new(|| raw.timed(bench, Raw::one_copy)));
        sides.push(Box::new(|| raw.timed(bench, Raw::many_copies)));
    }
    let times = interleaved(bench.rounds.calls, &mut sides)?;
    let row = |what: &str, raw: Option<&Vec<f64>>, bar: Option<Bar>| Row {
        what: what.to_owned(),
        unit: "us",
        raw: raw.map(|times| median(times)),
        ours: None,
        ratio: None,
        spread: None,
        bar,
        note: "not measured: the library has no such call yet".to_owned(),
    };
    Ok(vec![
        row(
            "500 pieces of 16 KiB as one batch, raw: one copy",
            times.first(),
            Some(Bar::Ratio(1.2)),
        ),
        row(
            "500 pieces of 16 KiB as one batch, raw: 500 copies",
            times.get(1),
            None,
        ),
    ])
}

/// The driver's side.
struct Raw<'a> {
    gpu: &'a Gpu,
    stream: Stream,
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

    /// Microseconds until all has arrived.
    fn timed(
        &self,
        bench: &Bench,
        upload: fn(&Self) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        self.gpu.enter()?;
        self.gpu.synchronize_all()?;
        let start_ns = bench.own.clock.now_ns();
        upload(self)?;
        self.gpu.synchronize(self.stream)?;
        Ok((bench.own.clock.now_ns() - start_ns) as f64 / 1e3)
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
