//! Sets of moments, as spans that do not touch.

/// Spans in order, none of which touches the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    spans: Vec<(i64, i64)>,
}

impl Spans {
    /// Adds a span. Spans come in the order of their starts; its end is not before its start.
    pub fn push(&mut self, start_ns: i64, end_ns: i64) {
        match self.spans.last_mut() {
            Some(last) if start_ns <= last.1 => last.1 = last.1.max(end_ns),
            _ => self.spans.push((start_ns, end_ns)),
        }
    }

    /// The spans.
    pub fn iter(&self) -> impl Iterator<Item = (i64, i64)> {
        self.spans.iter().copied()
    }

    /// How much time they cover.
    pub fn total_ns(&self) -> u64 {
        self.iter().map(|(start, end)| end.abs_diff(start)).sum()
    }

    /// How much time passes from the start of the first to the end of the last.
    pub fn extent_ns(&self) -> u64 {
        match (self.spans.first(), self.spans.last()) {
            (Some(first), Some(last)) => last.1.abs_diff(first.0),
            _ => 0,
        }
    }

    /// What lies between neighbours.
    pub fn gaps(&self) -> impl Iterator<Item = (i64, i64)> {
        self.spans.windows(2).map(|pair| (pair[0].1, pair[1].0))
    }

    /// How much time both cover.
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

    /// What of them the others do not cover.
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
                // It may cover the beginning of the next one too.
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

    /// How much time of a span they cover.
    pub fn within_ns(&self, start_ns: i64, end_ns: i64) -> u64 {
        let first = self.spans.partition_point(|span| span.1 <= start_ns);
        let inside = self.spans[first..].iter().take_while(|s| s.0 < end_ns);
        inside
            .map(|s| s.1.min(end_ns).abs_diff(s.0.max(start_ns)))
            .sum()
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
    fn what_two_sets_share() {
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
    }
}
