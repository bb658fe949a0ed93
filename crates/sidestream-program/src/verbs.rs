//! The ops of the format: what each is called and which fields it takes.

/// One `do` of the format. Every op also takes `do`, `t` and `site`.
#[derive(Debug)]
pub(crate) struct Verb {
    pub(crate) name: &'static str,
    /// Fields that have to be there.
    pub(crate) needs: &'static [&'static str],
    /// Fields that may be there.
    pub(crate) may: &'static [&'static str],
}

const fn verb(
    name: &'static str,
    needs: &'static [&'static str],
    may: &'static [&'static str],
) -> Verb {
    Verb { name, needs, may }
}

pub(crate) const VERBS: &[Verb] = &[
    verb("kernel", &["s"], &["r", "w", "repeat"]),
    verb("copy_async", &["s", "from", "to"], &[]),
    verb("memset_async", &["s", "to"], &[]),
    verb("copy", &["from", "to"], &[]),
    verb("memset", &["to"], &[]),
    verb("host_func", &["s"], &["r", "w", "sets"]),
    verb("graph_launch", &["s", "g"], &["r", "w"]),
    verb("record", &["ev", "s"], &[]),
    verb("wait", &["s", "ev"], &[]),
    verb("wait_stream", &["s", "src"], &[]),
    verb("sync_stream", &["st"], &[]),
    verb("sync_event", &["ev"], &[]),
    verb("sync_device", &[], &["dev"]),
    verb("query_stream", &["st"], &["ready"]),
    verb("query_event", &["ev"], &["ready"]),
    verb("set_flag", &["flag"], &[]),
    verb("wait_flag", &["flag"], &[]),
    verb("host_read", &["buf"], &[]),
    verb("host_write", &["buf"], &[]),
    verb(
        "alloc",
        &["buf"],
        &["s", "over", "after_events", "must_alias", "must_not_alias"],
    ),
    verb("free", &["buf"], &[]),
    verb("record_stream", &["buf", "st"], &[]),
    verb("malloc_async", &["buf", "s"], &[]),
    verb("free_async", &["buf", "s"], &[]),
    verb("cuda_malloc", &["buf"], &[]),
    verb("cuda_free", &["buf"], &[]),
    verb("free_pinned", &["buf"], &[]),
    verb("elapsed", &["a", "b"], &[]),
    verb("create_event", &["ev"], &[]),
    verb("destroy_event", &["ev"], &[]),
    verb("create_stream", &["st"], &[]),
    verb("destroy_stream", &["st"], &[]),
    verb("set_device", &["dev"], &[]),
    verb("begin_capture", &["s"], &[]),
    verb("end_capture", &["s"], &[]),
    verb("sim_hold", &["st"], &[]),
    verb("sim_release", &["st"], &[]),
    verb("set_capacity", &["blocks"], &[]),
    verb("pool_get", &["count", "first", "last"], &[]),
];

impl Verb {
    pub(crate) fn named(name: &str) -> Option<&'static Verb> {
        VERBS.iter().find(|verb| verb.name == name)
    }

    /// "s, from and to", for people who wrote another field.
    pub(crate) fn fields(&self) -> String {
        let all = self.needs.iter().chain(self.may);
        let mut text = String::new();
        for field in all.chain(&["t", "site"]) {
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push('`');
            text.push_str(field);
            text.push('`');
        }
        text
    }
}

/// The word closest to what was written, if it is close enough to be meant.
pub(crate) fn closest<'w>(written: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // Longer than every word of the format: not a slip of the keyboard.
    if written.len() > 32 {
        return None;
    }
    words
        .map(|word| (distance(written, word), word))
        .filter(|&(distance, word)| distance <= word.len() / 3)
        .min()
        .map(|(_, word)| word)
}

/// Edits between two words (Levenshtein), one row of the table at a time.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
