//! The answer to a request that was taken before, from the records of its transition: it is the answer
//! to the first one, wherever and however long ago that was given.

use sandglass_model::{EntityRef, Event as RecordedEvent, Position, Record, Sequence};

use crate::error::ActorError;
use crate::request::Accepted;
use crate::runtime::Runtime;

/// Records read at once: most decisions have fewer.
const PAGE: usize = 16;

impl Runtime {
    /// What was accepted with the transition of `entity` to `sequence`.
    pub(crate) async fn accepted_before(
        &self,
        entity: &EntityRef,
        sequence: Sequence,
    ) -> Result<Accepted, ActorError> {
        let (mut next, mut accepted) = (Some(self.find(entity, sequence).await?), None);
        let mut at = None;
        'decision: while let Some(from) = next {
            let page = self.0.shared.journal.read_entity(entity.clone(), from, PAGE).await?;
            next = page.next;
            for record in page.into_records()? {
                // The records of one decision have one time and, from its transition on, one sequence.
                if record.sequence != sequence || *at.get_or_insert(record.at) != record.at {
                    break 'decision;
                }
                add(&mut accepted, record);
            }
        }
        // It was pruned since.
        accepted.ok_or_else(|| ActorError::UnknownEntity(entity.clone()))
    }

    /// A position between the record of the transition to `sequence` and the one before it. The sequences
    /// of an entity's records only rise, so it takes at most 64 reads of one record each.
    async fn find(&self, entity: &EntityRef, sequence: Sequence) -> Result<Position, ActorError> {
        let journal = &self.0.shared.journal;
        let last = journal.last_of(entity.clone()).await?;
        let last = last.ok_or_else(|| ActorError::UnknownEntity(entity.clone()))?;
        let (mut low, mut high) = (Position(1), last.last.position);
        while low < high {
            let middle = Position(low.0.midpoint(high.0));
            let page = journal.read_entity(entity.clone(), middle, 1).await?;
            match page.into_records()?.into_iter().next() {
                Some(record) if record.sequence < sequence => {
                    low = Position(record.position.0.saturating_add(1));
                }
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// Adds what a record of the decision states.
fn add(accepted: &mut Option<Accepted>, Record { position, sequence, event, .. }: Record) {
    match (event, accepted) {
        (RecordedEvent::Transition { to: state, .. }, accepted @ None) => {
            *accepted = Some(Accepted { sequence, state, dispatches: Vec::new(), position });
        }
        // Another dispatch of this sequence is a further attempt, which expects the sequence itself.
        (RecordedEvent::Dispatched(dispatched), Some(accepted))
            if dispatched.expected.map(Sequence::next) == Some(sequence) =>
        {
            accepted.dispatches.push(dispatched.dispatch);
        }
        _ => {}
    }
}
