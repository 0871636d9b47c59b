//! Explains from the records alone why a handler ended as it did: what was requested, what it did,
//! where it stopped, what was decided, whether it happened before, and what to do next.

mod advice;
mod attempt;
mod brief;
mod present;
mod prose;
mod unread;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sandglass_model::{
    Cause, Decision, DispatchId, Dispatched, Ended, EntityRef, Event, Object, OutcomeKind,
    Position, Record, Signature, SpecDigest, TimeSplit, TransitionCause, WallTime,
};

use serde::Serialize;

use sandglass_liveness::spec::Spec;

pub use advice::{Advice, Place, Precondition, Repetition, Requests, TimeSpent, Unended};
pub use attempt::Attempt;
use attempt::Attempts;
pub use brief::{Brief, Others};
pub use present::Retryable;
use present::{Present, Specs};
pub use unread::Unread;

/// Most handlers in flight that are tracked, more than a host ever has. Ends of other handlers
/// cannot be explained.
const OPEN_MAX: usize = 1 << 20;

/// Most signatures that are tracked, far more than specs declare. Other signatures count as never
/// seen before.
const SIGNATURES_MAX: usize = 1 << 16;

/// Most one-run specs that are tracked, far more than people start by hand. Handlers of other
/// one-run specs are explained as if a daemon had run them.
const ONE_RUNS_MAX: usize = 1 << 16;

/// The first line of a spec that was generated to run one handler, not written by an author.
pub const ONE_RUN: &str = "# Made to run one handler.\n";

/// Which handler to explain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The handler that ended last without completing. If the host is gone and lost handlers, the
    /// last dispatched one of those.
    #[default]
    Latest,
    /// The last attempt of this dispatch.
    Dispatch(DispatchId),
    /// This attempt of this dispatch.
    Attempt(DispatchId, u32),
}

/// Whether the host that wrote the records still runs, as far as the caller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// It runs, so handlers that have not ended continue.
    Alive,
    /// It no longer runs, so handlers that have not ended were lost with it.
    Gone,
    /// It is unknown whether it runs.
    #[default]
    Unknown,
}

/// Reads records in order and finds the handler to explain.
#[derive(Debug, Default)]
pub struct Inquiry {
    which: Which,
    host: Host,
    /// Handlers that have not ended.
    open: BTreeMap<DispatchId, Box<OpenHandler>>,
    seen: BTreeMap<Signature, Before>,
    one_runs: BTreeSet<SpecDigest>,
    specs: Specs,
    /// The present state of the entity of the found handler.
    present: Option<Present>,
    found: Option<Found>,
    attempts: Attempts,
    started: Others,
    last_at: WallTime,
    /// How many records were read. Positions of different partitions have no order.
    read: u64,
    /// How many times records could not be read.
    gaps: u64,
}

/// A dispatched handler, by its record.
#[derive(Clone, Debug)]
struct OpenHandler {
    entity: EntityRef,
    at: WallTime,
    /// How many records were read up to its dispatch.
    read: u64,
    dispatched: Dispatched,
    /// The entity whose handler waits for this one, if known.
    asker: Option<EntityRef>,
    /// Whether other records have more about it that this inquiry does not collect.
    has_more: bool,
    /// How many gaps came before its dispatch.
    gaps: u64,
    /// What followed its end, if there is no record of the end itself.
    followed: Option<Box<Unread>>,
    /// How many records were read up to `followed`.
    followed_read: u64,
}

#[derive(Clone, Debug)]
struct Found {
    handler: Box<OpenHandler>,
    end: Option<End>,
    /// Whether there is a later attempt, so that later transitions belong to that one.
    is_past: bool,
}

#[derive(Clone, Debug)]
struct End {
    at: WallTime,
    position: Position,
    /// How many records were read up to it.
    read: u64,
    ended: Box<Ended>,
    taken: Option<Taken>,
    before: Before,
}

/// The transition that followed the end of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// The action.
    pub action: String,
    /// The state before it.
    pub from: String,
    /// The state after it.
    pub to: String,
    /// The position of its record.
    pub position: Position,
}

/// How often a signature was seen before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Before {
    /// The number of times in all records that were read.
    pub count: u64,
    /// When it was first seen.
    pub first_at: Option<WallTime>,
    /// When it was last seen.
    pub last_at: Option<WallTime>,
}

/// Why a handler ended as it did.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The entity of the handler.
    pub entity: EntityRef,
    /// When the attempt was dispatched.
    pub dispatched_at: WallTime,
    /// The dispatch of the explained attempt, as recorded.
    pub dispatched: Dispatched,
    /// The entity whose handler waits for this one, if known.
    pub asker: Option<EntityRef>,
    /// How it ended; `None` while it has not.
    pub ending: Option<Ending>,
    /// Set if there is no record of its end, but an unreadable record may be its end.
    pub unread: Option<Unread>,
    /// All attempts of the dispatch, including this one. Empty if the inquiry was about
    /// [`Which::Latest`], which finds the dispatch too late to collect them. If [`Self::has_more`]
    /// returns true, read the records again with the attempt named.
    pub attempts: Vec<Attempt>,
    /// How many earlier attempts are left out.
    pub attempts_omitted: u64,
    /// The handlers that ran because this one waited for their entities. Like `attempts`, empty if
    /// the inquiry was about [`Which::Latest`].
    pub started: Others,
    /// Other handlers that have not ended; empty if the host is known to run.
    pub unended: Others,
    /// Whether the host that wrote the records still runs.
    pub host: Host,
    /// When the last record was written.
    pub log_ends_at: WallTime,
    /// Whether its spec was generated to run only this handler ([`ONE_RUN`]).
    pub is_one_run: bool,
    /// Whether it may be retried in the present state of its entity.
    pub retryable: Retryable,
    has_more: bool,
}

/// How a handler ended, and what followed.
#[derive(Clone, Debug)]
pub struct Ending {
    /// When the end was recorded.
    pub at: WallTime,
    /// The position of its record.
    pub position: Position,
    /// The record.
    pub ended: Ended,
    /// The transition that followed; `None` if nothing changed, or if the handler is run again.
    pub taken: Option<Taken>,
    /// The signature of its failure; `None` if it completed.
    pub signature: Option<Signature>,
    /// How often that signature was seen before.
    pub before: Before,
}

impl Ending {
    /// Whether it is unknown how long the handler ran, because it was lost with its host.
    #[must_use]
    pub fn is_time_unknown(&self) -> bool {
        self.ended.cause == Cause::HostLost && self.ended.time_split_us == TimeSplit::default()
    }
}

impl Explanation {
    /// Whether a second reading of the records that names this attempt finds more.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.has_more
    }
}

impl Inquiry {
    /// Asks about `which`, with nothing known about the host.
    #[must_use]
    pub fn about(which: Which) -> Self {
        Self { which, ..Self::default() }
    }

    /// Sets whether the host that wrote the records still runs.
    #[must_use]
    pub const fn host(mut self, host: Host) -> Self {
        self.host = host;
        self
    }

    /// Adds a spec that the caller knows, so that it need not be among the records.
    #[must_use]
    pub fn with_spec(mut self, spec: Arc<Spec>) -> Self {
        self.specs.add_parsed(spec);
        self
    }

    /// Notes that records after those read so far cannot be read.
    pub const fn add_gap(&mut self) {
        self.gaps = self.gaps.saturating_add(1);
    }

    /// Reads the next record.
    pub fn feed(&mut self, record: &Record) {
        self.last_at = record.at;
        self.read = self.read.saturating_add(1);
        if let Event::SpecRegistered { digest, source, rules, .. } = &record.event {
            if !source.starts_with(ONE_RUN) {
                self.specs.add(*digest, source, *rules);
            } else if self.one_runs.len() < ONE_RUNS_MAX {
                self.one_runs.insert(*digest);
            }
        }
        if let Some(present) = &mut self.present {
            present.feed(record, self.gaps);
        }
        let Some(entity) = &record.entity else { return };
        match &record.event {
            Event::Dispatched(dispatched) => self.add_dispatch(entity, record, dispatched),
            Event::Ended(ended) => self.add_end(entity, record, ended),
            Event::Transition {
                action,
                from,
                to,
                params,
                cause: TransitionCause::HandlerEnded { dispatch },
                ..
            } => {
                let taken = Taken::of(record, action, from, to);
                self.note_unread_end(entity, *dispatch, &taken, record.at, params);
                self.set_transition(entity, *dispatch, &taken);
            }
            _ => {}
        }
    }

    /// Returns the explanation, or `None` if the records have no such handler.
    #[must_use]
    pub fn finish(mut self) -> Option<Explanation> {
        let found = self.found.take();
        let is_lost = self.which == Which::Latest
            && (self.host == Host::Gone || self.host == Host::Unknown && found.is_none());
        let lost = if is_lost { self.last_lost() } else { None };
        let unread = if self.which == Which::Latest && lost.is_none() {
            self.last_unread(found.as_ref())
        } else {
            None
        };
        let unended = |handler| Found { handler, end: None, is_past: false };
        let Found { handler, end, is_past } = lost.or(unread).map(unended).or(found)?;
        let unended = self.list_unended(handler.dispatched.dispatch);
        let unread = if end.is_some() { None } else { self.unread_end(&handler) };
        let OpenHandler { entity, at: dispatched_at, dispatched, asker, has_more, .. } = *handler;
        let retryable = self
            .present
            .as_ref()
            .map(|present| present.takes(&dispatched.integration, &self.specs, self.gaps));
        // If the end was superseded, the entity left the state before the end. An inquiry about the
        // latest handler follows the state only from the end on, so it missed that transition.
        let is_left = end
            .as_ref()
            .is_some_and(|end| matches!(end.ended.decision, Decision::Superseded { .. }));
        let ending = end.map(|end| {
            let signature = Signature::of(&entity, &dispatched, &end.ended);
            let End { at, position, ended, taken, before, .. } = end;
            Ending { at, position, ended: *ended, taken, signature, before }
        });
        let (attempts, attempts_omitted) = self.attempts.finish();
        Some(Explanation {
            asker,
            attempts,
            attempts_omitted,
            started: self.started,
            unended,
            retryable: retryable.unwrap_or_default(),
            host: self.host,
            log_ends_at: self.last_at,
            is_one_run: dispatched.spec.is_some_and(|spec| self.one_runs.contains(&spec)),
            has_more: self.which == Which::Latest
                && (has_more || is_past || is_left || dispatched.attempt > 1 || ending.is_none()),
            entity,
            dispatched_at,
            dispatched,
            ending,
            unread,
        })
    }

    /// The handler that was dispatched last among those without an end, leaving out handlers whose
    /// end may be an unreadable record.
    fn last_lost(&self) -> Option<Box<OpenHandler>> {
        let lost = self.open.values().filter(|handler| self.unread_end(handler).is_none());
        lost.max_by_key(|handler| handler.read).cloned()
    }

    /// The last handler whose end cannot be read, if it is later than the found one. Unless the
    /// host is gone, only handlers that have certainly ended count.
    fn last_unread(&self, found: Option<&Found>) -> Option<Box<OpenHandler>> {
        let ends = self.open.values().filter_map(|handler| {
            let unread = self.unread_end(handler)?;
            let counts = unread.has_ended() || self.host == Host::Gone;
            counts.then(|| (handler.read.max(handler.followed_read), handler))
        });
        let (at, last) = ends.max_by_key(|(at, _)| *at)?;
        let found = found.and_then(|found| found.end.as_ref());
        found.is_none_or(|end| at > end.read).then(|| last.clone())
    }

    /// What is known about the end of a handler that has no record of it; `None` if no unreadable
    /// record could be that end.
    fn unread_end(&self, handler: &OpenHandler) -> Option<Unread> {
        let followed = handler.followed.as_deref().cloned();
        followed.or_else(|| (self.gaps > handler.gaps).then(Unread::default))
    }

    /// Keeps the transition that followed the end of a handler, if there is no record of that end.
    fn note_unread_end(
        &mut self,
        entity: &EntityRef,
        dispatch: DispatchId,
        taken: &Taken,
        at: WallTime,
        params: &Object,
    ) {
        let Some(handler) = self.open.get_mut(&dispatch) else { return };
        if handler.entity != *entity || handler.followed.is_some() {
            return;
        }
        let unread = Unread {
            transition: Some(taken.clone()),
            transition_at: Some(at),
            params: Some(params.clone()),
        };
        handler.followed = Some(Box::new(unread));
        handler.followed_read = self.read;
        let found = self.found.as_mut().filter(|found| found.end.is_none());
        let found = found.filter(|found| {
            found.handler.dispatched.dispatch == dispatch
                && found.handler.dispatched.attempt == handler.dispatched.attempt
        });
        if let Some(found) = found {
            found.handler = handler.clone();
        }
    }

    /// Handlers that have not ended and do not continue, except `but`.
    fn list_unended(&self, but: DispatchId) -> Others {
        let mut unended = Others::default();
        if self.host == Host::Alive {
            return unended;
        }
        let mut open: Vec<_> = self.open.values().collect();
        let has_ended = |handler: &OpenHandler| handler.followed.is_some();
        open.retain(|handler| handler.dispatched.dispatch != but && !has_ended(handler));
        open.sort_by_key(|handler| handler.read);
        open.into_iter().for_each(|handler| unended.add(handler, self.gaps > handler.gaps));
        unended
    }

    const fn named(&self) -> Option<DispatchId> {
        match self.which {
            Which::Latest => None,
            Which::Dispatch(dispatch) | Which::Attempt(dispatch, _) => Some(dispatch),
        }
    }

    fn is_it(&self, dispatch: DispatchId, attempt: u32) -> bool {
        match self.which {
            Which::Latest => false,
            Which::Dispatch(named) => named == dispatch,
            Which::Attempt(named, of) => named == dispatch && of == attempt,
        }
    }

    fn add_dispatch(&mut self, entity: &EntityRef, record: &Record, dispatched: &Dispatched) {
        let is_known = self.open.contains_key(&dispatched.dispatch);
        if !is_known && self.open.len() >= OPEN_MAX {
            return;
        }
        let asker = dispatched.asker.and_then(|asker| {
            let asker = self.open.get_mut(&asker)?;
            asker.has_more = true;
            Some(asker.entity.clone())
        });
        let handler = Box::new(OpenHandler {
            entity: entity.clone(),
            at: record.at,
            read: self.read,
            dispatched: dispatched.clone(),
            asker,
            has_more: false,
            gaps: self.gaps,
            followed: None,
            followed_read: 0,
        });
        if let Some(named) = self.named() {
            if named == dispatched.dispatch {
                self.attempts.add(record.at, dispatched);
            } else if dispatched.asker == Some(named) {
                self.started.add(&handler, false);
            }
        }
        if self.is_it(dispatched.dispatch, dispatched.attempt) {
            self.found = Some(Found { handler: handler.clone(), end: None, is_past: false });
            self.present = Some(Present::at_dispatch(entity, dispatched, self.gaps));
        } else if let Some(found) = &mut self.found {
            found.is_past |= found.handler.dispatched.dispatch == dispatched.dispatch;
        }
        self.open.insert(dispatched.dispatch, handler);
    }

    fn add_end(&mut self, entity: &EntityRef, record: &Record, ended: &Ended) {
        let Some(handler) = self.open.remove(&ended.dispatch) else { return };
        if handler.entity != *entity || handler.dispatched.attempt != ended.attempt {
            return;
        }
        let signature = Signature::of(entity, &handler.dispatched, ended);
        let before = signature.map(|signature| self.see(signature, record.at)).unwrap_or_default();
        if self.named() == Some(ended.dispatch) {
            self.attempts.end(record.at, ended);
        }
        self.started.end(ended);
        let is_it = match self.which {
            Which::Latest => ended.outcome.kind() != OutcomeKind::Completed,
            _ => self.is_it(ended.dispatch, ended.attempt),
        };
        if is_it {
            if self.which == Which::Latest {
                // The gaps at the dispatch, because an unreadable record since then may have
                // changed the state.
                let gaps = handler.gaps;
                self.present = Some(Present::at_dispatch(entity, &handler.dispatched, gaps));
            }
            let ended = Box::new(ended.clone());
            let (at, position, read) = (record.at, record.position, self.read);
            let end = End { at, position, read, ended, taken: None, before };
            self.found = Some(Found { handler, end: Some(end), is_past: false });
        }
    }

    /// Assigns a transition to the attempt that ended last: an earlier attempt, which was run
    /// again, has no transition.
    fn set_transition(&mut self, entity: &EntityRef, dispatch: DispatchId, taken: &Taken) {
        if self.named() == Some(dispatch) {
            self.attempts.set_transition(taken);
        }
        let found = self.found.as_mut().filter(|found| {
            found.handler.dispatched.dispatch == dispatch
                && found.handler.entity == *entity
                && !found.is_past
        });
        let end = found.and_then(|found| found.end.as_mut());
        if let Some(end) = end.filter(|end| matches!(end.ended.decision, Decision::Take { .. })) {
            end.taken.get_or_insert_with(|| taken.clone());
        }
    }

    /// Counts `signature` and returns how often it was seen before.
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
