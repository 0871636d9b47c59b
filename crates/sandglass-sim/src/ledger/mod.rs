//! What really happened in a simulation, which no code inside the simulated process can know, and
//! the checks of the log against it: of each record when it becomes durable, and of each answer
//! when a client gets it.

mod bounds;
mod calls;
mod counts;
mod kills;
mod reads;
mod requests;
mod runs;
mod sessions;
mod spawns;

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_liveness::session::{RunPhase, Session};
use sandglass_liveness::{Entity, Fold, Replay, Spec};
use sandglass_model::{
    DispatchId, Dispatched, EntityRef, Event, Limit, Position, Record, StopCause, TransitionCause,
};
use sandglass_runtime::Snapshot;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::coverage::Collector;
use crate::invariant::{Invariant, Violation};
use crate::old_rule::OldRule;
use calls::Calls;
pub use counts::Counts;
use kills::Kills;
pub(crate) use requests::Answer;
use requests::Requests;
use runs::Runs;
pub(crate) use runs::{Key, Truth};
use sessions::Sessions;
pub(crate) use spawns::Spawns;

/// A violated invariant and what was observed, if a check found one.
type Finding = Option<(Invariant, String)>;

/// The ledger of one seed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) counts: Counts,
    pub(crate) old_rule: OldRule,
    pub(crate) runs: Runs,
    pub(crate) calls: Calls,
    pub(crate) requests: Requests,
    sessions: Sessions,
    pub(crate) spawns: Spawns,
    reads: reads::Reads,
    kills: Kills,
    pub(crate) watched: Collector,
    violation: Option<Violation>,
    /// Whether `one-order` applies: deciding takes no time and clocks do not jump, so all inputs of
    /// an instant are ready before the first is decided.
    pub(crate) has_one_order: bool,
    /// Whether the wall clock does not jump, so that the times of records can be compared.
    pub(crate) has_steady_clock: bool,
    step: usize,
    now_ms: i64,
    log: Vec<Record>,
    fold: Fold,
    /// Each entity as it was before its last batch, because a snapshot that a client gets may be
    /// that old.
    before: BTreeMap<EntityRef, Option<Entity>>,
    replay: Replay,
    hash: Sha256,
    story: Sha256,
    timeline: Option<Vec<String>>,
}

impl Ledger {
    pub(crate) fn new(has_timeline: bool) -> Self {
        Self { timeline: has_timeline.then(Vec::new), ..Self::default() }
    }

    /// Sets specs that are not parsed again when the log registers them.
    pub(crate) fn use_parsed_specs<'a>(
        &mut self,
        specs: impl Iterator<Item = &'a Arc<Spec>> + Clone,
    ) {
        self.fold = Fold::with_parsed(specs.clone().cloned());
        self.replay = Replay::with_parsed(specs.cloned());
    }

    pub(crate) fn at(&mut self, step: usize, now_ms: i64) {
        (self.step, self.now_ms) = (step, now_ms);
    }

    pub(crate) fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Keeps only the first violation, because later ones may follow from it.
    pub(crate) fn report(&mut self, invariant: Invariant, what: impl Into<String>) {
        let (step, at_ms, what) = (self.step, self.now_ms, what.into());
        self.add_line(|| format!("VIOLATED {invariant}: {what}"));
        self.violation.get_or_insert(Violation { invariant, what, step, at_ms });
    }

    fn report_all(&mut self, found: impl IntoIterator<Item = (Invariant, String)>) {
        found.into_iter().for_each(|(invariant, what)| self.report(invariant, what));
    }

    /// Adds a line to the timeline, if there is one.
    pub(crate) fn add_line(&mut self, line: impl FnOnce() -> String) {
        let (now_ms, step) = (self.now_ms, self.step);
        if let Some(timeline) = &mut self.timeline {
            timeline.push(format!("{now_ms:>10} ms  step {step:>4}  {}", line()));
        }
    }

    pub(crate) fn take_timeline(&mut self) -> Vec<String> {
        self.timeline.take().unwrap_or_default()
    }

    pub(crate) fn entity(&self, name: &EntityRef) -> Option<&Entity> {
        self.fold.entity(name)
    }

    pub(crate) fn entities(&self) -> impl Iterator<Item = (&Entity, &Spec)> {
        self.fold.entities().filter_map(|entity| Some((entity, &**self.fold.spec(entity.spec)?)))
    }

    pub(crate) fn spec_of(&self, entity: &Entity) -> Option<&Spec> {
        self.fold.spec(entity.spec).map(|spec| &**spec)
    }

    /// The hash of the log, and the hash of the log without the parts that name a spec.
    pub(crate) fn hashes(&self) -> (String, String) {
        let text = |hash: &Sha256| hex(&hash.clone().finalize());
        (text(&self.hash), text(&self.story))
    }

    /// Takes the records of a batch that is durable from now on, and checks them.
    pub(crate) fn commit(&mut self, records: &[Record]) {
        let Some(first) = records.first() else { return };
        if let Some(name) = &first.entity {
            let before = self.fold.entity(name).cloned();
            self.before.insert(name.clone(), before);
        }
        for record in records {
            self.take(record);
        }
        if let Some(what) = self.watched.batch(records).filter(|_| self.has_one_order) {
            self.report(Invariant::OneOrder, what);
        }
        if let Some(name) = &first.entity {
            self.check_liveness(name);
            let found = self.fold.entity(name).and_then(|entity| self.sessions.commit(entity));
            self.report_all(found);
            let found = self.fold.entity(name).and_then(|entity| self.calls.commit(entity));
            self.report_all(found);
            let found = self.fold.entity(name).and_then(|entity| self.spawns.commit(entity));
            self.report_all(found);
        }
    }

    fn take(&mut self, record: &Record) {
        let due = Position(self.log.len() as u64 + 1);
        if record.position != due {
            let what = format!("a record has position {} where {due} is due", record.position);
            self.report(Invariant::AppendsFit, what);
        }
        self.counts.count(&record.event);
        self.add_line(|| describe(record));
        self.check(record);
        if let Err(unfit) = self.fold.apply(record) {
            self.report(Invariant::StateIsFold, format!("{}: {unfit}", record.position));
        }
        self.replay.feed(record);
        let line = serde_json::to_vec(record).unwrap_or_default();
        self.hash.update(&line);
        match &record.event {
            Event::SpecRegistered { .. } | Event::Created { .. } | Event::SpecChanged { .. } => {}
            Event::Dispatched(dispatched) => {
                let nameless = Dispatched { spec: None, ..(**dispatched).clone() };
                self.story.update(serde_json::to_vec(&nameless).unwrap_or_default());
            }
            _ => self.story.update(&line),
        }
        self.log.push(record.clone());
    }

    fn check(&mut self, record: &Record) {
        let Some(name) = &record.entity else { return };
        self.kills.record(name, &record.event, self.now_ms);
        let entity = self.fold.entity(name);
        let found = match &record.event {
            Event::Dispatched(dispatched) => {
                let spec = entity.and_then(|entity| self.fold.spec(entity.spec));
                self.runs.note_dispatch(name, dispatched, record.position, spec.map(|spec| &**spec))
            }
            Event::Ended(ended) => self.runs.note_end(name, ended),
            Event::StateIdle { state, .. } => {
                let in_flight = entity.map_or(0, Entity::in_flight_count);
                let running = self.runs.running(name);
                (in_flight + running > 0).then(|| {
                    let what = format!(
                        "the timer of `{state}` of {name} fires with {in_flight} handlers in \
                         flight, {running} of them running"
                    );
                    (Invariant::NoIdleInFlight, what)
                })
            }
            Event::LimitBreached(breach)
                if self.has_steady_clock
                    && matches!(breach.limit, Limit::InactivityWarn | Limit::InactivityTimeout) =>
            {
                self.runs.check_silence(name, breach.observed, breach.at)
            }
            _ => None,
        };
        let request = request_of(&record.event);
        let doubled = request.and_then(|id| self.requests.note_record(id, record.position));
        let old = self.old_rule.record(record, entity, self.fold.specs());
        let of_session = entity.and_then(|entity| {
            let spec = self.fold.spec(entity.spec)?;
            self.sessions.record(spec, entity, &record.event)
        });
        let of_calls = entity.and_then(|entity| self.calls.record(entity, &record.event));
        let fold = &self.fold;
        let exists = |name: &EntityRef| fold.entity(name).is_some();
        let of_spawns = self.spawns.record(name, entity, &record.event, exists);
        let of_reads = self.reads.record(name, entity, &record.event, self.now_ms);
        let all = [found, doubled, old, of_session, of_calls, of_spawns, of_reads];
        self.report_all(all.into_iter().flatten());
    }

    /// Checks that an entity that may not stay as it is has something that ends its state.
    fn check_liveness(&mut self, name: &EntityRef) {
        let Some(entity) = self.fold.entity(name) else { return };
        let Some(spec) = self.fold.spec(entity.spec) else { return };
        let is_live = entity.in_flight_count() + entity.schedules().len() > 0
            || entity.idle_timer(spec).is_some();
        if !is_live && !may_last(entity, spec) {
            let what = format!("{name} is in `{}`, and nothing ends that", entity.state);
            self.report(Invariant::NobodyStuck, what);
        }
    }

    /// Notes that a handler was started.
    pub(crate) fn note_start(&mut self, name: &EntityRef, key: Key) {
        let in_flight = self.fold.entity(name).and_then(|entity| entity.in_flight_handler(key.0));
        let is_in_flight = in_flight.is_some_and(|run| run.dispatched.attempt == key.1);
        let found = self.runs.note_start(name, key, is_in_flight);
        self.report_all(found);
    }

    /// Notes that a handler that can be killed has ended.
    pub(crate) fn check_kill(&mut self, name: &EntityRef) {
        if let Some(what) = self.kills.check_end(name, self.now_ms) {
            self.report(Invariant::KilledInTime, what);
        }
    }

    /// Notes the answer that a client got.
    pub(crate) fn note_answer(&mut self, id: u64, answer: Answer) {
        if let Answer::Accepted(_) = answer {
            self.counts.acknowledged += 1;
        }
        let found = self.requests.note_answer(id, answer, &self.log);
        self.report_all(found);
    }

    /// Checks a snapshot that a client got.
    pub(crate) fn check_snapshot(&mut self, snapshot: &Snapshot) {
        let name = &snapshot.entity;
        let now = self.fold.entity(name).is_some_and(|entity| is_of(snapshot, entity));
        let before = self.before.get(name).and_then(Option::as_ref);
        if !now && !before.is_some_and(|entity| is_of(snapshot, entity)) {
            let what = format!(
                "{name} shows `{}` at sequence {} with {} in flight, and its records say {}",
                snapshot.state,
                snapshot.sequence,
                snapshot.in_flight.len(),
                self.fold.entity(name).map_or_else(|| "nothing".to_owned(), describe_entity)
            );
            self.report(Invariant::StateIsFold, what);
        }
    }

    /// Checks a record that was published.
    pub(crate) fn check_published(&mut self, record: &Record) {
        let index = usize::try_from(record.position.0.saturating_sub(1)).unwrap_or(usize::MAX);
        if self.log.get(index) != Some(record) {
            let what = format!("record {} was published and is not in the log", record.position);
            self.report(Invariant::DurableFirst, what);
        }
    }

    /// Notes that the process has ended, with every handler that ran in it.
    pub(crate) fn end_process(&mut self) {
        self.runs.lose_all();
        self.kills.end_process();
        self.requests.end_process();
    }

    /// Describes an entity that has not come to rest, if there is one.
    pub(crate) fn find_restless(&self) -> Option<String> {
        let restless = self.entities().find(|(entity, spec)| {
            // The schedules of a stopped session wait for its next run.
            let is_running = entity.session().is_none_or(Session::is_running);
            let schedules = if is_running { entity.schedules().len() } else { 0 };
            let owes = entity.in_flight_count() + schedules + entity.spawning().len() > 0;
            owes || !may_last(entity, spec)
        });
        restless.map(|(entity, _)| format!("{} is {}", entity.entity, describe_entity(entity)))
    }

    /// Whether an entity has not ended and is not a session that is over.
    pub(crate) fn may_go_on(&self, name: &EntityRef) -> bool {
        let Some(entity) = self.entity(name) else { return true };
        let has_ended = self.spec_of(entity).is_some_and(|spec| entity.has_ended(spec));
        !has_ended && !entity.session().is_some_and(Session::is_over)
    }

    /// Runs the checks that need the whole log; `disk` is what is really durable.
    pub(crate) fn close(&mut self, disk: &[Record]) {
        let summary = std::mem::take(&mut self.replay).finish();
        if let Some(first) = summary.divergences.first() {
            let many = summary.divergence_count;
            let what = format!(
                "{many} divergences, the first at {}: {} is {}, and {} is decided",
                first.position, first.what, first.recorded, first.expected
            );
            self.report(Invariant::ReplayAgrees, what);
        }
        let found = self.runs.close().or_else(|| self.requests.close(disk));
        let found = found.or_else(|| self.spawns.close());
        if let Some((invariant, what)) = found {
            self.report(invariant, what);
        } else if disk != self.log {
            let what = format!("the disk has {} records of {}", disk.len(), self.log.len());
            self.report(Invariant::AcknowledgedOnce, what);
        }
    }
}

/// Whether the spec lets an entity stay as it is.
fn may_last(entity: &Entity, spec: &Spec) -> bool {
    let timeout = spec.timeouts.get(&entity.state);
    let is_used_up = timeout.is_some_and(|timeout| {
        timeout.max_occurrences.is_some_and(|most| entity.occurrences_of(&entity.state) >= most)
    });
    let is_stopped =
        entity.session().is_some_and(|session| matches!(session.phase, RunPhase::Stopped(_)));
    spec.is_terminal(&entity.state)
        || spec.indefinite.contains(&entity.state)
        || is_used_up
        || is_stopped
}

fn is_of(snapshot: &Snapshot, entity: &Entity) -> bool {
    let shown = snapshot.in_flight.iter().map(|run| (run.dispatch, run.attempt));
    let folded = entity.in_flight();
    let folded = folded.iter().map(|run| (run.dispatched.dispatch, run.dispatched.attempt));
    snapshot.state == entity.state
        && snapshot.variables == entity.variables
        && snapshot.sequence == entity.sequence
        && snapshot.incarnation == entity.incarnation
        && snapshot.tenant == entity.tenant
        && snapshot.spec == entity.spec
        && snapshot.schedules == entity.schedules().len()
        && snapshot.spawning.iter().eq(entity.spawning().map(|(_, spawn)| &spawn.entity))
        && shown.eq(folded)
}

fn describe_entity(entity: &Entity) -> String {
    format!(
        "in `{}` at sequence {} with {} in flight and {} scheduled",
        entity.state,
        entity.sequence,
        entity.in_flight_count(),
        entity.schedules().len()
    )
}

/// The number of the request that led to a record.
pub(crate) fn request_of(event: &Event) -> Option<u64> {
    match event {
        Event::Transition {
            params,
            cause: TransitionCause::Requested | TransitionCause::Asked(_),
            ..
        } => params.get("request").and_then(Value::as_u64),
        Event::Signal { payload, .. } => payload.get("request").and_then(Value::as_u64),
        Event::Dispatched(dispatched) => by_request(&dispatched.retried.as_ref()?.by),
        // A resume only to cancel is recorded with the stop that the operator requested, and that
        // stop names the request.
        Event::SessionResumed { by, to_cancel: false, .. } => by_request(by.as_ref()?),
        Event::RunStopping(stopping) => match &stopping.cause {
            StopCause::Operator { by, .. } => by_request(by),
            _ => None,
        },
        _ => None,
    }
}

fn by_request(by: &str) -> Option<u64> {
    by.strip_prefix("request ")?.parse().ok()
}

pub(crate) fn describe(record: &Record) -> String {
    let name = record.entity.as_ref().map_or_else(String::new, ToString::to_string);
    let what = match &record.event {
        Event::Transition { action, from, to, .. } => format!("{action}: {from} -> {to}"),
        Event::Dispatched(one) => {
            format!("{} {} attempt {}", short(one.dispatch), one.integration, one.attempt)
        }
        Event::Ended(one) => {
            format!("{} {} {:?}", short(one.dispatch), one.outcome.kind(), one.decision)
        }
        Event::Created { state, .. } => state.clone(),
        Event::Spawning(spawn) => format!("{} {:?}", spawn.entity, spawn.action),
        Event::Spawned { entity, action_refused, .. } => format!("{entity} {action_refused:?}"),
        Event::SpawnRefused { entity, reason, .. } => format!("{entity} {reason}"),
        Event::StateIdle { state, action, taken, .. } => format!("{state}: {action}, {taken}"),
        Event::Signal { name, resets_idle, .. } => format!("{name}, {resets_idle}"),
        Event::RunStarted { run_seq, .. } => format!("{run_seq}"),
        Event::LimitBreached(breach) => {
            format!("{}: {} of {}", breach.limit, breach.observed, breach.threshold)
        }
        Event::RunStopping(one) => format!("{} {:?}", one.run_seq, one.cause),
        Event::RunStopped(one) => format!("{} {:?} {:?}", one.run_seq, one.cause, one.directive),
        _ => String::new(),
    };
    format!("{:>5} {name} {} {what}", record.position, record.event.kind())
}

pub(crate) fn short(dispatch: DispatchId) -> String {
    dispatch.to_string().chars().take(8).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
