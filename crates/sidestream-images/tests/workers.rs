//! The threads of a loader: how many work, when they stop, and how their failures are reported.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

use sidestream_images::load::{Loader, Options};
use sidestream_images::{Key, Region, Size};

use crate::load::{all, data, files, part, slab, small};

#[test]
fn a_loader_that_is_dropped_leaves_no_thread() {
    // Each thread owns a share of what the function owns.
    let share = Arc::new(());
    let held = Arc::clone(&share);
    let choose = move |key, size| {
        let _ = &held;
        part(key, size)
    };
    let mut loader = Loader::new(
        data(files(30)),
        Options {
            workers: 5,
            ..small()
        },
        choose,
        slab,
    )
    .unwrap();
    loader.next().unwrap();
    drop(loader);
    assert_eq!(Arc::strong_count(&share), 1);
}

#[test]
fn panics_and_mistakes_of_the_callers_functions_are_errors_of_their_batch() {
    let data = data(files(12));
    let options = Options {
        shuffle: false,
        ..small()
    };
    let choose = |key: Key, size: Size| match key.sample {
        5 => panic!("no region for five"),
        9 => Region {
            left: size.width,
            ..all(key, size)
        },
        _ => all(key, size),
    };
    let mut loader = Loader::new(Arc::clone(&data), options.clone(), choose, slab).unwrap();
    assert_eq!(loader.next().unwrap().unwrap().len(), 4);
    let why = loader.next().err().unwrap().to_string();
    assert_eq!(
        why,
        "5.jpg: the function that chooses a region panicked: no region for five"
    );
    let why = loader.next().err().unwrap().to_string();
    assert!(
        why.starts_with("9.jpg: ") && why.contains("ask for at least one pixel"),
        "{why}"
    );
    assert!(loader.next().unwrap().is_none());
    assert_eq!(loader.next().unwrap().unwrap().len(), 4);

    let make = |_| -> Result<Vec<u8>, String> { panic!("no slab today") };
    let mut loader = Loader::new(data, options, all, make).unwrap();
    assert!(
        loader
            .next()
            .err()
            .unwrap()
            .to_string()
            .contains("no slab today")
    );
}

#[test]
fn workers_pause_when_no_batch_is_taken() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let choose = move |key, size| {
        count.fetch_add(1, SeqCst);
        part(key, size)
    };
    let options = Options {
        depth: 2,
        batch: 3,
        ..small()
    };
    let mut loader = Loader::new(data(files(30)), options, choose, slab).unwrap();
    for taken in 1..8 {
        drop(loader.next().unwrap());
        assert!(
            asked.load(SeqCst) <= 3 * (taken + 2),
            "{} after {taken}",
            asked.load(SeqCst)
        );
    }
}

#[test]
fn files_are_decoded_side_by_side() {
    // If one worker did everything, the others would never reach the barrier.
    let barrier = Arc::new(Barrier::new(3));
    let meet = Arc::clone(&barrier);
    let choose = move |key: Key, size| {
        if key.epoch == 0 && key.sample < 3 {
            meet.wait();
        }
        all(key, size)
    };
    let options = Options {
        workers: 3,
        shuffle: false,
        ..small()
    };
    let mut loader = Loader::new(data(files(6)), options, choose, slab).unwrap();
    assert_eq!(loader.next().unwrap().unwrap().len(), 4);
}

/// As many workers as cores is usual, and the threads of the training must have precedence.
#[cfg(target_os = "linux")]
#[test]
fn workers_have_a_lower_priority_than_other_threads() {
    let nice = |stat: &str| {
        // After the name, which is in parentheses: the 17th field.
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(16)?.parse::<i32>().ok()
    };
    let own = nice(&std::fs::read_to_string("/proc/thread-self/stat").unwrap()).unwrap();
    let mut loader = Loader::new(data(files(6)), Options::default(), all, slab).unwrap();
    // The workers have started, since they read this batch.
    loader.next().unwrap().unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // Threads of other tests may end meanwhile.
    let stats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let workers: Vec<_> = stats.filter(|stat| stat.contains("(images-")).collect();
    assert!(
        workers
            .iter()
            .any(|stat| nice(stat) == Some((own + 10).min(19))),
        "{workers:?}"
    );
}
