//! Runs a job of many ranks: each rank has a host, a stream of kernels and a stream for each group; an exchange is complete
//! only after all members have arrived.

use std::collections::HashMap;

use super::run::{Exchanged, Kind, RankRun};
use super::{Planted, RankJob};
use crate::draw::Draw;
use crate::write::{PAGEABLE_UPLOAD, PINNED_DOWNLOAD, PINNED_UPLOAD, Row, What};

/// One line of a rank's program.
#[derive(Clone, Copy)]
enum Op {
    Begin(usize),
    Loader,
    Host,
    Upload,
    Kernel(f64),
    Exchange(Exchange),
    /// The stream of kernels waits for all exchanges of a group.
    WaitAll(usize),
    Item,
    End,
}

/// A meeting of a group, or of two of its ranks.
#[derive(Clone, Copy)]
struct Exchange {
    group: usize,
    /// The key of the meeting: ranks with equal keys meet.
    key: u64,
    operation: &'static str,
    peer: Option<usize>,
    ns: f64,
    /// Whether the compute stream waits for the exchange.
    waits: bool,
}

impl Exchange {
    /// Returns the stream in which the exchange runs: each group has one stream for exchanges of all members, and one for
    /// pairs.
    fn lane(&self) -> usize {
        2 * self.group + usize::from(self.peer.is_some())
    }
}

#[derive(Default)]
struct Rank {
    at: usize,
    host: f64,
    stream: f64,
    /// The streams of groups, and the number of exchanges that each has had.
    comm: HashMap<usize, f64>,
    seqs: HashMap<usize, u32>,
    began: f64,
    step: usize,
    number: u32,
    /// Whether the rank waits for exchanges that are not complete yet.
    blocked: bool,
    steps: Vec<f64>,
    rows: Vec<Row>,
    waits_ns: f64,
}

/// A rank that has arrived at a meeting.
struct Came {
    rank: usize,
    start: f64,
    row: usize,
    waits: bool,
}

/// A run in progress.
struct Running<'j> {
    job: &'j RankJob,
    groups: Vec<(Kind, Vec<usize>)>,
    ranks: Vec<Rank>,
    meetings: HashMap<(usize, u64), Vec<Came>>,
    /// Ranks that can continue.
    ready: Vec<usize>,
}

impl RankRun {
    /// Runs a job.
    fn by_meeting(job: &RankJob) -> RankRun {
        let world = job.world();
        let groups = groups(job);
        let mut of_rank: Vec<HashMap<Kind, usize>> = vec![HashMap::new(); world];
        for (at, (kind, members)) in groups.iter().enumerate() {
            for rank in members {
                of_rank[*rank].insert(*kind, at);
            }
        }
        let programs = of_rank.iter().enumerate();
        let programs: Vec<Vec<Op>> = programs
            .map(|(rank, groups)| program(job, rank, groups))
            .collect();
        let mut running = Running {
            job,
            groups,
            ranks: (0..world).map(|_| Rank::default()).collect(),
            meetings: HashMap::new(),
            ready: (0..world).rev().collect(),
        };
        while let Some(at) = running.ready.pop() {
            while let Some(op) = programs[at].get(running.ranks[at].at) {
                if !running.perform(at, op) {
                    break;
                }
            }
        }
        let Running { groups, ranks, .. } = running;
        let periods = (job.steps - 1) as f64;
        let mean = |rank: &Rank| (rank.steps[job.steps - 1] - rank.steps[0]) / periods;
        RankRun {
            step_ns: ranks.iter().map(mean).sum::<f64>() / world as f64,
            waits_ns: ranks.iter().map(|rank| rank.waits_ns / periods).collect(),
            rows: ranks.into_iter().map(|rank| rank.rows).collect(),
            groups,
        }
    }
}

impl Running<'_> {
    /// Executes one line of a rank's program; returns whether the rank continues.
    fn perform(&mut self, at: usize, op: &Op) -> bool {
        let job = self.job;
        let planted = if at == job.slow {
            job.planted
        } else {
            Planted::Nothing
        };
        let rank = &mut self.ranks[at];
        let mut jitter = Draw::at(job.seed ^ (at as u64) << 20, rank.at, 7);
        rank.at += 1;
        match *op {
            Op::Begin(step) => {
                rank.step = step;
                rank.began = rank.host;
                rank.host += 2e4;
            }
            Op::Loader => {
                let more = match planted {
                    Planted::Loader(ns) => ns,
                    _ => 0.0,
                };
                let ns = (1.5e5 + more) * jitter.about_one(0.02);
                let name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
                rank.on_host(ns, What::Range(name), 0);
            }
            Op::Host => {
                if let Planted::Host(ns) = planted {
                    let ns = ns * jitter.about_one(0.02);
                    rank.on_host(ns, What::Range("tokenize"), 0);
                }
            }
            Op::Upload => {
                let (ns, name) = match planted {
                    Planted::Copies(ns) => (ns + 5e4, PAGEABLE_UPLOAD),
                    _ => (5e4, PINNED_UPLOAD),
                };
                let start = (rank.host + 4e3).max(rank.stream);
                let ns = ns * jitter.about_one(0.02);
                let over = match planted {
                    Planted::Copies(_) => start + ns + 2e3,
                    _ => rank.host + 6e3,
                };
                rank.number += 1;
                rank.until(over, What::Call("cudaMemcpyAsync"), rank.number);
                let bytes = (ns * 20.0) as u64;
                rank.on_stream(start, start + ns, What::Copy(name, COMPUTE, bytes));
            }
            Op::Kernel(ns) => {
                let factor = match planted {
                    Planted::Compute(factor) => factor,
                    _ => 1.0,
                };
                let (_, stage, _) = job.place(at);
                let ns = ns * factor * job.stages[stage] * jitter.about_one(0.01);
                let start = rank.launch().max(rank.stream + 1e3);
                let what = What::Kernel("sm90_xmma_gemm_f32f32_tn_n", COMPUTE, [528, 256], 0);
                rank.on_stream(start, start + ns, what);
            }
            Op::Exchange(exchange) => return self.exchange(at, exchange),
            Op::WaitAll(group) => {
                let over = rank.comm.get(&(2 * group)).copied().unwrap_or(0.0);
                rank.stream = rank.stream.max(over);
            }
            Op::Item => {
                rank.number += 1;
                let start = (rank.host + 4e3).max(rank.stream + 1e3);
                rank.on_host(5e3, What::Call("cudaMemcpyAsync"), rank.number);
                rank.on_stream(start, start + 2e3, What::Copy(PINNED_DOWNLOAD, COMPUTE, 4));
                rank.until(
                    rank.host.max(rank.stream) + 5e3,
                    What::Call("cudaStreamSynchronize"),
                    0,
                );
            }
            Op::End => {
                rank.row(rank.began, rank.host, What::Step(rank.step), 0);
                rank.steps.push(rank.stream);
            }
        }
        true
    }

    /// Brings a rank to a meeting; returns whether the rank continues.
    fn exchange(&mut self, at: usize, exchange: Exchange) -> bool {
        let rank = &mut self.ranks[at];
        let seq = rank.seqs.entry(exchange.lane()).or_default();
        *seq += 1;
        let exchanged = Exchanged {
            group: exchange.group,
            seq: *seq,
            operation: exchange.operation,
            peer: exchange.peer,
            elements: (exchange.ns * 10.0) as u64,
        };
        let before = rank.host;
        let launched = rank.launch();
        let comm = rank.comm.get(&exchange.lane()).copied().unwrap_or(0.0);
        let start = launched.max(rank.stream + 1e3).max(comm + 1e3);
        let name = match exchange.peer {
            Some(_) => "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            None => "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        };
        let group = self.groups[exchange.group].0 as u32;
        let stream = 20 + 2 * group + u32::from(exchange.peer.is_some());
        let operator = What::Operator("record_param_comms");
        rank.row(before - 3e3, rank.host + 1e3, operator, rank.number);
        let what = What::Kernel(name, stream, [16, 512], 0);
        rank.row(start, f64::NAN, what, rank.number);
        let rows = rank.rows.iter_mut().rev().take(2);
        rows.for_each(|row| row.exchange = Some(exchanged));
        let came = self
            .meetings
            .entry((exchange.group, exchange.key))
            .or_default();
        came.push(Came {
            rank: at,
            start,
            row: rank.rows.len() - 1,
            waits: exchange.waits,
        });
        let size = match exchange.peer {
            Some(_) => 2,
            None => self.groups[exchange.group].1.len(),
        };
        if came.len() == size {
            self.meet(&exchange);
        } else if self.job.is_eager && exchange.operation == "send" {
            // The message is in the other rank's buffer, whether that rank has arrived or not.
            let end = start + exchange.ns;
            rank.rows.last_mut().expect("it was pushed").end_ns = end;
            rank.comm.insert(exchange.lane(), end);
            rank.stream = rank.stream.max(end);
        } else {
            // The rank is blocked even if its stream does not wait for the exchange: it continues when the exchange is
            // complete.
            rank.blocked = true;
            return false;
        }
        true
    }

    /// Completes a meeting of all its members: sets the end of each member's exchange, and lets the members continue.
    fn meet(&mut self, exchange: &Exchange) {
        let came = &self.meetings[&(exchange.group, exchange.key)];
        let last = came.iter().map(|one| one.start).fold(f64::MIN, f64::max);
        // A send without a wait.
        let sent = came.iter().find_map(|one| {
            let end = self.ranks[one.rank].rows[one.row].end_ns;
            (!end.is_nan()).then_some(end)
        });
        for one in came {
            let seed = self.job.seed ^ (one.rank as u64) << 22;
            let mut jitter = Draw::at(seed, one.row, 9);
            let rank = &mut self.ranks[one.rank];
            let row = &mut rank.rows[one.row];
            let mut waited = last - one.start;
            let end = match sent {
                // The sender continued long ago, and may be in another exchange by now.
                Some(_) if !row.end_ns.is_nan() => continue,
                Some(sent) => {
                    waited = (sent - exchange.ns - one.start).max(0.0);
                    sent.max(one.start + 4e3)
                }
                None => last + exchange.ns + jitter.between(0.0, 2e3),
            };
            row.end_ns = end;
            if rank.step > 0 {
                rank.waits_ns += waited;
            }
            rank.comm.insert(exchange.lane(), end);
            if one.waits {
                rank.stream = rank.stream.max(end);
            }
            // The rank that arrived last was not blocked.
            if std::mem::take(&mut rank.blocked) {
                self.ready.push(one.rank);
            }
        }
    }
}

impl Rank {
    fn row(&mut self, start_ns: f64, end_ns: f64, what: What, number: u32) {
        self.rows.push(Row {
            what,
            start_ns,
            end_ns,
            number,
            exchange: None,
        });
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

/// Returns what a rank does: all parts of a batch forward, then all of them backward, then the gradients.
fn program(job: &RankJob, rank: usize, groups: &HashMap<Kind, usize>) -> Vec<Op> {
    let (t, p, d) = job.place(rank);
    let (_, pipe, _) = job.shape;
    let tensor = groups.get(&Kind::Tensor).copied();
    let data = groups.get(&Kind::Data).copied();
    let pair = groups.get(&Kind::Pipeline).copied();
    let mut ops = Vec::new();
    let mut collectives: HashMap<usize, u64> = HashMap::new();
    let mut sums = |ops: &mut Vec<Op>, group: Option<usize>, ns: f64, waits: bool| {
        if let Some(group) = group {
            let key = collectives.entry(group).or_default();
            *key += 1;
            ops.push(Op::Exchange(Exchange {
                group,
                key: *key,
                operation: "allreduce",
                peer: None,
                ns,
                waits,
            }));
        }
    };
    for step in 0..job.steps {
        ops.extend([Op::Begin(step), Op::Loader, Op::Host, Op::Upload]);
        for is_back in [false, true] {
            let (from, to) = if is_back {
                (Some(p + 1).filter(|from| *from < pipe), p.checked_sub(1))
            } else {
                (p.checked_sub(1), Some(p + 1).filter(|to| *to < pipe))
            };
            for micro in 0..job.micro {
                let part = (step * 2 + usize::from(is_back)) * job.micro + micro;
                let pairs = |operation, sender: usize, peer: usize| {
                    Some(Op::Exchange(Exchange {
                        group: pair?,
                        key: (1 << 40) + (part * pipe + sender) as u64,
                        operation,
                        peer: Some(job.rank((t, peer, d))),
                        ns: job.pair_ns,
                        waits: true,
                    }))
                };
                ops.extend(from.and_then(|from| pairs("recv", from, from)));
                for _ in 0..job.layers {
                    let times = if is_back { 2.0 } else { 1.0 };
                    ops.push(Op::Kernel(job.kernel_ns * times));
                    sums(&mut ops, tensor, job.tensor_ns, true);
                    if is_back && micro + 1 == job.micro {
                        sums(&mut ops, data, job.data_ns, false);
                    }
                }
                ops.extend(to.and_then(|to| pairs("send", p, to)));
            }
        }
        ops.extend(data.map(Op::WaitAll));
        ops.extend([Op::Kernel(0.3 * job.kernel_ns), Op::Item, Op::End]);
    }
    ops
}

#[test]
fn both_ways_to_run_a_job_give_the_same_traces() {
    // Whether a send is early depends here on which rank is computed first, so only sends that wait can be compared.
    let jobs = (1..100).map(|seed| RankJob {
        is_eager: false,
        ..RankJob::drawn(seed)
    });
    for job in jobs.filter(|job| job.world() <= 48) {
        for job in [job.even(), job] {
            let (run, other) = (RankRun::of(&job), RankRun::by_meeting(&job));
            let seed = job.seed;
            assert_eq!(run.waits_ns, other.waits_ns, "seed {seed}");
            assert_eq!(run.step_ns, other.step_ns, "seed {seed}");
            for rank in 0..job.world() {
                let of = |run| super::rank_trace(&job, run, rank);
                assert!(of(&run) == of(&other), "seed {seed}, rank {rank}");
            }
        }
    }
}
