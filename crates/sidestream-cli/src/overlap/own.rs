//! A job with given times: what a batch takes in each stage.

use clap::Args;
use sidestream::engine::Profile;

use super::job::Own;
use crate::failure::Failure;

/// The times of one batch.
#[derive(Args, Clone, Copy)]
pub struct Times {
    /// Milliseconds of computing for a batch, instead of --batch and --work
    #[arg(long, value_name = "MS", conflicts_with_all = ["batch", "work"], value_parser = parse)]
    pub kernel_ms: Option<f64>,
    /// Milliseconds of its upload from pinned memory; no upload without this option
    #[arg(long, value_name = "MS", requires = "kernel_ms", conflicts_with_all = ["batch", "work", "sweep"], value_parser = parse)]
    upload_ms: Option<f64>,
    /// Milliseconds of its download to pinned memory; no download without this option
    #[arg(long, value_name = "MS", requires = "kernel_ms", conflicts_with_all = ["batch", "work", "sweep"], value_parser = parse)]
    download_ms: Option<f64>,
}

/// An hour.
const LONGEST_MS: f64 = 3.6e6;
/// A tenth of a microsecond.
const SHORTEST_MS: f64 = 1e-4;

fn parse(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(ms) if (SHORTEST_MS..=LONGEST_MS).contains(&ms) => Ok(ms),
        _ => Err(format!(
            "{text:?} is not the time of a stage; give milliseconds, from 0.0001 to 3600000"
        )),
    }
}

impl Times {
    /// Returns the stages on this device; `None` if no times were given. A copy is expressed as the bytes that take this time.
    pub fn stages(&self, profile: &Profile) -> Result<Option<Own>, Failure> {
        let Some(kernel_ms) = self.kernel_ms else {
            return Ok(None);
        };
        if self.upload_ms.is_none() && self.download_ms.is_none() {
            return Err(Failure::input(
                "a kernel alone has nothing to overlap with; give --upload-ms, --download-ms or both",
            ));
        }
        let copy = |option: &str, ms: Option<f64>, of: &dyn Fn(u64) -> f64| match ms {
            None => Ok(0),
            Some(ms) => {
                bytes_for(ms * 1e6, of).ok_or_else(|| least(option, of(LEAST_BYTES), profile))
            }
        };
        Ok(Some(Own {
            kernel_ns: (kernel_ms * 1e6).round() as u64,
            upload_bytes: copy("--upload-ms", self.upload_ms, &|b| profile.upload_ns(b))?,
            download_bytes: copy("--download-ms", self.download_ms, &|b| {
                profile.download_ns(b)
            })?,
        }))
    }
}

const LEAST_BYTES: u64 = 4;

fn least(option: &str, ns: f64, profile: &Profile) -> Failure {
    Failure::input(format!(
        "{option} is less than the {:.4} ms that a copy of {LEAST_BYTES} bytes takes on {}; give that or more",
        ns / 1e6,
        profile.name
    ))
}

/// Returns the largest number of bytes whose copy takes at most `ns`; `None` if even the smallest copy takes longer.
fn bytes_for(ns: f64, of: &dyn Fn(u64) -> f64) -> Option<u64> {
    let (mut fits, mut too_many) = (LEAST_BYTES, 1 << 60);
    if of(fits) > ns {
        return None;
    }
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if of(middle) > ns {
            too_many = middle
        } else {
            fits = middle
        }
    }
    Some(fits)
}
