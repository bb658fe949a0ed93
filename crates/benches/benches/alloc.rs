//! The cost of an allocation and its free in the cache alone: `cargo bench -p sidestream-benches --bench alloc`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use sidestream::alloc::{Cache, Granted, Need, On, Rules, State, Uses};
use sidestream::backend::Address;
use sidestream::op::{DeviceId, StreamId};

/// The last use of a block; there is only one stream here.
#[derive(Clone, Default)]
struct Last {
    on: Option<StreamId>,
    token: u64,
}

impl Uses for Last {
    fn merge(&mut self, other: Last) {
        self.on = self.on.or(other.on);
        self.token = self.token.max(other.token);
    }

    fn on(&self) -> On {
        self.on.map_or(On::NoStream, On::Only)
    }
}

const HOME: StreamId = StreamId(3);

fn take(cache: &mut Cache<Last>, bytes: u64) -> Granted<Last> {
    loop {
        match cache.alloc(bytes, Some(HOME), |_| State::Pending) {
            Ok(granted) => return granted,
            Err(Need::Segment(growth)) => {
                let at = growth.at.unwrap_or(Address(1 << 40));
                cache.add_segment(at, growth.bytes);
            }
            Err(_) => unreachable!("there is no limit"),
        }
    }
}

fn used(token: u64) -> Last {
    let on = Some(HOME);
    Last { on, token }
}

fn alloc(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate and free");
    let rules = Rules::device(DeviceId(0), u64::MAX);

    group.bench_function("same stream, same size", |bencher| {
        let mut cache = Cache::new(rules);
        let mut token = 0;
        bencher.iter(|| {
            let granted = take(&mut cache, black_box(65_536));
            token += 1;
            cache.free(granted.piece, used(token));
        });
    });

    group.bench_function("sixteen sizes held at once, in turn", |bencher| {
        let mut cache = Cache::new(rules);
        let mut held: Vec<_> = (0..16).map(|n| take(&mut cache, 4096 << (n % 8))).collect();
        let mut at = 0;
        bencher.iter(|| {
            at = (at + 1) % held.len();
            let next = take(&mut cache, black_box(4096 << (at % 8)));
            let last = std::mem::replace(&mut held[at], next);
            cache.free(last.piece, used(1));
        });
    });

    group.bench_function("sizes that never come again, 1,000 held", |bencher| {
        let mut cache = Cache::new(rules);
        let mut drawn = 1_u64;
        let mut size = move || {
            drawn = drawn
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            512 + (drawn >> 44)
        };
        let mut held: Vec<_> = (0..1_000).map(|_| take(&mut cache, size())).collect();
        let mut at = 0;
        bencher.iter(|| {
            at = (at + 617) % held.len();
            let next = take(&mut cache, black_box(size()));
            let last = std::mem::replace(&mut held[at], next);
            cache.free(last.piece, used(1));
        });
    });
}

criterion_group!(benches, alloc);
criterion_main!(benches);
