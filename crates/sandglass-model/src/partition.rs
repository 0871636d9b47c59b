//! The partitions of a store that several hosts share, and which of them an entity belongs to.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::EntityRef;

/// One of the [`Partition::COUNT`] parts of a shared store. Each is a journal of its own, with positions
/// from 1 on, and has one owner at a time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Partition(u8);

impl Partition {
    /// How many there are. It never changes, because the partition of a name would change with it.
    pub const COUNT: u8 = 64;

    /// The partition with this number; `None` from [`Partition::COUNT`] on.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT { Some(Self(number)) } else { None }
    }

    /// All partitions, in the order of their numbers.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + Clone {
        (0..Self::COUNT).map(Self)
    }

    /// The partition of `entity`, for ever.
    ///
    /// The id alone decides, whatever the type, so `Order/42` and `Invoice/42` share a partition. If
    /// the id has a part in braces, only that part counts, so `Parcel/1{42}` shares it, too. The part
    /// begins behind the first `{` and ends before the next `}`; an empty one does not count, as in
    /// the hash tags of Redis Cluster
    /// (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>). The number is
    /// the first eight bytes of the SHA-256 of that text, as a big-endian integer, modulo
    /// [`Partition::COUNT`].
    #[must_use]
    pub fn of(entity: &EntityRef) -> Self {
        // The last of the eight bytes decides, because 64 divides 256.
        Self(Sha256::digest(affinity(entity.id()))[7] % Self::COUNT)
    }

    /// Its number, below [`Partition::COUNT`].
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

const _: () = assert!(256 % Partition::COUNT as usize == 0, "the last byte alone decides");

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The part of an id in braces; the whole id if there is none, or it is empty.
fn affinity(id: &str) -> &str {
    let behind = id.split_once('{').and_then(|(_, behind)| behind.split_once('}'));
    behind.map(|(affinity, _)| affinity).filter(|affinity| !affinity.is_empty()).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> u8 {
        Partition::of(&name.parse().expect("a valid name")).number()
    }

    #[test]
    fn the_partition_of_a_name_never_changes() {
        let names = ["Order/1", "Order/2", "Session/healthy", "Order/a{b}c", "Order/{}", "Order/é"];
        // The eighth byte of `printf %s 1 | sha256sum`, and so on, modulo 64.
        assert_eq!(names.map(of), [33, 46, 57, 10, 10, 19]);
    }

    #[test]
    fn the_id_decides_or_its_part_in_braces() {
        assert_eq!(of("Order/42"), of("Invoice/42"));
        assert_eq!(of("Order/42"), of("Parcel/1{42}x"));
        assert_eq!(of("Order/{42}{other}"), of("Parcel/{42}"));
        // Without a complete part, the whole id counts.
        for id in ["}a{", "{a", "a}", "{}a", "{}{a}"] {
            let whole = Sha256::digest(id)[7] % Partition::COUNT;
            assert_eq!(of(&format!("Order/{id}")), whole, "{id}");
        }
    }

    #[test]
    fn names_are_spread_evenly() {
        let mut counts = [0u32; Partition::COUNT as usize];
        for number in 0..64_000 {
            counts[usize::from(of(&format!("Order/{number}")))] += 1;
        }
        // A thousand each; six standard deviations are 190.
        assert!(counts.iter().all(|count| (810..1190).contains(count)), "{counts:?}");
    }
}
