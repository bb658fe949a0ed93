//! Requests of many callers as batches: each ends exactly once, with its own values or the reason for its failure.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::drawn::Random;
use sidestream::batcher::{Answer, At, Batcher, Error, Histogram, Settings, Wish};
use sidestream::buffer::{View, ViewMut};
use sidestream::check::OnRace;
use sidestream::device::{Device, Options};
use sidestream::error::Error as DeviceError;
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::pipeline::{BoxError, Cause};
use sidestream::sim::Schedule;

const ROW: usize = 3;
/// A value at which the kernel traps.
const POISON: u32 = 0xdead;
/// Longer than any test takes: a batch that leaves earlier has another reason.
const FOREVER: Duration = Duration::from_secs(3600);

type Numbers = Batcher<u32, u32>;

fn settings(device: &Device) -> Settings<u32, u32> {
    Numbers::new(device, ROW, 1)
        .sizes(&[1, 2, 4, 8])
        .max_delay(Duration::ZERO)
}

fn sum() -> Kernel<(Read<u32>, Write<u32>)> {
    Kernel::on_host("sum of each row", |_, (x, y): (&[u32], &mut [u32])| {
        for (y, row) in y.iter_mut().zip(x.chunks(ROW)) {
            assert!(!row.contains(&POISON), "a row is poisoned");
            *y = row.iter().fold(0, |sum, x| sum.wrapping_add(*x));
        }
    })
}

/// Serves with a function that is called for each batch, after `before`.
fn serve<B>(settings: Settings<u32, u32>, before: B) -> Numbers
where
    B: Fn(&At<'_>) -> Result<(), DeviceError> + Clone + Send + 'static,
{
    let kernel = sum();
    let served = settings.serve(move |_| {
        let (kernel, before) = (kernel.clone(), before.clone());
        Ok(move |at: &At<'_>, x: View<'_, u32>, y: ViewMut<'_, u32>| {
            before(at)?;
            let grid = Grid::cover(at.size(), 256);
            at.stream().launch(&kernel, grid, (x, y))?;
            Ok(())
        })
    });
    served.unwrap()
}

/// Serves with a graph for each size and slot; `before` is called where a graph is made.
fn serve_graphs<B>(settings: Settings<u32, u32>, before: B) -> Numbers
where
    B: Fn(usize) -> Result<(), DeviceError> + Clone + Send + 'static,
{
    let kernel = sum();
    let served = settings.serve_graphs(move |shape, nodes, x, y| {
        before(shape.size())?;
        let grid = Grid::cover(shape.size(), 256);
        nodes.launch(&kernel, grid, (x.view(), y.view_mut()))?;
        Ok(())
    });
    served.unwrap()
}

fn always(_: &At<'_>) -> Result<(), DeviceError> {
    Ok(())
}

/// Returns a gate that keeps batches on the host until it is opened, and the number of requests in each batch.
fn gate() -> (
    impl Fn(&At<'_>) -> Result<(), DeviceError> + Clone + Send + 'static,
    Receiver<usize>,
    Sender<()>,
) {
    let (said, batches) = channel();
    let (open, waits) = channel();
    let waits = Arc::new(Mutex::new(waits));
    let hold = move |at: &At<'_>| {
        said.send(at.requests()).ok();
        // If the test has ended, the gate is open.
        waits.lock().unwrap().recv().ok();
        Ok(())
    };
    (hold, batches, open)
}

#[test]
fn callers_of_many_threads_get_their_own_answers() {
    let device = Device::open("sim:h200").unwrap();
    let findings = device.checked(OnRace::Report);
    let batcher = serve(settings(&device), always);
    std::thread::scope(|scope| {
        for caller in 0..8u32 {
            let batcher = &batcher;
            scope.spawn(move || {
                for n in 0..50 {
                    let answer = batcher.submit(&[caller, 1000 * n, 1]).unwrap();
                    assert_eq!(answer.wait().unwrap()[..], [caller + 1000 * n + 1]);
                }
            });
        }
    });
    let statistics = batcher.close();
    assert_eq!((statistics.answered, statistics.ended()), (400, 400));
    assert_eq!((statistics.waiting, statistics.in_flight), (0, 0));
    assert_eq!(statistics.total.count(), 400);
    assert!(findings.report().races.is_empty(), "{}", findings.text());
}

#[test]
fn requests_that_wait_leave_as_one_batch_of_the_next_size() {
    let device = Device::open("sim:h200").unwrap();
    let (hold, batches, open) = gate();
    let batcher = serve(settings(&device).slots(1), hold);
    let first = batcher.submit(&[1, 1, 1]).unwrap();
    assert_eq!(batches.recv(), Ok(1));
    // These requests arrive while the only slot is busy.
    let others: Vec<_> = (0..11)
        .map(|n| batcher.submit(&[n, 0, 0]).unwrap())
        .collect();
    drop(open);
    assert_eq!(first.wait().unwrap()[..], [3]);
    for (n, answer) in others.into_iter().enumerate() {
        assert_eq!(answer.wait().unwrap()[..], [n as u32]);
    }
    let statistics = batcher.close();
    assert_eq!(batches.iter().collect::<Vec<_>>(), [8, 3]);
    assert_eq!(statistics.batches, BTreeMap::from([(1, 1), (4, 1), (8, 1)]));
    assert_eq!(statistics.padding_rows, 1);
    assert_eq!(statistics.mean_batch(), 4.0);
}

#[test]
fn a_full_batch_leaves_at_once() {
    let device = Device::open("sim:h200").unwrap();
    let batcher = serve(settings(&device).max_delay(FOREVER), always);
    let answers: Vec<_> = (0..8)
        .map(|n| batcher.submit(&[n, n, n]).unwrap())
        .collect();
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.wait().unwrap()[..], [3 * n as u32]);
    }
}

#[test]
fn closing_computes_waiting_requests_and_refuses_new_ones() {
    let device = Device::open("sim:h200").unwrap();
    let batcher = serve(settings(&device).max_delay(FOREVER), always);
    let answer = batcher.submit(&[1, 2, 3]).unwrap();
    batcher.refuse();
    assert!(matches!(batcher.submit(&[1, 2, 3]), Err(Error::Closed)));
    assert_eq!(batcher.close().answered, 1);
    assert_eq!(answer.wait().unwrap()[..], [6]);
}

#[test]
fn dropping_ends_waiting_requests() {
    let device = Device::open("sim:h200").unwrap();
    let batcher = serve(settings(&device).max_delay(FOREVER), always);
    let answer = batcher.submit(&[1, 2, 3]).unwrap();
    drop(batcher);
    assert!(matches!(answer.wait(), Err(Error::Closed)));
}

#[test]
fn a_graph_is_made_for_each_size_once_and_its_results_stay() {
    let device = Device::open("sim:h200").unwrap();
    let findings = device.checked(OnRace::Report);
    let (said, made) = channel();
    let tell = move |size| {
        said.send(size).ok();
        Ok(())
    };
    let settings = settings(&device).slots(1).max_delay(FOREVER);
    let batcher = serve_graphs(settings.sizes(&[2, 4]), tell);
    let mut kept = Vec::new();
    for round in 0..6 {
        let answers: Vec<_> = (0..4)
            .map(|n| batcher.submit(&[n, round, 100]).unwrap())
            .collect();
        for (n, answer) in (0..).zip(answers) {
            kept.push((n + round + 100, answer.wait().unwrap()));
        }
    }
    batcher.refuse();
    let statistics = batcher.close();
    assert_eq!(made.iter().collect::<Vec<_>>(), [4]);
    assert_eq!(statistics.batches, BTreeMap::from([(4, 6)]));
    // Only the whole of a graph is timed.
    assert_eq!(statistics.compute.count(), 6);
    assert_eq!(
        (statistics.upload.count(), statistics.download.count()),
        (0, 0)
    );
    assert!(kept.iter().all(|(expected, row)| row[..] == [*expected]));
    assert!(findings.report().races.is_empty(), "{}", findings.text());
}

#[test]
fn a_batch_that_does_not_fill_its_graph_gets_its_own_rows() {
    let device = Device::open("sim:h200").unwrap();
    let settings = settings(&device).slots(1).sizes(&[4]);
    let batcher = serve_graphs(settings, |_| Ok(()));
    for n in 0..3 {
        assert_eq!(
            batcher.submit(&[n, n, n]).unwrap().wait().unwrap()[..],
            [3 * n]
        );
    }
    assert_eq!(batcher.close().padding_rows, 9);
}

#[test]
fn a_graph_that_cannot_be_made_fails_its_requests_and_is_tried_again() {
    let device = Device::open("sim:h200").unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let not_first = move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Err(DeviceError::from(BoxError::from("not yet"))),
        1 => panic!("nor now"),
        _ => Ok(()),
    };
    let batcher = serve_graphs(settings(&device).slots(1), not_first);
    let mut ends = (0..3).map(|_| batcher.submit(&[1, 2, 3]).unwrap().wait());
    let (first, second, third) = (ends.next(), ends.next(), ends.next());
    for (end, says) in [(first, "not yet"), (second, "nor now")] {
        let error = end.unwrap().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(third.unwrap().unwrap()[..], [6]);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[test]
fn a_queue_that_is_full_refuses() {
    let device = Device::open("sim:h200").unwrap();
    let (hold, batches, open) = gate();
    let batcher = serve(settings(&device).slots(1).max_queue(2), hold);
    let mut answers = vec![batcher.submit(&[0, 0, 0]).unwrap()];
    batches.recv().unwrap();
    answers.extend((0..2).map(|_| batcher.submit(&[0, 0, 0]).unwrap()));
    let refused = batcher.submit(&[0, 0, 0]).unwrap_err();
    assert!(matches!(refused, Error::Full { limit: 2 }), "{refused}");
    // Cancelling a request makes room.
    drop(answers.pop());
    answers.push(batcher.submit(&[0, 0, 0]).unwrap());
    drop(open);
    assert!(answers.into_iter().all(|answer| answer.wait().is_ok()));
    assert_eq!(batcher.close().refused_full, 1);
}

#[test]
fn a_request_that_is_late_is_not_computed() {
    let device = Device::open("sim:h200").unwrap();
    let (hold, batches, open) = gate();
    let batcher = serve(settings(&device).slots(1), hold);
    let first = batcher.submit(&[0, 0, 0]).unwrap();
    batches.recv().unwrap();
    let now = Instant::now();
    let wish = |deadline| Wish {
        deadline: Some(deadline),
        ..Wish::default()
    };
    let past = batcher.submit_with(&[0, 0, 0], &wish(now - Duration::from_secs(1)));
    assert!(matches!(past, Err(Error::Late { .. })), "{past:?}");
    let soon = Instant::now() + Duration::from_millis(2);
    let soon = batcher.submit_with(&[0, 0, 0], &wish(soon)).unwrap();
    let later = batcher
        .submit_with(&[2, 2, 2], &wish(now + FOREVER))
        .unwrap();
    while Instant::now() < now + Duration::from_millis(3) {
        std::thread::yield_now();
    }
    drop(open);
    assert!(first.wait().is_ok());
    assert!(matches!(soon.wait(), Err(Error::Expired)));
    assert_eq!(later.wait().unwrap()[..], [6]);
    // Given how long that batch took, no answer comes within a nanosecond.
    let soon = batcher.submit_with(&[0, 0, 0], &wish(Instant::now() + Duration::from_nanos(1)));
    assert!(matches!(soon, Err(Error::Late { .. })), "{soon:?}");
    let statistics = batcher.close();
    assert_eq!((statistics.refused_late, statistics.expired), (2, 1));
}

#[test]
fn a_cancelled_request_is_not_computed() {
    let device = Device::open("sim:h200").unwrap();
    let (hold, batches, open) = gate();
    let batcher = serve(settings(&device).slots(1), hold);
    let first = batcher.submit(&[0, 0, 0]).unwrap();
    batches.recv().unwrap();
    let cancelled = batcher.submit(&[0, 0, 0]).unwrap();
    drop(batcher.submit(&[0, 0, 0]).unwrap());
    let kept = batcher.submit(&[1, 0, 0]).unwrap();
    assert!(cancelled.cancel());
    assert!(!first.cancel(), "its batch had left");
    drop(open);
    assert!(matches!(cancelled.wait(), Err(Error::Cancelled)));
    assert_eq!(kept.wait().unwrap()[..], [1]);
    assert!(first.wait().is_ok());
    let statistics = batcher.close();
    assert_eq!((statistics.cancelled, statistics.answered), (2, 2));
    assert_eq!(statistics.batches, BTreeMap::from([(1, 2)]));
}

#[test]
fn a_batch_that_fails_is_tried_request_by_request() {
    let device = Device::open("sim:h200").unwrap();
    let no_batches = |at: &At<'_>| match at.requests() {
        1 => Ok(()),
        _ => Err(DeviceError::from(BoxError::from("too many at once"))),
    };
    let batcher = serve(settings(&device).max_delay(FOREVER), no_batches);
    let answers: Vec<_> = (0..8)
        .map(|n| batcher.submit(&[n, 0, 0]).unwrap())
        .collect();
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.wait().unwrap()[..], [n as u32]);
    }
    let statistics = batcher.close();
    assert_eq!((statistics.answered, statistics.failed), (8, 0));
}

#[test]
fn a_model_that_panics_fails_its_request_and_no_other() {
    let device = Device::open("sim:h200").unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&calls);
    let second = move |_: &At<'_>| match seen.fetch_add(1, Ordering::SeqCst) {
        1 => panic!("the second call"),
        _ => Ok(()),
    };
    let batcher = serve(settings(&device).slots(1), second);
    let mut ends = Vec::new();
    for n in 0..3 {
        ends.push(batcher.submit(&[n, 0, 0]).unwrap().wait());
    }
    assert_eq!(ends[0].as_ref().unwrap()[..], [0]);
    assert_eq!(ends[2].as_ref().unwrap()[..], [2]);
    let Err(Error::Failed(failed)) = &ends[1] else {
        panic!("{ends:?}")
    };
    assert!(matches!(&failed.cause, Cause::Panicked(text) if text == "the second call"));
}

#[test]
fn an_urgent_class_has_streams_of_its_priority() {
    let device = Device::open("sim:h200").unwrap();
    let (said, seen) = channel();
    let tell = move |at: &At<'_>| {
        said.send(at.stream().priority()).ok();
        Ok(())
    };
    let classes = [("background", 0), ("urgent", -3)];
    let batcher = serve(settings(&device).classes(&classes), tell);
    let urgent = Wish {
        class: Some("urgent"),
        ..Wish::default()
    };
    batcher
        .submit_with(&[1, 1, 1], &urgent)
        .unwrap()
        .wait()
        .unwrap();
    batcher.submit(&[1, 1, 1]).unwrap().wait().unwrap();
    assert_eq!([seen.recv(), seen.recv()], [Ok(-3), Ok(0)]);
    let unknown = Wish {
        class: Some("urgnt"),
        ..Wish::default()
    };
    let refused = batcher.submit_with(&[1, 1, 1], &unknown).unwrap_err();
    assert!(refused.to_string().contains("`urgnt`"), "{refused}");
}

#[test]
fn unusable_settings_are_refused() {
    let device = Device::open("sim:h200").unwrap();
    for (wrong, says) in [
        (settings(&device).sizes(&[]), "at least one size"),
        (settings(&device).sizes(&[4, 0]), "leave out the size 0"),
        (settings(&device).slots(0), "0 slots"),
        (settings(&device).max_queue(0), "0 requests in the queue"),
        (settings(&device).classes(&[]), "0 classes"),
        (
            settings(&device).classes(&[("urgent", -99)]),
            "priority -99",
        ),
    ] {
        let served =
            wrong.serve(|_| Ok(|_: &At<'_>, _: View<'_, u32>, _: ViewMut<'_, u32>| Ok(())));
        let error = served.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// A waker that counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_answer_is_a_future_that_is_woken_once() {
    let device = Device::open("sim:h200").unwrap();
    let (hold, batches, open) = gate();
    let batcher = serve(settings(&device).slots(1), hold);
    let answer = batcher.submit(&[4, 5, 6]).unwrap();
    batches.recv().unwrap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut answer = pin!(answer);
    assert!(answer.as_mut().poll(&mut context).is_pending());
    drop(open);
    assert_eq!(batcher.close().answered, 1);
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    let Poll::Ready(Ok(row)) = answer.as_mut().poll(&mut context) else {
        panic!("it is closed, so every answer is ready")
    };
    assert_eq!(row[..], [15]);
    assert!(matches!(
        answer.as_mut().poll(&mut context),
        Poll::Ready(Err(Error::Fetched))
    ));
}

#[test]
fn results_are_kept_while_they_are_owned() {
    let device = Device::open("sim:h200").unwrap();
    let batcher = serve(settings(&device), always);
    let kept: Vec<_> = (0..64)
        .map(|n| batcher.submit(&[n, 0, 0]).unwrap().wait().unwrap())
        .collect();
    drop(batcher);
    assert!(
        kept.iter()
            .enumerate()
            .all(|(n, row)| row[..] == [n as u32])
    );
}

/// A waker that reads the statistics of the batcher when it is woken.
struct Counted(Arc<Numbers>, Mutex<Vec<(u64, u64, u64)>>);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        let counts = self.0.statistics();
        let counts = (counts.answered, counts.failed, counts.in_flight);
        self.1.lock().unwrap().push(counts);
    }
}

#[test]
fn a_caller_that_is_woken_is_counted() {
    let device = Device::open("sim:h200").unwrap();
    let (hold, batches, open) = gate();
    let calls = Arc::new(AtomicU64::new(0));
    let fails = move |at: &At<'_>| {
        hold(at)?;
        match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(DeviceError::from(BoxError::from("planted"))),
        }
    };
    let batcher = Arc::new(serve(settings(&device).slots(1), fails));
    let counted = Arc::new(Counted(Arc::clone(&batcher), Mutex::default()));
    let waker = Waker::from(Arc::clone(&counted));
    let mut context = Context::from_waker(&waker);
    for says in [(1, 0, 0), (1, 1, 0)] {
        let mut answer = pin!(batcher.submit(&[1, 2, 3]).unwrap());
        batches.recv().unwrap();
        assert!(answer.as_mut().poll(&mut context).is_pending());
        open.send(()).unwrap();
        while counted.1.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(
            counted.1.lock().unwrap().drain(..).collect::<Vec<_>>(),
            [says]
        );
    }
}

#[test]
fn a_histogram_is_right_to_a_sixteenth() {
    let seed = 7;
    println!("seed {seed}");
    let mut numbers = Random(seed);
    let mut histogram = Histogram::default();
    assert_eq!(histogram.quantile(0.5), Duration::ZERO);
    let mut times: Vec<u64> = (0..5000)
        .map(|_| {
            let power = numbers.below(40);
            numbers.below(1 << power)
        })
        .chain([0, u64::MAX])
        .collect();
    for time in &times {
        histogram.add(Duration::from_nanos(*time));
    }
    times.sort_unstable();
    for share in [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
        let rank = ((share * times.len() as f64).ceil() as usize).max(1) - 1;
        let exact = times[rank] as f64;
        let said = histogram.quantile(share).as_nanos() as f64;
        assert!(
            said >= exact && said <= exact * 17.0 / 16.0,
            "{share}: {said} for {exact}"
        );
    }
    assert_eq!(histogram.count(), 5002);
}

#[test]
fn statistics_as_text_have_the_names_of_triton() {
    let device = Device::open("sim:h200").unwrap();
    let batcher = serve(settings(&device).max_delay(FOREVER), always);
    let answers: Vec<_> = (0..8)
        .map(|n| batcher.submit(&[n, 0, 0]).unwrap())
        .collect();
    answers.into_iter().for_each(|answer| drop(answer.wait()));
    let text = batcher.close().prometheus("a \"b\"");
    for line in [
        "nv_inference_request_success{model=\"a \\\"b\\\"\"} 8",
        "nv_inference_request_failure{model=\"a \\\"b\\\"\",reason=\"REJECTED\"} 0",
        "nv_inference_count{model=\"a \\\"b\\\"\"} 8",
        "nv_inference_exec_count{model=\"a \\\"b\\\"\"} 1",
        "# TYPE nv_inference_request_summary_us summary",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
}

// -------------------------------------------------------------------------- faults

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    None,
    Fails,
    Panics,
    Traps,
    /// New requests are refused, while requests wait and run.
    Refused,
    /// The batcher is dropped, while requests wait and run.
    Dropped,
}

/// One run by its seed: callers on threads that wait, leave, cancel, keep results or have deadlines; a model of calls
/// or of graphs, which may fail; a device that may be lost; and an end at any time.
fn faulty(seed: u64) {
    let mut numbers = Random(seed);
    let schedule = match numbers.below(3) {
        0 => Schedule::InOrder,
        1 => Schedule::Adversarial,
        _ => Schedule::Seeded(seed),
    };
    let faults = [
        Fault::None,
        Fault::Fails,
        Fault::Panics,
        Fault::Traps,
        Fault::Refused,
        Fault::Dropped,
    ];
    let fault = faults[numbers.below(6) as usize];
    let at = numbers.below(12);
    let device = Device::open_with("sim:h200", &Options::new().schedule(schedule)).unwrap();
    let findings = device.checked(OnRace::Report);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let before = move || {
        let is_it = counted.fetch_add(1, Ordering::SeqCst) == at;
        match fault {
            Fault::Fails if is_it => Err(DeviceError::from(BoxError::from("planted"))),
            Fault::Panics if is_it => std::panic::panic_any("planted"),
            _ => Ok(()),
        }
    };
    let settings = settings(&device)
        .slots(1 + numbers.below(3) as usize)
        .max_queue(1 + numbers.below(20) as usize)
        .max_delay(Duration::from_micros(numbers.below(3) * 50))
        .timed(numbers.below(2) == 0);
    let batcher = match numbers.below(2) {
        0 => serve(settings, move |_| before()),
        _ => serve_graphs(settings, move |_| before()),
    };
    let callers = 1 + numbers.below(3);
    let drawn: Vec<u64> = (0..callers).map(|_| numbers.below(u64::MAX)).collect();
    let poisoned = numbers.below(callers * 10);
    let ended: Vec<(u64, u64, Vec<Taken>)> = std::thread::scope(|scope| {
        let work = |caller: u64, seed: u64| {
            let batcher = &batcher;
            move || {
                let mut numbers = Random(seed);
                let (mut taken, mut gone) = (0, 0);
                let mut kept: Vec<Taken> = Vec::new();
                for n in 0..10 {
                    let poison = fault == Fault::Traps && poisoned == caller * 10 + n;
                    let x = numbers.below(1000) as u32;
                    let values = [x, 1, if poison { POISON } else { 2 }];
                    let soon = Duration::from_micros(numbers.below(500));
                    let wish = Wish {
                        deadline: (numbers.below(4) == 0).then(|| Instant::now() + soon),
                        ..Wish::default()
                    };
                    match batcher.submit_with(&values, &wish) {
                        Ok(answer) => {
                            taken += 1;
                            kept.push((x + 3, answer));
                        }
                        Err(Error::Full { .. } | Error::Late { .. } | Error::Closed) => {}
                        Err(other) => panic!("{other}"),
                    }
                    if fault == Fault::Refused && poisoned == caller * 10 + n {
                        batcher.refuse();
                    }
                    match numbers.below(4) {
                        0 if !kept.is_empty() => drop(kept.pop()),
                        1 => drop(kept.last().map(|(_, answer)| answer.cancel())),
                        2 => gone += settle(kept.drain(..)),
                        _ => {}
                    }
                }
                (taken, gone, kept)
            }
        };
        let threads: Vec<_> = (0..callers)
            .zip(drawn)
            .map(|(caller, seed)| scope.spawn(work(caller, seed)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    if fault == Fault::Dropped {
        drop(batcher);
    } else {
        let statistics = batcher.close();
        let taken: u64 = ended.iter().map(|(taken, ..)| taken).sum();
        assert_eq!(statistics.ended(), taken, "{statistics:?}");
        assert_eq!((statistics.waiting, statistics.in_flight), (0, 0));
    }
    for (.., kept) in ended {
        // Each answer has ended, regardless of its result: nothing is left that could still end one.
        assert!(kept.iter().all(|(_, answer)| answer.is_ready()));
        settle(kept.into_iter());
    }
    assert!(findings.report().races.is_empty(), "{}", findings.text());
    // Only the caches still have memory.
    if !matches!(fault, Fault::Traps) {
        assert_eq!(device.statistics().allocated_bytes, 0);
        assert_eq!(device.pinned_statistics().allocated_bytes, 0);
    }
}

/// An accepted request: its expected answer, and the answer.
type Taken = (u32, Answer<u32>);

/// Waits for answers; returns how many there were.
fn settle(kept: impl Iterator<Item = Taken>) -> u64 {
    kept.map(|(expected, answer)| match answer.wait() {
        Ok(row) => assert_eq!(row[..], [expected]),
        Err(Error::Cancelled | Error::Closed | Error::Expired | Error::Failed(_)) => {}
        Err(other) => panic!("{other}"),
    })
    .count() as u64
}

#[test]
fn whatever_goes_wrong_each_request_ends_once() {
    let count = match std::env::var("SIDESTREAM_NIGHTLY") {
        Ok(_) => 10_000,
        Err(_) => 500,
    };
    for seed in 0..count {
        let run = std::panic::catch_unwind(|| faulty(seed));
        if let Err(panic) = run {
            println!("seed {seed}: `faulty({seed})` repeats it");
            std::panic::resume_unwind(panic);
        }
    }
}
