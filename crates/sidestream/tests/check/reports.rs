//! Properties of a whole report: counts, order, wording, and how it ends.

use sidestream::check::Page;

use super::check;
use super::notation::run;

#[test]
fn equal_pairs_count_once() {
    check(
        "kernel s=s1 w=M site=render
         host_read buf=M site=draw
         sync_stream st=s1 site=wait
         kernel s=s1 w=M site=render
         host_read buf=M site=draw
         sync_stream st=s1 site=wait
         kernel s=s1 w=M site=render
         host_read buf=M site=draw
         sync_stream st=s1 site=wait",
        "HOST_RAW M 0 1 s1,t0: sync_stream st=s1 before 1 x3
         SYNC_IN_LOOP 8",
    );
    // Another buffer and another site are separate entries.
    check(
        "kernel s=s1 w=A,B site=x
         kernel s=s2 r=A site=y
         kernel s=s2 r=A site=z
         kernel s=s2 r=B site=y
         kernel s=s2 r=A site=y",
        "RAW A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1 x2
         RAW A 0 2 s1,s2: wait_stream s=s2 src=s1 before 2
         RAW B 0 3 s1,s2: wait_stream s=s2 src=s1 before 3",
    );
}

#[test]
fn lists_are_in_the_order_of_the_operations() {
    check(
        "kernel s=s2 r=B
         kernel s=s1 r=A
         kernel s=s3 w=A,B",
        "WAR B 0 2 s2,s3: wait_stream s=s3 src=s2 before 2
         WAR A 1 2 s1,s3: wait_stream s=s3 src=s1 before 2",
    );
}

#[test]
fn a_report_for_people() {
    let (report, names) = run("kernel s=s1 w=A
         record ev=e s=s1
         copy_async s=s1 from=A to=P
         sync_event ev=e
         host_read buf=P
         pool_get count=33
         kernel s=s2 r=B
         kernel s=s1 w=B");
    let page = Page {
        report: &report,
        names: &names,
        sites: &[],
        listing: None,
    };
    assert_eq!(
        format!("{}\n{}", report.summary(), page.text()),
        "\
1 race, 1 race that CUDA leaves open, 2 remarks

  HOST_RAW on P: the host reads and the device writes, in no defined order. CUDA leaves open whether the call waits.
    op 2 on s1
    op 4 on t0
    t0 waits for s1 only up to op 1
  fix: make the host wait for s1: cudaStreamSynchronize   before op 4

  WAR on B: the second may write while the first still reads.
    op 6 on s2
    op 7 on s1
    nothing makes s1 wait for s2
  fix: make s1 wait for s2: cudaEventRecord in s2, cudaStreamWaitEvent in s1   before op 7

  UNPINNED_ASYNC_COPY: a copy of pageable memory may block the host and does not overlap; use pinned memory
    op 2

  STREAM_POOL_ALIAS: the pool holds fewer streams than were asked for, so some of them are the same stream
    op 5

  Fix them from the last to the first, and check again: they may hide other races.
"
    );
}

/// Of a kernel it may be known which memory it receives, and not whether it writes. The report says so, and what settles it.
#[test]
fn a_guessed_write_is_a_warning_that_says_what_settles_it() {
    let (report, names) = run("kernel s=s1 may_write=A
         kernel s=s2 r=A");
    let page = Page {
        report: &report,
        names: &names,
        sites: &[],
        listing: None,
    };
    assert_eq!(
        format!("{}\n{}", report.summary(), page.text()),
        "\
1 race if its kernel writes

  RAW on A: the second may read before the first has written. The kernel may only read these bytes: its parameter is not a pointer to const.
    op 0 on s1
    op 1 on s2
    nothing makes s2 wait for s1
  fix: make s2 wait for s1: cudaEventRecord in s1, cudaStreamWaitEvent in s2   before op 1
   or: declare the parameter a pointer to `const`, if the kernel only reads

  Fix it and check again: it may hide other races.
"
    );
}

/// One wait orders everything that its stream does afterwards, and is placed before the first of these. Of the races
/// that it fixes, the report describes in full the one that reads memory before it is written.
#[test]
fn races_that_one_call_fixes_are_one_entry() {
    let (report, names) = run("kernel s=s1 r=A
         kernel s=s1 w=B
         kernel s=s2 w=A
         kernel s=s2 r=B
         kernel s=s1 w=C
         kernel s=s2 r=C");
    let page = Page {
        report: &report,
        names: &names,
        sites: &[],
        listing: None,
    };
    assert_eq!(
        page.text(),
        "
  RAW on B: the second may read before the first has written.
    op 1 on s1
    op 3 on s2
    nothing makes s2 wait for s1
  fix: make s2 wait for s1: cudaEventRecord in s1, cudaStreamWaitEvent in s2   before op 2
  the same call fixes one more:
    WAR on A: op 0 on s1, op 2 on s2

  RAW on C: the second may read before the first has written.
    op 4 on s1
    op 5 on s2
    nothing makes s2 wait for s1
  fix: make s2 wait for s1: cudaEventRecord in s1, cudaStreamWaitEvent in s2   before op 5

  Fix them from the last to the first, and check again: they may hide other races.
"
    );
}

/// The names of streams, threads, buffers, spans and places cannot add lines to the report.
#[test]
fn names_stay_in_their_line() {
    const NAME: &str = "\u{1b}[31mred\u{7}\n  RAW on fake: nothing\u{202e}";
    let (report, mut names) = run("kernel s=s1 w=M
         host_read buf=M t=other");
    let all = [&mut names.streams, &mut names.threads, &mut names.buffers];
    all.into_iter()
        .flatten()
        .for_each(|name| *name = NAME.to_owned());
    let sites = [NAME.to_owned(), NAME.to_owned()];
    let page = Page {
        report: &report,
        names: &names,
        sites: &sites,
        listing: None,
    };
    let fix = report.races[0].fix.text(&names);
    for text in [page.text(), fix] {
        assert!(
            text.contains("\\u{1b}[31mred\\u{7}\\n  RAW on fake: nothing\\u{202e}"),
            "{text}"
        );
        let is_plain = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(text.chars().all(is_plain), "{text}");
        assert!(
            !text.lines().any(|line| line.starts_with("  RAW")),
            "{text}"
        );
    }
}

#[test]
fn an_error_ends_the_check_and_keeps_what_was_found() {
    check(
        "kernel s=s1 w=A
         kernel s=s2 r=A
         copy_async s=s1 from=P to=A
         elapsed a=x b=y
         kernel s=s3 w=A",
        "RAW A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1
         WAR A 1 2 s2,s1: wait_stream s=s1 src=s2 before 2
         UNPINNED_ASYNC_COPY 2
         InvalidResourceHandle at 3",
    );
    check(
        "begin_capture s=s1
         kernel s=s1 w=A
         query_stream st=s1 ready=true",
        "StreamCaptureUnsupported at 2",
    );
}
