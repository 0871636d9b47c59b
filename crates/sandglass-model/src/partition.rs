//! The partitions of a store that several hosts share, and which of them an entity belongs to.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::EntityRef;

/// How many partitions a partitioned store has. It never changes, because the partition of a name
/// would change with it.
pub const PARTITIONS: u8 = 64;

/// One of the [`PARTITIONS`] of a store. Each is a journal of its own.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Partition(u8);

impl Partition {
    /// The partition with this number; `None` from [`PARTITIONS`] on.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < PARTITIONS { Some(Self(number)) } else { None }
    }

    /// All partitions, in the order of their numbers.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + Clone {
        (0..PARTITIONS).map(Self)
    }

    /// The partition of `entity`, for ever.
    ///
    /// If the id has a part in braces, as in `42{customer-7}`, that part alone decides, whatever the
    /// type: entities that name the same part share a partition. Otherwise the type and the id
    /// decide. The part begins behind the first `{` and ends before the next `}`; an empty one does
    /// not count. This is the rule of Redis Cluster's hash tags
    /// (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>). The number is
    /// the first eight bytes of the SHA-256 of the text, as a big-endian integer, modulo
    /// [`PARTITIONS`].
    #[must_use]
    pub fn of(entity: &EntityRef) -> Self {
        let id = entity.id();
        let mut hash = Sha256::new();
        if let Some(affinity) = affinity(id) {
            hash.update(affinity);
        } else {
            hash.update(entity.entity_type());
            hash.update("/");
            hash.update(id);
        }
        // The last of the eight bytes decides, because 64 divides 256.
        Self(hash.finalize()[7] % PARTITIONS)
    }

    /// Its number, below [`PARTITIONS`].
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

const _: () = assert!(256 % PARTITIONS as usize == 0, "the last byte alone decides");

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The part of an id in braces; `None` if there is none, or it is empty.
fn affinity(id: &str) -> Option<&str> {
    let (_, behind) = id.split_once('{')?;
    let (affinity, _) = behind.split_once('}')?;
    (!affinity.is_empty()).then_some(affinity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> u8 {
        Partition::of(&name.parse().expect("a valid name")).number()
    }

    #[test]
    fn the_partition_of_a_name_never_changes() {
        let names = ["Order/1", "Order/2", "Session/healthy", "Order/a{b}c", "Run/{b}", "Order/{}"];
        // Computed with `printf %s Order/1 | sha256sum`; the eighth byte modulo 64.
        assert_eq!(names.map(of), [44, 61, 2, 10, 10, 21]);
    }

    #[test]
    fn a_part_in_braces_decides_alone() {
        assert_eq!(of("Order/1{customer-7}"), of("Parcel/2{customer-7}x"));
        assert_eq!(of("Order/{customer-7}{other}"), of("Parcel/{customer-7}"));
        // Without a complete part, the whole name counts.
        for name in ["Order/}a{", "Order/{a", "Order/a}"] {
            let whole = Sha256::digest(name)[7] % PARTITIONS;
            assert_eq!(of(name), whole, "{name}");
        }
    }

    #[test]
    fn names_are_spread_evenly() {
        let mut counts = [0u32; PARTITIONS as usize];
        for number in 0..64_000 {
            counts[usize::from(of(&format!("Order/{number}")))] += 1;
        }
        // A thousand each; six standard deviations are 190.
        assert!(counts.iter().all(|count| (810..1190).contains(count)), "{counts:?}");
    }
}
