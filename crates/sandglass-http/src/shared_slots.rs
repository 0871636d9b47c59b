//! Slots that several clients share, so that none of them can take all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One part in so many is reserved for operators.
const RESERVE_PART: usize = 8;

/// The client that holds a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// An operator of the whole server, who may take every slot, also the reserved ones.
    Operator,
    /// Another host of the cluster, for connections alone.
    Host,
    /// A client, by the name of its tenant or owner. It may take a slot only while it holds fewer than
    /// are free, so one client gets at most half of them, and the next ones still get some.
    Client(Arc<str>),
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSlot {
    /// All are taken, except those for operators.
    #[error("all {most} are taken")]
    Full {
        /// How many there are.
        most: usize,
    },
    /// The client holds as many as it may while others need the rest.
    #[error(
        "this client already holds {held} of {most} slots; the rest are reserved for other clients"
    )]
    OwnShare {
        /// How many it holds.
        held: usize,
        /// How many there are.
        most: usize,
    },
}

/// Checks whether `holder`, who holds `held` of the `taken` slots out of `most`, may take one.
///
/// # Errors
/// Errors if all are taken, or the holder has its share.
pub(crate) fn may_take(
    holder: &Holder,
    held: usize,
    taken: usize,
    most: usize,
) -> Result<(), NoSlot> {
    let free = most.saturating_sub(taken);
    let usable = match holder {
        Holder::Operator | Holder::Host => free,
        Holder::Client(_) => free.saturating_sub(most / RESERVE_PART),
    };
    if usable == 0 {
        return Err(NoSlot::Full { most });
    }
    if matches!(holder, Holder::Client(_)) && held >= usable {
        return Err(NoSlot::OwnShare { held, most });
    }
    Ok(())
}

/// Slots for work that takes long, such as waiting. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedSlots(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    held: Mutex<BTreeMap<Holder, usize>>,
}

impl SharedSlots {
    /// Creates `most` slots.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Inner { most, held: Mutex::default() }))
    }

    /// Takes a slot, which is free again when it is dropped.
    ///
    /// # Errors
    /// Errors if all are taken, or the holder has its share.
    pub fn take(&self, holder: &Holder) -> Result<Slot, NoSlot> {
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        let own = held.get(holder).copied().unwrap_or_default();
        may_take(holder, own, held.values().sum(), self.0.most)?;
        held.insert(holder.clone(), own + 1);
        Ok(Slot { of: self.clone(), holder: holder.clone() })
    }

    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

/// One of the slots of [`SharedSlots`].
#[derive(Debug)]
pub struct Slot {
    of: SharedSlots,
    holder: Holder,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = self.of.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = held.get_mut(&self.holder) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Holder {
        Holder::Client(name.into())
    }

    fn take_all(shares: &SharedSlots, holder: &Holder) -> Vec<Slot> {
        std::iter::from_fn(|| shares.take(holder).ok()).collect()
    }

    #[test]
    fn one_client_gets_at_most_half_and_operators_have_a_reserve() {
        let shares = SharedSlots::new(128);
        let first = take_all(&shares, &client("a"));
        assert_eq!(first.len(), 56, "half of what is not reserved");
        assert_eq!(
            shares.take(&client("a")).expect_err("it has its share"),
            NoSlot::OwnShare { held: 56, most: 128 }
        );
        let more = ["b", "c", "d"].map(|name| take_all(&shares, &client(name)));
        assert!(more.iter().all(|slots| !slots.is_empty()));
        let operator = take_all(&shares, &Holder::Operator);
        assert!(operator.len() >= 16, "the reserve");
        assert_eq!(shares.taken(), 128);
        assert_eq!(
            shares.take(&client("e")).expect_err("there is none"),
            NoSlot::Full { most: 128 }
        );
        drop((first, more, operator));
        assert_eq!(shares.taken(), 0);
        assert_eq!(take_all(&shares, &Holder::Operator).len(), 128);
    }

    #[test]
    fn a_single_slot_is_for_every_client() {
        let shares = SharedSlots::new(1);
        let slot = shares.take(&client("a")).expect("it is free");
        assert!(shares.take(&Holder::Operator).is_err());
        drop(slot);
        assert!(shares.take(&client("b")).is_ok());
    }
}
