//! The entries of several journals as one stream.

use std::collections::VecDeque;

use sandglass_model::{Cursor, Position, Record, WallTime};

use crate::{Entry, Error, Journal, PAGE_MAX_ENTRIES, Page};

/// Entries of all journals of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The entries, each with the index of its journal.
    pub entries: Vec<(usize, Entry)>,
    /// Behind what to continue: behind all of `entries`, and all others that were searched.
    pub next: Cursor,
    /// Whether the present end of each journal was reached.
    pub is_end: bool,
}

impl Merged {
    /// The records, if all of them are intact, without those that were pruned.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first entry that is not.
    pub fn into_records(self) -> Result<Vec<Record>, Error> {
        let entries = self.entries.into_iter().map(|(_, entry)| entry).collect();
        Page { entries, next: None }.into_records()
    }
}

/// What was read from one journal.
#[derive(Debug)]
pub struct Part {
    /// The entries, in the order of their positions.
    pub entries: VecDeque<Entry>,
    /// The last position that was searched.
    pub searched: Position,
    /// Whether that was the present end.
    pub is_end: bool,
}

impl Part {
    /// Up to `limit` entries of `journal` from `from` on; only those of `kinds`, if given.
    pub(crate) async fn read(
        journal: &dyn Journal,
        from: Position,
        kinds: Option<&'static [&'static str]>,
        limit: usize,
    ) -> Result<Self, Error> {
        let before = |position: Position| Position(position.0.saturating_sub(1));
        if let Some(kinds) = kinds {
            let found = journal.read_kinds(kinds, from, limit).await?;
            let searched = before(found.next);
            return Ok(Self { entries: found.entries.into(), searched, is_end: found.is_end });
        }
        let page = journal.read(from, limit).await?;
        let searched = page.entries.last().map_or(before(from), Entry::last_position);
        Ok(Self { entries: page.entries.into(), searched, is_end: page.next.is_none() })
    }
}

/// Merges what was read behind `after`, one part for each journal: up to `limit` entries in the order
/// of their times. An entry that is not intact has the time of the one before it. The result ends
/// before an entry whose journal has further ones that were not read, because one of those may be
/// earlier.
#[must_use]
pub fn merge(after: Cursor, mut parts: Vec<Part>, limit: usize) -> Merged {
    let limit = limit.clamp(1, PAGE_MAX_ENTRIES);
    let mut times = vec![WallTime::from_millis(0); parts.len()];
    let (mut entries, mut next) = (Vec::new(), after);
    while entries.len() < limit {
        for (time, part) in times.iter_mut().zip(&parts) {
            if let Some(Entry::Record(record)) = part.entries.front() {
                *time = record.at.max(*time);
            }
        }
        let is_open = |part: &Part| !part.entries.is_empty() || !part.is_end;
        let open = parts.iter().enumerate().filter(|(_, part)| is_open(part));
        let Some(first) = open.map(|(index, _)| index).min_by_key(|index| (times[*index], *index))
        else {
            break;
        };
        // Otherwise, its next entry was not read yet.
        let Some(entry) = parts[first].entries.pop_front() else { break };
        next.advance(first, entry.last_position());
        entries.push((first, entry));
    }
    let mut is_end = true;
    for (index, part) in parts.iter().enumerate() {
        if part.entries.is_empty() {
            next.advance(index, part.searched);
        }
        is_end &= part.entries.is_empty() && part.is_end;
    }
    Merged { entries, next, is_end }
}

#[cfg(test)]
mod tests {
    use sandglass_model::Sequence;

    use super::*;
    use crate::conformance::{created, session};

    fn entry(position: u64, at: i64) -> Entry {
        Entry::Record(Record {
            position: Position(position),
            at: WallTime::from_millis(at),
            entity: Some(session("one")),
            sequence: Sequence(0),
            event: created(),
        })
    }

    fn part(entries: impl IntoIterator<Item = (u64, i64)>, searched: u64, is_end: bool) -> Part {
        let entries = entries.into_iter().map(|(position, at)| entry(position, at)).collect();
        Part { entries, searched: Position(searched), is_end }
    }

    fn merged(parts: Vec<Part>, limit: usize) -> (Vec<(usize, u64)>, Vec<u64>, bool) {
        let after = Cursor::new(parts.iter().map(|_| Position(0)));
        let Merged { entries, next, is_end } = merge(after, parts, limit);
        let entries = entries.iter().map(|(index, entry)| (*index, entry.position().0)).collect();
        (entries, next.positions().iter().map(|position| position.0).collect(), is_end)
    }

    #[test]
    fn entries_are_in_the_order_of_their_times() {
        let parts = || vec![part([(1, 10), (2, 30)], 2, true), part([(1, 20), (2, 30)], 2, true)];
        let all = vec![(0, 1), (1, 1), (0, 2), (1, 2)];
        assert_eq!(merged(parts(), 9), (all.clone(), vec![2, 2], true));
        assert_eq!(merged(parts(), 3), (all[..3].to_vec(), vec![2, 1], false));
    }

    #[test]
    fn a_time_that_goes_back_changes_no_order_within_a_journal() {
        let parts = vec![part([(1, 50), (2, 10)], 2, true), part([(1, 40), (2, 60)], 2, true)];
        assert_eq!(merged(parts, 9).0, [(1, 1), (0, 1), (0, 2), (1, 2)]);
    }

    #[test]
    fn nothing_comes_before_entries_that_were_not_read() {
        // The second entry of the first journal may be of time 11.
        let parts = vec![part([(1, 10)], 1, false), part([(1, 20)], 1, true)];
        assert_eq!(merged(parts, 9), (vec![(0, 1)], vec![1, 0], false));
        // A search that found nothing yet continues behind what it has searched.
        let parts = vec![part([], 500, false), part([(1, 20)], 1, true)];
        assert_eq!(merged(parts, 9), (vec![], vec![500, 0], false));
        // At its end, it holds up nothing.
        let parts = vec![part([], 500, true), part([(1, 20)], 1, true)];
        assert_eq!(merged(parts, 9), (vec![(1, 1)], vec![500, 1], true));
    }

    #[test]
    fn an_entry_for_several_positions_is_passed_as_a_whole() {
        let pruned = Entry::Pruned { first: Position(1), last: Position(7) };
        let mut first = part([(8, 10)], 8, true);
        first.entries.push_front(pruned);
        let found = merged(vec![first, part([], 0, true)], 1);
        assert_eq!(found, (vec![(0, 1)], vec![7, 0], false));
    }
}
