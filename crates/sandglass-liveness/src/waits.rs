//! Which entity waits for which to settle, so that no ask can wait for itself.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::EntityRef;

/// The asks that wait until the asked entity has settled, as a graph from the entities of the
/// askers to the asked ones. An entity does not settle while one of its handlers waits, so a cycle
/// would end by deadlines only. There is one edge for each handler that waits.
#[derive(Clone, Debug, Default)]
pub struct Waits(BTreeMap<EntityRef, BTreeMap<EntityRef, u32>>);

/// The asker would wait for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ask_cycle: the asked entity waits for the asker to settle")]
pub struct Cycle;

impl Waits {
    /// `asker` waits for `asked` from now on, until it [leaves](Self::leave).
    ///
    /// # Errors
    /// `asked` waits for `asker` already, or is the same entity; nothing has changed.
    pub fn enter(&mut self, asker: &EntityRef, asked: &EntityRef) -> Result<(), Cycle> {
        if self.leads(asked, asker) {
            return Err(Cycle);
        }
        let waits = self.0.entry(asker.clone()).or_default().entry(asked.clone()).or_default();
        *waits = waits.saturating_add(1);
        Ok(())
    }

    /// Ends one wait of `asker` for `asked`.
    pub fn leave(&mut self, asker: &EntityRef, asked: &EntityRef) {
        let Some(of_asker) = self.0.get_mut(asker) else { return };
        if let Some(waits) = of_asker.get_mut(asked) {
            *waits = waits.saturating_sub(1);
            if *waits == 0 {
                of_asker.remove(asked);
            }
        }
        if of_asker.is_empty() {
            self.0.remove(asker);
        }
    }

    /// Whether there are no waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entities that `asker` waits for, directly or through others, in no particular order.
    #[must_use]
    pub fn awaited_by(&self, asker: &EntityRef) -> Vec<EntityRef> {
        let mut found: Vec<EntityRef> = self.next(asker).cloned().collect();
        let mut at = 0;
        while let Some(entity) = found.get(at) {
            let more: Vec<_> =
                self.next(entity).filter(|next| !found.contains(next)).cloned().collect();
            found.extend(more);
            at += 1;
        }
        found
    }

    fn next(&self, of: &EntityRef) -> impl Iterator<Item = &EntityRef> {
        self.0.get(of).into_iter().flat_map(BTreeMap::keys)
    }

    /// Whether waits lead from `from` to `to`. Each entity leads to itself.
    fn leads(&self, from: &EntityRef, to: &EntityRef) -> bool {
        let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
        while let Some(at) = open.pop() {
            if at == to {
                return true;
            }
            open.extend(self.next(at).filter(|entity| seen.insert(entity)));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(id: &str) -> EntityRef {
        EntityRef::new("Session", id).expect("a valid id")
    }

    #[test]
    fn a_cycle_of_any_length_is_refused_and_changes_nothing() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(entity);
        let mut waits = Waits::default();
        assert_eq!(waits.enter(&a, &a), Err(Cycle));
        assert!(waits.is_empty());
        assert_eq!(waits.enter(&a, &b), Ok(()));
        assert_eq!(waits.enter(&b, &c), Ok(()));
        assert_eq!(waits.enter(&c, &a), Err(Cycle));
        assert_eq!(waits.enter(&c, &d), Ok(()));
        assert_eq!(waits.enter(&a, &d), Ok(()), "two may wait for the same");
        assert_eq!(waits.enter(&d, &a), Err(Cycle));
    }

    #[test]
    fn a_wait_holds_until_the_last_of_its_kind_is_over() {
        let [a, b] = ["a", "b"].map(entity);
        let mut waits = Waits::default();
        assert_eq!((waits.enter(&a, &b), waits.enter(&a, &b)), (Ok(()), Ok(())));
        waits.leave(&a, &b);
        assert_eq!(waits.enter(&b, &a), Err(Cycle));
        waits.leave(&a, &b);
        assert!(waits.is_empty());
        waits.leave(&a, &b);
        assert_eq!(waits.enter(&b, &a), Ok(()));
    }
}
