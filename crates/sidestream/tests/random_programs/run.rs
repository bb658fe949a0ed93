//! Runs a program and checks that everything was given back.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::sim::Machine;

use super::act::{Act, draw};
use super::faults::Faults;
use super::flying::wait_until;
use super::plan::Plan;
use super::stuck;
use super::watch::Watch;
use super::world::World;

/// The results of a run.
#[derive(Default)]
pub struct Outcome {
    /// Failures, one sentence each.
    pub wrong: Vec<String>,
    /// Races that the checker found.
    pub races: Vec<String>,
    pub watch: Watch,
    pub waits_inserted: u64,
    pub is_lost: bool,
}

/// Maximum number of unfinished or remembered tasks of a machine when all work is complete.
const TASKS_AT_MOST: usize = 4096;

pub fn run(plan: &Plan, programs: &[Vec<Act>]) -> Outcome {
    let _running = stuck::begin(format!("SEED={} {plan:?}", plan.seed));
    let mut outcome = Outcome::default();
    let one = plan.edges.as_ref().and_then(|edges| edges.one);
    let faults = Arc::new(match one {
        Some((after, behind)) => Faults::one(machine(plan), after, behind),
        None => Faults::new(machine(plan), plan.faults, plan.seed),
    });
    let devices = Device::on(Arc::clone(&faults) as _, &options(plan));
    if plan.listens {
        devices[0].listen(Box::new(outcome.watch.clone()));
    }
    let world = World::new(plan, devices, &faults);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world.open_streams();
        carry_out(&world, programs);
        faults.stop();
        world.finish();
        outcome.waits_inserted = world.waits_inserted();
    }));
    if let Err(panic) = ran {
        outcome.wrong.push(format!("panicked: {}", text(&*panic)));
    }
    outcome.is_lost = world.lost.lock().is_some();
    let (accepted, returned) = world.functions();
    outcome.wrong.extend(world.all_wrong());
    outcome.watch.seen(|seen| {
        let report = seen.checker.report();
        outcome.races = report
            .races
            .iter()
            .map(|race| format!("{race:?}"))
            .collect();
        outcome.wrong.extend(seen.wrong.iter().cloned());
    });
    let was_torn = world.was_torn();
    // A lost device gives nothing back, and after a panic anything may still be in use.
    if outcome.is_lost || !outcome.wrong.is_empty() {
        return outcome;
    }
    drop(world);
    settle(&faults, &mut outcome.wrong);
    let returned = returned.load(Ordering::Relaxed);
    // A function that an interrupted call took is not counted.
    if accepted > returned || accepted < returned && !was_torn {
        let wrong = format!("{accepted} functions were taken, {returned} ran");
        outcome.wrong.push(wrong);
    }
    outcome
}

/// Draws the program of a plan, and runs it.
pub fn run_plan(plan: &Plan) -> Outcome {
    run(plan, &draw(plan))
}

fn carry_out(world: &World, programs: &[Vec<Act>]) {
    if let [program] = programs {
        return carry_out_one(world, 0, program);
    }
    std::thread::scope(|scope| {
        let threads = programs
            .iter()
            .enumerate()
            .map(|(thread, program)| scope.spawn(move || carry_out_one(world, thread, program)));
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                world.wrong(format!("a thread panicked: {}", text(&*panic)));
            }
        }
    });
}

fn carry_out_one(world: &World, thread: usize, program: &[Act]) {
    program.iter().for_each(|&act| world.try_act(thread, act));
    world.end_captures(thread);
}

/// All handles are dropped: checks that everything was given back.
fn settle(faults: &Arc<Faults>, wrong: &mut Vec<String>) {
    // The threads of the runtime may have the last handles for a moment.
    wait_until("the runtime outlives its handles", || {
        Arc::strong_count(faults) == 1
    });
    let account = faults.account();
    if account != Default::default() {
        wrong.push(format!("not given back: {account:?}"));
    }
    // Tasks are forgotten in order, and the first may have been delayed until a moment ago.
    faults.let_time_pass();
    let tasks = faults.machine.live_tasks();
    if tasks > TASKS_AT_MOST {
        wrong.push(format!(
            "{tasks} tasks are remembered behind {} calls",
            faults.calls()
        ));
    }
}

fn machine(plan: &Plan) -> Machine {
    // Parsed once: under Miri that takes longer than a program.
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    let profile = PROFILE.get_or_init(Profile::h200);
    let device = |n| (format!("sim:h200:{n}"), profile.clone());
    let devices = (0..plan.devices).map(device).collect();
    Machine::new(devices, plan.schedule, Some(plan.memory_bytes))
}

fn options(plan: &Plan) -> Options {
    let options = Options::new()
        .memory_bytes(plan.memory_bytes)
        .pinned_bytes(plan.pinned_bytes)
        .notice(|_| ());
    let options = if plan.is_synchronous {
        options.synchronous()
    } else {
        options
    };
    if plan.is_tracking {
        options
    } else {
        // SAFETY: nothing is guaranteed: the test shows what happens then, on the simulated GPU, which does not race
        // itself. One thread uses it.
        unsafe { options.untracked() }
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}
