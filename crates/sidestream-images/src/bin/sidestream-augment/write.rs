//! Writes results to files: NumPy's `.npy`, and `.safetensors`.
//!
//! Both formats begin with a header that contains the number of pictures. Room is kept for the header, which is
//! written when the number is known. The file gets its final name when it is complete and on disk, so no other
//! program reads half a file.

use std::fs::{File, TryLockError};
use std::io::{BufWriter, Error, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use sidestream_images::augment::{Form, Kind};

use super::job::Done;
use super::stop::Stop;
use crate::failure::{Failure, shown};

/// A file to which results are written.
pub struct Writer {
    file: BufWriter<File>,
    name: PathBuf,
    part: PathBuf,
    is_safetensors: bool,
    kind: Kind,
    shape: [usize; 3],
    labels: Vec<i64>,
    pictures: u64,
}

/// The files that a run wrote.
pub struct Written {
    pub file: PathBuf,
    /// File of the labels, if the format needs a separate one.
    pub labels: Option<PathBuf>,
}

/// Room for the header: a multiple of 64 in both formats, so that the values are aligned.
const HEADER: usize = 512;

impl Writer {
    /// Creates the unfinished file.
    pub fn create(name: &Path, form: Form, stop: &Stop) -> Result<Writer, Failure> {
        let end = name.extension().and_then(|end| end.to_str());
        let is_safetensors = match end {
            Some("safetensors") => true,
            Some("npy") if form.kind == Kind::Bf16 => {
                let why = "a .npy file has no bf16; write .safetensors, or ask for --dtype f16";
                return Err(Failure::input(format!("{}: {why}", shown(name))));
            }
            Some("npy") => false,
            _ => {
                return Err(Failure::input(format!(
                    "--out {}: the name selects the format; end it in .npy or .safetensors",
                    shown(name)
                )));
            }
        };
        let part = beside(name, "part");
        let file = begun(&part)?;
        stop.removes(&part);
        let mut writer = Writer {
            file: BufWriter::with_capacity(1 << 20, file),
            name: name.to_owned(),
            part,
            is_safetensors,
            kind: form.kind,
            shape: [0; 3],
            labels: Vec::new(),
            pictures: 0,
        };
        writer.put(&[0; HEADER])?;
        Ok(writer)
    }

    /// Appends a batch.
    pub fn add(&mut self, batch: &Done<'_>) -> Result<(), Failure> {
        self.shape = batch.shape;
        self.labels.extend_from_slice(batch.labels);
        self.pictures += batch.pictures as u64;
        self.put(batch.bytes)
    }

    /// Writes the header, and gives the file its final name.
    pub fn finish(mut self) -> Result<Written, Failure> {
        let labels: Vec<u8> = self
            .labels
            .iter()
            .flat_map(|label| label.to_le_bytes())
            .collect();
        let mut beside = None;
        let header = if self.is_safetensors {
            self.put(&labels)?;
            self.safetensors(labels.len())
        } else {
            let mut bytes = npy("<i8", &self.labels.len().to_string(), ",");
            bytes.extend_from_slice(&labels);
            beside = Some((self.name.with_file_name(labels_name(&self.name)), bytes));
            let [a, b, c] = self.shape;
            npy(
                self.kind_in_npy(),
                &self.pictures.to_string(),
                &format!(", {a}, {b}, {c}"),
            )
        };
        let end = |file: &mut BufWriter<File>| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
            file.flush()?;
            // A full disk may be reported as late as here.
            file.get_ref().sync_all()
        };
        end(&mut self.file).map_err(|error| unwritten(&self.part, &error))?;
        if let Some((file, bytes)) = &beside {
            whole(file, bytes)?;
        }
        std::fs::rename(&self.part, &self.name).map_err(|error| unwritten(&self.name, &error))?;
        self.part = PathBuf::new();
        Ok(Written {
            file: std::mem::take(&mut self.name),
            labels: beside.map(|(file, _)| file),
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| unwritten(&self.part, &error))
    }

    fn kind_in_npy(&self) -> &'static str {
        match self.kind {
            Kind::U8 => "|u1",
            Kind::F16 | Kind::Bf16 => "<f2",
            Kind::F32 => "<f4",
        }
    }

    /// Returns the header of safetensors: eight bytes of length, and JSON that ends in spaces
    /// (<https://huggingface.co/docs/safetensors>).
    fn safetensors(&self, label_bytes: usize) -> Vec<u8> {
        let dtype = match self.kind {
            Kind::U8 => "U8",
            Kind::F16 => "F16",
            Kind::Bf16 => "BF16",
            Kind::F32 => "F32",
        };
        let [a, b, c] = self.shape;
        let end = self.pictures * (a * b * c * self.kind.bytes()) as u64;
        let header = json!({
            "images": {"dtype": dtype, "shape": [self.pictures, a, b, c], "data_offsets": [0, end]},
            "labels": {"dtype": "I64", "shape": [self.pictures], "data_offsets": [end, end + label_bytes as u64]},
        });
        let mut bytes = ((HEADER - 8) as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.to_string().as_bytes());
        bytes.resize(HEADER, b' ');
        bytes
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The file is unfinished and removed. A failure to remove it matters less than the failure that led here.
        if !self.part.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

/// Creates or opens an unfinished file, which only this run writes. A file that a killed run left is overwritten.
fn begun(part: &Path) -> Result<File, Failure> {
    let mut options = File::options();
    let opened = options.write(true).create(true).truncate(false).open(part);
    let file = opened.map_err(|error| unwritten(part, &error))?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        let why = "another run is writing it; wait for that, or give --out another name";
        return Err(Failure::input(format!("{}: {why}", shown(part))));
    }
    // On file systems without locks, another run is not detected.
    file.set_len(0).map_err(|error| unwritten(part, &error))?;
    Ok(file)
}

/// Writes a file so that it exists completely or not at all.
pub fn whole(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let part = beside(file, "part");
    let write = || {
        let mut to = File::create(&part)?;
        to.write_all(bytes)?;
        to.sync_all()?;
        std::fs::rename(&part, file)
    };
    write().map_err(|error| {
        // A failure to remove the file matters less than the first one.
        let _ = std::fs::remove_file(&part);
        unwritten(file, &error)
    })
}

fn unwritten(file: &Path, error: &Error) -> Failure {
    let is_full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    );
    if is_full {
        Failure::input(format!(
            "cannot write {}: {error}; nothing of it is kept: make room, or write elsewhere",
            shown(file)
        ))
    } else {
        Failure::input(format!("cannot write {}: {error}", shown(file)))
    }
}

/// Returns a header in version 1 of NumPy's format (`numpy.lib.format`), with room for a longer one.
fn npy(kind: &str, count: &str, rest: &str) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&((HEADER - 10) as u16).to_le_bytes());
    let header =
        format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({count}{rest}), }}");
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(HEADER - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// Returns the name with the rank in it, if there are several ranks.
pub fn named(file: &Path, rank: u32, world: u32) -> PathBuf {
    match (world, file.extension()) {
        (2.., Some(end)) => {
            let mut rank = std::ffi::OsString::from(format!("rank{rank}."));
            rank.push(end);
            file.with_extension(rank)
        }
        _ => file.to_owned(),
    }
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    PathBuf::from(name)
}

fn labels_name(file: &Path) -> std::ffi::OsString {
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(".labels.npy");
    name
}
