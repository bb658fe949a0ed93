//! A mapping of which the keys are known beforehand.

use std::collections::HashSet;

use crate::error::{Fault, shown};
use crate::yaml::{Kind, View};

use super::scalars::described;

/// The keys and values of a mapping, every key once.
#[derive(Debug)]
pub(crate) struct Record<'t> {
    pub(crate) line: usize,
    pub(crate) entries: Vec<(&'t str, View<'t>)>,
}

impl<'t> Record<'t> {
    /// Reads a mapping; `what` says what it should have been.
    pub(crate) fn read(view: View<'t>, what: &str) -> Result<Self, Fault> {
        let Kind::Mapping(items) = view.kind() else {
            return Err(Fault::new(
                view.line(),
                format!("{} stands where {what} belongs", described(view)),
            ));
        };
        let mut entries = Vec::with_capacity(items.len() / 2);
        let mut children = items.iter();
        while let (Some(key), Some(value)) = (children.next(), children.next()) {
            let Kind::Scalar(text, _) = key.kind() else {
                return Err(Fault::new(
                    key.line(),
                    format!("{} stands where a key belongs", described(key)),
                ));
            };
            entries.push((text, value));
        }
        let record = Self {
            line: view.line(),
            entries,
        };
        match record.twice() {
            Some((key, again)) => Err(Fault::new(
                again.line(),
                "this key stands twice in one mapping; remove one",
            )
            .in_field(key)),
            None => Ok(record),
        }
    }

    /// The first key that stands there for the second time.
    fn twice(&self) -> Option<(&'t str, View<'t>)> {
        // Ops have a handful of keys; declarations may have thousands.
        if self.entries.len() <= 16 {
            let mut at = 0..self.entries.len();
            let at = at.find(|&at| {
                let key = self.entries[at].0;
                self.entries[..at].iter().any(|&(before, _)| before == key)
            })?;
            return Some(self.entries[at]);
        }
        let mut seen = HashSet::new();
        self.entries
            .iter()
            .copied()
            .find(|&(key, _)| !seen.insert(key))
    }

    pub(crate) fn get(&self, key: &str) -> Option<View<'t>> {
        self.entries
            .iter()
            .find(|entry| entry.0 == key)
            .map(|entry| entry.1)
    }

    /// Fails on the first key that is none of those known.
    pub(crate) fn only(
        &self,
        known: impl Fn(&str) -> bool,
        remedy: impl Fn() -> String,
    ) -> Result<(), Fault> {
        match self.entries.iter().find(|&&(key, _)| !known(key)) {
            Some((key, value)) => Err(Fault::new(
                value.line(),
                format!("`{}` is not known here; {}", shown(key), remedy()),
            )
            .in_field(key)),
            None => Ok(()),
        }
    }
}
