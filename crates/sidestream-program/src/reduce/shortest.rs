//! Delta debugging: drops what is not needed, large parts first (Zeller and Hildebrandt, "Simplifying and Isolating
//! Failure-Inducing Input", 2002, without its steps that keep a single part, which rarely help where most items can
//! be dropped).

/// Returns a minimal part of `kept` for which `holds` is true, and whether it is certainly minimal: `limit` bounds
/// the total number of items that are tested. `holds` must be true for all of `kept`.
pub fn shortest(
    mut kept: Vec<usize>,
    limit: u64,
    mut holds: impl FnMut(&[usize]) -> bool,
) -> (Vec<usize>, bool) {
    let mut left = limit;
    let mut part = kept.len();
    while part > 0 && !kept.is_empty() {
        let (mut at, mut is_less) = (0, false);
        while at < kept.len() {
            let end = kept.len().min(at + part);
            let without: Vec<usize> = [&kept[..at], &kept[end..]].concat();
            let Some(rest) = left.checked_sub(without.len() as u64 + 1) else {
                return (kept, false);
            };
            left = rest;
            if holds(&without) {
                (kept, is_less) = (without, true);
            } else {
                at = end;
            }
        }
        // Repeat with single items until none can be dropped: an item may be droppable once another is gone.
        part = match part {
            1 if !is_less => 0,
            1 => 1,
            _ => part.div_ceil(2),
        };
    }
    (kept, true)
}

#[cfg(test)]
mod tests {
    use super::shortest;

    #[test]
    fn items_that_are_needed_together_are_kept() {
        let needed = [3, 400, 401, 999];
        let all: Vec<usize> = (0..1_000).collect();
        let mut tries = 0;
        let (kept, is_shortest) = shortest(all, u64::MAX, |items| {
            tries += 1;
            needed.iter().all(|item| items.contains(item))
        });
        assert_eq!((&kept[..], is_shortest), (&needed[..], true));
        assert!(tries < 200, "{tries} tries");
    }

    #[test]
    fn an_item_that_needs_another_goes_before_it() {
        // Each item can be dropped only after the next one.
        let holds = |items: &[usize]| {
            items.windows(2).all(|two| two[1] == two[0] + 1)
                && items.first().is_none_or(|&first| first == 0)
        };
        let (kept, is_shortest) = shortest((0..9).collect(), u64::MAX, holds);
        assert_eq!((kept, is_shortest), (Vec::new(), true));
    }

    #[test]
    fn the_search_ends_at_its_limit() {
        let (kept, is_shortest) = shortest((0..100).collect(), 1_000, |items| items.len() > 90);
        assert!(!is_shortest && kept.len() > 90);
    }
}
