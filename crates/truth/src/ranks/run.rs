//! A run: each rank has a host, a stream of kernels and a stream for each group; an exchange is over when all have come.

use std::collections::HashMap;

use super::{Planted, RankJob};
use crate::draw::Draw;

/// What a rank did, in nanoseconds of one true time.
#[derive(Clone, Debug)]
pub struct RankRun {
    /// For each rank, its rows.
    pub rows: Vec<Vec<RankRow>>,
    /// The members of each group.
    pub groups: Vec<(Kind, Vec<usize>)>,
    /// How long each rank waited for others in a step, the first one aside.
    pub waits_ns: Vec<f64>,
    /// How long a step takes.
    pub step_ns: f64,
}

/// What a group is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Tensor,
    Pipeline,
    Data,
}

/// A row of a rank's trace.
#[derive(Clone, Debug)]
pub struct RankRow {
    pub start_ns: f64,
    pub end_ns: f64,
    pub what: Did,
    /// The call and its work share it.
    pub number: u32,
}

/// What a row is.
#[derive(Clone, Debug)]
pub enum Did {
    Step(usize),
    Range(&'static str),
    Launch,
    CopyCall,
    Synchronize,
    Kernel,
    Upload {
        is_pinned: bool,
    },
    Download,
    Exchange(Exchanged),
    /// The operator of one.
    Operator(Exchanged),
}

/// An exchange as a rank knows it.
#[derive(Clone, Copy, Debug)]
pub struct Exchanged {
    pub group: usize,
    pub seq: u32,
    pub operation: &'static str,
    pub peer: Option<usize>,
    pub elements: u64,
}

/// One line of a rank's program.
#[derive(Clone, Copy)]
enum Op {
    Begin(usize),
    Loader,
    Host,
    Upload,
    Kernel(f64),
    /// In a group: whether the stream of kernels waits for it.
    Exchange {
        group: usize,
        key: u64,
        operation: &'static str,
        peer: Option<usize>,
        ns: f64,
        waits: bool,
    },
    /// The stream of kernels waits for all of a group.
    WaitAll(usize),
    Item,
    End,
}

#[derive(Default)]
struct Rank {
    at: usize,
    host: f64,
    stream: f64,
    comm: HashMap<usize, f64>,
    began: f64,
    step: usize,
    number: u32,
    seqs: HashMap<usize, u32>,
    /// Exchanges of the gradients that are not over yet.
    blocked: bool,
    steps: Vec<f64>,
}

#[derive(Default, Clone)]
struct Meeting {
    came: Vec<(usize, f64, u32, bool)>,
    over: bool,
}

impl RankRun {
    /// Runs a job.
    pub fn of(job: &RankJob) -> RankRun {
        let world = job.world();
        let groups = groups(job);
        let mut of_rank: Vec<HashMap<Kind, usize>> = vec![HashMap::new(); world];
        for (at, (kind, members)) in groups.iter().enumerate() {
            for rank in members {
                of_rank[*rank].insert(*kind, at);
            }
        }
        let programs: Vec<Vec<Op>> = (0..world)
            .map(|rank| program(job, rank, &of_rank[rank]))
            .collect();
        let mut ranks: Vec<Rank> = (0..world).map(|_| Rank::default()).collect();
        let mut rows: Vec<Vec<RankRow>> = vec![Vec::new(); world];
        let mut meetings: HashMap<(usize, u64), Meeting> = HashMap::new();
        let mut waits_ns = vec![0.0; world];
        let mut ready: Vec<usize> = (0..world).rev().collect();
        while let Some(at) = ready.pop() {
            loop {
                let rank = &mut ranks[at];
                let Some(op) = programs[at].get(rank.at).copied() else {
                    break;
                };
                let mut jitter = Draw::at(job.seed ^ (at as u64) << 20, rank.at, 7);
                let out = &mut rows[at];
                rank.at += 1;
                match op {
                    Op::Begin(step) => {
                        rank.step = step;
                        rank.began = rank.host;
                        rank.host += 2e4;
                    }
                    Op::Loader => {
                        let more = match job.planted {
                            Planted::Loader(ns) if at == job.slow => ns,
                            _ => 0.0,
                        };
                        let ns = (1.5e5 + more) * jitter.about_one(0.02);
                        let name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
                        out.push(row(rank.host, rank.host + ns, Did::Range(name), 0));
                        rank.host += ns;
                    }
                    Op::Host => {
                        if let (Planted::Host(ns), true) = (job.planted, at == job.slow) {
                            let ns = ns * jitter.about_one(0.02);
                            out.push(row(rank.host, rank.host + ns, Did::Range("tokenize"), 0));
                            rank.host += ns;
                        }
                    }
                    Op::Upload => {
                        let (ns, is_pinned) = match job.planted {
                            Planted::Copies(ns) if at == job.slow => (ns + 5e4, false),
                            _ => (5e4, true),
                        };
                        let ns = ns * jitter.about_one(0.02);
                        rank.number += 1;
                        let start = (rank.host + 4e3).max(rank.stream);
                        let end = start + ns;
                        let over = if is_pinned {
                            rank.host + 6e3
                        } else {
                            end + 2e3
                        };
                        out.push(row(rank.host, over, Did::CopyCall, rank.number));
                        out.push(row(start, end, Did::Upload { is_pinned }, rank.number));
                        rank.stream = end;
                        rank.host = over;
                    }
                    Op::Kernel(ns) => {
                        let factor = match job.planted {
                            Planted::Compute(factor) if at == job.slow => factor,
                            _ => 1.0,
                        };
                        let (_, stage, _) = job.place(at);
                        let ns = ns * factor * job.stages[stage] * jitter.about_one(0.01);
                        let start = rank.launch(out).max(rank.stream + 1e3);
                        out.push(row(start, start + ns, Did::Kernel, rank.number));
                        rank.stream = start + ns;
                    }
                    Op::Exchange {
                        group,
                        key,
                        operation,
                        peer,
                        ns,
                        waits,
                    } => {
                        let is_pair = peer.is_some();
                        let seq = rank
                            .seqs
                            .entry(2 * group + usize::from(is_pair))
                            .or_default();
                        *seq += 1;
                        let seq = *seq;
                        let exchanged = Exchanged {
                            group,
                            seq,
                            operation,
                            peer,
                            elements: (ns * 10.0) as u64,
                        };
                        let before = rank.host;
                        let launched = rank.launch(out);
                        out.push(row(
                            before - 3e3,
                            rank.host + 1e3,
                            Did::Operator(exchanged),
                            rank.number,
                        ));
                        let comm = rank
                            .comm
                            .get(&(2 * group + usize::from(is_pair)))
                            .copied()
                            .unwrap_or(0.0);
                        let start = launched.max(rank.stream + 1e3).max(comm + 1e3);
                        out.push(row(start, f64::NAN, Did::Exchange(exchanged), rank.number));
                        let meeting = meetings.entry((group, key)).or_default();
                        meeting.came.push((at, start, out.len() as u32 - 1, waits));
                        let size = if is_pair { 2 } else { groups[group].1.len() };
                        let is_eager = job.is_eager && operation == "send";
                        if meeting.came.len() == size {
                            meeting.over = true;
                            let came = meeting.came.clone();
                            for woken in over(
                                job,
                                &came,
                                ns,
                                &mut rows,
                                &mut ranks,
                                &mut waits_ns,
                                group,
                                is_pair,
                            ) {
                                if woken != at {
                                    ready.push(woken);
                                }
                            }
                        } else if is_eager {
                            // It is in the other's buffer, whether that has come or not.
                            let end = start + ns;
                            out.last_mut().expect("it was pushed").end_ns = end;
                            rank.comm.insert(2 * group + 1, end);
                            rank.stream = rank.stream.max(end);
                        } else {
                            // Also what is not waited for is looked at again once it is over.
                            rank.blocked = true;
                            break;
                        }
                    }
                    Op::WaitAll(group) => {
                        rank.stream = rank
                            .stream
                            .max(rank.comm.get(&(2 * group)).copied().unwrap_or(0.0));
                    }
                    Op::Item => {
                        rank.number += 1;
                        let start = (rank.host + 4e3).max(rank.stream + 1e3);
                        let end = start + 2e3;
                        out.push(row(rank.host, rank.host + 5e3, Did::CopyCall, rank.number));
                        out.push(row(start, end, Did::Download, rank.number));
                        rank.host += 5e3;
                        rank.stream = end;
                        let over = rank.host.max(end) + 5e3;
                        out.push(row(rank.host, over, Did::Synchronize, 0));
                        rank.host = over;
                    }
                    Op::End => {
                        out.push(row(rank.began, rank.host, Did::Step(rank.step), 0));
                        rank.steps.push(rank.stream);
                    }
                }
            }
        }
        let periods = (job.steps - 1) as f64;
        let mean = |rank: &Rank| (rank.steps[job.steps - 1] - rank.steps[0]) / periods;
        waits_ns.iter_mut().for_each(|ns| *ns /= periods);
        RankRun {
            step_ns: ranks.iter().map(mean).sum::<f64>() / world as f64,
            rows,
            groups,
            waits_ns,
        }
    }
}

impl Rank {
    /// Launches something, and says when it may begin.
    fn launch(&mut self, out: &mut Vec<RankRow>) -> f64 {
        self.number += 1;
        let start = self.host + 2e3;
        self.host = start + 4e3;
        out.push(row(start, self.host, Did::Launch, self.number));
        self.host + 2e3
    }
}

fn row(start_ns: f64, end_ns: f64, what: Did, number: u32) -> RankRow {
    RankRow {
        start_ns,
        end_ns,
        what,
        number,
    }
}

/// All have come: when each is done, and who goes on.
#[allow(
    clippy::too_many_arguments,
    reason = "the state of a run, in parts that are borrowed apart"
)]
fn over(
    job: &RankJob,
    came: &[(usize, f64, u32, bool)],
    ns: f64,
    rows: &mut [Vec<RankRow>],
    ranks: &mut [Rank],
    waits_ns: &mut [f64],
    group: usize,
    is_pair: bool,
) -> Vec<usize> {
    let last = came.iter().map(|one| one.1).fold(f64::MIN, f64::max);
    // A send that nobody waits for.
    let sent = came.iter().find_map(|(rank, _, row, _)| {
        let end = rows[*rank][*row as usize].end_ns;
        (!end.is_nan()).then_some(end)
    });
    let mut woken = Vec::new();
    for (at, start, row, waits) in came {
        let mut jitter = Draw::at(job.seed ^ (*at as u64) << 22, *row as usize, 9);
        let out = &mut rows[*at][*row as usize];
        let rank = &mut ranks[*at];
        let mut waited = last - start;
        let end = match sent {
            // It went on long ago, and may be in another exchange by now.
            Some(_) if !out.end_ns.is_nan() => continue,
            Some(sent) => {
                waited = (sent - ns - start).max(0.0);
                sent.max(start + 4e3)
            }
            None => last + ns + jitter.between(0.0, 2e3),
        };
        out.end_ns = end;
        if rank.step > 0 {
            waits_ns[*at] += waited;
        }
        rank.comm.insert(2 * group + usize::from(is_pair), end);
        if *waits {
            rank.stream = rank.stream.max(end);
        }
        if rank.blocked || Some(*at) == came.last().map(|one| one.0) {
            rank.blocked = false;
            woken.push(*at);
        }
    }
    woken
}

fn groups(job: &RankJob) -> Vec<(Kind, Vec<usize>)> {
    let (tensor, pipe, data) = job.shape;
    let mut groups = Vec::new();
    let mut add = |kind, members: Vec<usize>| {
        if members.len() > 1 {
            groups.push((kind, members));
        }
    };
    for d in 0..data {
        for p in 0..pipe {
            add(
                Kind::Tensor,
                (0..tensor).map(|t| job.rank((t, p, d))).collect(),
            );
        }
        for t in 0..tensor {
            add(
                Kind::Pipeline,
                (0..pipe).map(|p| job.rank((t, p, d))).collect(),
            );
        }
    }
    for p in 0..pipe {
        for t in 0..tensor {
            add(Kind::Data, (0..data).map(|d| job.rank((t, p, d))).collect());
        }
    }
    groups
}

/// What a rank does: all parts of a batch forward, then all of them back, then the gradients.
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
            let operation = "allreduce";
            ops.push(Op::Exchange {
                group,
                key: *key,
                operation,
                peer: None,
                ns,
                waits,
            });
        }
    };
    for step in 0..job.steps {
        ops.extend([Op::Begin(step), Op::Loader, Op::Host, Op::Upload]);
        for is_back in [false, true] {
            let (from, to) = match is_back {
                false => (p.checked_sub(1), Some(p + 1).filter(|to| *to < pipe)),
                true => (Some(p + 1).filter(|from| *from < pipe), p.checked_sub(1)),
            };
            for micro in 0..job.micro {
                let key = |sender: usize| {
                    let place =
                        ((step * 2 + usize::from(is_back)) * job.micro + micro) * pipe + sender;
                    (1 << 40) + place as u64
                };
                let ns = job.pair_ns;
                if let (Some(group), Some(from)) = (pair, from) {
                    let peer = Some(job.rank((t, from, d)));
                    ops.push(Op::Exchange {
                        group,
                        key: key(from),
                        operation: "recv",
                        peer,
                        ns,
                        waits: true,
                    });
                }
                for _ in 0..job.layers {
                    let times = if is_back { 2.0 } else { 1.0 };
                    ops.push(Op::Kernel(job.kernel_ns * times));
                    sums(&mut ops, tensor, job.tensor_ns, true);
                    if is_back && micro + 1 == job.micro {
                        sums(&mut ops, data, job.data_ns, false);
                    }
                }
                if let (Some(group), Some(to)) = (pair, to) {
                    let peer = Some(job.rank((t, to, d)));
                    ops.push(Op::Exchange {
                        group,
                        key: key(p),
                        operation: "send",
                        peer,
                        ns,
                        waits: true,
                    });
                }
            }
        }
        ops.extend(data.map(Op::WaitAll));
        ops.extend([Op::Kernel(0.3 * job.kernel_ns), Op::Item, Op::End]);
    }
    ops
}
