//! Replays a journal: takes the input of each decision from its records, decides again, and
//! compares. It uses no clock and no guest, and its memory grows with the number of entities, not
//! of records.

mod claims;

use std::collections::VecDeque;
use std::sync::Arc;

use sandglass_model::{
    Decision, Doing, EntityRef, Event, LimitBreached, Outcome, Partition, Position, Record,
    RunLimits, Sequence, SpawnResult, StopCause, TransitionCause,
};
use serde::Serialize;
use serde_json::Value;

use crate::decide::{
    Input, Known, Refusal, Resume, Retry, SpawnEnd, Terms, TimedOutCall, change_spec, create,
    decide_events,
};
use crate::entity::Entity;
use crate::fold::Fold;
use crate::session;
use crate::spec::Spec;
use claims::{
    Contradiction, false_ask, false_end, false_first_action, false_observation, false_spawn,
    false_spawn_end,
};

/// Most divergences that are returned; all are counted.
pub const DIVERGENCES_MAX: usize = 100;
/// Most characters of a value in a divergence: enough to distinguish two values.
const SHOWN_MAX_CHARS: usize = 200;

/// A replay in progress.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    fold: Fold,
    /// What the present decision still has to record.
    pending: VecDeque<Event>,
    pending_of: Option<EntityRef>,
    /// The resume that is being decided, until the record with the limits of its run.
    resuming: Option<Box<Resume>>,
    last: Position,
    /// Whether entities were removed on purpose.
    is_pruned: bool,
    /// The partition whose journal is replayed; `None` if it contains all entities.
    partition: Option<Partition>,
    summary: Summary,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Records that were replayed.
    pub records: u64,
    /// Entities that they are about.
    pub entities: u64,
    /// Dispatches that were asked for, each attempt counted.
    pub dispatches: u64,
    /// Dispatches that ended by a deadline.
    pub timeouts: u64,
    /// Dispatches without an end.
    pub open: u64,
    /// Snapshots that were compared with the records before them.
    pub snapshots: u64,
    /// Snapshots that cannot be used, and are not.
    pub snapshots_unusable: u64,
    /// The first [`DIVERGENCES_MAX`] differences between the records and the decisions of this
    /// build.
    pub divergences: Vec<Divergence>,
    /// The number of all differences.
    pub divergence_count: u64,
}

/// A difference between a record and the decision of this build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Divergence {
    /// The partition of the record; `None` if the journal contains all entities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// The record.
    pub position: Position,
    /// The entity that it is about.
    pub entity: Option<EntityRef>,
    /// What differs.
    pub what: String,
    /// What the record states.
    pub recorded: String,
    /// What this build decides.
    pub expected: String,
}

impl Summary {
    /// Adds the result of the replay of another journal.
    pub fn add(&mut self, other: Self) {
        self.records += other.records;
        self.entities += other.entities;
        self.dispatches += other.dispatches;
        self.timeouts += other.timeouts;
        self.open += other.open;
        self.snapshots += other.snapshots;
        self.snapshots_unusable += other.snapshots_unusable;
        self.divergence_count += other.divergence_count;
        let room = DIVERGENCES_MAX.saturating_sub(self.divergences.len());
        self.divergences.extend(other.divergences.into_iter().take(room));
    }
}

impl Replay {
    /// A replay from the first record on.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A replay from the first record on. Specs of the journal that are among `specs` are not
    /// parsed again.
    #[must_use]
    pub fn with_parsed(specs: impl IntoIterator<Item = Arc<Spec>>) -> Self {
        Self { fold: Fold::with_parsed(specs), ..Self::default() }
    }

    /// Replays the journal of one partition alone. What its records state about entities of other
    /// partitions, such as those that asked or spawned an entity, is not checked.
    #[must_use]
    pub fn of_partition(self, partition: Partition) -> Self {
        Self { partition: Some(partition), ..self }
    }

    /// Replays the next record.
    pub fn feed(&mut self, record: &Record) {
        self.summary.records += 1;
        self.count(&record.event);
        self.in_order(record);
        self.of_the_decision(record);
        let entity = record.entity.as_ref().and_then(|name| self.fold.entity(name));
        let expected = entity.map_or(Sequence(0), |entity| entity.sequence_with(&record.event));
        if record.sequence != expected {
            self.diverges(record, "sequence", record.sequence, expected);
        }
        self.consistent(record);
        // From here on the record counts, so that one difference is reported once.
        if let Err(unfit) = self.fold.apply(record) {
            self.diverges(record, "record", record.event.kind(), unfit);
        }
    }

    /// Compares a snapshot with the entity that its records lead to. One that cannot be used is not
    /// a divergence, because nothing uses it.
    pub fn snapshot(&mut self, name: &EntityRef, text: &str) {
        let Ok(kept) = Entity::of_snapshot(text) else {
            self.summary.snapshots_unusable += 1;
            return;
        };
        self.summary.snapshots += 1;
        let entity = self.fold.entity(name);
        if entity == Some(&kept) {
            return;
        }
        let text = |entity: Option<&Entity>| {
            let state = |entity: &Entity| {
                let text = entity.to_snapshot().unwrap_or_default();
                format!("sequence {}: {text}", entity.sequence)
            };
            entity.map_or_else(|| "nothing".to_owned(), state)
        };
        let (recorded, expected) = (text(Some(&kept)), text(entity));
        self.push(self.last, Some(name.clone()), "snapshot", recorded, expected);
    }

    /// Counts a record that cannot be read, in place of the next one.
    pub fn damaged(&mut self, position: Position, entity: Option<EntityRef>, why: &str) {
        self.lost(position, position, entity, why);
    }

    /// Counts the records from `first` to `last`, which are missing, as one that cannot be read.
    pub fn missing(&mut self, first: Position, last: Position) {
        let why = format!("nothing from position {first} to {last}");
        self.lost(first, last, None, &why);
    }

    fn lost(&mut self, position: Position, last: Position, entity: Option<EntityRef>, why: &str) {
        self.summary.records += 1;
        self.last = last;
        self.pending.clear();
        let expected = "a record with the checksum that was stored with it";
        self.push(position, entity, "damaged record", why, expected);
    }

    /// Skips positions whose records were removed on purpose, with all others of their entities.
    /// Asks of these entities cannot be checked any more.
    pub fn pruned(&mut self, first: Position, last: Position) {
        let expected = Position(self.last.0.saturating_add(1));
        self.flush_pending(self.last);
        if first != expected {
            self.push(first, None, "position", first, expected);
        }
        self.last = last;
        self.is_pruned = true;
    }

    /// Ends the replay.
    #[must_use]
    pub fn finish(mut self) -> Summary {
        self.flush_pending(self.last);
        self.summary.entities = count(self.fold.entities().count());
        self.summary.open =
            self.fold.entities().map(|entity| count(entity.in_flight_count())).sum();
        self.summary
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::Dispatched(_) => self.summary.dispatches += 1,
            Event::Ended(ended) if matches!(ended.outcome, Outcome::TimedOut(_)) => {
                self.summary.timeouts += 1;
            }
            _ => {}
        }
    }

    fn in_order(&mut self, record: &Record) {
        let expected = Position(self.last.0.saturating_add(1));
        if record.position != expected {
            self.diverges(record, "position", record.position, expected);
        }
        self.last = record.position;
    }

    /// Compares the record with the decision that it belongs to, or starts.
    fn of_the_decision(&mut self, record: &Record) {
        if matches!(record.event, Event::SpecRegistered { .. }) {
            return;
        }
        if self.pending_of != record.entity {
            self.flush_pending(record.position);
        }
        if self.pending.is_empty() {
            self.start_decision(record);
        } else if let Event::RunStarted { limits, .. } = &record.event {
            self.resumed_with(record, *limits);
        }
        if let Some(expected) = self.pending.pop_front() {
            self.compare(record, expected);
        }
    }

    fn start_decision(&mut self, record: &Record) {
        let entity = record.entity.as_ref().and_then(|name| self.fold.entity(name));
        let spec = match (&record.event, entity) {
            (Event::Created { spec, .. }, _) => self.fold.spec(*spec),
            (_, Some(entity)) => self.fold.spec(entity.spec),
            (_, None) => None,
        };
        // Without a spec or an entity the fold reports the record as unfit.
        let Some(spec) = spec.cloned() else { return };
        if let Event::Created { incarnation, tenant, spawned_by, .. } = &record.event {
            let (tenant, spawned_by) = (tenant.as_deref(), spawned_by.as_deref());
            let decided = match entity {
                None => create(&spec, *incarnation, tenant, spawned_by).map(|event| vec![event]),
                Some(_) => Err(Refusal::EntityExists),
            };
            return self.decided(record, decided);
        }
        if let (Event::SpecChanged { to, .. }, Some(entity)) = (&record.event, entity) {
            let decided = self.fold.spec(*to).map(|to| change_spec(&spec, entity, to));
            return decided.into_iter().for_each(|decided| self.decided(record, decided));
        }
        let Some(entity) = entity else { return };
        let generation = entity.idle_timer(&spec).map_or(0, |timer| timer.generation);
        let Some(input) = input_of(&record.event, generation) else {
            self.diverges(record, "record", record.event.kind(), "the start of a decision");
            return;
        };
        let known = known(&record.event);
        let decided = decide_events(&spec, entity, &input, record.at, known);
        let decided = decided.map(|(events, _)| events);
        self.resuming = match input {
            Input::Resume(resume) => Some(resume),
            _ => None,
        };
        self.decided(record, decided);
    }

    /// Decides the present resume again, now that the limits of its run are known: what follows
    /// from it depends on them.
    fn resumed_with(&mut self, record: &Record, limits: RunLimits) {
        let Some(resume) = self.resuming.take() else { return };
        let entity = record.entity.as_ref().and_then(|name| self.fold.entity(name));
        let spec = entity.and_then(|entity| self.fold.spec(entity.spec));
        let input = Input::Resume(Box::new(Resume { limits, ..*resume }));
        let decided = entity.zip(spec);
        let decided = decided
            .map(|(entity, spec)| decide_events(spec, entity, &input, record.at, Known::default()));
        if let Some(Ok((events, _))) = decided {
            // The first of them was compared, and does not change the entity.
            self.pending = events.into_iter().skip(1).collect();
        }
    }

    fn decided(&mut self, record: &Record, decided: Result<Vec<Event>, Refusal>) {
        match decided {
            Ok(events) => {
                self.pending = events.into();
                self.pending_of.clone_from(&record.entity);
            }
            Err(refusal) => {
                let refused = format!("nothing: {refusal}");
                self.diverges(record, "decision", described(&record.event), refused);
            }
        }
    }

    fn compare(&mut self, record: &Record, mut expected: Event) {
        follow_the_record(&record.event, &mut expected);
        if record.event == expected {
            return;
        }
        if record.event.kind() != expected.kind() {
            self.diverges(record, "record", record.event.kind(), expected.kind());
            self.pending.clear();
            return;
        }
        let (recorded, expected) = (fields(&record.event), fields(&expected));
        for key in recorded.keys().chain(expected.keys().filter(|key| !recorded.contains_key(*key)))
        {
            let (is, ought) = (recorded.get(key), expected.get(key));
            if is != ought {
                let text = |value: Option<&Value>| {
                    value.map_or_else(|| "nothing".to_owned(), Value::to_string)
                };
                let what = format!("{}.{key}", record.event.kind());
                self.diverges(record, &what, text(is), text(ought));
            }
        }
    }

    /// Checks what a record states that no decision depends on: how a handler ended, and which one
    /// asked.
    fn consistent(&mut self, record: &Record) {
        let found = match (&record.event, &record.entity) {
            (Event::Ended(ended), Some(name)) => {
                let run = self
                    .fold
                    .entity(name)
                    .and_then(|entity| entity.in_flight_handler(ended.dispatch));
                // If there is no such handler, the decision reports that.
                run.map(|run| false_end(name, &run.dispatched, ended)).unwrap_or_default()
            }
            (Event::Transition { cause: TransitionCause::Asked(asked), trace, .. }, name) => {
                let entity = name.as_ref().and_then(|name| self.fold.entity(name));
                if !self.is_known(&asked.by) {
                    return;
                }
                false_ask(entity, self.fold.entity(&asked.by), asked, *trace)
            }
            (_, Some(name)) => self.false_spawns(name, &record.event),
            _ => return,
        };
        let found = found.into_iter().chain(self.false_observations(record));
        for Contradiction { what, recorded, expected } in found {
            self.diverges(record, what, recorded, expected);
        }
    }

    /// The contradictions between the states of other entities that a record states, and these entities.
    /// Which states they had is not checked, because they may have changed since.
    fn false_observations(&self, record: &Record) -> Vec<Contradiction> {
        let reader = record.entity.as_ref().and_then(|name| self.fold.entity(name));
        let exists = |name: &EntityRef| match self.fold.entity(name) {
            Some(entity) => reader.is_some_and(|reader| reader.tenant == entity.tenant),
            None => !self.is_known(name),
        };
        let stated = record.event.observed().iter().filter(|one| one.state.is_some());
        stated.filter(|one| !exists(&one.entity)).map(false_observation).collect()
    }

    /// The contradictions between what records of a spawned entity and of its parent state.
    fn false_spawns(&self, name: &EntityRef, event: &Event) -> Vec<Contradiction> {
        match event {
            Event::Created { spawned_by: Some(by), incarnation, tenant, .. } => {
                let parent = self.fold.entity(&by.parent);
                let found = || false_spawn(parent, by, (name, *incarnation), tenant.as_deref());
                self.is_known(&by.parent).then(found)
            }
            Event::Transition { cause: TransitionCause::Spawned, .. } => {
                let by = self.fold.entity(name).and_then(Entity::spawned_by);
                let parent = by.and_then(|by| self.fold.entity(&by.parent));
                let is_known = by.map_or(!self.is_pruned, |by| self.is_known(&by.parent));
                is_known.then(|| false_first_action(parent, by, event))
            }
            Event::Spawned { entity, .. } | Event::SpawnRefused { entity, .. } => {
                let (parent, child) = (self.fold.entity(name), self.fold.entity(entity));
                let parent = parent.filter(|_| self.is_known(entity));
                parent.map(|parent| false_spawn_end(parent, child, event))
            }
            _ => None,
        }
        .unwrap_or_default()
    }

    /// Whether the absence of an entity means that it does not exist: it was not removed on purpose,
    /// and is not in the journal of another partition.
    fn is_known(&self, name: &EntityRef) -> bool {
        let is_elsewhere = self.partition.is_some_and(|own| Partition::of(name) != own);
        self.fold.entity(name).is_some() || !(self.is_pruned || is_elsewhere)
    }

    /// Reports what a decision should have recorded.
    fn flush_pending(&mut self, position: Position) {
        let entity = self.pending_of.take();
        for missing in std::mem::take(&mut self.pending) {
            self.push(position, entity.clone(), "record", "nothing", described(&missing));
        }
    }

    fn diverges(
        &mut self,
        record: &Record,
        what: &str,
        recorded: impl ToString,
        expected: impl ToString,
    ) {
        self.push(record.position, record.entity.clone(), what, recorded, expected);
    }

    fn push(
        &mut self,
        position: Position,
        entity: Option<EntityRef>,
        what: &str,
        recorded: impl ToString,
        expected: impl ToString,
    ) {
        self.summary.divergence_count += 1;
        if self.summary.divergences.len() < DIVERGENCES_MAX {
            let (recorded, expected) = (shown(&recorded.to_string()), shown(&expected.to_string()));
            let what = what.to_owned();
            self.summary.divergences.push(Divergence {
                partition: self.partition,
                position,
                entity,
                what,
                recorded,
                expected,
            });
        }
    }
}

/// Takes from the record what no decision can know: what only the host that executed a handler
/// knows, and what records of earlier versions do not contain.
fn follow_the_record(recorded: &Event, expected: &mut Event) {
    match (recorded, expected) {
        (Event::Dispatched(recorded), Event::Dispatched(expected)) => {
            expected.module_hash = recorded.module_hash;
            expected.spec = recorded.spec.and(expected.spec);
            expected.expected = recorded.expected.and(expected.expected);
        }
        (Event::RunStarted { limits, .. }, Event::RunStarted { limits: expected, .. }) => {
            *expected = *limits;
        }
        (Event::Ended(recorded), Event::Ended(expected)) => {
            expected.deadline_at = recorded.deadline_at.and(expected.deadline_at);
        }
        (Event::LimitBreached(recorded), Event::LimitBreached(expected)) => {
            let repeated = expected.signature.take();
            expected.signature = recorded.signature.as_ref().and(repeated);
        }
        _ => {}
    }
}

/// What was known of other entities when the decision was made that `event` begins.
fn known(event: &Event) -> Known<'_> {
    let unspawnable = match event {
        Event::ScheduleDue { unspawnable, .. } => unspawnable.as_deref(),
        _ => None,
    };
    Known { unspawnable, observed: Some(event.observed()) }
}

/// The input that a record carries; `None` if it only follows from another record.
fn input_of(event: &Event, generation: u64) -> Option<Input> {
    Some(match event {
        Event::Transition { action, params, cause, trace, idempotency, .. } => {
            let (action, params, trace) = (action.clone(), params.clone(), *trace);
            let terms = idempotency.as_deref().map_or_else(Terms::default, |one| Terms {
                expected: one.expected,
                key: Some(one.key.clone()),
            });
            match cause {
                TransitionCause::Requested => {
                    Input::Action { action, params, trace, asked: None, terms }
                }
                TransitionCause::Asked(asked) => {
                    Input::Action { action, params, trace, asked: Some(asked.clone()), terms }
                }
                TransitionCause::Spawned => Input::FirstAction { action, params, trace },
                _ => return None,
            }
        }
        Event::Spawned { spawned_at, index, action_refused, .. } => {
            let result = SpawnResult::Created { action_refused: action_refused.clone() };
            Input::SpawnEnded(SpawnEnd { spawned_at: *spawned_at, index: *index, result })
        }
        Event::SpawnRefused { spawned_at, index, reason, .. } => {
            let result = SpawnResult::Refused(*reason);
            Input::SpawnEnded(SpawnEnd { spawned_at: *spawned_at, index: *index, result })
        }
        Event::Dispatched(dispatched) => {
            let (dispatched, retried) = (dispatched.clone(), dispatched.retried.clone()?);
            let retry = Retry { dispatched, retried, expected_attempt: None };
            Input::Retry(Box::new(retry))
        }
        Event::Ended(ended) => Input::HandlerEnded(Arc::clone(&ended.end)),
        Event::StateIdle { idle_ms, .. } => Input::StateIdle { generation, idle_ms: *idle_ms },
        Event::ScheduleDue { schedule, .. } => Input::ScheduleDue { schedule: *schedule },
        Event::Signal { name, from, dispatch, payload, .. } => Input::Signal {
            name: name.clone(),
            from: from.clone(),
            dispatch: *dispatch,
            payload: payload.clone(),
        },
        Event::RunStarted { limits, .. } => Input::Start { limits: *limits },
        Event::SessionResumed { from_run_seq, by: Some(by), reason, to_cancel: true, .. } => {
            let cause = StopCause::Operator { by: by.clone(), reason: reason.clone() };
            Input::Stop { run_seq: Some(*from_run_seq), cause }
        }
        // The limits of the next run are in the record behind this one.
        Event::SessionResumed { from_run_seq, by: Some(by), reason, .. } => {
            Input::Resume(Box::new(Resume {
                by: by.clone(),
                reason: reason.clone(),
                expected_run: Some(*from_run_seq),
                limits: session::default_limits(),
            }))
        }
        Event::RunStopping(stopping) => {
            Input::Stop { run_seq: Some(stopping.run_seq), cause: stopping.cause.clone() }
        }
        Event::LimitBreached(breach) => input_of_breach(breach),
        Event::LimitCleared { last_signal: Some(signal), .. } => Input::Active((**signal).clone()),
        Event::SpecRegistered { .. }
        | Event::Created { .. }
        | Event::SpecChanged { .. }
        | Event::Scheduled { .. }
        | Event::Emitted { .. }
        | Event::Spawning(_)
        | Event::LimitCleared { .. }
        | Event::RunStopped(_)
        | Event::SessionResumed { by: None, .. } => return None,
    })
}

/// The input that led to the breach of a limit.
fn input_of_breach(breach: &LimitBreached) -> Input {
    match (breach.dispatch, &breach.in_flight) {
        (Some(dispatch), Some(Doing { host_call: Some(host_call), since, .. })) => {
            Input::CallTimedOut(TimedOutCall {
                dispatch,
                host_call: host_call.clone(),
                since: *since,
                threshold_ms: breach.threshold,
                observed_ms: breach.observed,
            })
        }
        _ => Input::LimitDue {
            limit: breach.limit,
            observed_ms: breach.observed,
            doing: breach.in_flight.clone(),
            active: breach.last_signal.clone(),
        },
    }
}

/// A record in a few words.
fn described(event: &Event) -> String {
    match event {
        Event::Transition { action, from, to, .. } => {
            format!("transition by `{action}` from `{from}` to `{to}`")
        }
        Event::Dispatched(dispatched) => format!("dispatched `{}`", dispatched.integration),
        Event::Ended(ended) => {
            let decision = match &ended.decision {
                Decision::Take { action } => format!("take `{action}`"),
                Decision::Superseded { action } => format!("`{action}` superseded"),
                Decision::Rerun => "rerun".to_owned(),
                Decision::Held => "held".to_owned(),
                Decision::Dropped => "dropped".to_owned(),
            };
            format!("{}: {decision}", ended.outcome.kind())
        }
        other => other.kind().to_owned(),
    }
}

fn fields(event: &Event) -> serde_json::Map<String, Value> {
    match serde_json::to_value(event) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    }
}

/// At most [`SHOWN_MAX_CHARS`] characters, none of them a control character.
fn shown(text: &str) -> String {
    let clean: String = text.chars().filter(|c| !c.is_control()).take(SHOWN_MAX_CHARS).collect();
    if clean.chars().count() < SHOWN_MAX_CHARS { clean } else { format!("{clean}…") }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
