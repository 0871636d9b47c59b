//! An entity: the fold of its records, and the timers that follow from it.

mod ended_dispatch;
pub(crate) mod fields;
mod keys;
mod snapshot;
mod spawns;

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::{
    DEFAULT_TENANT, Decision, DispatchId, Dispatched, Ended, EntityRef, Event, IdempotencyKey,
    Incarnation, ModuleHash, Object, Sequence, Spawn, SpawnedBy, SpecDigest, WallTime,
};

use serde::{Deserialize, Serialize};

use crate::session::{HandlerWatch, RecordedCalls, Session, Watched};
use crate::spec::Spec;
use ended_dispatch::EndedDispatches;
pub use ended_dispatch::{ENDED_DISPATCHES_MAX, EndedDispatch};
pub use fields::{FIELDS_MAX_BYTES, Fields, ID, STATUS};
pub use keys::KEYS_MAX;
use keys::Keys;
pub(crate) use keys::Used;
pub use snapshot::{SNAPSHOT_MAX_BYTES, SNAPSHOT_VERSION, Unusable};
pub(crate) use spawns::parent_fields;

/// An entity, as its records make it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entity {
    /// Its type and id.
    pub entity: EntityRef,
    /// The spec that it obeys.
    pub spec: SpecDigest,
    /// Distinguishes this life of it from others of the same name.
    pub incarnation: Incarnation,
    /// The tenant that it belongs to.
    pub tenant: String,
    /// Its state.
    pub state: String,
    /// Its variables.
    pub variables: Object,
    fields: Fields,
    /// How many transitions it has taken.
    pub sequence: Sequence,
    in_flight: BTreeMap<DispatchId, InFlight>,
    past: EndedDispatches,
    #[serde(default, skip_serializing_if = "Keys::is_empty")]
    keys: Keys,
    dispatched: u64,
    idle_since: WallTime,
    idle_generation: u64,
    occurrences: BTreeMap<String, u32>,
    schedules: BTreeMap<u64, Schedule>,
    next_schedule: u64,
    /// Boxed, because many entities are not sessions.
    session: Option<Box<Session>>,
    /// The inactivity of its handlers in flight, if it is not a session. Boxed, because few entities
    /// have handlers in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handlers: Option<Box<HandlerWatch>>,
    /// The transition of another entity that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spawned_by: Option<Box<SpawnedBy>>,
    /// The entities that it spawns and that are not known to exist yet, by the sequence of the
    /// transition and their number within it. There is no snapshot while there are any.
    #[serde(skip)]
    spawning: BTreeMap<(Sequence, u32), Arc<Spawn>>,
}

/// A handler that was dispatched and has not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// Its dispatch; shared, because entities are copied with each decision.
    pub dispatched: Arc<Dispatched>,
    /// The entity's fields when it was dispatched. They are not serialized, because no snapshot is
    /// taken while there is such a handler.
    #[serde(skip)]
    pub fields: Fields,
    /// Whether the entity has left the state that started it, so that it is being stopped and its
    /// outcome changes nothing.
    pub left: bool,
    /// Its host calls that reached their time limit and are recorded already.
    #[serde(default, skip_serializing_if = "RecordedCalls::is_empty")]
    pub recorded_calls: RecordedCalls,
    order: u64,
}

/// An action that is sent later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its number within the entity's life, from 0.
    pub number: u64,
    /// The action.
    pub action: String,
    /// When.
    pub due: WallTime,
}

/// The timer of the present state, while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTimer {
    /// Distinguishes this arming of the timer from earlier ones.
    pub generation: u64,
    /// Since when nothing has been dispatched.
    pub since: WallTime,
    /// How long that is allowed, in milliseconds.
    pub after_ms: u64,
}

impl Entity {
    /// The entity that `event` creates at `at`; `None` if it is not [`Event::Created`].
    #[must_use]
    pub fn created(entity: EntityRef, event: &Event, at: WallTime) -> Option<Self> {
        let Event::Created { spec, incarnation, state, variables, tenant, spawned_by } = event
        else {
            return None;
        };
        Some(Self {
            entity,
            spec: *spec,
            incarnation: *incarnation,
            tenant: tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
            state: state.clone(),
            variables: variables.clone(),
            fields: spawned_by
                .iter()
                .flat_map(|by| parent_fields(&by.parent))
                .collect::<Object>()
                .into(),
            sequence: Sequence(0),
            in_flight: BTreeMap::new(),
            past: EndedDispatches::default(),
            keys: Keys::default(),
            dispatched: 0,
            idle_since: at,
            idle_generation: 0,
            occurrences: BTreeMap::new(),
            schedules: BTreeMap::new(),
            next_schedule: 0,
            session: None,
            handlers: None,
            spawned_by: spawned_by.clone(),
            spawning: BTreeMap::new(),
        })
    }

    /// Folds one more record into the entity. It does not question what was decided, and ignores
    /// records that cannot be about the entity.
    pub fn apply(&mut self, spec: &Spec, event: &Event, at: WallTime) {
        self.apply_to_session(spec, event, at);
        match event {
            // The state's timer was stopped while the session had no run.
            Event::RunStarted { .. } => self.restart_idle(at),
            Event::Transition { to, variables, params, idempotency, .. } => {
                self.fields = self.fields.after(params).0;
                self.apply_transition(spec, to, variables);
                if let Some(idempotency) = idempotency {
                    self.keys.push(idempotency, self.sequence);
                }
                self.restart_idle(at);
            }
            Event::Dispatched(dispatched) => self.apply_dispatched(dispatched),
            Event::Ended(ended) => self.apply_ended(ended, at),
            Event::StateIdle { state, occurrence, taken, .. } => {
                // If a guard refused the action, the timer has to fire again.
                if *taken {
                    self.occurrences.insert(state.clone(), *occurrence);
                }
                self.restart_idle(at);
            }
            Event::Scheduled { schedule, action, due } => {
                let number = *schedule;
                self.next_schedule = self.next_schedule.max(number.saturating_add(1));
                self.schedules
                    .insert(number, Schedule { number, action: action.clone(), due: *due });
            }
            Event::ScheduleDue { schedule, .. } => {
                self.schedules.remove(schedule);
            }
            Event::Spawning(spawn) => self.apply_spawning(spawn),
            Event::Spawned { spawned_at, index, .. }
            | Event::SpawnRefused { spawned_at, index, .. } => {
                self.spawning.remove(&(*spawned_at, *index));
            }
            Event::SpecChanged { to, variables, .. } => {
                self.spec = *to;
                variables.clone_into(&mut self.variables);
                // The new version may have another timer for its state, or none.
                self.restart_idle(at);
            }
            Event::Signal { resets_idle: true, .. } => self.restart_idle(at),
            Event::LimitBreached(breach) => {
                let dispatch = breach.dispatch;
                if let Some(run) = dispatch.and_then(|dispatch| self.in_flight.get_mut(&dispatch)) {
                    run.recorded_calls.add(breach);
                }
            }
            Event::SpecRegistered { .. }
            | Event::Created { .. }
            | Event::Emitted { .. }
            | Event::LimitCleared { .. }
            | Event::RunStopping(_)
            | Event::RunStopped(_)
            | Event::SessionResumed { .. }
            | Event::Signal { .. } => {}
        }
    }

    fn apply_transition(&mut self, spec: &Spec, to: &str, variables: &Object) {
        self.sequence = self.sequence.next();
        variables.clone_into(&mut self.variables);
        if to != self.state {
            self.leave(spec);
            to.clone_into(&mut self.state);
        }
        if spec.is_terminal(to) {
            // No action is taken any more.
            self.schedules.clear();
        }
    }

    fn apply_ended(&mut self, ended: &Ended, at: WallTime) {
        if let Some(run) = self.in_flight.remove(&ended.dispatch)
            && ended.decision != Decision::Rerun
        {
            self.past.push(EndedDispatch::of(&run.dispatched, ended));
        }
        if self.in_flight.is_empty() {
            self.handlers = None;
        }
        self.restart_idle(at);
    }

    fn apply_dispatched(&mut self, dispatched: &Dispatched) {
        let order = self.dispatched;
        self.dispatched += 1;
        self.past.forget(dispatched.dispatch);
        let run = InFlight {
            dispatched: Arc::new(dispatched.clone()),
            fields: self.fields.clone(),
            left: false,
            recorded_calls: RecordedCalls::default(),
            order,
        };
        self.in_flight.insert(dispatched.dispatch, run);
    }

    fn apply_to_session(&mut self, spec: &Spec, event: &Event, at: WallTime) {
        match self.session.take() {
            None => {
                self.session = Session::started(event, at).map(Box::new);
                self.watch_handlers(spec, event, at);
            }
            Some(mut session) => {
                session.apply(spec, self, event, at);
                self.session = Some(session);
            }
        }
    }

    fn watch_handlers(&mut self, spec: &Spec, event: &Event, at: WallTime) {
        self.handlers = match self.handlers.take() {
            // The session measures from now on.
            _ if self.session.is_some() => None,
            None => HandlerWatch::started(spec, event, at).map(Box::new),
            Some(mut handlers) => {
                handlers.apply(spec, self, event, at);
                Some(handlers)
            }
        };
    }

    /// Its fields when the handler of `dispatch` was dispatched; the present ones if none is in flight.
    #[must_use]
    pub fn fields_of(&self, dispatch: DispatchId) -> Fields {
        let handler = self.in_flight_handler(dispatch);
        handler.map_or(&self.fields, |handler| &handler.fields).clone()
    }

    /// Its fields: the last values of the parameters of all actions that it took.
    #[must_use]
    pub const fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Its session, if it is one.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    /// Whose inactivity is measured: that of its session, or if it is not a session, that of its
    /// handlers in flight, unless its rules do not watch them.
    #[must_use]
    pub fn watched(&self) -> Option<Watched<'_>> {
        let handlers = || self.handlers.as_deref().map(Watched::Handlers);
        self.session().map(Watched::Session).or_else(handlers)
    }

    /// Whether it is a session whose run has stopped or is stopping, so that its timers do not run.
    fn is_stopped(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_running())
    }

    /// Whether no action will ever be taken any more: it is in a terminal state, or a session that
    /// was stopped for good.
    #[must_use]
    pub fn has_ended(&self, spec: &Spec) -> bool {
        let is_over = self.session.as_ref().is_some_and(|session| session.is_over());
        spec.is_terminal(&self.state) || is_over
    }

    /// The sequence that a record of `event` carries for this entity.
    #[must_use]
    pub fn sequence_with(&self, event: &Event) -> Sequence {
        match event {
            Event::Transition { .. } => self.sequence.next(),
            _ => self.sequence,
        }
    }

    /// The sequences that the records of `events` carry, one after the other.
    pub fn sequences<'a>(&self, events: &'a [Event]) -> impl Iterator<Item = Sequence> + 'a {
        events.iter().scan(self.sequence, |sequence, event| {
            if matches!(event, Event::Transition { .. }) {
                *sequence = sequence.next();
            }
            Some(*sequence)
        })
    }

    /// The handlers in flight, in the order of their dispatch.
    #[must_use]
    pub fn in_flight(&self) -> Vec<&InFlight> {
        let mut runs: Vec<&InFlight> = self.in_flight.values().collect();
        runs.sort_by_key(|run| run.order);
        runs
    }

    /// How many handlers are queued or in flight.
    #[must_use]
    pub fn in_flight_count(&self) -> usize {
        self.in_flight.len()
    }

    /// The handler of this dispatch, while it is in flight.
    #[must_use]
    pub fn in_flight_handler(&self, dispatch: DispatchId) -> Option<&InFlight> {
        self.in_flight.get(&dispatch)
    }

    /// The handler of this dispatch, if it is one of the last [`ENDED_DISPATCHES_MAX`] that have
    /// ended.
    #[must_use]
    pub fn ended_dispatch(&self, dispatch: DispatchId) -> Option<&EndedDispatch> {
        self.past.find(dispatch)
    }

    /// The request that used this key, if the key is one of the last [`KEYS_MAX`] that were used.
    pub(crate) fn used_key(&self, key: &IdempotencyKey) -> Option<&Used> {
        self.keys.find(key.digest())
    }

    /// Whether no handler is queued or in flight.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The timer of the present state; `None` while a handler is queued or in flight, which has
    /// limits of its own.
    #[must_use]
    pub fn idle_timer(&self, spec: &Spec) -> Option<IdleTimer> {
        let timeout = spec.timeouts.get(&self.state)?;
        let used_up =
            timeout.max_occurrences.is_some_and(|most| self.occurrences_of(&self.state) >= most);
        let stands_still = used_up
            || !self.in_flight.is_empty()
            || spec.is_terminal(&self.state)
            || self.is_stopped();
        (!stands_still).then_some(IdleTimer {
            generation: self.idle_generation,
            since: self.idle_since,
            after_ms: timeout.after_ms,
        })
    }

    /// How often the timer of `state` has fired and its action was taken.
    #[must_use]
    pub fn occurrences_of(&self, state: &str) -> u32 {
        self.occurrences.get(state).copied().unwrap_or(0)
    }

    /// The scheduled actions, by number.
    pub fn schedules(&self) -> impl ExactSizeIterator<Item = &Schedule> {
        self.schedules.values()
    }

    /// The scheduled action of this number, while it is pending.
    #[must_use]
    pub fn schedule(&self, number: u64) -> Option<&Schedule> {
        self.schedules.get(&number)
    }

    /// The number that the next scheduled action gets.
    #[must_use]
    pub const fn next_schedule(&self) -> u64 {
        self.next_schedule
    }

    /// Sets the version of the module that an attempt runs, if it is in flight or held.
    pub(crate) fn set_module_hash(&mut self, dispatch: DispatchId, attempt: u32, hash: ModuleHash) {
        let in_flight = self.in_flight.get_mut(&dispatch).map(|run| &mut run.dispatched);
        let held = self.session.as_mut().and_then(|session| session.held_mut(dispatch));
        for dispatched in in_flight.into_iter().chain(held) {
            if dispatched.attempt == attempt {
                Arc::make_mut(dispatched).module_hash = Some(hash);
            }
        }
    }

    /// Marks the handlers that the left state started.
    fn leave(&mut self, spec: &Spec) {
        for run in self.in_flight.values_mut() {
            let integration = spec.integrations.get(&run.dispatched.integration);
            run.left |= !integration.is_some_and(|integration| integration.keep_on_exit);
        }
    }

    fn restart_idle(&mut self, at: WallTime) {
        self.idle_since = at;
        self.idle_generation = self.idle_generation.wrapping_add(1);
    }
}
