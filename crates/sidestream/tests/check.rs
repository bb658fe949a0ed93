//! The checker as text: a program in, its findings out; and every fix that it prints, when applied, makes the program
//! clean.

mod memory;
mod notation;
mod reports;

use sidestream::check::{Race, Report, Severity, Verdict};

use notation::{Names, is_op, lines, run};

/// Checks `program` and compares, line by line: races as `KIND buffer first second streams: fix`, then lints as
/// `CODE op`, then the error. A race may end in `(warn)` and in `xN`. Afterwards applies the printed fixes until no
/// race is left.
#[track_caller]
fn check(program: &str, expected: &str) {
    let (report, names) = run(program);
    let got = render(&report, &names);
    let expected: Vec<&str> = lines(expected).collect();
    assert_eq!(got, expected, "\nprogram:\n{program}");
    if report.error.is_none() {
        follow_the_fixes(program);
    }
}

#[track_caller]
fn check_clean(program: &str) {
    check(program, "");
}

fn render(report: &Report, names: &Names) -> Vec<String> {
    let race = |race: &Race| {
        let buffer = race.buffer.map_or("-".to_owned(), |b| names.buffer(b));
        let warn = match race.severity() {
            Severity::Warn => " (warn)",
            Severity::Error => "",
        };
        let count = match race.count {
            1 => String::new(),
            n => format!(" x{n}"),
        };
        let (first, second) = (names.chain(race.chains.0), names.chain(race.chains.1));
        let (kind, ops, fix) = (
            race.kind.code(),
            format!("{} {}", race.first.0, race.second.0),
            race.fix.text(names),
        );
        format!("{kind} {buffer} {ops} {first},{second}: {fix}{warn}{count}")
    };
    let mut lines: Vec<String> = report.races.iter().map(race).collect();
    let lints = report.lints.iter();
    lines.extend(lints.map(|lint| format!("{} {}", lint.code.code(), lint.op.0)));
    let error = report.error.iter();
    lines.extend(error.map(|e| format!("{} at {}", e.misuse.code.name(), e.op.0)));
    let verdict = match (&report.error, report.races.is_empty()) {
        (Some(_), _) => Verdict::Error,
        (None, false) => Verdict::Race,
        (None, true) => Verdict::Clean,
    };
    assert_eq!(report.verdict(), verdict);
    lines
}

/// Applies the first printed fix until the report is clean. A fix must order the pair that it was printed for, and
/// introduce no finding.
#[track_caller]
fn follow_the_fixes(program: &str) {
    let mut program: Vec<String> = lines(program).map(str::to_owned).collect();
    for round in 0..40 {
        let text = program.join("\n");
        let (report, names) = run(&text);
        assert_eq!(report.error, None, "a fix broke the program:\n{text}");
        let Some(race) = report.races.first() else {
            return;
        };
        let (first, second) = (race.first.0 as usize, race.second.0 as usize);
        let fix = race
            .fix
            .text(&names)
            .replace("=done", &format!("=done{round}"));
        let mut inserted = Vec::new();
        // From the back, so that earlier numbers stay valid.
        for part in fix.split(", ").collect::<Vec<_>>().into_iter().rev() {
            let place = |word: &str| {
                let (call, at) = part.rsplit_once(word)?;
                Some((call.to_owned(), at.parse::<usize>().ok()?))
            };
            let (call, op) = place(" before ")
                .or_else(|| place(" after ").map(|(call, op)| (call, op + 1)))
                .unwrap_or_else(|| panic!("a fix without a place: {fix}"));
            let at = line_of(&program, op);
            program.insert(at, call);
            inserted.push(op);
        }
        let moved = |op: usize| op + inserted.iter().filter(|&&at| at <= op).count();
        let same = |race: &Race| {
            let pair = (race.first.0 as usize, race.second.0 as usize);
            pair == (moved(first), moved(second))
        };
        let (after, _) = run(&program.join("\n"));
        assert!(
            !after.races.iter().any(same),
            "the fix `{fix}` did not order its pair:\n{text}"
        );
    }
    panic!("the fixes do not end:\n{}", program.join("\n"));
}

/// Returns the line of the operation with this number.
fn line_of(program: &[String], op: usize) -> usize {
    let ops = program.iter().enumerate().filter(|(_, line)| is_op(line));
    let mut at = ops.map(|(at, _)| at).skip(op);
    at.next().unwrap_or(program.len())
}

// ------------------------------------------------------------------ on the device

#[test]
fn raw_and_its_fixed_twins() {
    check(
        "kernel s=s1 w=A
         kernel s=s2 r=A",
        "RAW A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1",
    );
    check_clean(
        "kernel s=s1 w=A
         record ev=e s=s1
         wait s=s2 ev=e
         kernel s=s2 r=A",
    );
    check_clean(
        "kernel s=s1 w=A
         kernel s=s1 r=A",
    );
}

#[test]
fn war_and_waw() {
    check(
        "kernel s=s1 r=A
         memset_async s=s2 to=A
         copy_async s=s3 from=B to=A",
        "WAR A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1
         WAW A 1 2 s2,s3: wait_stream s=s3 src=s2 before 2",
    );
}

#[test]
fn of_several_kinds_that_fit_one_pair_the_first_is_printed() {
    // Both kernels read and write: RAW, not WAR or WAW.
    check(
        "kernel s=s1 r=A w=A
         kernel s=s2 r=A w=A",
        "RAW A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1",
    );
    // The first reads and writes, the second only writes: WAR before WAW.
    check(
        "kernel s=s1 r=A w=A
         kernel s=s2 w=A",
        "WAR A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1",
    );
    // On different bytes of one buffer.
    check(
        "kernel s=s1 r=A[0:512] w=A[512:1024]
         kernel s=s2 w=A",
        "WAR A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1",
    );
    check(
        "kernel s=s1 r=A[0:512] w=A
         kernel s=s2 w=A[512:1024]",
        "WAW A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1",
    );
}

#[test]
fn a_wait_is_a_snapshot() {
    check(
        "kernel s=s1 w=A
         record ev=e s=s1
         kernel s=s1 w=B
         wait s=s2 ev=e
         kernel s=s2 r=A,B",
        "RAW B 2 4 s1,s2: wait_stream s=s2 src=s1 before 4",
    );
}

#[test]
fn a_race_hides_no_other() {
    // The write of s2 races with that of s1 and takes its place. s3 is ordered after s2 only, and s1's next write is
    // unordered with s3's.
    check(
        "kernel s=s1 w=A
         kernel s=s2 w=A
         wait_stream s=s3 src=s2
         kernel s=s3 w=A
         kernel s=s1 w=A",
        "WAW A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1
         WAW A 3 4 s3,s1: wait_stream s=s1 src=s3 before 4",
    );
    // Every reader counts, even one that another reader is ordered after.
    check(
        "kernel s=s1 r=A
         wait_stream s=s2 src=s1
         kernel s=s2 r=A
         kernel s=s3 w=A",
        "WAR A 0 3 s1,s3: wait_stream s=s3 src=s1 before 3
         WAR A 2 3 s2,s3: wait_stream s=s3 src=s2 before 3",
    );
    // A racy write does not make an ordered reader look unordered.
    check(
        "kernel s=s1 w=A
         kernel s=s2 w=A
         wait_stream s=s3 src=s2
         kernel s=s3 r=A",
        "WAW A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1",
    );
}

#[test]
fn one_more_reader_than_fits_in_place() {
    let readers = (1..=9).map(|n| format!("kernel s=s{n} r=A\n"));
    let program = readers.collect::<String>() + "kernel s=s5 w=A";
    let racing = (1..=9).filter(|&n| n != 5).map(|n| {
        let op = n - 1;
        format!("WAR A {op} 9 s{n},s5: wait_stream s=s5 src=s{n} before 9\n")
    });
    check(&program, &racing.collect::<String>());
}

// ------------------------------------------------------------------ host and device

#[test]
fn the_host_against_the_device() {
    check(
        "copy_async s=s1 from=A to=H
         host_read buf=H",
        "HOST_RAW H 0 1 s1,t0: sync_stream st=s1 before 1",
    );
    check(
        "copy_async s=s1 from=H to=A
         host_write buf=H",
        "HOST_WAR H 0 1 s1,t0: sync_stream st=s1 before 1",
    );
    check(
        "kernel s=s1 w=M
         host_write buf=M",
        "HOST_WAW M 0 1 s1,t0: sync_stream st=s1 before 1",
    );
    check_clean(
        "host_write buf=H
         copy_async s=s1 from=H to=A
         kernel s=s1 r=A w=B
         copy_async s=s1 from=B to=H
         sync_stream st=s1
         host_read buf=H",
    );
}

#[test]
fn the_host_side_listed_first() {
    // Another thread reads while t0 hands the memory to the device.
    check(
        "host_read buf=M t=reader
         kernel s=s1 w=M",
        "HOST_RAW M 0 1 reader,s1: \
         set_flag flag=done0 t=reader after 0, wait_flag flag=done0 before 1",
    );
    check(
        "host_write buf=H t=writer
         copy_async s=s1 from=H to=A",
        "HOST_WAR H 0 1 writer,s1: \
         set_flag flag=done0 t=writer after 0, wait_flag flag=done0 before 1",
    );
}

#[test]
fn two_host_threads() {
    check(
        "host_write buf=H t=a
         host_read buf=H t=b
         host_write buf=H t=c",
        "HOST_RAW H 0 1 a,b: set_flag flag=done0 t=a after 0, wait_flag flag=done0 t=b before 1
         HOST_WAW H 0 2 a,c: set_flag flag=done0 t=a after 0, wait_flag flag=done0 t=c before 2
         HOST_WAR H 1 2 b,c: set_flag flag=done1 t=b after 1, wait_flag flag=done1 t=c before 2",
    );
}

#[test]
fn a_host_function_is_the_host_in_stream_order() {
    check(
        "copy_async s=s1 from=A to=H
         host_func s=s1 r=H
         host_func s=s2 r=H w=H
         host_write buf=H",
        "HOST_RAW H 0 2 s1,s2: wait_stream s=s2 src=s1 before 2
         HOST_WAR H 1 2 s1,s2: wait_stream s=s2 src=s1 before 2
         HOST_WAR H 2 3 s2,t0: sync_stream st=s2 before 3",
    );
    check(
        "copy_async s=s1 from=H1 to=A
         copy_async s=s2 from=H2 to=B
         host_func s=s1 sets=sent
         wait_flag flag=sent t=filler
         host_write buf=H1 t=filler
         host_write buf=H2 t=filler",
        "HOST_WAR H2 1 5 s2,filler: sync_stream st=s2 t=filler before 5",
    );
}

#[test]
fn blocking_copies() {
    // R19: the transfer of a pageable upload may still run in the legacy stream; the caller has read the source.
    check(
        "host_write buf=P
         copy from=P to=A
         host_write buf=P
         kernel s=s1 r=A",
        "RAW A 1 3 legacy,s1: wait_stream s=s1 src=legacy before 3",
    );
    // Pinned: complete on return. A download: complete on return.
    check_clean(
        "copy from=H to=A
         kernel s=s1 r=A w=B
         sync_stream st=s1
         copy from=B to=P
         host_read buf=P
         host_write buf=H",
    );
    // R20: between device buffers the call returns at once.
    check(
        "copy from=A to=B
         kernel s=s1 r=B",
        "RAW B 0 1 legacy,s1: wait_stream s=s1 src=legacy before 1",
    );
    // A blocking stream waits for the legacy stream implicitly.
    check_clean(
        "stream name=b kind=blk
         copy from=A to=B
         kernel s=b r=B",
    );
    check(
        "copy from=P to=A t=other
         host_write buf=P",
        "HOST_WAR P 0 1 other,t0: set_flag flag=done0 t=other after 0, wait_flag flag=done0 before 1",
    );
}

// ------------------------------------------------------------------ times

#[test]
fn times_of_events_that_are_not_known_complete() {
    check(
        "record ev=a s=s1
         kernel s=s1 w=A
         record ev=b s=s1
         elapsed a=a b=b
         sync_event ev=a
         elapsed a=a b=b
         sync_event ev=b
         elapsed a=a b=b",
        "TIMING - 2 3 s1,t0: sync_event ev=b before 3
         TIMING - 2 5 s1,t0: sync_event ev=b before 5",
    );
    check(
        "record ev=a s=s1
         record ev=b s=s2
         sync_stream st=s2
         elapsed a=a b=b",
        "TIMING - 0 3 s1,t0: sync_event ev=a before 3",
    );
    check_clean(
        "record ev=a s=s1
         record ev=b s=s1
         query_event ev=b ready=true
         elapsed a=a b=b",
    );
}

// ------------------------------------------------------------------ lints

#[test]
fn every_lint_and_its_quiet_twin() {
    check(
        "copy_async s=s1 from=P to=A
         copy_async s=s1 from=H to=A",
        "UNPINNED_ASYNC_COPY 0",
    );
    check(
        "wait s=s1 ev=e
         record ev=e s=s2
         wait s=s1 ev=e
         create_event ev=e
         wait s=s1 ev=e",
        "WAIT_ON_UNRECORDED_EVENT 0
         WAIT_ON_UNRECORDED_EVENT 4",
    );
    check(
        "kernel s=s1
         sync_stream st=s1 site=x
         kernel s=s1
         sync_device site=x
         sync_stream st=s1 site=y
         sync_stream st=s1
         sync_stream st=s1
         sync_stream st=s1
         kernel s=s2
         sync_device site=x
         kernel s=s2
         sync_device site=x",
        "SYNC_IN_LOOP 9",
    );
    // All was queued ahead of the first wait.
    check_clean(
        "kernel s=s1 w=A
         kernel s=s1 w=B
         kernel s=s1 w=C
         sync_stream st=s1 site=x
         sync_stream st=s1 site=x
         sync_stream st=s1 site=x
         sync_stream st=s1 site=x",
    );
    check(
        "stream name=v kind=nb dev=1
         kernel s=v w=A
         copy_async s=v from=H to=B
         set_device dev=1
         kernel s=v w=A",
        "FOREIGN_DEVICE_LAUNCH 0",
    );
    check(
        "pool_get count=32
         pool_get count=34",
        "STREAM_POOL_ALIAS 1",
    );
}

#[test]
fn the_default_stream_between_two_others() {
    let streams = "stream name=b1 kind=blk
                   stream name=b2 kind=ptds
                   stream name=d kind=legacy\n";
    let check = |program: &str, expected| check(&format!("{streams}{program}"), expected);
    check(
        "kernel s=b1 r=A w=B
         memset_async s=d to=Z
         copy_async s=b2 from=H to=C",
        "DEFAULT_STREAM_SERIALIZATION 1",
    );
    check(
        "kernel s=b1 r=A w=B
         memset to=Z
         copy from=H to=Z
         kernel s=b1 w=B
         kernel s=s1 w=E
         kernel s=b2 w=C",
        "DEFAULT_STREAM_SERIALIZATION 1
         DEFAULT_STREAM_SERIALIZATION 2",
    );
    // Two streams have work before that of the legacy stream, and one of them continues.
    check(
        "kernel s=b1 w=A
         kernel s=b2 w=B
         kernel s=d w=Z
         kernel s=b1 w=A",
        "DEFAULT_STREAM_SERIALIZATION 2",
    );
    // Known complete; the same stream only; no other work; a record does not count as work.
    for quiet in [
        "kernel s=b1 w=B
         sync_stream st=b1
         memset_async s=d to=Z
         kernel s=b2 w=C",
        "kernel s=b1 w=B
         memset_async s=d to=Z
         kernel s=b1 w=C",
        "kernel s=b1 w=B
         memset_async s=d to=Z
         record ev=e s=b2",
        "kernel s=b1 w=B
         record ev=e s=d
         kernel s=b2 w=C",
        "kernel s=s1 w=B
         memset_async s=d to=Z
         kernel s=b2 w=C",
    ] {
        check(quiet, "");
    }
}

// ------------------------------------------------------------------ captures

#[test]
fn captured_work_does_not_run_and_replays_do() {
    let program = "begin_capture s=s1
         copy_async s=s1 from=H to=A
         record ev=fork s=s1
         wait s=s2 ev=fork
         kernel s=s2 r=A w=B
         record ev=join s=s2
         wait s=s1 ev=join
         end_capture s=s1
         host_write buf=H
         graph_launch s=s1 g=step r=H w=A,B\n";
    check_clean(&format!(
        "{program}
         sync_stream st=s1
         host_write buf=H
         graph_launch s=s3 g=step r=H w=A,B"
    ));
    check(
        &format!(
            "{program}
             host_write buf=H
             graph_launch s=s3 g=step r=H w=A,B
             graph_launch s=s4 g=other w=A"
        ),
        "HOST_WAR H 9 10 s1,t0: sync_stream st=s1 before 10
         WAW A 11 12 s3,s4: wait_stream s=s4 src=s3 before 12",
    );
}
