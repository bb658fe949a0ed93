//! Reads mappings with known keys.

use std::collections::HashSet;

use crate::error::{Fault, shown};
use crate::yaml::{Kind, View};

use super::scalars::described;

/// The keys and values of a mapping without duplicate keys.
#[derive(Debug)]
pub(crate) struct Record<'t> {
    pub(crate) line: usize,
    pub(crate) entries: Vec<(&'t str, View<'t>)>,
}

impl<'t> Record<'t> {
    /// Reads a mapping; `what` describes the expected value for messages.
    pub(crate) fn read(view: View<'t>, what: &str) -> Result<Self, Fault> {
        let Kind::Mapping(items) = view.kind() else {
            return Err(Fault::new(
                view.line(),
                format!("{} is given where {what} is expected", described(view)),
            ));
        };
        let mut entries = Vec::with_capacity(items.len() / 2);
        let mut children = items.iter();
        while let (Some(key), Some(value)) = (children.next(), children.next()) {
            let Kind::Scalar(text, _) = key.kind() else {
                return Err(Fault::new(
                    key.line(),
                    format!("{} is given where a key is expected", described(key)),
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
                "this key appears twice in one mapping; remove one",
            )
            .in_field(key)),
            None => Ok(record),
        }
    }

    /// Returns the first duplicate key.
    fn twice(&self) -> Option<(&'t str, View<'t>)> {
        // Ops have a few keys; declarations may have thousands.
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

    /// Returns an error for the first unknown key.
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
