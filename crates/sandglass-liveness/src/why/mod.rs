//! Why a handler ended as it did, by the records alone: what was asked, what it did,
//! where it stopped, what was decided, whether it happened before, and what to do next.

mod next;
mod view;

use std::collections::BTreeMap;

use sandglass_model::{
    DispatchId, Dispatched, Ended, EntityRef, Event, OutcomeKind, Position, Record,
    TransitionCause, WallTime,
};

use serde::Serialize;

use crate::signature::Signature;

/// Most handlers in flight that are kept: more than a host ever has. Ends of others can't
/// be explained.
const OPEN_MAX: usize = 1 << 20;

/// Most signatures that are told apart: far more than specs declare. Those beyond count as
/// never seen before.
const SIGNATURES_MAX: usize = 1 << 16;

/// Which handler is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that ended last without completing.
    Latest,
    /// This one, in its last attempt.
    Dispatch(DispatchId),
}

/// Reads records, in their order, and finds the one that is asked about.
#[derive(Debug)]
pub struct Inquiry {
    which: Which,
    /// Handlers that have not ended.
    open: BTreeMap<DispatchId, Box<Asked>>,
    seen: BTreeMap<Signature, Before>,
    found: Option<Found>,
}

/// That a handler was asked for, by a record.
#[derive(Clone, Debug)]
struct Asked {
    entity: EntityRef,
    at: WallTime,
    dispatched: Dispatched,
}

#[derive(Clone, Debug)]
struct Found {
    asked: Box<Asked>,
    end: Option<End>,
}

#[derive(Clone, Debug)]
struct End {
    at: WallTime,
    position: Position,
    ended: Box<Ended>,
    taken: Option<Taken>,
    before: Before,
}

/// The transition that followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// The action.
    pub action: String,
    /// The state that it was taken in.
    pub from: String,
    /// The state that it led to.
    pub to: String,
    /// The position of its record.
    pub position: Position,
}

/// How often a signature was seen before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Before {
    /// How often in all records that were read.
    pub count: u64,
    /// When it was seen first.
    pub first_at: Option<WallTime>,
    /// When it was seen last.
    pub last_at: Option<WallTime>,
}

/// Why a handler ended as it did.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Whose handler it is.
    pub entity: EntityRef,
    /// When it was asked for.
    pub dispatched_at: WallTime,
    /// What was asked, in the attempt that is explained.
    pub dispatched: Dispatched,
    /// How it ended; none while it hasn't.
    pub ending: Option<Ending>,
}

/// How a handler ended, and what came of it.
#[derive(Clone, Debug)]
pub struct Ending {
    /// When that was recorded.
    pub at: WallTime,
    /// The position of its record.
    pub position: Position,
    /// The record.
    pub ended: Ended,
    /// The transition that followed; none where nothing changed, or it runs again.
    pub taken: Option<Taken>,
    /// Its signature; none where it completed.
    pub signature: Option<Signature>,
    /// How often that was seen before.
    pub before: Before,
}

impl Inquiry {
    /// Asks about `which`.
    #[must_use]
    pub const fn about(which: Which) -> Self {
        Self { which, open: BTreeMap::new(), seen: BTreeMap::new(), found: None }
    }

    /// Takes in the next record.
    pub fn feed(&mut self, record: &Record) {
        let Some(entity) = &record.entity else { return };
        match &record.event {
            Event::Dispatched(dispatched) => self.asked(entity, record, dispatched),
            Event::Ended(ended) => self.ended(entity, record, ended),
            Event::Transition {
                action,
                from,
                to,
                cause: TransitionCause::HandlerEnded { dispatch },
                ..
            } => {
                let found = self.found.as_mut().filter(|found| {
                    found.asked.dispatched.dispatch == *dispatch && found.asked.entity == *entity
                });
                if let Some(end) = found.and_then(|found| found.end.as_mut()) {
                    end.taken.get_or_insert_with(|| Taken {
                        action: action.clone(),
                        from: from.clone(),
                        to: to.clone(),
                        position: record.position,
                    });
                }
            }
            _ => {}
        }
    }

    /// What was found; nothing where no such handler is in the records.
    #[must_use]
    pub fn finish(self) -> Option<Explanation> {
        let Found { asked, end } = self.found?;
        let Asked { entity, at: dispatched_at, dispatched } = *asked;
        let ending = end.map(|end| {
            let signature = Signature::of(&entity, &dispatched, &end.ended);
            let End { at, position, ended, taken, before } = end;
            Ending { at, position, ended: *ended, taken, signature, before }
        });
        Some(Explanation { entity, dispatched_at, dispatched, ending })
    }

    fn asked(&mut self, entity: &EntityRef, record: &Record, dispatched: &Dispatched) {
        let is_known = self.open.contains_key(&dispatched.dispatch);
        if !is_known && self.open.len() >= OPEN_MAX {
            return;
        }
        let asked = Box::new(Asked {
            entity: entity.clone(),
            at: record.at,
            dispatched: dispatched.clone(),
        });
        if self.which == Which::Dispatch(dispatched.dispatch) {
            self.found = Some(Found { asked: asked.clone(), end: None });
        }
        self.open.insert(dispatched.dispatch, asked);
    }

    fn ended(&mut self, entity: &EntityRef, record: &Record, ended: &Ended) {
        let Some(asked) = self.open.remove(&ended.dispatch) else { return };
        if asked.entity != *entity || asked.dispatched.attempt != ended.attempt {
            return;
        }
        let signature = Signature::of(entity, &asked.dispatched, ended);
        let before = signature.map(|signature| self.see(signature, record.at)).unwrap_or_default();
        let is_it = match self.which {
            Which::Latest => ended.outcome.kind() != OutcomeKind::Completed,
            Which::Dispatch(dispatch) => ended.dispatch == dispatch,
        };
        if is_it {
            let ended = Box::new(ended.clone());
            let end = End { at: record.at, position: record.position, ended, taken: None, before };
            self.found = Some(Found { asked, end: Some(end) });
        }
    }

    /// How often `signature` was seen before this time.
    fn see(&mut self, signature: Signature, at: WallTime) -> Before {
        if !self.seen.contains_key(&signature) && self.seen.len() >= SIGNATURES_MAX {
            return Before::default();
        }
        let seen = self.seen.entry(signature).or_default();
        let before = *seen;
        seen.count += 1;
        seen.first_at.get_or_insert(at);
        seen.last_at = Some(at);
        before
    }
}
