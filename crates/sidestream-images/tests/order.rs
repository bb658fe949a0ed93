//! The order of samples and their division among ranks.

use sidestream_images::order::{Order, Uneven};

use crate::pictures::Draw;

fn order(samples: u64, world: u32, uneven: Uneven) -> Order {
    Order {
        samples,
        seed: 7,
        shuffle: true,
        rank: 0,
        world,
        uneven,
    }
}

/// Returns the samples of the ranks, in the order of the epoch.
fn epoch(order: Order, epoch: u64) -> Vec<u64> {
    let places = (0..order.len()).flat_map(|place| (0..order.world).map(move |rank| (place, rank)));
    places
        .map(|(place, rank)| {
            Order { rank, ..order }
                .checked()
                .unwrap()
                .sample(epoch, place)
        })
        .collect()
}

#[test]
fn an_epoch_has_each_sample_once() {
    for samples in [1, 2, 3, 5, 64, 1_000, 4_095, 4_096, 4_097, 70_001] {
        let mut all = epoch(order(samples, 1, Uneven::Drop), 3);
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..samples), "{samples}");
    }
}

#[test]
fn ranks_share_an_epoch_without_overlap_and_evenly() {
    let mut draw = Draw::new(2);
    for _ in 0..50 {
        let (samples, world) = (1 + draw.below(500), 1 + draw.below(9) as u32);
        for uneven in [Uneven::Drop, Uneven::Repeat] {
            let order = order(samples, world, uneven);
            if order.is_empty() {
                assert!(order.checked().unwrap_err().to_string().contains("too few"));
                continue;
            }
            let alone = epoch(Order { world: 1, ..order }, 1);
            let shared = epoch(order, 1);
            let whole = alone.iter().cycle().take(shared.len());
            assert!(
                shared.iter().eq(whole),
                "{samples} samples, {world} ranks, {uneven:?}"
            );
            let rest = samples % u64::from(world);
            let expected = match uneven {
                Uneven::Drop => samples - rest,
                Uneven::Repeat => samples.next_multiple_of(world.into()),
            };
            assert_eq!(shared.len() as u64, expected);
        }
    }
}

#[test]
fn seeds_and_epochs_give_other_orders_and_unshuffled_ones_none() {
    let first = epoch(order(1_000, 1, Uneven::Drop), 0);
    assert_eq!(first, epoch(order(1_000, 1, Uneven::Drop), 0));
    assert_ne!(first, epoch(order(1_000, 1, Uneven::Drop), 1));
    assert_ne!(
        first,
        epoch(
            Order {
                seed: 8,
                ..order(1_000, 1, Uneven::Drop)
            },
            0
        )
    );
    let plain = epoch(
        Order {
            shuffle: false,
            ..order(1_000, 1, Uneven::Drop)
        },
        5,
    );
    assert!(plain.into_iter().eq(0..1_000));
}

#[test]
fn all_orders_of_a_few_samples_are_equally_likely() {
    let mut counts = std::collections::HashMap::new();
    for number in 0..12_000 {
        *counts
            .entry(epoch(order(4, 1, Uneven::Drop), number))
            .or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 24);
    // 500 each, with a standard deviation of 22.
    assert!(
        counts.values().all(|count| (400..600).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn invalid_ranks_are_refused() {
    let why = |rank, world| {
        Order {
            rank,
            ..order(10, world, Uneven::Drop)
        }
        .checked()
        .unwrap_err()
        .to_string()
    };
    assert_eq!(
        why(0, 0),
        "`world` is 0; give the number of ranks that share the data, at least 1"
    );
    assert_eq!(
        why(2, 2),
        "`rank` is 2 and `world` is 2; ranks count from 0 to 1"
    );
}
