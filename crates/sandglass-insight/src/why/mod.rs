//! Why a handler ended as it did, by the records alone: what was asked, what it did,
//! where it stopped, what was decided, whether it happened before, and what to do next.

mod attempt;
mod brief;
mod next;
mod present;
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

pub use attempt::Attempt;
use attempt::Attempts;
pub use brief::{Brief, Others};
pub use present::Retryable;
use present::{Present, Specs};
pub use unread::Unread;

/// Most handlers in flight that are kept: more than a host ever has. Ends of others can't
/// be explained.
const OPEN_MAX: usize = 1 << 20;

/// Most signatures that are told apart: far more than specs declare. Those beyond count as
/// never seen before.
const SIGNATURES_MAX: usize = 1 << 16;

/// Most specs of single runs that are remembered: as many runs as somebody starts by hand.
/// Handlers of others are explained as those of a daemon.
const ONE_RUNS_MAX: usize = 1 << 16;

/// How the text of a spec begins that was made to run one handler, and not written by
/// anybody.
pub const ONE_RUN: &str = "# Made to run one handler.\n";

/// Which handler is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that ended last without completing; where their host is gone, the last that
    /// it lost, if it lost any.
    Latest,
    /// This one, in its last attempt.
    Dispatch(DispatchId),
    /// This one, in this attempt.
    Attempt(DispatchId, u32),
}

/// The host that wrote the records, as far as whoever reads them knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// It runs: what hasn't ended goes on.
    Alive,
    /// It runs no more: what hasn't ended was lost with it.
    Gone,
    /// Nobody can tell.
    #[default]
    Unknown,
}

/// Reads records, in their order, and finds the one that is asked about.
#[derive(Debug)]
pub struct Inquiry {
    which: Which,
    host: Host,
    /// Handlers that have not ended.
    open: BTreeMap<DispatchId, Box<Asked>>,
    seen: BTreeMap<Signature, Before>,
    one_runs: BTreeSet<SpecDigest>,
    specs: Specs,
    /// Where the entity of what was found is now.
    present: Option<Present>,
    found: Option<Found>,
    attempts: Attempts,
    started: Others,
    last_at: WallTime,
    /// How many times records could not be read.
    gaps: u64,
}

/// That a handler was asked for, by a record.
#[derive(Clone, Debug)]
struct Asked {
    entity: EntityRef,
    at: WallTime,
    position: Position,
    dispatched: Dispatched,
    /// Whose handler waits for it, where that is known.
    asker: Option<EntityRef>,
    /// Whether other records tell more of it than it has been told.
    has_more: bool,
    /// How many gaps there were before it.
    gaps: u64,
    /// What followed an end of which there is no record.
    followed: Option<Box<Unread>>,
}

#[derive(Clone, Debug)]
struct Found {
    asked: Box<Asked>,
    end: Option<End>,
    /// Whether there is a later attempt, so that what follows is about that.
    is_past: bool,
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
    /// Whose handler waits for it, where that is known.
    pub asker: Option<EntityRef>,
    /// How it ended; none while it hasn't.
    pub ending: Option<Ending>,
    /// Where there is no record of its end, that it may be one that can't be read.
    pub unread: Option<Unread>,
    /// Every attempt of it, this one too. Where it wasn't named, only a second reading that
    /// names it tells them, which is worth it where it [has more](Self::has_more).
    pub attempts: Vec<Attempt>,
    /// How many earlier ones are left out.
    pub attempts_omitted: u64,
    /// The handlers that ran because it waited for their entities; told as its attempts are.
    pub started: Others,
    /// The others that have not ended, where their host isn't known to run.
    pub unended: Others,
    /// The host that wrote the records.
    pub host: Host,
    /// When the last record was written.
    pub log_ends_at: WallTime,
    /// Whether its spec was made for it alone ([`ONE_RUN`]).
    pub is_one_run: bool,
    /// Whether it may be run again in the present state of its entity.
    pub retryable: Retryable,
    has_more: bool,
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

impl Ending {
    /// Whether nobody knows how long it ran: it was lost with its host.
    #[must_use]
    pub fn is_time_unknown(&self) -> bool {
        self.ended.cause == Cause::HostLost && self.ended.time_split_us == TimeSplit::default()
    }
}

impl Explanation {
    /// Whether the same records tell more where this attempt is named.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.has_more
    }
}

impl Inquiry {
    /// Asks about `which`, of whose host nothing is known.
    #[must_use]
    pub fn about(which: Which) -> Self {
        Self {
            which,
            host: Host::default(),
            open: BTreeMap::new(),
            seen: BTreeMap::new(),
            one_runs: BTreeSet::new(),
            specs: Specs::default(),
            present: None,
            found: None,
            attempts: Attempts::default(),
            started: Others::default(),
            last_at: WallTime::default(),
            gaps: 0,
        }
    }

    /// The same, of a host of which this is known.
    #[must_use]
    pub const fn host(mut self, host: Host) -> Self {
        self.host = host;
        self
    }

    /// The same, where this spec is known and need not be among the records.
    #[must_use]
    pub fn knowing(mut self, spec: Arc<Spec>) -> Self {
        self.specs.add_read(spec);
        self
    }

    /// Takes in that records can't be read, behind those that were taken in so far.
    pub const fn gap(&mut self) {
        self.gaps = self.gaps.saturating_add(1);
    }

    /// Takes in the next record.
    pub fn feed(&mut self, record: &Record) {
        self.last_at = record.at;
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
            Event::Dispatched(dispatched) => self.asked(entity, record, dispatched),
            Event::Ended(ended) => self.ended(entity, record, ended),
            Event::Transition {
                action,
                from,
                to,
                params,
                cause: TransitionCause::HandlerEnded { dispatch },
                ..
            } => {
                let taken = Taken::of(record, action, from, to);
                self.followed(entity, *dispatch, &taken, record.at, params);
                self.taken(entity, *dispatch, &taken);
            }
            _ => {}
        }
    }

    /// What was found; nothing where no such handler is in the records.
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
        let unended = |asked| Found { asked, end: None, is_past: false };
        let Found { asked, end, is_past } = lost.or(unread).map(unended).or(found)?;
        let unended = self.unended(asked.dispatched.dispatch);
        let unread = if end.is_some() { None } else { self.unread(&asked) };
        let Asked { entity, at: dispatched_at, dispatched, asker, has_more, .. } = *asked;
        let retryable = self
            .present
            .as_ref()
            .map(|present| present.takes(&dispatched.integration, &self.specs, self.gaps));
        // Then the state may have been left before the end, of which nothing was noted.
        let is_left = end
            .as_ref()
            .is_some_and(|end| matches!(end.ended.decision, Decision::Superseded { .. }));
        let ending = end.map(|end| {
            let signature = Signature::of(&entity, &dispatched, &end.ended);
            let End { at, position, ended, taken, before } = end;
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

    /// The handler that was asked for last, of those that have not ended.
    fn last_lost(&self) -> Option<Box<Asked>> {
        let lost = self.open.values().filter(|asked| self.unread(asked).is_none());
        lost.max_by_key(|asked| asked.position).cloned()
    }

    /// The last handler of which the end can't be read, where that was later than the one
    /// that was found. Of a host that may run those count alone that surely have ended.
    fn last_unread(&self, found: Option<&Found>) -> Option<Box<Asked>> {
        let ends = self.open.values().filter_map(|asked| {
            let unread = self.unread(asked)?;
            let counts = unread.has_ended() || self.host == Host::Gone;
            counts.then(|| (unread.position().unwrap_or(asked.position), asked))
        });
        let (at, last) = ends.max_by_key(|(at, _)| *at)?;
        let found = found.and_then(|found| found.end.as_ref());
        found.is_none_or(|end| at > end.position).then(|| last.clone())
    }

    /// What is known of the end of one that has no record of it; none where there is nothing
    /// that could be that record.
    fn unread(&self, asked: &Asked) -> Option<Unread> {
        let followed = asked.followed.as_deref().cloned();
        followed.or_else(|| (self.gaps > asked.gaps).then(Unread::default))
    }

    /// A transition that followed the end of a handler of which there is no record.
    fn followed(
        &mut self,
        entity: &EntityRef,
        dispatch: DispatchId,
        taken: &Taken,
        at: WallTime,
        params: &Object,
    ) {
        let Some(asked) = self.open.get_mut(&dispatch) else { return };
        if asked.entity != *entity || asked.followed.is_some() {
            return;
        }
        let unread = Unread {
            transition: Some(taken.clone()),
            transition_at: Some(at),
            params: Some(params.clone()),
        };
        asked.followed = Some(Box::new(unread));
        let found = self.found.as_mut().filter(|found| found.end.is_none());
        let found = found.filter(|found| {
            found.asked.dispatched.dispatch == dispatch
                && found.asked.dispatched.attempt == asked.dispatched.attempt
        });
        if let Some(found) = found {
            found.asked = asked.clone();
        }
    }

    /// Those that have not ended and don't go on, but for one.
    fn unended(&self, but: DispatchId) -> Others {
        let mut unended = Others::default();
        if self.host == Host::Alive {
            return unended;
        }
        let mut open: Vec<_> = self.open.values().collect();
        let has_ended = |asked: &Asked| asked.followed.is_some();
        open.retain(|asked| asked.dispatched.dispatch != but && !has_ended(asked));
        open.sort_by_key(|asked| asked.position);
        open.into_iter().for_each(|asked| unended.add(asked, self.gaps > asked.gaps));
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

    fn asked(&mut self, entity: &EntityRef, record: &Record, dispatched: &Dispatched) {
        let is_known = self.open.contains_key(&dispatched.dispatch);
        if !is_known && self.open.len() >= OPEN_MAX {
            return;
        }
        let asker = dispatched.asker.and_then(|asker| {
            let asker = self.open.get_mut(&asker)?;
            asker.has_more = true;
            Some(asker.entity.clone())
        });
        let asked = Box::new(Asked {
            entity: entity.clone(),
            at: record.at,
            position: record.position,
            dispatched: dispatched.clone(),
            asker,
            has_more: false,
            gaps: self.gaps,
            followed: None,
        });
        if let Some(named) = self.named() {
            if named == dispatched.dispatch {
                self.attempts.asked(record.at, dispatched);
            } else if dispatched.asker == Some(named) {
                self.started.add(&asked, false);
            }
        }
        if self.is_it(dispatched.dispatch, dispatched.attempt) {
            self.found = Some(Found { asked: asked.clone(), end: None, is_past: false });
            self.present = Some(Present::at_dispatch(entity, dispatched, self.gaps));
        } else if let Some(found) = &mut self.found {
            found.is_past |= found.asked.dispatched.dispatch == dispatched.dispatch;
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
        if self.named() == Some(ended.dispatch) {
            self.attempts.ended(record.at, ended);
        }
        self.started.ended(ended);
        let is_it = match self.which {
            Which::Latest => ended.outcome.kind() != OutcomeKind::Completed,
            _ => self.is_it(ended.dispatch, ended.attempt),
        };
        if is_it {
            if self.which == Which::Latest {
                let gaps = asked.gaps;
                self.present = Some(Present::at_dispatch(entity, &asked.dispatched, gaps));
            }
            let ended = Box::new(ended.clone());
            let end = End { at: record.at, position: record.position, ended, taken: None, before };
            self.found = Some(Found { asked, end: Some(end), is_past: false });
        }
    }

    /// A transition is of the attempt that ended last: an earlier one that was run again
    /// has none.
    fn taken(&mut self, entity: &EntityRef, dispatch: DispatchId, taken: &Taken) {
        if self.named() == Some(dispatch) {
            self.attempts.taken(taken);
        }
        let found = self.found.as_mut().filter(|found| {
            found.asked.dispatched.dispatch == dispatch
                && found.asked.entity == *entity
                && !found.is_past
        });
        let end = found.and_then(|found| found.end.as_mut());
        if let Some(end) = end.filter(|end| matches!(end.ended.decision, Decision::Take { .. })) {
            end.taken.get_or_insert_with(|| taken.clone());
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
