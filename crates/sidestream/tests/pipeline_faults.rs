//! Pipelines in which something fails, by seed: every item is delivered, fails with its name, or was never started;
//! nothing hangs, no memory is lost, and the checker finds nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::drawn::Random;
use sidestream::buffer::Pinned;
use sidestream::check::OnRace;
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::pipeline::{BoxError, Cause, Failed, Item, Pipeline, Ready, Running, per_row};
use sidestream::sim::Schedule;

const ROWS: usize = 4;
/// A value that makes the kernel trap.
const POISON: u32 = 0xdead;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    None,
    SourceFails,
    SourcePanics,
    /// The source claims more rows for an item than the buffer has.
    SourceLies,
    /// The source waits until the consumer has received the previous item.
    SourceWaits,
    StageFails(&'static str),
    StagePanics(&'static str),
    KernelTraps,
    ConsumerFails,
    ConsumerPanics,
    ConsumerLeaves,
    /// The consumer keeps every item.
    ConsumerHoards,
    Cancelled,
}

use Fault::*;

const FAULTS: [Fault; 18] = [
    None,
    SourceFails,
    SourcePanics,
    SourceLies,
    SourceWaits,
    StageFails("double"),
    StageFails("sum"),
    StageFails("branch"),
    StagePanics("double"),
    StagePanics("sum"),
    StagePanics("branch"),
    KernelTraps,
    KernelTraps,
    ConsumerFails,
    ConsumerPanics,
    ConsumerLeaves,
    ConsumerHoards,
    Cancelled,
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Filled {
    Here,
    OnThread,
    OnThreads,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    schedule: Schedule,
    depth: Option<usize>,
    count: u64,
    fault: Fault,
    at: u64,
    filled: Filled,
    graphs: bool,
    timed: bool,
}

impl Case {
    fn of(seed: u64) -> Case {
        let mut numbers = Random(seed);
        let schedule = match numbers.below(4) {
            0 => Schedule::InOrder,
            1 => Schedule::Adversarial,
            _ => Schedule::Seeded(seed),
        };
        let depth = [Option::None, Some(1), Some(2), Some(3), Some(5)];
        let count = numbers.below(12);
        let filled = [Filled::Here, Filled::OnThread, Filled::OnThreads];
        let mut case = Case {
            schedule,
            depth: depth[numbers.below(5) as usize],
            count,
            fault: FAULTS[numbers.below(FAULTS.len() as u64) as usize],
            at: numbers.below(count.max(1)),
            filled: filled[numbers.below(3) as usize],
            graphs: numbers.below(4) == 0,
            timed: numbers.below(3) == 0,
        };
        let in_stage = matches!(case.fault, StageFails(_) | StagePanics(_));
        // A graph has no stages that run on the host, and only its own memory.
        if case.graphs && (in_stage || case.fault == ConsumerHoards) {
            case.graphs = false;
        }
        // A source that waits for the consumer must be on a thread, one item after another.
        if case.fault == SourceWaits {
            case.filled = Filled::OnThread;
        }
        case
    }

    fn expected_stage(&self) -> Option<&'static str> {
        match self.fault {
            SourceFails | SourcePanics | SourceLies => Some("source"),
            StageFails(stage) | StagePanics(stage) => Some(stage),
            ConsumerFails | ConsumerPanics => Some("consumer"),
            KernelTraps => Some("device"),
            _ => Option::None,
        }
    }
}

/// Returns the expected results of an item. The last item has one row less.
fn expected(index: u64, graphs: bool) -> [u32; ROWS] {
    let x = |row: u64| 2 * (index + row + 1) as u32;
    match graphs {
        true => [0, 1, 2, 3].map(x),
        false => [
            (index + 1) as u32 * (index + 2) as u32,
            x(1),
            x(2) + 1,
            x(3) + 1,
        ],
    }
}

fn planted(what: &str) -> BoxError {
    format!("planted: {what}").into()
}

type Host = Pinned<u32>;

fn double() -> Kernel<(Read<u32>, Write<u32>)> {
    Kernel::<(Read<u32>, Write<u32>)>::on_host("double", |_, (x, y)| {
        assert!(x[0] != POISON, "planted trap");
        y.iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = x.wrapping_mul(2));
    })
}

fn streams(device: &Device, case: Case, started: Arc<AtomicU64>) -> impl StartWith {
    let double = double();
    let sum = Kernel::<(Write<u32>, Write<u32>)>::on_host("sum", |_, (y, total)| {
        total[0] = total[0].wrapping_add(y[0]);
        y[0] = total[0];
    });
    let add = Kernel::<(Write<u32>,)>::on_host("add", |_, (y,)| {
        y.iter_mut().for_each(|y| *y = y.wrapping_add(1))
    });
    let zeros = device.stream("total").unwrap();
    let mut total = zeros.alloc_zeroed::<u32>(1).unwrap();
    zeros.synchronize().unwrap();
    let grid = Grid::new(1, 32);
    let plant = move |stage: &'static str, index: u64| {
        if index == case.at && case.fault == StagePanics(stage) {
            panic!("planted panic");
        }
        match index == case.at && case.fault == StageFails(stage) {
            true => Err(Error::Invalid {
                call: "test",
                why: "planted".into(),
            }),
            false => Ok(()),
        }
    };
    Pipeline::new(device, ROWS)
        .upload(per_row::<u32>(1))
        .stage("double", per_row::<u32>(1), move |at, x, y| {
            started.fetch_add(1, Ordering::Relaxed);
            plant("double", at.index())?;
            at.stream().launch(&double, grid, (x.view(), y.view_mut()))
        })
        .in_order("sum", move |at, (_, y)| {
            at.stream()
                .launch(&sum, grid, (y.view_mut(), total.view_mut()))?;
            plant("sum", at.index())
        })
        .apply("branch", move |at, (_, y)| {
            let branch = at.branch(0)?;
            branch.launch(&add, grid, (y.slice_mut(2..3),))?;
            plant("branch", at.index())?;
            at.stream().launch(&add, grid, (y.slice_mut(3..),))
        })
        .download(per_row::<u32>(1), |(_, y)| y)
}

fn graphs(device: &Device) -> impl StartWith {
    let (double, host) = (double(), device.clone());
    Pipeline::new(device, ROWS).graphs(
        per_row::<u32>(1),
        per_row::<u32>(1),
        move |stream, nodes| {
            let (x, y) = (
                nodes.own(stream.alloc(ROWS)?)?,
                nodes.own(stream.alloc(ROWS)?)?,
            );
            let (sent, back) = (
                nodes.own_pinned(host.pinned(ROWS)?)?,
                nodes.own_pinned(host.pinned(ROWS)?)?,
            );
            nodes.upload(sent, x.view_mut())?;
            nodes.launch(&double, Grid::new(1, 32), (x.view(), y.view_mut()))?;
            nodes.download(y.view(), back)?;
            Ok((sent, back))
        },
    )
}

/// Starts a pipeline of either kind.
trait StartWith {
    fn start(self, case: Case, gate: Receiver<()>, run: impl Outcome) -> bool;
}

/// What a test does with a pipeline of either kind.
trait Outcome {
    fn of<H>(self, running: Running<Host, Host, H>) -> bool;
}

impl<H> StartWith for Ready<Host, Host, H> {
    fn start(mut self, case: Case, gate: Receiver<()>, outcome: impl Outcome) -> bool {
        if let Some(depth) = case.depth {
            self = self.depth(depth);
        }
        if case.timed {
            self = self.timed();
        }
        let fill = move |index: u64, x: &mut Host| {
            if index == case.at && index < case.count {
                match case.fault {
                    SourceFails => return Err(planted("source")),
                    SourcePanics => panic!("planted panic"),
                    SourceLies => return Ok(Some(ROWS + 1)),
                    _ => {}
                }
            }
            let rows = if index + 1 == case.count {
                ROWS - 1
            } else {
                ROWS
            };
            for (row, x) in x.iter_mut().enumerate() {
                *x = index as u32 + row as u32 + 1;
            }
            if case.fault == KernelTraps && index == case.at {
                x[0] = POISON;
            }
            Ok((index < case.count).then_some(rows))
        };
        let running = match case.filled {
            Filled::Here => self.fill(fill),
            Filled::OnThreads => self.fill_on_threads(3, fill).unwrap(),
            Filled::OnThread => {
                let fill = move |index: u64, x: &mut Host| {
                    if case.fault == SourceWaits && index > case.at {
                        // The consumer has received an item, or has ended.
                        let _ = gate.recv();
                    }
                    fill(index, x)
                };
                self.fill_on_thread(fill).unwrap()
            }
        };
        outcome.of(running)
    }
}

/// The consumer, and the properties of what it must get.
struct Consumer {
    seed: u64,
    case: Case,
    gate: Sender<()>,
    started: Arc<AtomicU64>,
}

impl Outcome for Consumer {
    /// Returns whether the device was lost.
    fn of<H>(self, mut running: Running<Host, Host, H>) -> bool {
        let Consumer {
            seed,
            case,
            gate,
            started,
        } = self;
        let what = format!("seed {seed}: {case:?}");
        let cancel = running.cancel();
        let (mut delivered, mut failed) = (0, Vec::<Failed>::new());
        let mut hoard = Vec::new();
        let mut see = |item: &Item<Host>| {
            assert_eq!(item.index(), delivered, "{what}");
            let expected = expected(item.index(), case.graphs);
            assert_eq!(
                item[..item.rows()],
                expected[..item.rows()],
                "item {delivered}, {what}"
            );
            delivered += 1;
            let _ = gate.send(());
        };
        if matches!(case.fault, ConsumerFails | ConsumerPanics) {
            let ran = running.run(|item| {
                see(item);
                match item.index() == case.at {
                    true if case.fault == ConsumerPanics => panic!("planted panic"),
                    true => Err(planted("consumer")),
                    false => Ok(()),
                }
            });
            failed.extend(ran.err());
        } else {
            for next in running.by_ref() {
                match next {
                    Err(error) => failed.push(error),
                    Ok(item) => {
                        see(&item);
                        let is_it = item.index() == case.at;
                        match case.fault {
                            ConsumerLeaves if is_it => break,
                            ConsumerHoards => hoard.push(item),
                            Cancelled if is_it => cancel.cancel(),
                            _ => {}
                        }
                    }
                }
            }
            let submitted = started.load(Ordering::Relaxed);
            if case.fault != ConsumerLeaves && !case.graphs && case.expected_stage().is_none() {
                assert_eq!(submitted, delivered, "an item was lost, {what}");
            }
            drop(running);
        }
        for item in hoard {
            let expected = expected(item.index(), case.graphs);
            assert_eq!(item[..item.rows()], expected[..item.rows()], "kept, {what}");
        }
        judge(&case, delivered, &failed, &what);
        failed.iter().any(|failed| failed.stage == "device")
    }
}

fn judge(case: &Case, delivered: u64, failed: &[Failed], what: &str) {
    let is_met = case.at < case.count;
    match case.expected_stage() {
        Some("device") if is_met => {
            assert!(delivered <= case.at, "{what}");
            assert!(!failed.is_empty(), "{what}");
            for (failed, index) in failed.iter().zip(delivered..) {
                assert_eq!((&*failed.stage, failed.index), ("device", index), "{what}");
                assert!(
                    failed.to_string().contains("planted trap"),
                    "{failed}, {what}"
                );
            }
            let last = delivered + failed.len() as u64;
            assert!(last > case.at, "the item that failed is not named, {what}");
        }
        Some(stage) if is_met => {
            let consumed = delivered - u64::from(stage == "consumer");
            assert_eq!(consumed, case.at, "{what}: {failed:?}");
            assert_eq!(failed.len(), 1, "{what}: {failed:?}");
            assert_eq!(
                (&*failed[0].stage, failed[0].index),
                (stage, case.at),
                "{what}"
            );
            let panics = matches!(case.fault, SourcePanics | StagePanics(_) | ConsumerPanics);
            assert_eq!(
                matches!(failed[0].cause, Cause::Panicked(_)),
                panics,
                "{what}"
            );
        }
        _ => {
            assert!(failed.is_empty(), "{what}: {failed:?}");
            match case.fault {
                ConsumerLeaves if is_met => assert_eq!(delivered, case.at + 1, "{what}"),
                Cancelled if is_met => assert!(delivered > case.at, "{what}"),
                _ => assert_eq!(delivered, case.count, "{what}"),
            }
        }
    }
}

/// Keeps intended panics from being printed.
fn keep_planted_panics_quiet() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or(payload.downcast_ref::<String>().map(String::as_str));
        if !text.is_some_and(|text| text.starts_with("planted")) {
            usual(panic);
        }
    }));
}

#[test]
fn every_item_is_delivered_or_failed_by_name_or_was_never_started() {
    keep_planted_panics_quiet();
    let cases = match std::env::var("SIDESTREAM_NIGHTLY") {
        Ok(_) => 10_000,
        _ => 2_000,
    };
    println!("seeds 0..{cases}");
    for seed in 0..cases {
        let case = Case::of(seed);
        let options = Options::new().schedule(case.schedule).notice(|_| ());
        // The test waits only where the pipeline itself waits. A pipeline that is dropped early leaves memory to the
        // tracker.
        let is_whole = matches!(
            case.fault,
            None | SourceFails
                | SourcePanics
                | SourceLies
                | SourceWaits
                | ConsumerHoards
                | Cancelled
        );
        let options = match is_whole && seed % 2 == 0 {
            // SAFETY: every item is delivered before memory is dropped.
            true => unsafe { options.untracked() },
            false => options,
        };
        let device = Device::open_with("sim:h200", &options).unwrap();
        let findings = device.checked(OnRace::Report);
        let started = Arc::new(AtomicU64::new(0));
        let (gate, gated) = channel();
        let consumer = Consumer {
            seed,
            case,
            gate,
            started: Arc::clone(&started),
        };
        let is_lost = match case.graphs {
            true => graphs(&device).start(case, gated, consumer),
            false => streams(&device, case, started).start(case, gated, consumer),
        };
        let report = findings.report();
        assert!(
            report.races.is_empty(),
            "seed {seed}: {case:?}\n{}",
            findings.text()
        );
        assert_eq!(findings.ended(), Option::None, "seed {seed}: {case:?}");
        if !is_lost {
            device.synchronize().unwrap();
            assert_eq!(
                device.statistics().allocated_bytes,
                0,
                "seed {seed}: {case:?}"
            );
            // Threads of the source end by themselves, soon.
            while device.pinned_statistics().allocated_bytes > 0 {
                std::thread::yield_now();
            }
        }
    }
}
