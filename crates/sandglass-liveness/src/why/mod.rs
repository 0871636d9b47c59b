//! Why a handler ended as it did, by the records alone: what was asked, what it did,
//! where it stopped, what was decided, whether it happened before, and what to do next.

mod attempt;
mod brief;
mod next;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{
    Decision, DispatchId, Dispatched, Ended, EntityRef, Event, OutcomeKind, Position, Record,
    SpecDigest, TransitionCause, WallTime,
};

use serde::Serialize;

use crate::signature::Signature;

pub use attempt::Attempt;
use attempt::Attempts;
pub use brief::{Brief, Others};

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
    found: Option<Found>,
    attempts: Attempts,
    started: Others,
    last_at: WallTime,
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
            found: None,
            attempts: Attempts::default(),
            started: Others::default(),
            last_at: WallTime::default(),
        }
    }

    /// The same, of a host of which this is known.
    #[must_use]
    pub const fn host(mut self, host: Host) -> Self {
        self.host = host;
        self
    }

    /// Takes in the next record.
    pub fn feed(&mut self, record: &Record) {
        self.last_at = record.at;
        if let Event::SpecRegistered { digest, source, .. } = &record.event
            && source.starts_with(ONE_RUN)
            && self.one_runs.len() < ONE_RUNS_MAX
        {
            self.one_runs.insert(*digest);
        }
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
            } => self.taken(entity, *dispatch, &Taken::of(record, action, from, to)),
            _ => {}
        }
    }

    /// What was found; nothing where no such handler is in the records.
    #[must_use]
    pub fn finish(mut self) -> Option<Explanation> {
        let found = self.found.take();
        let is_lost = self.which == Which::Latest
            && (self.host == Host::Gone || self.host == Host::Unknown && found.is_none());
        let lost = if is_lost { self.last_open() } else { None };
        let lost = lost.map(|asked| Found { asked, end: None, is_past: false });
        let Found { asked, end, is_past } = lost.or(found)?;
        let unended = self.unended(asked.dispatched.dispatch);
        let Asked { entity, at: dispatched_at, dispatched, asker, has_more, .. } = *asked;
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
            host: self.host,
            log_ends_at: self.last_at,
            is_one_run: dispatched.spec.is_some_and(|spec| self.one_runs.contains(&spec)),
            has_more: self.which == Which::Latest
                && (has_more || is_past || dispatched.attempt > 1 || ending.is_none()),
            entity,
            dispatched_at,
            dispatched,
            ending,
        })
    }

    /// The handler that was asked for last, of those that have not ended.
    fn last_open(&self) -> Option<Box<Asked>> {
        self.open.values().max_by_key(|asked| asked.position).cloned()
    }

    /// Those that have not ended and don't go on, but for one.
    fn unended(&self, but: DispatchId) -> Others {
        let mut unended = Others::default();
        if self.host == Host::Alive {
            return unended;
        }
        let mut open: Vec<_> = self.open.values().collect();
        open.retain(|asked| asked.dispatched.dispatch != but);
        open.sort_by_key(|asked| asked.position);
        open.into_iter().for_each(|asked| unended.add(asked));
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
        });
        if let Some(named) = self.named() {
            if named == dispatched.dispatch {
                self.attempts.asked(record.at, dispatched);
            } else if dispatched.asker == Some(named) {
                self.started.add(&asked);
            }
        }
        if self.is_it(dispatched.dispatch, dispatched.attempt) {
            self.found = Some(Found { asked: asked.clone(), end: None, is_past: false });
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
