//! Sets of time, as spans that do not touch.

/// Adds with saturation: files may state times whose sums overflow.
pub fn add(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}

/// Spans in order, none of which touches the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    spans: Vec<(i64, i64)>,
    /// Time covered by all spans before each [`BLOCK`]th one, so that sums need not start at the first span.
    before_ns: Vec<u64>,
}

/// The maximum number of spans that are added up for a sum.
const BLOCK: usize = 64;

impl Spans {
    /// Adds a span. Spans must come in the order of their starts; `end_ns` must not be before `start_ns`.
    pub fn push(&mut self, start_ns: i64, end_ns: i64) {
        match self.spans.last_mut() {
            Some(last) if start_ns <= last.1 => last.1 = last.1.max(end_ns),
            _ => {
                if self.spans.len().is_multiple_of(BLOCK) {
                    self.before_ns.push(self.total_ns());
                }
                self.spans.push((start_ns, end_ns));
            }
        }
    }

    /// Returns the spans.
    pub fn iter(&self) -> impl Iterator<Item = (i64, i64)> {
        self.spans.iter().copied()
    }

    /// Returns how much time the spans cover.
    pub fn total_ns(&self) -> u64 {
        self.first_ns(self.spans.len())
    }

    /// Returns how much time the first `count` spans cover.
    fn first_ns(&self, count: usize) -> u64 {
        // The sum before a block exists as soon as the block has a span.
        let block = count.saturating_sub(1) / BLOCK;
        let before_ns = self.before_ns.get(block).copied().unwrap_or(0);
        let rest = &self.spans[(block * BLOCK).min(count)..count];
        before_ns + rest.iter().map(|s| s.1.abs_diff(s.0)).sum::<u64>()
    }

    /// Returns the time from the start of the first span to the end of the last.
    pub fn extent_ns(&self) -> u64 {
        match (self.spans.first(), self.spans.last()) {
            (Some(first), Some(last)) => last.1.abs_diff(first.0),
            _ => 0,
        }
    }

    /// Returns the gaps between neighbouring spans.
    pub fn gaps(&self) -> impl Iterator<Item = (i64, i64)> {
        self.spans.windows(2).map(|pair| (pair[0].1, pair[1].0))
    }

    /// Returns the time that lies in both sets.
    pub fn shared_ns(&self, other: &Spans) -> u64 {
        let (mut mine, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        let mut shared = 0;
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            let (start, end) = (a.0.max(b.0), a.1.min(b.1));
            if start < end {
                shared += end.abs_diff(start);
            }
            if a.1 < b.1 {
                mine.next();
            } else {
                theirs.next();
            }
        }
        shared
    }

    /// Returns the parts that `other` does not cover.
    pub fn without(&self, other: &Spans) -> Spans {
        let mut left = Spans::default();
        let mut others = other.iter().peekable();
        for (mut start, end) in self.iter() {
            while let Some(&(from, to)) = others.peek()
                && from < end
            {
                if start < from {
                    left.push(start, from);
                }
                start = start.max(to);
                // The span of `other` may also cover the beginning of the next span of `self`.
                if to > end {
                    break;
                }
                others.next();
            }
            if start < end {
                left.push(start, end);
            }
        }
        left
    }

    /// Returns how much of a span the set covers.
    pub fn within_ns(&self, start_ns: i64, end_ns: i64) -> u64 {
        let first = self.spans.partition_point(|span| span.1 <= start_ns);
        let after = self.spans.partition_point(|span| span.0 < end_ns);
        if first >= after || end_ns <= start_ns {
            return 0;
        }
        let whole_ns = self.first_ns(after) - self.first_ns(first);
        let (first, last) = (self.spans[first], self.spans[after - 1]);
        let before_ns = start_ns.max(first.0).abs_diff(first.0);
        let behind_ns = last.1.abs_diff(end_ns.min(last.1));
        whole_ns - before_ns - behind_ns
    }
}

impl FromIterator<(i64, i64)> for Spans {
    fn from_iter<I: IntoIterator<Item = (i64, i64)>>(spans: I) -> Spans {
        let mut set = Spans::default();
        for (start, end) in spans {
            set.push(start, end);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(list: &[(i64, i64)]) -> Spans {
        list.iter().copied().collect()
    }

    #[test]
    fn spans_that_touch_are_one() {
        let set = spans(&[(0, 5), (2, 3), (5, 7), (9, 9), (12, 20)]);
        assert_eq!(set, spans(&[(0, 7), (9, 9), (12, 20)]));
        assert_eq!((set.total_ns(), set.extent_ns()), (15, 20));
        assert_eq!(set.gaps().collect::<Vec<_>>(), [(7, 9), (9, 12)]);
        assert_eq!(spans(&[]).extent_ns(), 0);
    }

    #[test]
    fn what_they_cover_of_a_span() {
        let a = spans(&[(0, 10), (20, 30)]);
        let b = spans(&[(5, 25), (28, 40)]);
        assert_eq!(a.shared_ns(&b), 5 + 5 + 2);
        assert_eq!(b.shared_ns(&a), 12);
        assert_eq!(a.shared_ns(&spans(&[])), 0);
        assert_eq!(a.without(&b), spans(&[(0, 5), (25, 28)]));
        assert_eq!(b.without(&a), spans(&[(10, 20), (30, 40)]));
        assert_eq!(a.without(&spans(&[(-5, 40)])), spans(&[]));
        assert_eq!(a.without(&spans(&[])), a);
        assert_eq!(a.within_ns(5, 22), 5 + 2);
        assert_eq!(a.within_ns(10, 20), 0);
        assert_eq!(a.within_ns(2, 4), 2);
        assert_eq!(a.within_ns(-5, 50), 20);
        assert_eq!(a.within_ns(8, 8), 0);
        assert_eq!(a.within_ns(25, 22), 0);
        assert_eq!(spans(&[]).within_ns(0, 9), 0);
    }

    #[test]
    fn sums_over_many_spans_are_those_of_each() {
        let list: Vec<(i64, i64)> = (0..1_000).map(|at| (10 * at, 10 * at + at % 9)).collect();
        let set = spans(&list);
        for (from, to) in [
            (0, 10_000),
            (3, 9_995),
            (639, 641),
            (640, 1_280),
            (5_003, 5_004),
        ] {
            let each = list.iter().map(|s| s.1.min(to) - s.0.max(from));
            let sum: i64 = each.map(|ns| ns.max(0)).sum();
            assert_eq!(set.within_ns(from, to), sum as u64, "{from} to {to}");
        }
        for count in 0..200 {
            let sum: i64 = list[..count].iter().map(|s| s.1 - s.0).sum();
            assert_eq!(spans(&list[..count]).total_ns(), sum as u64, "{count}");
        }
    }
}
