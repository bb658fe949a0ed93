//! Runs a job of many ranks: each rank has a host, a stream of kernels and a stream for each of its groups; an exchange is
//! complete only after all members have arrived.
//!
//! Ranks never compete, and durations are drawn beforehand. So what happens is computed in an order in which everything
//! comes after what it waits for, stage by stage, without a queue of events.

use super::{Planted, RankJob};
use crate::draw::Draw;
use crate::write::{PAGEABLE_UPLOAD, PINNED_DOWNLOAD, PINNED_UPLOAD, Row, What};

/// The activity of all ranks, in nanoseconds of one true time.
#[derive(Clone, Debug)]
pub struct RankRun {
    /// The rows of each rank.
    pub(crate) rows: Vec<Vec<Row>>,
    /// The members of each group.
    pub(crate) groups: Vec<(Kind, Vec<usize>)>,
    /// Time that each rank waited for others in a step, not counting the first step.
    pub waits_ns: Vec<f64>,
    /// Time of a step.
    pub step_ns: f64,
}

/// The purpose of a group. A rank is in at most one group of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tensor,
    Pipeline,
    Data,
}

/// An exchange as a rank records it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchanged {
    pub group: usize,
    pub seq: u32,
    pub operation: &'static str,
    pub peer: Option<usize>,
    pub elements: u64,
}

#[derive(Clone, Default)]
struct Rank {
    /// The number of things that it has done, by which its jitter is drawn.
    done: usize,
    host: f64,
    stream: f64,
    /// By the kind of a group: when the stream for it is free, and the number of exchanges so far.
    comm: [f64; 3],
    seqs: [u32; 3],
    /// The number of the last call.
    number: u32,
    step: usize,
    began: f64,
    ends: Vec<f64>,
    rows: Vec<Row>,
    waits_ns: f64,
}

struct Running<'j> {
    job: &'j RankJob,
    groups: &'j [(Kind, Vec<usize>)],
    ranks: Vec<Rank>,
}

/// A rank's part of an exchange: the rank, the operation, and the other rank of a pair.
type Part = (usize, &'static str, Option<usize>);

impl RankRun {
    /// Runs a job.
    pub fn of(job: &RankJob) -> RankRun {
        let world = job.world();
        let groups = groups(job);
        let mut running = Running {
            job,
            groups: &groups,
            ranks: vec![Rank::default(); world],
        };
        (0..job.steps).for_each(|step| running.step(step));
        let ranks = running.ranks;
        let periods = (job.steps - 1) as f64;
        let mean = |rank: &Rank| (rank.ends[job.steps - 1] - rank.ends[0]) / periods;
        RankRun {
            step_ns: ranks.iter().map(mean).sum::<f64>() / world as f64,
            waits_ns: ranks.iter().map(|rank| rank.waits_ns / periods).collect(),
            rows: ranks.into_iter().map(|rank| rank.rows).collect(),
            groups,
        }
    }
}

impl Running<'_> {
    /// All parts of a batch forward, then all of them backward, then the gradients.
    fn step(&mut self, step: usize) {
        let (job, (_, pipe, _)) = (self.job, self.job.shape);
        (0..job.world()).for_each(|at| self.begin(at, step));
        for is_back in [false, true] {
            for micro in 0..job.micro {
                for nth in 0..pipe {
                    let stage = if is_back { pipe - 1 - nth } else { nth };
                    for _ in 0..job.layers {
                        let times = if is_back { 2.0 } else { 1.0 };
                        self.kernels(stage, job.kernel_ns * times);
                        self.sums(stage, Kind::Tensor, job.tensor_ns);
                        if is_back && micro + 1 == job.micro {
                            self.sums(stage, Kind::Data, job.data_ns);
                        }
                    }
                    if nth + 1 < pipe {
                        let next = if is_back { stage - 1 } else { stage + 1 };
                        self.pairs(stage, next);
                    }
                }
            }
        }
        if job.shape.2 > 1 {
            for rank in &mut self.ranks {
                rank.done += 1;
                rank.stream = rank.stream.max(rank.comm[Kind::Data as usize]);
            }
        }
        (0..pipe).for_each(|stage| self.kernels(stage, 0.3 * job.kernel_ns));
        self.ranks.iter_mut().for_each(Rank::end);
    }

    fn planted(&self, at: usize) -> Planted {
        if at == self.job.slow {
            self.job.planted
        } else {
            Planted::Nothing
        }
    }

    /// Loads and uploads the batch of a rank.
    fn begin(&mut self, at: usize, step: usize) {
        let planted = self.planted(at);
        let rank = &mut self.ranks[at];
        let jitter = |nth| {
            let mut draw = Draw::at(self.job.seed ^ (at as u64) << 20, rank.done + nth, 7);
            draw.about_one(0.02)
        };
        let [load, work, upload] = [1, 2, 3].map(jitter);
        rank.done += 4;
        rank.step = step;
        rank.began = rank.host;
        rank.host += 2e4;
        let more = match planted {
            Planted::Loader(ns) => ns,
            _ => 0.0,
        };
        let name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
        rank.on_host((1.5e5 + more) * load, What::Range(name), 0);
        if let Planted::Host(ns) = planted {
            rank.on_host(ns * work, What::Range("tokenize"), 0);
        }
        let start = (rank.host + 4e3).max(rank.stream);
        let (ns, called, name) = match planted {
            Planted::Copies(ns) => {
                let ns = (ns + 5e4) * upload;
                (ns, start + ns + 2e3, PAGEABLE_UPLOAD)
            }
            _ => (5e4 * upload, rank.host + 6e3, PINNED_UPLOAD),
        };
        rank.number += 1;
        rank.until(called, What::Call("cudaMemcpyAsync"), rank.number);
        let bytes = (ns * 20.0) as u64;
        rank.on_stream(start, start + ns, What::Copy(name, COMPUTE, bytes));
    }

    /// Runs a kernel on each rank of a stage.
    fn kernels(&mut self, stage: usize, ns: f64) {
        for at in 0..self.ranks.len() {
            if self.job.place(at).1 != stage {
                continue;
            }
            let factor = match self.planted(at) {
                Planted::Compute(factor) => factor,
                _ => 1.0,
            };
            let rank = &mut self.ranks[at];
            let mut jitter = Draw::at(self.job.seed ^ (at as u64) << 20, rank.done, 7);
            rank.done += 1;
            let ns = ns * factor * self.job.stages[stage] * jitter.about_one(0.01);
            let start = rank.launch().max(rank.stream + 1e3);
            let what = What::Kernel("sm90_xmma_gemm_f32f32_tn_n", COMPUTE, [528, 256], 0);
            rank.on_stream(start, start + ns, what);
        }
    }

    /// Sums something over the members of each group of a stage.
    fn sums(&mut self, stage: usize, kind: Kind, ns: f64) {
        for (group, (of, members)) in self.groups.iter().enumerate() {
            if *of == kind && self.job.place(members[0]).1 == stage {
                let parts = members.iter().map(|rank| (*rank, "allreduce", None));
                self.exchange(group, &parts.collect::<Vec<_>>(), ns);
            }
        }
    }

    /// Sends something from a stage to another.
    fn pairs(&mut self, from: usize, to: usize) {
        for (group, (of, members)) in self.groups.iter().enumerate() {
            if *of == Kind::Pipeline {
                let (from, to) = (members[from], members[to]);
                let parts = [(from, "send", Some(to)), (to, "recv", Some(from))];
                self.exchange(group, &parts, self.job.pair_ns);
            }
        }
    }

    /// Exchanges something between these members of a group. Their streams of kernels wait for it, unless it is gradients.
    fn exchange(&mut self, group: usize, parts: &[Part], ns: f64) {
        let kind = self.groups[group].0;
        let arrive = |part: &Part| self.ranks[part.0].arrive((group, kind), *part, ns);
        let starts: Vec<f64> = parts.iter().map(arrive).collect();
        let last = starts.iter().copied().fold(f64::MIN, f64::max);
        for ((at, operation, _), start) in parts.iter().zip(&starts) {
            let rank = &mut self.ranks[*at];
            let nth = rank.rows.len() - 1;
            let (waited, end) = match *operation {
                // The message is in the other rank's buffer, whether that rank has arrived or not.
                "send" if self.job.is_eager => (0.0, start + ns),
                "recv" if self.job.is_eager => {
                    let sent = starts[0] + ns;
                    ((sent - ns - start).max(0.0), sent.max(start + 4e3))
                }
                _ => {
                    let mut jitter = Draw::at(self.job.seed ^ (*at as u64) << 22, nth, 9);
                    (last - start, last + ns + jitter.between(0.0, 2e3))
                }
            };
            rank.rows[nth].end_ns = end;
            if rank.step > 0 {
                rank.waits_ns += waited;
            }
            rank.comm[kind as usize] = end;
            if kind != Kind::Data {
                rank.stream = rank.stream.max(end);
            }
        }
    }
}

impl Rank {
    fn row(&mut self, start_ns: f64, end_ns: f64, what: What, number: u32) {
        self.rows.push(Row::new(start_ns, end_ns, what, number));
    }

    /// Advances the host to this time.
    fn until(&mut self, end: f64, what: What, number: u32) {
        self.row(self.host, end, what, number);
        self.host = end;
    }

    fn on_host(&mut self, ns: f64, what: What, number: u32) {
        self.until(self.host + ns, what, number);
    }

    /// Runs the work of the last call in the stream of kernels.
    fn on_stream(&mut self, start: f64, end: f64, what: What) {
        self.row(start, end, what, self.number);
        self.stream = end;
    }

    /// Launches work, and returns when it may begin.
    fn launch(&mut self) -> f64 {
        self.number += 1;
        self.host += 2e3;
        self.on_host(4e3, What::Call("cudaLaunchKernel"), self.number);
        self.host + 2e3
    }

    /// Launches its part of an exchange, whose end is not known yet, and returns when that begins.
    fn arrive(&mut self, (group, kind): (usize, Kind), part: Part, ns: f64) -> f64 {
        let (_, operation, peer) = part;
        self.done += 1;
        let of = kind as usize;
        self.seqs[of] += 1;
        let exchanged = Exchanged {
            group,
            seq: self.seqs[of],
            operation,
            peer,
            elements: (ns * 10.0) as u64,
        };
        let before = self.host;
        let start = self.launch().max(self.stream + 1e3);
        let start = start.max(self.comm[of] + 1e3);
        let name = match peer {
            Some(_) => "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            None => "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        };
        let operator = What::Operator("record_param_comms");
        self.row(before - 3e3, self.host + 1e3, operator, self.number);
        // PyTorch has a stream for the exchanges of all members of a group, and one for pairs.
        let stream = 20 + 2 * kind as u32 + u32::from(peer.is_some());
        let what = What::Kernel(name, stream, [16, 512], 0);
        self.row(start, f64::NAN, what, self.number);
        let rows = self.rows.iter_mut().rev().take(2);
        rows.for_each(|row| row.exchange = Some(exchanged));
        start
    }

    /// Reads the loss, and ends the step.
    fn end(&mut self) {
        self.done += 2;
        self.number += 1;
        let start = (self.host + 4e3).max(self.stream + 1e3);
        self.on_host(5e3, What::Call("cudaMemcpyAsync"), self.number);
        self.on_stream(start, start + 2e3, What::Copy(PINNED_DOWNLOAD, COMPUTE, 4));
        let end = self.host.max(self.stream) + 5e3;
        self.until(end, What::Call("cudaStreamSynchronize"), 0);
        self.row(self.began, self.host, What::Step(self.step), 0);
        self.ends.push(self.stream);
    }
}

/// The stream of kernels and copies.
const COMPUTE: u32 = 7;

fn groups(job: &RankJob) -> Vec<(Kind, Vec<usize>)> {
    let (tensor, pipe, data) = job.shape;
    let mut groups = Vec::new();
    let mut add = |kind, members: Vec<usize>| {
        if members.len() > 1 {
            groups.push((kind, members));
        }
    };
    let rank = |t, p, d| job.rank((t, p, d));
    for d in 0..data {
        for p in 0..pipe {
            add(Kind::Tensor, (0..tensor).map(|t| rank(t, p, d)).collect());
        }
        for t in 0..tensor {
            add(Kind::Pipeline, (0..pipe).map(|p| rank(t, p, d)).collect());
        }
    }
    for p in 0..pipe {
        for t in 0..tensor {
            add(Kind::Data, (0..data).map(|d| rank(t, p, d)).collect());
        }
    }
    groups
}
