//! Data in, batches out: equal batches regardless of the workers.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use sidestream_images::load::{ALIGN_BYTES, Batch, Loader, OnBroken, Options, State};
use sidestream_images::order::Uneven;
use sidestream_images::source::Dataset;
use sidestream_images::{Broken, Error, Key, Placed, Region, Size, decode};

use crate::pictures::{Draw, Jpeg, png};

pub type Files = Vec<(String, Vec<u8>, Option<u32>)>;

/// Returns small pictures of many sizes; the label is the number.
pub fn files(many: u32) -> Files {
    let file = |number: u32| {
        let (width, height) = (9 + number * 7 % 40, 8 + number * 5 % 30);
        let jpeg = Jpeg {
            progressive: number.is_multiple_of(5),
            ..Jpeg::default()
        };
        (
            format!("{number}.jpg"),
            jpeg.encode(width, height),
            Some(number),
        )
    };
    (0..many).map(file).collect()
}

pub fn data(files: Files) -> Arc<Dataset> {
    Arc::new(Dataset::memory(files).unwrap())
}

pub fn all(_: Key, size: Size) -> Region {
    Region {
        left: 0,
        top: 0,
        size,
    }
}

/// Returns a region that depends on the key.
pub fn part(key: Key, size: Size) -> Region {
    let mut draw = Draw(key.seed ^ key.epoch << 20 ^ key.sample);
    let left = draw.below(u64::from(size.width) / 2) as u32;
    let top = draw.below(u64::from(size.height) / 2) as u32;
    let size = Size {
        width: size.width / 2,
        height: size.height / 2,
    };
    Region { left, top, size }
}

pub fn slab(bytes: usize) -> Result<Vec<u8>, String> {
    Ok(vec![0; bytes])
}

fn loader(data: &Arc<Dataset>, options: &Options) -> Loader {
    Loader::new(Arc::clone(data), options.clone(), part, slab).unwrap()
}

pub fn small() -> Options {
    Options {
        batch: 4,
        workers: 2,
        seed: 9,
        ..Options::default()
    }
}

/// The parts of a batch that are compared.
type Seen = (u64, Vec<Placed>, Vec<Key>, Vec<Option<u32>>, Vec<Vec<u8>>);

fn seen(batch: &Batch) -> Seen {
    let pixels = (0..batch.len())
        .map(|picture| batch.pixels(picture).to_vec())
        .collect();
    (
        batch.epoch(),
        batch.placed().to_vec(),
        batch.keys().to_vec(),
        batch.labels().to_vec(),
        pixels,
    )
}

fn rest_of_epoch(loader: &mut Loader) -> Vec<Seen> {
    std::iter::from_fn(|| loader.next().unwrap().map(|batch| seen(&batch))).collect()
}

fn labels(batches: &[Seen]) -> Vec<u32> {
    batches
        .iter()
        .flat_map(|(_, _, _, labels, _)| labels.iter().flatten().copied())
        .collect()
}

fn refused(options: Options) -> String {
    let made = Loader::new(data(files(6)), options, all, slab);
    made.err().expect("it is refused").to_string()
}

#[test]
fn batches_do_not_depend_on_workers_or_depth() {
    let data = data(files(23));
    let mut expected = None;
    for (workers, depth) in [(1, 1), (1, 4), (2, 2), (7, 1), (5, 6)] {
        let mut loader = loader(
            &data,
            &Options {
                workers,
                depth,
                ..small()
            },
        );
        let epochs = [rest_of_epoch(&mut loader), rest_of_epoch(&mut loader)];
        assert_eq!(
            epochs[0]
                .iter()
                .map(|batch| batch.1.len())
                .collect::<Vec<_>>(),
            [4, 4, 4, 4, 4, 3]
        );
        let mut once = labels(&epochs[0]);
        once.sort_unstable();
        assert!(once.into_iter().eq(0..23));
        assert_ne!(labels(&epochs[0]), labels(&epochs[1]));
        let expected = expected.get_or_insert_with(|| epochs.clone());
        assert!(*expected == epochs, "{workers} workers, depth {depth}");
    }
}

#[test]
fn a_slab_has_the_regions_one_after_another() {
    let files = files(8);
    let mut loader = loader(
        &data(files.clone()),
        &Options {
            batch: 8,
            ..small()
        },
    );
    let batch = loader.next().unwrap().unwrap();
    let mut end = 0;
    for (picture, placed) in batch.placed().iter().enumerate() {
        assert_eq!(placed.offset, u64::next_multiple_of(end, ALIGN_BYTES));
        end = placed.offset + batch.pixels(picture).len() as u64;
        let key = batch.keys()[picture];
        assert_eq!((key.seed, key.epoch), (9, 0));
        assert_eq!(placed.held, part(key, placed.full));
        // The chosen region is decoded by itself.
        let bytes = &files[key.sample as usize].1;
        let mut decoder = decode::Decoder::new(decode::Options::default());
        let header = decoder.look(bytes).unwrap();
        let mut pixels = vec![0; batch.pixels(picture).len()];
        decoder
            .decode(bytes, &header, placed.held, &mut pixels)
            .unwrap();
        assert!(pixels == batch.pixels(picture));
    }
    assert_eq!(batch.used_bytes(), end);
}

#[test]
fn a_run_resumes_at_any_batch_with_other_workers_and_batches() {
    let data = data(files(21));
    let options = Options {
        batch: 2,
        ..small()
    };
    let mut whole = loader(&data, &options);
    let mut all: Vec<Seen> = Vec::new();
    let mut states = vec![whole.state()];
    for _ in 0..2 {
        while let Some(batch) = whole.next().unwrap() {
            all.push(seen(&batch));
            states.push(whole.state());
        }
    }
    for (after, state) in states.iter().enumerate().step_by(3) {
        let mut resumed = loader(
            &data,
            &Options {
                workers: 3,
                depth: 1,
                ..options.clone()
            },
        );
        // The loader is at another place, and has prepared batches there.
        resumed.next().unwrap();
        resumed
            .load_state(&State::from_json(&state.to_json()).unwrap())
            .unwrap();
        let next = resumed
            .next()
            .unwrap()
            .expect("no epoch without batches is met");
        if after < all.len() {
            assert!(seen(&next) == all[after], "after {after}");
        }
    }
    // The remaining pictures of the epoch, in batches of another size.
    let mut other = loader(
        &data,
        &Options {
            batch: 5,
            ..options
        },
    );
    other.load_state(&states[4]).unwrap();
    assert_eq!(labels(&rest_of_epoch(&mut other)), labels(&all[4..11]));
}

#[test]
fn ranks_share_an_epoch_and_resume_as_fewer() {
    let data = data(files(24));
    let rank = |rank, world| {
        loader(
            &data,
            &Options {
                rank,
                world,
                batch: 2,
                ..small()
            },
        )
    };
    let mut alone = rank(0, 1);
    let alone = labels(&rest_of_epoch(&mut alone));
    let mut four: Vec<Loader> = (0..4).map(|number| rank(number, 4)).collect();
    let mut shared = vec![0; 24];
    for (number, loader) in four.iter_mut().enumerate() {
        for (place, label) in labels(&rest_of_epoch(loader)).into_iter().enumerate() {
            shared[place * 4 + number] = label;
        }
    }
    assert_eq!(alone, shared);
    // Each rank has returned two batches of two: 16 samples are seen.
    let mut first = rank(0, 4);
    first.next().unwrap();
    first.next().unwrap();
    let state = first.state();
    assert_eq!(state.seen, 16);
    let mut two = [rank(0, 2), rank(1, 2)];
    let rest = two.each_mut().map(|loader| {
        loader.load_state(&state).unwrap();
        labels(&rest_of_epoch(loader))
    });
    let rest: Vec<u32> = rest[0]
        .iter()
        .zip(&rest[1])
        .flat_map(|(a, b)| [*a, *b])
        .collect();
    assert_eq!(rest, alone[16..]);
    let mut three = rank(0, 3);
    let why = three.load_state(&state).unwrap_err().to_string();
    assert!(
        why.contains("samples seen: 16") && why.contains("3 ranks"),
        "{why}"
    );
}

#[test]
fn a_state_of_something_else_is_refused() {
    let state = loader(&data(files(10)), &small()).state();
    let why = |files: Files, options: Options, state: &State| {
        let mut loader = Loader::new(data(files), options, all, slab).unwrap();
        let before = loader.state();
        let why = loader.load_state(state).unwrap_err().to_string();
        assert_eq!(loader.state(), before);
        why
    };
    let mut renamed = files(10);
    renamed[3].0 = "other.jpg".into();
    assert!(why(renamed, small(), &state).contains("the files or their labels have changed since"));
    let mut relabelled = files(10);
    relabelled[3].2 = Some(77);
    assert!(why(relabelled, small(), &state).contains("digest"));
    let seed = why(files(10), Options { seed: 1, ..small() }, &state);
    assert_eq!(
        seed,
        "the state has seed 9, and this loader 1; make the loader with the same options"
    );
    let decoder = State {
        decoder: "another".into(),
        ..state.clone()
    };
    assert!(why(files(10), small(), &decoder).contains("the pixels would differ"));
    assert!(
        why(
            files(10),
            small(),
            &State {
                seen: 11,
                ..state.clone()
            }
        )
        .contains("the state belongs to another loader")
    );
    for epoch in [1 << 32, 10u64.pow(18), 1 << 63, u64::MAX] {
        let late = State {
            epoch,
            ..state.clone()
        };
        assert_eq!(
            why(files(10), small(), &late),
            format!(
                "the state has epoch {epoch}, and no run has more than 4294967296; give the saved text unchanged"
            )
        );
    }
    assert!(
        why(
            files(10),
            small(),
            &State {
                version: 2,
                ..state
            }
        )
        .contains("version 2")
    );
    assert_eq!(
        State::from_json("{}").unwrap_err().to_string(),
        "this is not the state of a loader: missing field `version`; give the saved text unchanged"
    );
}

/// Returns files of which some are broken: in the header, or at the end.
fn with_broken(many: u32, broken: &[u32]) -> Files {
    let mut files = files(many);
    for number in broken {
        let bytes = &mut files[*number as usize].1;
        match number % 2 {
            0 => bytes.truncate(bytes.len() * 2 / 3),
            _ => bytes.truncate(1),
        }
    }
    files
}

#[test]
fn broken_pictures_end_a_batch_are_skipped_or_replaced() {
    let data = data(with_broken(12, &[2, 3, 7]));
    let options = |broken| Options {
        broken,
        shuffle: false,
        ..small()
    };
    let mut failing = loader(&data, &options(OnBroken::Fail));
    let why = failing.next().err().expect("it has broken pictures");
    let Error::Picture {
        sample: 2,
        name,
        why: Broken::Truncated,
    } = &why
    else {
        panic!("{why:?}");
    };
    assert_eq!(name, "2.jpg");
    assert!(
        why.to_string()
            .contains("fix or remove it, or have broken pictures skipped or replaced")
    );
    assert!(failing.next().is_err());
    assert_eq!(labels(&rest_of_epoch(&mut failing)), [8, 9, 10, 11]);

    let mut skipping = loader(&data, &options(OnBroken::Skip));
    let first = skipping.next().unwrap().unwrap();
    let named = first
        .broken()
        .iter()
        .map(|broken| (broken.name.as_str(), &broken.why, broken.replaced_by));
    let named: Vec<_> = named.collect();
    assert_eq!(
        named,
        [
            ("2.jpg", &Broken::Truncated, None),
            ("3.jpg", &Broken::Unknown, None)
        ]
    );
    assert_eq!(
        labels(&rest_of_epoch(&mut skipping)),
        [4, 5, 6, 8, 9, 10, 11]
    );
    assert_eq!((skipping.loaded(), skipping.broken()), (9, 3));

    for workers in [1, 4] {
        let options = Options {
            workers,
            ..options(OnBroken::Replace)
        };
        let mut replacing = loader(&data, &options);
        let batches = rest_of_epoch(&mut replacing);
        assert_eq!(labels(&batches), [0, 1, 4, 4, 4, 5, 6, 8, 8, 9, 10, 11]);
        let good = rest_of_epoch(&mut loader(&self::data(files(12)), &options));
        let same = |batch: usize, picture: usize, of: usize, at: usize| {
            assert!(
                batches[batch].4[picture] == good[of].4[at],
                "{batch} {picture}"
            );
        };
        same(0, 1, 0, 1);
        same(0, 2, 1, 0);
        same(0, 3, 1, 0);
        same(1, 3, 2, 0);
    }
}

#[test]
fn batches_of_broken_pictures_alone_are_left_out() {
    let data = data(with_broken(12, &[4, 5, 6, 7, 8, 9, 10, 11]));
    let options = Options {
        shuffle: false,
        broken: OnBroken::Skip,
        ..small()
    };
    let mut loader = loader(&data, &options);
    assert_eq!(labels(&rest_of_epoch(&mut loader)), [0, 1, 2, 3]);
    assert_eq!(loader.broken(), 8);
    assert_eq!(labels(&rest_of_epoch(&mut loader)), [0, 1, 2, 3]);
    let all = self::data(with_broken(5, &[0, 1, 2, 3, 4]));
    let mut none = self::loader(
        &all,
        &Options {
            broken: OnBroken::Replace,
            ..options
        },
    );
    let why = none.next().err().unwrap().to_string();
    assert!(
        why.contains("0.jpg: ") && why.contains("the 4 pictures after it are broken too"),
        "{why}"
    );
}

#[test]
fn a_picture_of_another_format_than_its_name_is_decoded() {
    let mut files = files(4);
    files[1].1 = png(3, 2, png::ColorType::Rgb, png::BitDepth::Eight, &[5; 18]);
    let mut loader = Loader::new(
        data(files),
        Options {
            shuffle: false,
            ..small()
        },
        all,
        slab,
    )
    .unwrap();
    let batch = loader.next().unwrap().unwrap();
    assert_eq!(batch.pixels(1), [5; 18]);
}

#[test]
fn bombs_cost_no_memory() {
    let mut files = files(4);
    let bomb = &mut files[1].1;
    let frame = bomb.windows(2).position(|two| two == [0xFF, 0xC0]).unwrap();
    bomb[frame + 5..frame + 9].copy_from_slice(&[0xFD, 0xE8, 0xFD, 0xE8]);
    let most = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&most);
    let make = move |bytes| {
        asked.fetch_max(bytes, SeqCst);
        slab(bytes)
    };
    let options = Options {
        shuffle: false,
        broken: OnBroken::Skip,
        ..small()
    };
    let mut loader = Loader::new(data(files), options, all, make).unwrap();
    let batch = loader.next().unwrap().unwrap();
    assert!(matches!(batch.broken()[0].why, Broken::TooLarge { .. }));
    assert!(most.load(SeqCst) <= 1 << 16);
}

#[test]
fn slabs_grow_to_what_batches_need_and_no_further_than_allowed() {
    let files = vec![
        ("small.jpg".into(), Jpeg::default().encode(20, 20), None),
        ("large.jpg".into(), Jpeg::default().encode(300, 300), None),
    ];
    let data = data(files);
    let options = Options {
        batch: 1,
        shuffle: false,
        ..small()
    };
    let mut loader = Loader::new(Arc::clone(&data), options.clone(), all, slab).unwrap();
    assert_eq!(loader.next().unwrap().unwrap().bytes().len(), 65_536);
    assert_eq!(
        loader.next().unwrap().unwrap().bytes().len(),
        (270_000 * 5 / 4_usize).next_multiple_of(65_536)
    );
    let options = Options {
        max_slab_bytes: 269_999,
        ..options
    };
    let mut loader = Loader::new(Arc::clone(&data), options.clone(), all, slab).unwrap();
    loader.next().unwrap();
    let why = loader.next().err().unwrap().to_string();
    assert!(
        why.contains("need 270000 bytes") && why.contains("raise `max_slab_bytes`"),
        "{why}"
    );
    assert!(loader.next().unwrap().is_none());

    let none = |bytes: usize| {
        if bytes > 65_536 {
            Err("pinned memory is used up".into())
        } else {
            slab(bytes)
        }
    };
    let options = Options {
        max_slab_bytes: 1 << 30,
        ..options
    };
    let mut loader = Loader::new(data, options, all, none).unwrap();
    loader.next().unwrap();
    let why = loader.next().err().unwrap();
    assert!(
        matches!(&why, Error::Memory(why) if why.contains("pinned memory is used up")),
        "{why}"
    );
}

#[test]
fn replacing_makes_a_full_slab_larger() {
    // The replacement does not fit after the good picture.
    let files = vec![
        ("a.jpg".into(), Jpeg::default().encode(30, 30), None),
        ("bad.jpg".into(), vec![0], None),
        ("large.jpg".into(), Jpeg::default().encode(200, 200), None),
        ("b.jpg".into(), Jpeg::default().encode(30, 30), None),
    ];
    let options = Options {
        batch: 2,
        shuffle: false,
        broken: OnBroken::Replace,
        ..small()
    };
    let mut loader = Loader::new(data(files), options, all, slab).unwrap();
    let first = loader.next().unwrap().unwrap();
    let second = loader.next().unwrap().unwrap();
    assert_eq!(first.pixels(1).len(), 120_000);
    assert!(first.pixels(1) == second.pixels(0) && first.pixels(0) == second.pixels(1));
}

#[test]
fn the_ring_has_as_many_slabs_as_it_says() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let make = move |bytes| {
        count.fetch_add(1, SeqCst);
        slab(bytes)
    };
    let options = Options {
        depth: 2,
        ..small()
    };
    let mut loader = Loader::new(data(files(40)), options, part, make).unwrap();
    for _ in 0..3 {
        while let Some(batch) = loader.next().unwrap() {
            drop(batch);
        }
    }
    // Two slabs are in the ring, and the caller holds one.
    assert!(made.load(SeqCst) <= 3, "{}", made.load(SeqCst));
    // A caller that keeps more batches has more slabs, which are given back later.
    let held: Vec<_> = (0..6).map(|_| loader.next().unwrap().unwrap()).collect();
    let most = made.load(SeqCst);
    assert!((6..=9).contains(&most), "{most}");
    let distinct: BTreeMap<_, _> = held
        .into_iter()
        .map(|mut batch| (batch.bytes().as_ptr() as usize, batch))
        .collect();
    assert_eq!(distinct.len(), 6);
    drop(distinct);
    assert!(loader.idle_slabs() <= 3);
    let mut batch = loader.next().unwrap().unwrap();
    let slab = batch.take_slab().unwrap();
    assert!(batch.bytes().is_empty());
    drop(batch);
    loader.give_back(slab);
}

#[test]
fn a_batch_outlives_its_loader() {
    let mut loader = loader(&data(files(8)), &small());
    let batch = loader.next().unwrap().unwrap();
    drop(loader);
    assert_eq!(
        batch.pixels(3).len() as u64,
        u64::from(batch.placed()[3].held.size.width * batch.placed()[3].held.size.height) * 3
    );
}

#[test]
fn going_to_an_epoch_discards_prepared_batches() {
    let data = data(files(10));
    let mut one = loader(&data, &small());
    one.next().unwrap();
    one.set_epoch(4);
    let there = rest_of_epoch(&mut one);
    assert!(there.iter().all(|batch| batch.0 == 4));
    let mut other = loader(&data, &small());
    other.set_epoch(4);
    assert!(rest_of_epoch(&mut other) == there);
    assert_eq!(one.epoch(), 5);
    while !one.ready(Duration::from_secs(1)).unwrap() {}
    assert!(one.next().unwrap().is_some());
}

#[test]
fn the_last_batch_may_be_dropped_and_uneven_ends_repeated() {
    let data = data(files(11));
    let options = Options {
        drop_last: true,
        ..small()
    };
    let mut dropping = loader(&data, &options);
    assert_eq!(
        (dropping.batches(), rest_of_epoch(&mut dropping).len()),
        (2, 2)
    );
    let lengths = [Uneven::Drop, Uneven::Repeat].map(|uneven| {
        let options = Options {
            world: 3,
            rank: 2,
            uneven,
            ..small()
        };
        labels(&rest_of_epoch(&mut loader(&data, &options))).len()
    });
    assert_eq!(lengths, [3, 4]);
}

#[test]
fn invalid_options_are_refused() {
    assert!(
        refused(Options {
            batch: 0,
            ..small()
        })
        .contains("`batch` is 0")
    );
    assert!(
        refused(Options {
            depth: 0,
            ..small()
        })
        .contains("`depth` is 0")
    );
    assert!(
        refused(Options {
            batch: 7,
            drop_last: true,
            ..small()
        })
        .contains("has no whole batch of 7")
    );
    assert!(
        refused(Options {
            world: 7,
            ..small()
        })
        .contains("too few for 7 ranks")
    );
    assert!(catch_unwind(|| data(files(1)).label(1)).is_err());
}

#[test]
fn memory_of_the_runtime_serves_as_slab() {
    use sidestream::buffer::Pinned;
    let device = sidestream::device::Device::open("sim:h200").unwrap();
    let make = move |bytes| {
        device
            .pinned::<u8>(bytes)
            .map_err(|error| error.to_string())
    };
    let mut loader: Loader<Pinned<u8>> = Loader::new(data(files(8)), small(), all, make).unwrap();
    let mut batch = loader.next().unwrap().unwrap();
    let first = batch.placed()[0];
    assert!(
        batch.bytes()[first.offset as usize..][..100]
            .iter()
            .any(|byte| *byte != 0)
    );
}
