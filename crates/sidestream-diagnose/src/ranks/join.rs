//! Joins the exchanges of one rank with those of the others.
//!
//! Collectives of a process group have sequence numbers (`Seq`) that are equal on all its ranks. Where a trace has none, or
//! where the ranks' numbers do not match, the nth exchange of an operation and size in the group is the nth on each rank. Sends
//! and receives are the nth from one rank to another, as NCCL matches them. Whether exchanges that were joined by their order
//! belong together is decided by their ends: a collective ends on all ranks at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::digest::{Digest, NO_SEQ, Row};
use crate::model::ExchangeKind;

/// How the members of an exchange depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bond {
    /// No rank completes before all have arrived: reductions and gathers to all, barriers.
    Together,
    /// Some ranks may complete before others arrive: broadcasts, reductions to one.
    Rooted,
    /// A send and its receive.
    Pair,
    /// A send that was complete before its receive began: small messages go into a buffer of the receiver.
    Buffered,
}

/// The kind of operation, by PyTorch's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Group(Bond),
    Send,
    Receive,
    /// One or more sends or receives, of which the trace does not say more.
    Unknown,
}

fn operation(name: &str) -> Operation {
    // "reduce" is also the end of "allreduce".
    const ROOTED: [&str; 6] = [
        "broadcast",
        "_broadcast_oop",
        "reduce",
        "_reduce_oop",
        "gather",
        "scatter",
    ];
    match name {
        "send" | "isend" => Operation::Send,
        "recv" | "irecv" | "recvAnySource" => Operation::Receive,
        "send or receive" | "coalesced" | "wait" => Operation::Unknown,
        _ if ROOTED.contains(&name) => Operation::Group(Bond::Rooted),
        _ => Operation::Group(Bond::Together),
    }
}

/// A process group of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name; empty where the traces do not state the groups of exchanges.
    pub name: String,
    /// Its description by the program.
    pub description: String,
    /// Number of its ranks, where that is known.
    pub size: Option<usize>,
    /// The ranks that have traces with exchanges in it, as indices.
    pub members: BTreeSet<u32>,
    /// Whether its exchanges have sequence numbers and were joined by them.
    pub is_numbered: bool,
    /// Whether the join can be relied on: a join by sequence numbers always can; otherwise the members of exchanges that end
    /// together must end at about one time.
    pub is_sound: bool,
}

impl Group {
    /// Returns how many of its ranks have no trace here, or none of its exchanges.
    pub fn missing(&self) -> usize {
        let size = self.size.unwrap_or(self.members.len());
        size.saturating_sub(self.members.len())
    }
}

/// An exchange with its members.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    /// Index of its group.
    pub group: u32,
    /// How its members depend on each other.
    pub bond: Bond,
    /// Index of its first member in [`Joined::members`].
    pub first: u32,
    /// Number of its members.
    pub count: u32,
}

/// One rank's part in an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The rank, as an index.
    pub rank: u32,
    /// Index of the row in the rank's digest.
    pub row: u32,
}

/// The exchanges of all ranks, joined.
#[derive(Clone, Debug, Default)]
pub struct Joined {
    /// The groups of which there are exchanges.
    pub groups: Vec<Group>,
    /// The exchanges.
    pub instances: Vec<Instance>,
    /// Their members.
    pub members: Vec<Member>,
    /// Number of rows to which no exchange of another rank belongs.
    pub alone: u64,
    /// Number of all rows.
    pub rows: u64,
    /// Number of rows that do not state their group, in a trace whose other rows do.
    pub unpaired: u64,
}

impl Joined {
    /// Returns the members of an exchange.
    pub fn of(&self, instance: &Instance) -> &[Member] {
        let first = instance.first as usize;
        &self.members[first..first + instance.count as usize]
    }
}

/// A row under the key that its exchange has on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Keyed {
    group: u32,
    /// Collectives sort before pairs; then the channel of a pair, or the kind of a collective without sequence numbers.
    place: (bool, u32),
    number: u32,
    rank: u32,
    row: u32,
}

/// Joins the exchanges of ranks, which are given with their numbers.
pub fn join(ranks: &[(u32, &Digest)]) -> Joined {
    let mut joined = Joined::default();
    let of_rank = groups(ranks, &mut joined);
    let mut by_number: Vec<bool> = joined.groups.iter().map(|g| g.is_numbered).collect();
    let mut keyed = keys(ranks, &of_rank, &by_number, &mut joined);
    // Sequence numbers under which ranks do different things are not used.
    let unlike = unlike(&keyed, ranks);
    if !unlike.is_empty() {
        unlike
            .iter()
            .for_each(|group| by_number[*group as usize] = false);
        keyed = keys(ranks, &of_rank, &by_number, &mut joined);
    }
    for (group, is_numbered) in joined.groups.iter_mut().zip(&by_number) {
        group.is_numbered = *is_numbered;
    }
    let mut from = 0;
    while from < keyed.len() {
        let first = keyed[from];
        let same =
            |k: &Keyed| (k.group, k.place, k.number) == (first.group, first.place, first.number);
        let len = keyed[from..].iter().take_while(|k| same(k)).count();
        let run = &keyed[from..from + len];
        from += len;
        if run.iter().all(|k| k.rank == first.rank) {
            joined.alone += len as u64;
            continue;
        }
        let kind = kind(ranks, &first);
        let bond = match operation(&kind.operation) {
            Operation::Group(bond) => bond,
            _ => Bond::Pair,
        };
        let start = joined.members.len() as u32;
        for (at, one) in run.iter().enumerate() {
            // A sequence number that a rank has twice is counted once.
            if at == 0 || run[at - 1].rank != one.rank {
                joined.members.push(Member {
                    rank: one.rank,
                    row: one.row,
                });
            }
        }
        joined.instances.push(Instance {
            group: first.group,
            bond,
            first: start,
            count: joined.members.len() as u32 - start,
        });
    }
    joined
}

fn kind<'a>(ranks: &[(u32, &'a Digest)], keyed: &Keyed) -> &'a ExchangeKind {
    let digest = ranks[keyed.rank as usize].1;
    &digest.kinds[digest.rows[keyed.row as usize].kind as usize]
}

/// Adds the groups of all ranks to `joined`. Returns, for each rank, the index in `joined.groups` of each of its groups.
fn groups(ranks: &[(u32, &Digest)], joined: &mut Joined) -> Vec<Vec<u32>> {
    let mut known: HashMap<(String, String), u32> = HashMap::new();
    let mut of_rank = Vec::new();
    for (at, (_, digest)) in ranks.iter().enumerate() {
        let mut own = Vec::new();
        for group in &digest.groups {
            let key = (group.name.clone(), group.ranks.clone());
            let next = joined.groups.len() as u32;
            let index = *known.entry(key).or_insert(next);
            if index == next {
                let size = (group.size > 0).then_some(group.size as usize);
                joined.groups.push(Group {
                    name: group.name.clone(),
                    description: group.description.clone(),
                    size,
                    members: BTreeSet::new(),
                    is_numbered: true,
                    is_sound: true,
                });
            }
            own.push(index);
        }
        for row in &digest.rows {
            let kind = &digest.kinds[row.kind as usize];
            let group = &mut joined.groups[own[kind.group as usize] as usize];
            group.members.insert(at as u32);
            let is_pair = !matches!(operation(&kind.operation), Operation::Group(_));
            // Sends have no sequence number that their receives share.
            group.is_numbered &= !is_pair && row.seq != NO_SEQ && !group.name.is_empty();
        }
        of_rank.push(own);
    }
    of_rank
}

/// Returns each row with its key, in order.
fn keys(
    ranks: &[(u32, &Digest)],
    of_rank: &[Vec<u32>],
    by_number: &[bool],
    joined: &mut Joined,
) -> Vec<Keyed> {
    (joined.rows, joined.unpaired) = (0, 0);
    let mut keyed = Vec::new();
    let mut places: HashMap<(u32, String, u64), u32> = HashMap::new();
    let mut channels: HashMap<(u32, u32, u32), u32> = HashMap::new();
    for (at, (number, digest)) in ranks.iter().enumerate() {
        let mut counts: HashMap<(u32, (bool, u32)), u32> = HashMap::new();
        joined.rows = joined.rows.saturating_add(digest.unsaid);
        joined.unpaired = joined.unpaired.saturating_add(digest.unsaid);
        for (row_at, row) in digest.rows.iter().enumerate() {
            joined.rows += 1;
            let kind = &digest.kinds[row.kind as usize];
            let group = of_rank[at][kind.group as usize];
            let size = joined.groups[group as usize].size;
            let mut channel = |from: u32, to: u32| {
                let next = channels.len() as u32;
                (true, *channels.entry((group, from, to)).or_insert(next))
            };
            let place = match (operation(&kind.operation), kind.peer) {
                (Operation::Send, Some(peer)) => channel(*number, peer),
                (Operation::Receive, Some(peer)) => channel(peer, *number),
                (Operation::Group(_), _) if by_number[group as usize] => (false, 0),
                // Between two ranks, sender and receiver need not be known.
                (Operation::Group(_), _) | (_, None) if !is_pair(kind) || size == Some(2) => {
                    let next = places.len() as u32;
                    let operation = if is_pair(kind) {
                        "pair".to_owned()
                    } else {
                        kind.operation.clone()
                    };
                    let key = (group, operation, sized(kind));
                    (false, *places.entry(key).or_insert(next) + 1)
                }
                _ => {
                    joined.unpaired += 1;
                    continue;
                }
            };
            let number = match place {
                (false, 0) => row.seq,
                place => {
                    let count = counts.entry((group, place)).or_default();
                    *count += 1;
                    *count - 1
                }
            };
            keyed.push(Keyed {
                group,
                place,
                number,
                rank: at as u32,
                row: row_at as u32,
            });
        }
    }
    keyed.sort_unstable();
    drop_uneven(&mut keyed, ranks, joined);
    keyed
}

fn is_pair(kind: &ExchangeKind) -> bool {
    !matches!(operation(&kind.operation), Operation::Group(_))
}

/// Returns the size by which exchanges are distinguished: equal on all ranks.
fn sized(kind: &ExchangeKind) -> u64 {
    if kind.operation.contains("reduce") {
        kind.elements
    } else {
        0
    }
}

/// Drops exchanges joined by their order unless all ranks have equally many: otherwise the nth exchange of one rank may not be
/// the nth of another. In a truncated trace the last exchanges are missing.
fn drop_uneven(keyed: &mut Vec<Keyed>, ranks: &[(u32, &Digest)], joined: &mut Joined) {
    let mut counts: BTreeMap<(u32, (bool, u32)), BTreeMap<u32, u32>> = BTreeMap::new();
    for one in keyed.iter().filter(|one| one.place != (false, 0)) {
        let of_place = counts.entry((one.group, one.place)).or_default();
        *of_place.entry(one.rank).or_default() += 1;
    }
    counts.retain(|_, of_place| {
        let whole = of_place
            .iter()
            .filter(|(rank, _)| !ranks[**rank as usize].1.is_cut);
        let mut whole = whole.map(|(_, count)| *count);
        let first = whole.next();
        let most = of_place.values().max();
        // Complete traces must have equally many exchanges, and no incomplete trace may have more than they.
        !whole.all(|count| Some(count) == first) || first.is_some_and(|first| most > Some(&first))
    });
    let before = keyed.len();
    keyed.retain(|one| !counts.contains_key(&(one.group, one.place)));
    joined.alone = (before - keyed.len()) as u64;
}

/// Returns the groups in which ranks do different things under one number, for more than one of twenty numbers.
fn unlike(keyed: &[Keyed], ranks: &[(u32, &Digest)]) -> BTreeSet<u32> {
    let mut counts: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for pair in keyed.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        if a.place == (false, 0) && (a.group, a.place, a.number) == (b.group, b.place, b.number) {
            let count = counts.entry(a.group).or_default();
            count.0 += 1;
            let differ = a.rank == b.rank || kind(ranks, a).operation != kind(ranks, b).operation;
            count.1 += u64::from(differ);
        }
    }
    let unlike = counts
        .into_iter()
        .filter(|(_, (all, unlike))| 20 * unlike > *all);
    unlike.map(|(group, _)| group).collect()
}

/// Returns the row of a member.
pub fn row<'a>(ranks: &[(u32, &'a Digest)], member: &Member) -> &'a Row {
    &ranks[member.rank as usize].1.rows[member.row as usize]
}
