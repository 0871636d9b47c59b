//! Partitions: the parts into which a shared journal divides all entities.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::id::EntityRef;

/// One of the [`Partition::COUNT`] parts of a shared journal. Each is a journal of its own, with
/// positions from 1 on, and has one owner at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u8);

impl Partition {
    /// How many there are. Fixed, because records do not move between partitions.
    pub const COUNT: u8 = 64;

    /// The partition with this number; `None` from [`Partition::COUNT`] on.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT { Some(Self(number)) } else { None }
    }

    /// The partition of an entity, which never changes: the first eight bytes of a SHA-256, modulo
    /// [`Partition::COUNT`].
    ///
    /// If the id has a part in braces that is not empty (from the first `{` to the next `}`), that
    /// part alone is hashed, whatever the type. So entities that work together share a partition,
    /// also if their types differ. Otherwise `TYPE/ID` is hashed.
    #[must_use]
    pub fn of(entity: &EntityRef) -> Self {
        let mut digest = Sha256::new();
        match affinity(entity.id()) {
            Some(affinity) => digest.update(affinity),
            None => {
                digest.update(entity.entity_type());
                digest.update("/");
                digest.update(entity.id());
            }
        }
        // The count divides 2^64, so the modulus of the eight bytes is that of the last one.
        Self(digest.finalize()[7] % Self::COUNT)
    }

    /// All partitions, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// Its number, from 0 on.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The part of an id that decides alone.
fn affinity(id: &str) -> Option<&str> {
    let (_, behind) = id.split_once('{')?;
    let (affinity, _) = behind.split_once('}')?;
    (!affinity.is_empty()).then_some(affinity)
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entity_type: &str, id: &str) -> u8 {
        Partition::of(&EntityRef::new(entity_type, id).expect("a valid name")).number()
    }

    /// Journals depend on these numbers: they never change.
    #[test]
    fn partitions_of_known_names() {
        let known =
            [("Session", "a"), ("Session", "b"), ("Order", "a"), ("Run", "{run-1}"), ("Run", "é")];
        assert_eq!(known.map(|(of_type, id)| of(of_type, id)), [2, 43, 0, 53, 22]);
    }

    #[test]
    fn a_part_in_braces_decides_alone() {
        let family = of("Run", "{run-1}");
        for (of_type, id) in [("Child", "{run-1}/2"), ("Run", "x{run-1}y{z}"), ("A", "{run-1}}")] {
            assert_eq!(of(of_type, id), family, "{of_type}/{id}");
        }
        // Nothing in braces, or no closing brace: the whole name decides.
        let whole = ["{}", "{", "}", "}{", "{}{run-1}", "{run-1"];
        assert!(whole.iter().any(|id| of("Run", id) != of("Child", id)));
        assert!(affinity("{}{run-1}").is_none() && affinity("}{run-1").is_none());
    }

    #[test]
    fn every_partition_has_names() {
        let mut names = [0_u32; Partition::COUNT as usize];
        (0..6_400).for_each(|n| names[usize::from(of("Run", &n.to_string()))] += 1);
        assert!(names.iter().all(|count| (50..200).contains(count)), "{names:?}");
        assert_eq!(Partition::new(Partition::COUNT), None);
        assert_eq!(Partition::all().last(), Partition::new(63));
    }
}
