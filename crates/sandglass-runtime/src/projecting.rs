//! Records in the formats of other systems, for subscribers of a runtime.
//!
//! What a projection needs besides its record is read from the journal: the dispatch that the record
//! names, or the records of its entity before it. It is never taken from the entity as it is now,
//! which may be ahead of the record; a reader that resumes would then get something else than one
//! that was there. This happens only for records that have a projection, which are few.

use std::sync::{Arc, Weak};

use sandglass_insight::projection::{Context, Needs, Projected, Shape};
use sandglass_journal::{self as journal, Entry};
use sandglass_model::{DispatchId, Event as RecordedEvent, Position, Record};

use crate::actor::Restored;
use crate::error::ActorError;
use crate::publish::{Event, Subscription};
use crate::runtime::Runtime;
use crate::shared::Shared;
use crate::waking::read_before;

/// Receives the records of a runtime that have a form in one format, in that form, from the
/// subscription on.
#[derive(Debug)]
pub struct ProjectedSubscription {
    shape: Shape,
    events: Subscription,
    /// Weak, because a subscriber does not keep a runtime alive.
    shared: Weak<Shared>,
}

/// What a subscriber missed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProjectionGap {
    /// It was too far behind: this many events, some of which may have had a projection.
    #[error("the subscriber was too slow and missed {0} events")]
    Missed(u64),
    /// The records before this one, which its projection needs, cannot be read.
    #[error("record {position} cannot be projected: {error}")]
    Unreadable {
        /// The record.
        position: Position,
        /// Why.
        error: Box<ActorError>,
    },
}

impl ProjectedSubscription {
    /// The next projection, or what was missed since the last one; `None` if the runtime is gone.
    pub async fn next(&mut self) -> Option<Result<Projected, ProjectionGap>> {
        loop {
            let record = match self.events.next().await? {
                Ok(Event::Recorded(record)) => record,
                Ok(_) => continue,
                Err(missed) => return Some(Err(ProjectionGap::Missed(missed))),
            };
            if self.shape.needs(&record.event).is_none() {
                continue;
            }
            let shared = self.shared.upgrade()?;
            match project(&shared, self.shape, &record).await {
                Ok(Some(projected)) => return Some(Ok(projected)),
                Ok(None) => {}
                Err(error) => {
                    let (position, error) = (record.position, Box::new(error));
                    return Some(Err(ProjectionGap::Unreadable { position, error }));
                }
            }
        }
    }
}

impl Runtime {
    /// Subscribes to the records that have a form in `shape`, from now on, in that form. Like
    /// [`Runtime::subscribe`], but other records cost nothing except a look at their type.
    #[must_use]
    pub fn subscribe_as(&self, shape: Shape) -> ProjectedSubscription {
        let shared = Arc::downgrade(&self.0.shared);
        ProjectedSubscription { shape, events: self.subscribe(), shared }
    }

    /// The form of `record`, a record of this runtime's journal, in `shape`; `None` if it has none.
    ///
    /// # Errors
    /// The records before it, which the projection needs, cannot be read.
    pub async fn project(
        &self,
        shape: Shape,
        record: &Record,
    ) -> Result<Option<Projected>, ActorError> {
        project(&self.0.shared, shape, record).await
    }
}

async fn project(
    shared: &Shared,
    shape: Shape,
    record: &Record,
) -> Result<Option<Projected>, ActorError> {
    match (shape.needs(&record.event), &record.entity) {
        (None, _) | (_, None) => Ok(None),
        (Some(Needs::Nothing), _) => Ok(shape.project(record, Context::default())),
        (Some(Needs::Integration(dispatch)), _) => {
            let integration = integration_of(shared, dispatch).await?;
            let context = Context { integration: Some(&integration), ..Context::default() };
            Ok(shape.project(record, context))
        }
        (Some(Needs::Entity), Some(name)) => {
            let before = read_before(shared, name, record.position).await?;
            let gone = || damaged(record.position, format!("{name} has no earlier record"));
            let Restored { spec, entity, .. } = before.ok_or_else(gone)?;
            let context = Context { entity: Some((&spec, &entity)), ..Context::default() };
            Ok(shape.project(record, context))
        }
    }
}

/// The integration of `dispatch`, which its first record names.
async fn integration_of(shared: &Shared, dispatch: DispatchId) -> Result<String, ActorError> {
    let gone = |position| damaged(position, format!("there is no record of dispatch {dispatch}"));
    let found = shared.journal.find_dispatch(dispatch).await?;
    let (entity, position) = found.ok_or_else(|| gone(Position(0)))?;
    let page = shared.journal.read_entity(entity, position, 1).await?;
    let first = page.entries.into_iter().next().map(Entry::into_record).transpose()?;
    match first.map(|record| record.event) {
        Some(RecordedEvent::Dispatched(dispatched)) if dispatched.dispatch == dispatch => {
            Ok(dispatched.integration)
        }
        _ => Err(gone(position)),
    }
}

fn damaged(position: Position, what: String) -> ActorError {
    let place = format!("position {position}");
    ActorError::Journal(journal::Error::Damaged { place, what })
}
