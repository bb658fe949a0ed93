//! The model that computes the answer to a request.

use sidestream::engine::KernelCost;
use sidestream::kernel::library::{dense_cost, dense_grid};
use sidestream::sim::split_mix;

use super::Args;
use crate::failure::Failure;

#[derive(Clone)]
pub enum Model {
    /// This number of layers, each a multiplication by a square matrix of weights.
    Perceptron { layers: u32, width: u32 },
    /// One kernel, with its nanoseconds by batch size; sorted by size.
    Given(Vec<(usize, u64)>),
}

/// Values in a request to a model of which only the time is known.
const GIVEN_WIDTH: usize = 16;

/// Parses `64:90.5`: a batch size, and the microseconds that the model takes for it.
pub fn size_and_us(text: &str) -> Result<(u32, f64), String> {
    let both = text.split_once(':');
    let both = both.and_then(|(size, us)| Some((size.parse().ok()?, us.parse::<f64>().ok()?)));
    match both {
        Some((size @ 1..=4096, us)) if (1e-3..=1e7).contains(&us) => Ok((size, us)),
        _ => Err(format!(
            "{text:?} is not a size with its time; write SIZE:US, such as 64:90, with a size from 1 to 4096 and 0.001 to 10000000 µs"
        )),
    }
}

impl Model {
    pub fn of(args: &Args) -> Result<Model, Failure> {
        if args.kernel_us.is_empty() {
            let (layers, width) = (args.layers, args.row);
            return Ok(Model::Perceptron { layers, width });
        }
        let given = args.kernel_us.iter();
        let mut given: Vec<(usize, u64)> = given
            .map(|&(size, us)| (size as usize, (us * 1e3) as u64))
            .collect();
        given.sort_unstable();
        if let Some(twice) = given.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let size = twice[0].0;
            return Err(Failure::input(format!(
                "--kernel-us has the size {size} twice; give one time for it"
            )));
        }
        Ok(Model::Given(given))
    }

    /// Returns the number of values of a request, and of its answer.
    pub fn width(&self) -> usize {
        match self {
            Model::Perceptron { width, .. } => *width as usize,
            Model::Given(_) => GIVEN_WIDTH,
        }
    }

    /// Returns the kernels for a batch of `size` rows, in the order in which they run.
    pub fn kernels(&self, size: usize) -> Vec<KernelCost> {
        match self {
            Model::Perceptron { layers, width } => {
                let (rows, width) = (size as u64, u64::from(*width));
                let blocks = u64::from(dense_grid(rows, width).blocks[0]);
                vec![dense_cost(blocks, rows, width); *layers as usize]
            }
            Model::Given(_) => {
                // One block, as in the kernel that takes its place on a GPU.
                vec![KernelCost::Blocks {
                    blocks: 1,
                    threads_per_block: 32,
                    block_ns: self.given_ns(size),
                }]
            }
        }
    }

    /// Returns the time of the given kernel for a batch of this size.
    pub fn given_ns(&self, size: usize) -> u64 {
        let Model::Given(given) = self else {
            return 0;
        };
        let fits = given.iter().find(|(known, _)| *known >= size);
        match (fits, given.last()) {
            (Some((_, ns)), _) => *ns,
            (None, Some((largest, ns))) => ns.saturating_mul(size as u64) / *largest as u64,
            (None, None) => 0,
        }
    }

    /// Returns the weights of each layer; empty for a model of which only the time is known.
    pub fn all_weights(&self) -> Vec<Vec<f32>> {
        match self {
            Model::Perceptron { layers, .. } => (0..*layers).map(|n| self.weights(n)).collect(),
            Model::Given(_) => Vec::new(),
        }
    }

    /// Returns the weights of a layer: equal in each run, and small enough for many layers.
    fn weights(&self, layer: u32) -> Vec<f32> {
        let width = self.width();
        let scale = (6.0 / width as f32).sqrt();
        let drawn = shares(u64::from(layer) + 1).take(width * width);
        drawn.map(|share| (2.0 * share - 1.0) * scale).collect()
    }

    /// Returns the input row of a request.
    pub fn row(&self, request: u64) -> Vec<f32> {
        shares(request).take(self.width()).collect()
    }

    pub fn in_words(&self) -> String {
        match self {
            Model::Perceptron { layers, width } => {
                format!("a perceptron of {layers} layers of width {width}")
            }
            Model::Given(given) => {
                let each = given.iter();
                let each = each.map(|(size, ns)| format!("{} µs for {size}", *ns as f64 / 1e3));
                format!("a model that takes {}", each.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Returns pseudo-random numbers from 0 to just below 1, generated from a seed.
fn shares(mut seed: u64) -> impl Iterator<Item = f32> {
    std::iter::repeat_with(move || (split_mix(&mut seed) >> 40) as f32 / (1u64 << 24) as f32)
}
