//! Runs the load on a GPU with `batcher::Batcher`, in real time.

use std::collections::VecDeque;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use sidestream::batcher::{Answer, At, Batcher, Error, Row, Shape, Wish};
use sidestream::buffer::{DeviceBuf, View, ViewMut};
use sidestream::device::Device;
use sidestream::error::Result;
use sidestream::graph::{BufKey, GraphBuilder};
use sidestream::kernel::library::{self, Dense, dense_grid};
use sidestream::kernel::{Grid, Kernel};
use sidestream::stream::Stream;

use super::Setup;
use super::load::{Load, MOST, Until};
use super::model::Model;
use super::outcome::Outcome;
use crate::failure::Failure;
use crate::measure::own::Own;
use crate::measure::raw::Gpu;

/// Threads that act as the callers of a closed loop.
const THREADS: u32 = 8;
/// Batches of each size and slot that run before the clock starts, so that memory and graphs already exist.
const BEFORE: usize = 3;
/// Rows that are also computed on the host and compared.
const COMPARED: u64 = 2;
/// The number of different rows that requests use.
const ROWS: u64 = 64;

pub struct Bench {
    pub name: String,
    device: Device,
}

impl Bench {
    pub fn open(number: u32, driver: Option<&Path>) -> Result<Bench, Failure> {
        let gpu = Gpu::open(driver, number)?;
        let device = Own::cuda(&gpu, number, driver)?.device;
        Ok(Bench {
            name: gpu.name,
            device,
        })
    }

    pub fn run(&self, model: &Model, setup: &Setup, load: &Load) -> Result<Outcome, Failure> {
        let batcher = serve(&self.device, model, setup)?;
        let rows: Vec<Vec<f32>> = (0..ROWS).map(|request| model.row(request)).collect();
        prepare(&batcher, setup, model, &rows)?;
        let before = batcher.statistics();
        let (mut outcome, last_ns) = match load {
            Load::Open { arrivals, .. } => open(&batcher, arrivals, setup.deadline, &rows)?,
            Load::Closed { callers, until } => closed(&batcher, *callers, *until, &rows)?,
        };
        let after = batcher.close();
        let batches = |all: &sidestream::batcher::Statistics| all.batches.values().sum::<u64>();
        outcome.batches = batches(&after) - batches(&before);
        outcome.end(load.lasted_ns(last_ns));
        Ok(outcome)
    }
}

// ------------------------------------------------------------------ the model on the device

type Numbers = Batcher<f32, f32>;

fn serve(device: &Device, model: &Model, setup: &Setup) -> Result<Numbers, Failure> {
    let width = model.width();
    let settings = Numbers::new(device, width, width)
        .sizes(&setup.sizes)
        .slots(setup.slots)
        .max_delay(setup.max_delay)
        .max_queue(setup.max_queue)
        .timed(false);
    let (given, weights) = (model.clone(), model.all_weights());
    let served = match (model, setup.is_graphs) {
        (Model::Perceptron { .. }, false) => {
            let largest = setup.sizes.last().copied().unwrap_or(1);
            settings.serve(move |stream| {
                let mut layers = Layers::new(stream, &weights, width, largest)?;
                Ok(move |at: &At<'_>, x: View<'_, f32>, y: ViewMut<'_, f32>| {
                    layers.compute(at, x, y)
                })
            })
        }
        (Model::Perceptron { .. }, true) => {
            let kernel = dense();
            settings.serve_graphs(move |shape, nodes, x, y| {
                layers_of_a_graph(&kernel, &weights, width, shape, nodes, x, y)
            })
        }
        (Model::Given(_), false) => settings.serve(move |_| {
            let (spin, given) = (library::spin(), given.clone());
            Ok(
                move |at: &At<'_>, _: View<'_, f32>, mut y: ViewMut<'_, f32>| {
                    at.stream().memset(y.reborrow(), 0)?;
                    let ns = given.given_ns(at.size());
                    at.stream().launch(&spin, Grid::new(1, 32), (ns,))
                },
            )
        }),
        (Model::Given(_), true) => {
            let spin = library::spin();
            settings.serve_graphs(move |shape, nodes, _, y| {
                let filled = nodes.memset(y.view_mut(), 0)?;
                let ns = given.given_ns(shape.size());
                let spun = nodes.launch(&spin, Grid::new(1, 32), (ns,))?;
                nodes.after(spun, filled)?;
                // The download reads the output that this node fills, so it must be the last node.
                let last = nodes.memset(y.view_mut(), 0)?;
                nodes.after(last, spun)
            })
        }
    };
    Ok(served?)
}

fn dense() -> Kernel<Dense> {
    // SAFETY: each launch here uses `dense_grid`, whose blocks have 256 threads, and passes the rows and the width of its
    // views.
    unsafe { library::dense() }
}

/// The perceptron of one slot.
struct Layers {
    kernel: Kernel<Dense>,
    weights: Vec<DeviceBuf<f32>>,
    /// The activations between two layers.
    between: [DeviceBuf<f32>; 2],
    width: usize,
}

impl Layers {
    fn new(stream: &Stream, weights: &[Vec<f32>], width: usize, largest: usize) -> Result<Layers> {
        Ok(Layers {
            kernel: dense(),
            weights: weights
                .iter()
                .map(|weights| stream.alloc_from(weights))
                .collect::<Result<_>>()?,
            between: [
                stream.alloc(largest * width)?,
                stream.alloc(largest * width)?,
            ],
            width,
        })
    }

    fn compute(&mut self, at: &At<'_>, x: View<'_, f32>, mut y: ViewMut<'_, f32>) -> Result<()> {
        let (rows, width) = (at.size() as u64, self.width as u64);
        let (grid, values) = (dense_grid(rows, width), at.size() * self.width);
        let last = self.weights.len() - 1;
        let [a, b] = &mut self.between;
        for (layer, weights) in self.weights.iter().enumerate() {
            // Odd layers read the output of even ones.
            let (from, to) = match layer % 2 {
                0 => (&*b, &mut *a),
                _ => (&*a, &mut *b),
            };
            let from = if layer == 0 { x } else { from.slice(..values) };
            let to = if layer == last {
                y.reborrow()
            } else {
                to.slice_mut(..values)
            };
            let args = (from, weights.view(), to, rows, width);
            at.stream().launch(&self.kernel, grid, args)?;
        }
        Ok(())
    }
}

fn layers_of_a_graph(
    kernel: &Kernel<Dense>,
    weights: &[Vec<f32>],
    width: usize,
    shape: &Shape<'_>,
    nodes: &mut GraphBuilder,
    x: BufKey<f32>,
    y: BufKey<f32>,
) -> Result<()> {
    let (stream, values) = (shape.stream(), shape.size() * width);
    let between = [
        nodes.own(stream.alloc::<f32>(values)?)?,
        nodes.own(stream.alloc::<f32>(values)?)?,
    ];
    let grid = dense_grid(shape.size() as u64, width as u64);
    let mut from = x;
    for (layer, of_layer) in weights.iter().enumerate() {
        let is_last = layer + 1 == weights.len();
        let to = if is_last { y } else { between[layer % 2] };
        let of_layer = nodes.own(stream.alloc_from(of_layer)?)?;
        let args = (
            from.view(),
            of_layer.view(),
            to.view_mut(),
            shape.size() as u64,
            width as u64,
        );
        nodes.launch(kernel, grid, args)?;
        from = to;
    }
    Ok(())
}

/// Computes the answer to a row on the host.
fn expected(model: &Model, row: &[f32]) -> Vec<f32> {
    let mut x = row.to_vec();
    for weights in model.all_weights() {
        let mut y = vec![0.0f32; x.len()];
        for (x, weights) in x.iter().zip(weights.chunks_exact(row.len())) {
            for (y, w) in y.iter_mut().zip(weights) {
                *y = x.mul_add(*w, *y);
            }
        }
        x = y.into_iter().map(|y| y.max(0.0)).collect();
    }
    x
}

// ------------------------------------------------------------------ load

/// Runs batches of each size, and compares some of the answers.
fn prepare(
    batcher: &Numbers,
    setup: &Setup,
    model: &Model,
    rows: &[Vec<f32>],
) -> Result<(), Failure> {
    for _ in 0..BEFORE {
        for &size in &setup.sizes {
            let sent = (0..size * setup.slots).map(|n| batcher.submit(&rows[n % rows.len()]));
            for answer in sent.collect::<Vec<_>>() {
                // A queue that is shorter than this batch is full here, which is not a failure.
                match answer.and_then(Answer::wait) {
                    Ok(_) | Err(Error::Full { .. }) => {}
                    Err(error) => return Err(Failure::input(error)),
                }
            }
        }
    }
    if let Model::Given(_) = model {
        return Ok(());
    }
    for row in rows.iter().take(COMPARED as usize) {
        let answer = batcher.submit(row).and_then(Answer::wait);
        let answer = answer.map_err(Failure::input)?;
        if answer[..] != expected(model, row)[..] {
            return Err(Failure::input(
                "the device's answers differ from the host's; the figures would be meaningless",
            ));
        }
    }
    Ok(())
}

/// The moment at which an answer was ready.
struct Noted {
    start: Instant,
    at_ns: AtomicU64,
}

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        let ns = self.start.elapsed().as_nanos() as u64;
        self.at_ns.store(ns.max(1), Ordering::Release);
    }
}

/// An accepted request: its scheduled arrival, its answer, and the time at which the answer was ready.
struct Taken {
    arrives_ns: u64,
    /// The answer, if it was ready immediately.
    ended: Option<Result<Row<f32>, Error>>,
    answer: Answer<f32>,
    noted: Arc<Noted>,
}

impl Taken {
    /// Registers a waker that notes when the request is answered.
    fn new(start: Instant, arrives_ns: u64, mut answer: Answer<f32>) -> Taken {
        let at_ns = AtomicU64::new(0);
        let noted = Arc::new(Noted { start, at_ns });
        let waker = Waker::from(Arc::clone(&noted));
        let polled = Pin::new(&mut answer).poll(&mut Context::from_waker(&waker));
        let ended = match polled {
            Poll::Ready(ended) => {
                noted.wake_by_ref();
                Some(ended)
            }
            Poll::Pending => None,
        };
        Taken {
            arrives_ns,
            ended,
            answer,
            noted,
        }
    }
}

/// Sends requests at these moments. Returns their outcome and the time at which the last answer was ready. A slow answer does
/// not delay later requests.
fn open(
    batcher: &Numbers,
    arrivals: &[u64],
    deadline: Option<Duration>,
    rows: &[Vec<f32>],
) -> Result<(Outcome, u64), Failure> {
    let deadline_ns = deadline.map(|deadline| deadline.as_nanos() as u64);
    let (give, taken) = channel();
    std::thread::scope(|scope| {
        let collecting = scope.spawn(move || collect(&taken, deadline_ns));
        let start = Instant::now();
        let (mut full, mut late) = (0, 0);
        for (number, &arrives_ns) in arrivals.iter().enumerate() {
            let arrives = start + Duration::from_nanos(arrives_ns);
            while Instant::now() < arrives {
                std::hint::spin_loop();
            }
            let wish = Wish {
                deadline: deadline.map(|deadline| arrives + deadline),
                ..Wish::default()
            };
            match batcher.submit_with(&rows[number % rows.len()], &wish) {
                Ok(answer) => {
                    if give.send(Taken::new(start, arrives_ns, answer)).is_err() {
                        break;
                    }
                }
                Err(Error::Full { .. }) => full += 1,
                Err(Error::Late { .. }) => late += 1,
                Err(error) => return Err(Failure::input(error)),
            }
        }
        drop(give);
        let Ok((mut outcome, last_ns)) = collecting.join() else {
            return Err(Failure::input("the thread that waits for answers panicked"));
        };
        outcome.sent = arrivals.len() as u64;
        (outcome.full, outcome.late) = (full, late);
        Ok((outcome, last_ns))
    })
}

/// Waits for the answers in turn. The waker of each notes when it was ready, so the order of waiting does not matter.
fn collect(taken: &Receiver<Taken>, deadline_ns: Option<u64>) -> (Outcome, u64) {
    let (mut outcome, mut last_ns) = (Outcome::default(), 0);
    for Taken {
        arrives_ns,
        ended,
        answer,
        noted,
    } in taken
    {
        let ended = ended.unwrap_or_else(|| answer.wait());
        match ended {
            Ok(_) => {
                while noted.at_ns.load(Ordering::Acquire) == 0 {
                    // The request is answered, and its waker is about to be called.
                    std::hint::spin_loop();
                }
                let at_ns = noted.at_ns.load(Ordering::Acquire);
                outcome.answer(at_ns.saturating_sub(arrives_ns), deadline_ns);
                last_ns = last_ns.max(at_ns);
            }
            Err(Error::Expired) => outcome.expired += 1,
            Err(_) => outcome.failed += 1,
        }
    }
    (outcome, last_ns)
}

/// Runs callers that send their next request when the previous one is answered. Returns the outcome and the time at which the
/// last answer was ready. Each thread acts for several callers.
fn closed(
    batcher: &Numbers,
    callers: u32,
    until: Until,
    rows: &[Vec<f32>],
) -> Result<(Outcome, u64), Failure> {
    let threads = callers.min(THREADS);
    let (most, end) = match until {
        Until::Requests(requests) => (requests, None),
        Until::Ns(ns) => (MOST, Some(Duration::from_nanos(ns))),
    };
    let start = Instant::now();
    let work = |thread: u32| -> Result<(Outcome, u64), Error> {
        let own = callers / threads + u32::from(thread < callers % threads);
        let share = u64::from(threads);
        let most = most / share + u64::from(u64::from(thread) < most % share);
        let (mut outcome, mut last_ns) = (Outcome::default(), 0);
        let mut asked: VecDeque<(Instant, Answer<f32>)> = VecDeque::new();
        loop {
            let has_ended = end.is_some_and(|end| start.elapsed() >= end);
            while !has_ended && asked.len() < own as usize && outcome.sent < most {
                let row = &rows[(outcome.sent as usize + thread as usize) % rows.len()];
                let at = Instant::now();
                match batcher.submit(row) {
                    Ok(answer) => {
                        outcome.sent += 1;
                        asked.push_back((at, answer));
                    }
                    Err(Error::Full { .. }) => {
                        outcome.full += 1;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            let Some((at, answer)) = asked.pop_front() else {
                if has_ended || outcome.sent >= most {
                    return Ok((outcome, last_ns));
                }
                // The queue is full of other callers' requests.
                std::thread::yield_now();
                continue;
            };
            match answer.wait() {
                Ok(_) => {
                    outcome.answer(at.elapsed().as_nanos() as u64, None);
                    last_ns = start.elapsed().as_nanos() as u64;
                }
                Err(error) => return Err(error),
            }
        }
    };
    let ended = std::thread::scope(|scope| {
        let work = &work;
        let spawn = |thread| scope.spawn(move || work(thread));
        let running: Vec<_> = (0..threads).map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        running.into_iter().map(join).collect::<Vec<_>>()
    });
    let (mut whole, mut last_ns) = (Outcome::default(), 0);
    for ended in ended {
        let Ok(ended) = ended else {
            return Err(Failure::input("a thread of callers panicked"));
        };
        let (part, part_ns) = ended.map_err(Failure::input)?;
        whole.add(part);
        last_ns = part_ns.max(last_ns);
    }
    Ok((whole, last_ns))
}
