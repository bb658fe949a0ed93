//! Every fix that the checker prints orders its pair: the fix is inserted into the program, and the oracle then says
//! that the pair is ordered.

use crate::oracle;
use crate::oracle::generate::{Options, random_prog};
use crate::oracle::model::judge;
use crate::oracle::prog::{Act, Op, Prog, StreamKind};
use crate::oracle::vary::varied;
use sidestream::check::{Fix, Names, Race};
use sidestream::op::{DeviceId, StreamId, ThreadId};
use sidestream::order::{Order, Steps};
use sidestream_program::{Command, Program, check, lower};

#[test]
fn a_fix_orders_its_pair() {
    let programs = oracle::programs(2_000, 10_000);
    println!("seeds 0..{programs}, options drawn from each seed");
    let (mut ordered, mut captured, mut untried, mut wrong) = (0, 0u64, 0, Vec::new());
    for seed in 0..programs {
        // A name must refer to one stream for as long as the program runs.
        let options = Options {
            stream_lifetimes: false,
            runtime: false,
            error: false,
            ..Options::from_seed(seed)
        };
        let mut prog = random_prog(seed, &options);
        if seed % 2 == 1 {
            prog = varied(&prog, seed);
        }
        let program = prog.to_program();
        let checked = check(&program);
        let order = devices_of_streams(&program);
        for race in &checked.report.races {
            // The call belongs before the capture that prevents it. If another capture is active there too, no single
            // place is right.
            let beside = captures_at(&prog, race.second.0 as usize);
            if beside && place_of(&race.fix).is_some_and(|at| captures_at(&prog, at)) {
                untried += 1;
                continue;
            }
            captured += u64::from(beside);
            if orders(&prog, race, &checked.names, &order) {
                ordered += 1;
            } else {
                let fix = race.fix.text(&checked.names);
                println!("seed {seed}: `{fix}`\n{}", prog.to_yaml());
                wrong.push(seed);
            }
        }
    }
    println!(
        "{ordered} fixes order their pair, {captured} of them during a capture; {untried} are not tried"
    );
    assert!(wrong.is_empty(), "wrong fixes at seeds {wrong:?}");
    assert!(ordered > programs && captured * 200 > programs && untried * 40 < programs);
}

/// One call that several races share orders the pair of each.
#[test]
fn a_call_orders_all_races_that_it_is_said_to_fix() {
    let programs = oracle::programs(2_000, 10_000);
    println!("seeds 0..{programs}, options drawn from each seed");
    let (mut shared, mut wrong) = (0, Vec::new());
    for seed in 0..programs {
        let options = Options {
            stream_lifetimes: false,
            runtime: false,
            error: false,
            ..Options::from_seed(seed)
        };
        let prog = random_prog(seed, &options);
        let program = prog.to_program();
        let checked = check(&program);
        let order = devices_of_streams(&program);
        let fixes = checked.report.mends(|race| race.fix);
        let listed: usize = fixes.iter().map(|fix| fix.races.len()).sum();
        assert_eq!(listed, checked.report.races.len(), "seed {seed}");
        for shared_fix in fixes.iter().filter(|fix| fix.races.len() > 1) {
            let captured = place_of(&shared_fix.fix).is_some_and(|at| captures_at(&prog, at));
            for &at in &shared_fix.races {
                let race = Race {
                    fix: shared_fix.fix,
                    ..checked.report.races[at]
                };
                // As above: with another capture no single place is right.
                if captures_at(&prog, race.second.0 as usize) || captured {
                    continue;
                }
                shared += 1;
                if !orders(&prog, &race, &checked.names, &order) {
                    let fix = race.fix.text(&checked.names);
                    println!("seed {seed}: `{fix}` for {race:?}\n{}", prog.to_yaml());
                    wrong.push(seed);
                }
            }
        }
    }
    println!("{shared} pairs are ordered by a call that they share");
    assert!(wrong.is_empty(), "wrong calls at seeds {wrong:?}");
    assert!(shared * 20 > programs, "{shared} pairs share a call");
}

/// Returns the op before which a call of the fix is inserted.
fn place_of(fix: &Fix) -> Option<usize> {
    match fix {
        Fix::WaitStream { before, .. }
        | Fix::SyncStream { before, .. }
        | Fix::SyncEvent { before, .. } => Some(before.0 as usize),
        Fix::RecordStream { .. } | Fix::Flag { .. } => None,
    }
}

/// Returns whether a capture is active when this op is called.
fn captures_at(prog: &Prog, op: usize) -> bool {
    let count = |begins: bool| {
        let earlier = prog.ops[..op].iter();
        let these = earlier.filter(|op| match op.act {
            Act::BeginCapture { .. } => begins,
            Act::EndCapture { .. } => !begins,
            _ => false,
        });
        these.count()
    };
    count(true) > count(false)
}

/// Returns whether the oracle calls the pair ordered once the fix is inserted.
fn orders(prog: &Prog, race: &Race, names: &Names, order: &Order) -> bool {
    let (fixed, moved) = with_fix(prog, race, names, order);
    let answer = judge(&fixed);
    let pair = (moved(race.first.0 as usize), moved(race.second.0 as usize));
    let buffer = race.buffer.map(|buffer| names.buffer(buffer));
    let same = |r: &crate::oracle::model::Race| (r.first, r.second) == pair && r.buffer == buffer;
    let refused = answer.error.is_some_and(|(at, _)| at <= pair.1);
    answer.outside.is_empty() && !refused && !answer.races.iter().any(same)
}

/// Returns a rule book that knows the streams of a program, including those without a name.
pub fn devices_of_streams(program: &Program) -> Order {
    let lowered = lower(program);
    let (mut order, mut steps) = (Order::new(), Steps::new());
    lowered.declare(&mut order);
    for command in &lowered.commands {
        if let Command::Op(op) = command
            && order.push(op, &mut steps).is_err()
        {
            break;
        }
    }
    order
}

/// Returns the program with the fix of a race inserted, and the new places of its ops.
pub fn with_fix(
    prog: &Prog,
    race: &Race,
    names: &Names,
    order: &Order,
) -> (Prog, impl Fn(usize) -> usize + use<>) {
    let mut fixed = prog.clone();
    let mut stream = |id: StreamId| -> String {
        let name = names.stream(id);
        let declared = fixed.streams.iter().any(|(known, ..)| *known == name);
        if declared || !name.starts_with("legacy") {
            return name;
        }
        // The format has no word for a legacy stream without a name.
        let DeviceId(device) = order.device_of(id);
        let name = format!("unnamed{device}");
        let decl = (name.clone(), StreamKind::Legacy, device);
        if !fixed.streams.contains(&decl) {
            fixed.streams.push(decl);
        }
        name
    };
    let at = |op: sidestream::op::OpId| op.0 as usize;
    let inserted: Vec<(usize, ThreadId, Act)> = match race.fix {
        Fix::WaitStream {
            stream: s,
            source,
            before,
            thread,
        } => {
            let (s, src) = (stream(s), stream(source));
            vec![(at(before), thread, Act::WaitStream { s, src })]
        }
        Fix::SyncStream {
            stream: st,
            before,
            thread,
        } => {
            let st = stream(st);
            vec![(at(before), thread, Act::SyncStream { st })]
        }
        Fix::SyncEvent {
            event,
            before,
            thread,
        } => {
            let ev = names.event(event);
            vec![(at(before), thread, Act::SyncEvent { ev })]
        }
        Fix::RecordStream {
            buffer,
            stream: st,
            before,
            thread,
        } => {
            let (buf, st) = (names.buffer(buffer), stream(st));
            vec![(at(before), thread, Act::RecordStream { buf, st })]
        }
        Fix::Flag {
            after,
            by,
            before,
            on,
        } => {
            let flag = "fix".to_owned();
            let set = Act::SetFlag { flag: flag.clone() };
            vec![
                (at(after) + 1, by, set),
                (at(before), on, Act::WaitFlag { flag }),
            ]
        }
    };
    let places: Vec<usize> = inserted.iter().map(|(place, ..)| *place).collect();
    // From the back, so that earlier places stay valid.
    for (place, thread, act) in inserted.into_iter().rev() {
        let thread = names.thread(thread);
        let op = Op {
            thread,
            site: None,
            act,
        };
        fixed.ops.insert(place, op);
    }
    let moved = move |op: usize| op + places.iter().filter(|&&place| place <= op).count();
    (fixed, moved)
}
