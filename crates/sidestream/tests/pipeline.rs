//! Pipelines: every item comes out, in order, with few calls and constant memory.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sidestream::buffer::Pinned;
use sidestream::check::OnRace;
use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::pipeline::{Pipeline, Plan, Ready, per_item, per_row};
use sidestream::sim::{Machine, Schedule};

const ROWS: usize = 64;
const GRID: Grid = Grid {
    blocks: [1, 1, 1],
    threads: [64, 1, 1],
    shared_bytes: 0,
};

const SCHEDULES: [Schedule; 4] = [
    Schedule::InOrder,
    Schedule::Seeded(1),
    Schedule::Seeded(2),
    Schedule::Adversarial,
];

fn on_each(program: impl Fn(Device)) {
    for schedule in SCHEDULES {
        let options = Options::new().schedule(schedule).notice(|_| ());
        program(Device::open_with("sim:h200", &options).unwrap());
    }
}

fn double() -> Kernel<(Read<u32>, Write<u32>)> {
    Kernel::<(Read<u32>, Write<u32>)>::on_host("double", |_, (x, y)| {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = 2 * x);
    })
}

fn add_up() -> Kernel<(Write<u32>, Write<u32>)> {
    Kernel::<(Write<u32>, Write<u32>)>::on_host("add up", |_, (x, total)| {
        total[0] += x[0];
        x[0] = total[0];
    })
}

type Host = Pinned<u32>;

fn doubling(device: &Device) -> Ready<Host, Host, impl Send + use<>> {
    let double = double();
    Pipeline::new(device, ROWS)
        .upload(per_row::<u32>(1))
        .stage("double", per_row::<u32>(1), move |at, x, y| {
            at.stream().launch(&double, GRID, (x.view(), y.view_mut()))
        })
        .download(per_row::<u32>(1), |(_, y)| y)
}

/// Returns a source of this many items.
fn numbers(count: u64) -> impl FnMut(u64, &mut Host) -> Filled + Send + Clone + 'static {
    move |index, x| {
        x.fill(index as u32);
        Ok((index < count).then_some(ROWS))
    }
}

type Filled = Result<Option<usize>, Box<dyn std::error::Error + Send + Sync>>;

#[test]
fn inputs_and_outputs_of_several_types_keep_their_items() {
    on_each(|device| {
        let scale =
            Kernel::<(Write<f32>, Read<u8>, Write<u64>)>::on_host("scale", |_, (x, by, sum)| {
                for (x, by) in x.chunks_mut(3).zip(by) {
                    x.iter_mut().for_each(|x| *x *= f32::from(*by));
                }
                sum[0] = by.iter().map(|&by| u64::from(by)).sum();
            });
        let running = Pipeline::new(&device, 8)
            .upload((per_row::<f32>(3), per_row::<u8>(1)))
            .stage("scale", per_item::<u64>(1), move |at, (x, by), sum| {
                let rows = at.rows();
                let args = (x.slice_mut(..3 * rows), by.slice(..rows), sum.view_mut());
                at.stream().launch(&scale, GRID, args)
            })
            .download(per_item::<u64>(1), |(_, sum)| sum)
            .depth(3)
            .fill(|index, (x, by)| {
                x.fill(1.0);
                by.fill(index as u8);
                let rows = if index == 9 { 5 } else { 8 };
                Ok((index < 10).then_some(rows))
            });
        let sums: Vec<u64> = running.map(|item| item.unwrap()[0]).collect();
        assert_eq!(sums, [0, 8, 16, 24, 32, 40, 48, 56, 64, 45]);
    });
}

#[test]
fn a_slot_can_be_worked_on_in_place_and_the_last_item_be_smaller() {
    on_each(|device| {
        let negate = Kernel::<(Write<i32>,)>::on_host("negate", |_, (x,)| {
            x.iter_mut().for_each(|x| *x = -*x);
        });
        let running = Pipeline::new(&device, ROWS)
            .upload(per_row::<i32>(1))
            .apply("negate", move |at, x| {
                let rows = at.rows();
                at.stream().launch(&negate, GRID, (x.slice_mut(..rows),))
            })
            .download(per_row::<i32>(1), |x| x)
            .depth(2)
            .fill(|index, x| {
                x.fill(index as i32 + 1);
                Ok((index < 5).then_some(if index == 4 { 7 } else { ROWS }))
            });
        for item in running {
            let item = item.unwrap();
            assert_eq!(item.rows(), if item.index() == 4 { 7 } else { ROWS });
            assert!(
                item[..item.rows()]
                    .iter()
                    .all(|&x| x == -(item.index() as i32) - 1)
            );
        }
    });
}

#[test]
fn an_item_costs_three_calls_one_record_and_one_query() {
    let device = Device::open("sim:h200").unwrap();
    let findings = device.checked(OnRace::Report);
    let mut running = doubling(&device).depth(4).fill(numbers(1_000));
    // The first items create streams and events.
    assert_eq!(running.by_ref().take(100).count(), 100);
    let before = findings.ops();
    assert_eq!(running.by_ref().take(800).count(), 800);
    let ops = findings.ops() - before;
    assert!(ops <= 800 * 5, "{ops} operations for 800 items");
    assert_eq!(device.statistics().waits_inserted, 0);
}

#[test]
fn only_the_slots_take_memory_however_many_items_there_are() {
    let reserved = |count| {
        let device = Device::open("sim:h200").unwrap();
        let running = doubling(&device)
            .depth(4)
            .fill_on_thread(numbers(count))
            .unwrap();
        let report = running.run(|_| Ok(())).unwrap();
        assert_eq!(report.delivered, count);
        let (memory, pinned) = (device.statistics(), device.pinned_statistics());
        // Two buffers per slot; as much pinned memory, plus an input that is filled ahead and an output that the
        // consumer has.
        let bytes = (ROWS * size_of::<u32>()) as u64;
        assert!(memory.allocated_peak_bytes <= 8 * bytes.next_multiple_of(512));
        assert!(pinned.allocated_peak_bytes <= 10 * bytes);
        (memory.reserved_bytes, pinned.reserved_bytes)
    };
    assert_eq!(reserved(10), reserved(5_000));
}

#[test]
fn a_missing_link_between_slots_is_found_and_an_ordered_stage_has_none() {
    let races = |is_in_order: bool| {
        // SAFETY: memory is kept until all work is complete; the intended race is on numbers in simulated memory.
        let options = unsafe { Options::new().untracked() };
        let device = Device::open_with("sim:h200", &options).unwrap();
        let findings = device.checked(OnRace::Report);
        let stream = device.stream("total").unwrap();
        let mut total = stream.alloc_zeroed::<u32>(1).unwrap();
        stream.synchronize().unwrap();
        let add_up = add_up();
        let stage = Pipeline::new(&device, 1).upload(per_row::<u32>(1));
        let act = move |at: &mut sidestream::pipeline::At<'_>,
                        x: &mut sidestream::buffer::DeviceBuf<u32>| {
            at.stream()
                .launch(&add_up, GRID, (x.view_mut(), total.view_mut()))
        };
        let stage = match is_in_order {
            true => stage.in_order("add up", act),
            false => stage.apply("add up", act),
        };
        let running = stage
            .download(per_row::<u32>(1), |x| x)
            .depth(3)
            .fill(|index, x| {
                x[0] = 1;
                Ok((index < 20).then_some(1))
            });
        let sums: Vec<u32> = running.map(|item| item.unwrap()[0]).collect();
        if is_in_order {
            assert!(sums.into_iter().eq(1..=20));
        }
        device.synchronize().unwrap();
        findings.report().races.len()
    };
    assert_eq!(races(true), 0);
    assert!(races(false) > 0);
}

#[test]
fn branches_join_also_where_nothing_is_tracked() {
    // SAFETY: as above.
    let options = unsafe { Options::new().untracked() }
        .schedule(Schedule::Adversarial)
        .notice(|_| ());
    let device = Device::open_with("sim:h200", &options).unwrap();
    let findings = device.checked(OnRace::Report);
    let double = double();
    let running = Pipeline::new(&device, ROWS)
        .upload(per_row::<u32>(1))
        .stage("halves", per_row::<u32>(1), move |at, x, y| {
            let branch = at.branch(0)?;
            let (left, right) = y.view_mut().split_at(ROWS / 2);
            branch.launch(&double, GRID, (x.slice(..ROWS / 2), left))?;
            at.stream()
                .launch(&double, GRID, (x.slice(ROWS / 2..), right))
        })
        .download(per_row::<u32>(1), |(_, y)| y)
        .depth(2)
        .fill(numbers(9));
    for item in running {
        let item = item.unwrap();
        assert!(item.iter().all(|&y| y == 2 * item.index() as u32));
    }
    assert!(findings.report().races.is_empty(), "{}", findings.text());
}

#[test]
fn a_source_that_blocks_delays_neither_finished_items_nor_a_drop() {
    let device = Device::open("sim:h200").unwrap();
    let (_open, gate) = channel::<()>();
    let mut fill = numbers(100);
    let mut running = doubling(&device)
        .depth(4)
        .fill_on_thread(move |index, x| {
            if index == 3 {
                let _ = gate.recv();
            }
            fill(index, x)
        })
        .unwrap();
    for index in 0..3 {
        assert_eq!(running.next().unwrap().unwrap().index(), index);
    }
    let cancel = running.cancel();
    let other = thread::spawn(move || cancel.cancel());
    assert!(running.next().is_none(), "woken by the other thread");
    other.join().unwrap();
}

#[test]
fn a_source_may_hand_over_memory_of_its_own() {
    let device = Device::open("sim:h200").unwrap();
    let mut own: Vec<Host> = (0..10).map(|_| device.pinned(ROWS).unwrap()).collect();
    for (index, memory) in own.iter_mut().enumerate() {
        memory.fill(index as u32 + 7);
    }
    let mut own = own.into_iter();
    let running = doubling(&device).depth(3).fill(move |_, x| {
        let next = own.next().map(|memory| *x = memory);
        Ok(next.map(|()| ROWS))
    });
    let got: Vec<u32> = running.map(|item| item.unwrap()[5]).collect();
    assert!(got.into_iter().eq((7..17).map(|x| 2 * x)));
}

#[test]
fn a_pipeline_may_move_to_another_thread() {
    let device = Device::open("sim:h200").unwrap();
    let mut running = doubling(&device).depth(2).fill(numbers(20));
    assert_eq!(running.next().unwrap().unwrap()[0], 0);
    let rest = thread::spawn(move || running.map(|item| item.unwrap()[0]).sum::<u32>());
    assert_eq!(rest.join().unwrap(), 2 * (1..20).sum::<u32>());
}

#[test]
fn items_may_be_kept_and_sent_away() {
    let device = Device::open("sim:h200").unwrap();
    let running = doubling(&device).depth(2).fill(numbers(20));
    let items: Vec<_> = running.map(Result::unwrap).collect();
    let checked = thread::spawn(move || {
        items
            .iter()
            .all(|item| item.iter().all(|&y| y == 2 * item.index() as u32))
    });
    assert!(checked.join().unwrap());
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<R>(future: impl Future<Output = R>) -> R {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return result,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_task_can_await_items() {
    on_each(|device| {
        let mut running = doubling(&device)
            .depth(3)
            .fill_on_thread(numbers(30))
            .unwrap();
        let count = block_on(async {
            let mut count = 0;
            while let Some(item) = running.next_async().await {
                let item = item.unwrap();
                assert_eq!((item.index(), item[9]), (count, 2 * count as u32));
                count += 1;
            }
            count
        });
        assert_eq!(count, 30);
    });
}

#[test]
fn the_depth_is_chosen_from_measured_times_and_can_be_kept() {
    let device = Device::open("sim:h200").unwrap();
    let mut running = doubling(&device).fill(numbers(40));
    assert_eq!(running.by_ref().count(), 40);
    let plan = running.plan().unwrap();
    let names: Vec<&str> = plan.stages.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["upload", "double", "download"]);
    assert!((2..=8).contains(&plan.depth), "{plan}");
    assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
    assert!("depth none".parse::<Plan>().is_err());
    assert_eq!(running.report().depth, plan.depth);

    let again = doubling(&device).plan(&plan).fill(numbers(10));
    assert_eq!(again.run(|_| Ok(())).unwrap().depth, plan.depth);
}

#[test]
fn a_report_names_the_stage_that_binds() {
    let device = Device::open("sim:h200").unwrap();
    let slow = Kernel::<(Write<u32>,)>::on_host("slow", |_, _| ()).with_cost(|_| {
        sidestream::kernel::KernelCost::Duration {
            ns: 50_000,
            share: 1.0,
        }
    });
    let running = Pipeline::new(&device, ROWS)
        .upload(per_row::<u32>(1))
        .apply("slow", move |at, x| {
            at.stream().launch(&slow, GRID, (x.view_mut(),))
        })
        .download(per_row::<u32>(1), |x| x)
        .depth(4)
        .timed()
        .fill(numbers(50));
    let report = running.run(|_| Ok(())).unwrap();
    let timed = report.timed.as_ref().unwrap();
    assert_eq!((timed.items, &*timed.binds), (50, "slow"));
    assert!(timed.overlap > 1.0, "{report}");
    let timeline = report.timeline(80);
    assert!(
        timeline.contains("b slow") && timeline.contains("slot 3"),
        "{timeline}"
    );
}

#[test]
fn one_seed_gives_one_run_to_the_nanosecond() {
    let run = |seed: u64| {
        let profile = ("sim:h200".to_owned(), Profile::h200());
        let machine = Arc::new(Machine::new(vec![profile], Schedule::Seeded(seed), None));
        let options = Options::new().notice(|_| ());
        let device = Device::on(Arc::clone(&machine) as _, &options).remove(0);
        let mut times = Vec::new();
        for item in doubling(&device).depth(3).fill(numbers(50)) {
            item.unwrap();
            times.push(machine.now_ns());
        }
        let source = doubling(&device)
            .depth(2)
            .lockstep()
            .fill_on_thread(numbers(50));
        for item in source.unwrap() {
            item.unwrap();
            times.push(machine.now_ns());
        }
        times
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(0), run(1));
}

#[test]
fn a_graph_is_not_launched_while_its_memory_is_lent() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let x = nodes.own(stream.alloc::<u32>(4).unwrap()).unwrap();
    let back = nodes.own_pinned(device.pinned::<u32>(4).unwrap()).unwrap();
    nodes.fill_with(x.view_mut(), 3).unwrap();
    nodes.download(x.view(), back).unwrap();
    let mut graph = nodes.build().unwrap();
    graph.launch(&stream).unwrap();
    let lent = graph.lend_pinned(back).unwrap();
    assert_eq!(*lent, [3; 4]);
    let refused = graph.launch(&stream).unwrap_err();
    assert!(refused.to_string().contains("lent"), "{refused}");
    let other = device.pinned::<u32>(4).unwrap();
    assert!(graph.return_pinned(back, other).is_err());
    graph.return_pinned(back, lent).unwrap();
    graph.launch(&stream).unwrap();
}

#[test]
fn others_wait_for_an_unmarked_stream_too() {
    on_each(|device| {
        let (quiet, other) = (
            device.unmarked_stream("q").unwrap(),
            device.stream("o").unwrap(),
        );
        let double = double();
        let (mut x, mut y) = (quiet.alloc(ROWS).unwrap(), other.alloc(ROWS).unwrap());
        for round in 0..6 {
            quiet.fill_with(x.view_mut(), round).unwrap();
            other
                .launch(&double, GRID, (x.view(), y.view_mut()))
                .unwrap();
            let mut host = [0; ROWS];
            other.memcpy_d2h(y.view(), &mut host).unwrap();
            assert_eq!(host, [2 * round; ROWS]);
            let back = quiet
                .download(x.view(), device.pinned(ROWS).unwrap())
                .unwrap();
            assert_eq!(back.synchronize().unwrap()[0], round);
        }
    });
}
