//! Turns an input into the records that follow from it. The live runtime and the replay of its
//! journal call the same function.

mod action;
mod commands;
mod effects;
mod ending;
mod refusal;
mod retry;
pub(crate) mod session;
mod spawn;
mod spec_change;
mod terms;

use std::sync::Arc;

use sandglass_model::id::{NAME_MAX_BYTES, check_name, check_signal_name};
use sandglass_model::{
    AskUntil, Asked, DispatchId, Dispatched, Doing, EntityRef, EntitySignal, Event, HandlerEnd,
    Incarnation, LastSignal, Limit, ModuleHash, Object, Observed, RulesVersion, RunLimits,
    SpawnedBy, StopCause, TraceContext, TransitionCause, Unspawnable, WallTime,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::entity::{Entity, parent_fields};
use crate::spec::refusable::REFUSED;
use crate::spec::{Spec, VariableKind};

use action::{ActionContext, MayRefuse};
pub use commands::{Command, commands, handler_cause};
pub use refusal::{BrokenInvariant, Refusal, UnfitParam, UnmetGuard};
pub use retry::Retry;
pub use session::{Resume, directive, works_only_for};
pub use spawn::{SPAWNED_MAX_BYTES, SPAWNING_MAX, SpawnEnd};
pub use spec_change::change_spec;
pub use terms::Terms;

/// Most handlers of one entity that are queued or in flight: an entity is one
/// conversation, not a pool of workers.
pub const IN_FLIGHT_MAX: usize = 64;
/// Most actions of one entity that are scheduled for later: they are kept in memory.
pub const SCHEDULES_MAX: usize = 1_000;
/// Largest parameters of an action, in bytes as JSON: they are in the journal and in each dispatch.
/// Larger data belongs in a store of its own.
pub const PARAMS_MAX_BYTES: usize = 1 << 20;
/// Largest variables of an entity, in bytes as JSON: each transition records them.
pub const VARIABLES_MAX_BYTES: usize = 1 << 20;
/// Largest parameters and variables that one transition gives to all the handlers that it starts,
/// in bytes as JSON: they go into one transaction of the journal.
pub const HANDED_MAX_BYTES: usize = 16 << 20;
/// Largest payload of a signal, in bytes as JSON: a signal is a notice.
pub const SIGNAL_MAX_BYTES: usize = EntitySignal::PAYLOAD_MAX_BYTES as usize;
/// Longest reason of a retry, in bytes: a note for people, stored in the journal.
pub const REASON_MAX_BYTES: usize = 4 << 10;
/// Most host calls of one attempt that are recorded when they reach their time limit, because each is
/// a record. Later ones are recorded together with the end of the handler.
pub const CALLS_RECORDED_MAX: u64 = 100;
/// How deep asks may be nested. A handler waits at each level, within the time that its parent has
/// left, so deeper nesting is a mistake.
pub const ASK_DEPTH_MAX: u32 = 8;
/// Most attempts of one dispatch that `on_crash = "rerun"` makes by itself: a handler that crashes
/// its host each time must not do so forever.
pub const RERUN_ATTEMPTS_MAX: u32 = 8;

/// Most entities whose states are read for one decision, which may try several actions: they are a part of
/// its record. A guard that would read further ones does not hold.
pub const OBSERVED_MAX: usize = 64;

/// What is known of other entities when a decision is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// An entity that cannot be spawned. An action that would spawn it is refused. Endings that are not a
    /// success, and the actions of state timers, are taken nevertheless, because without them the entity
    /// could stay in its state forever.
    pub unspawnable: Option<&'a Unspawnable>,
    /// The states that were read. If the decision depends on further ones, it returns
    /// [`Refusal::Unobserved`]; the caller reads them and decides again. `None` if states cannot be read:
    /// then no other entity exists for the decision.
    pub observed: Option<&'a [Observed]>,
}

/// What a decision is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The entity is created.
    Create {
        /// Its name.
        name: EntityRef,
        /// Distinguishes this life of it from others of the same name; drawn at random by the
        /// shell.
        incarnation: Incarnation,
        /// The tenant that it belongs to; `None` for [`sandglass_model::DEFAULT_TENANT`].
        tenant: Option<String>,
        /// The transition of another entity that creates it, if one does.
        spawned_by: Option<Box<SpawnedBy>>,
    },
    /// A caller, or a handler of another entity, requests an action.
    Action {
        /// The action.
        action: String,
        /// Its parameters.
        params: Object,
        /// The trace that the request belongs to.
        trace: TraceContext,
        /// The ask, if a handler requests it.
        asked: Option<Asked>,
        /// What a caller states besides; nothing if a handler requests it.
        terms: Terms,
    },
    /// The entity takes its first action, because another one has spawned it.
    FirstAction {
        /// The action.
        action: String,
        /// Its parameters.
        params: Object,
        /// The span of the transition that spawned it.
        trace: TraceContext,
    },
    /// An entity that it spawns was created, or cannot be.
    SpawnEnded(SpawnEnd),
    /// An operator requests one more attempt of a handler.
    Retry(Box<Retry>),
    /// A handler ended.
    HandlerEnded(Arc<HandlerEnd>),
    /// The timer of its state has fired.
    StateIdle {
        /// Which arming of the timer: [`crate::IdleTimer::generation`].
        generation: u64,
        /// How long nothing had been dispatched, in milliseconds.
        idle_ms: u64,
    },
    /// A scheduled action came due.
    ScheduleDue {
        /// Its number.
        schedule: u64,
    },
    /// Its first run starts, which makes it a session.
    Start {
        /// The limits of the run.
        limits: RunLimits,
    },
    /// An operator resumes the session after its run has stopped.
    Resume(Box<Resume>),
    /// An operator, the host or the session of an asker stops the run.
    Stop {
        /// Which run; `None` for the present one.
        run_seq: Option<u32>,
        /// Why.
        cause: StopCause,
    },
    /// A limit of the run, or of handlers without a session, was breached by the passage of time.
    LimitDue {
        /// Which.
        limit: Limit,
        /// What was measured, in milliseconds, rounded up.
        observed_ms: u64,
        /// What its handlers were doing, if that is known.
        doing: Option<Doing>,
        /// The last host call of its handlers, if that is known: activity that no record shows.
        active: Option<LastSignal>,
    },
    /// A host call of one of its handlers showed activity after a warning.
    Active(LastSignal),
    /// A host call of a handler in flight reached its own time limit, and the handler continues.
    CallTimedOut(TimedOutCall),
    /// A signal, which is not an action.
    Signal {
        /// Its kind.
        name: String,
        /// The other entity that sent it, if one did.
        from: Option<EntityRef>,
        /// The handler that sent it, if one did.
        dispatch: Option<DispatchId>,
        /// Its content.
        payload: Value,
    },
}

/// A host call that reached its own time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedOutCall {
    /// The dispatch whose handler made it.
    pub dispatch: DispatchId,
    /// The host function, or what the call was about.
    pub host_call: String,
    /// When it began.
    pub since: WallTime,
    /// The limit, in milliseconds.
    pub threshold_ms: u64,
    /// How long it took, in milliseconds, rounded up: more than the limit.
    pub observed_ms: u64,
}

/// The records that follow from an input, and the entity that they lead to.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The records, in order: they are appended together, or not at all.
    pub events: Vec<Event>,
    /// The entity with all of them folded in.
    pub after: Entity,
}

impl Decided {
    /// Folds `events` into `entity`.
    #[must_use]
    pub fn of(spec: &Spec, entity: &Entity, events: Vec<Event>, now: WallTime) -> Self {
        let mut after = entity.clone();
        events.iter().for_each(|event| after.apply(spec, event, now));
        Self { events, after }
    }

    /// Adds the version of its module to each dispatch for which `hash_of` knows it, in the record
    /// and in the folded entity: a fold of the records would find it there, too.
    pub fn set_module_hashes(&mut self, hash_of: impl Fn(&Dispatched) -> Option<ModuleHash>) {
        for event in &mut self.events {
            if let Event::Dispatched(dispatched) = event
                && let Some(hash) = hash_of(dispatched)
            {
                dispatched.module_hash = Some(hash);
                self.after.set_module_hash(dispatched.dispatch, dispatched.attempt, hash);
            }
        }
    }
}

/// Decides what follows from `input` for an entity that obeys `spec`.
///
/// # Errors
/// The input is refused, and changes nothing.
pub fn decide(
    spec: &Spec,
    entity: Option<&Entity>,
    input: &Input,
    now: WallTime,
) -> Result<Decided, Refusal> {
    decide_knowing(spec, entity, input, now, Known::default())
}

/// As [`decide`], which knows no other entity.
///
/// # Errors
/// The input is refused, and changes nothing.
pub fn decide_knowing(
    spec: &Spec,
    entity: Option<&Entity>,
    input: &Input,
    now: WallTime,
    known: Known<'_>,
) -> Result<Decided, Refusal> {
    match (entity, input) {
        (None, Input::Create { name, incarnation, tenant, spawned_by }) => {
            let event = create(spec, *incarnation, tenant.as_deref(), spawned_by.as_deref())?;
            let after = Entity::created(name.clone(), &event, now);
            let after = after.ok_or(Refusal::UnknownEntity)?;
            Ok(Decided { events: vec![event], after })
        }
        (None, _) => Err(Refusal::UnknownEntity),
        (Some(entity), _) => {
            let (events, after) = decide_events(spec, entity, input, now, known)?;
            Ok(match after {
                Some(after) => Decided { events, after },
                None => Decided::of(spec, entity, events, now),
            })
        }
    }
}

/// The record of a new entity.
pub(crate) fn create(
    spec: &Spec,
    incarnation: Incarnation,
    tenant: Option<&str>,
    spawned_by: Option<&SpawnedBy>,
) -> Result<Event, Refusal> {
    if let Some(tenant) = tenant {
        check_name("tenant", tenant, NAME_MAX_BYTES).map_err(Refusal::BadTenant)?;
    }
    let mut variables = spec.initial_variables();
    for (name, value) in spawned_by.iter().flat_map(|by| parent_fields(&by.parent)) {
        let declared = spec.variables.get(&name).filter(|one| one.kind == VariableKind::String);
        variables.extend(declared.map(|_| (name, value)));
    }
    Ok(Event::Created {
        spec: spec.digest,
        incarnation,
        state: spec.initial.to_string(),
        variables,
        tenant: tenant.map(str::to_owned),
        spawned_by: spawned_by.cloned().map(Box::new),
    })
}

/// What [`decide`] returns for an entity that exists, folded only if the decision needed that: a
/// replay folds the records that it reads.
pub(crate) fn decide_events(
    spec: &Spec,
    entity: &Entity,
    input: &Input,
    now: WallTime,
    known: Known<'_>,
) -> Result<(Vec<Event>, Option<Entity>), Refusal> {
    let key = terms::check(entity, input)?;
    session::check_admitted(spec, entity, input)?;
    let mut events = decide_input(spec, entity, input, now, known)?;
    terms::record(events.first_mut(), key);
    if let (Some(first), Some(observed @ [_, ..])) = (events.first_mut(), known.observed) {
        record_observed(first, observed);
    }
    Ok(session::apply_session_rules(spec, entity, events, now))
}

/// Records what was known of other entities with the decision that depends on it.
fn record_observed(first: &mut Event, known: &[Observed]) {
    match first {
        Event::Transition { observed, .. }
        | Event::StateIdle { observed, .. }
        | Event::ScheduleDue { observed, .. } => *observed = known.to_vec(),
        Event::Ended(ended) => ended.observed = known.to_vec(),
        // No other decision depends on them.
        _ => {}
    }
}

/// What became of an action, unless states have to be read before that is known.
fn unless_unobserved(
    taken: Result<Vec<Event>, Refusal>,
) -> Result<Result<Vec<Event>, Refusal>, Refusal> {
    match taken {
        Err(unobserved @ Refusal::Unobserved(_)) => Err(unobserved),
        taken => Ok(taken),
    }
}

fn decide_input(
    spec: &Spec,
    entity: &Entity,
    input: &Input,
    now: WallTime,
    known: Known<'_>,
) -> Result<Vec<Event>, Refusal> {
    let context =
        |may_refuse| ActionContext::new(spec, entity, now, known.observed).refused_for(may_refuse);
    let refusable = || context(MayRefuse::Everything(known.unspawnable));
    match input {
        Input::Create { .. } => Err(Refusal::EntityExists),
        Input::Start { limits } => session::start(entity, *limits),
        Input::Resume(resume) => session::resume(spec, entity, resume),
        Input::Stop { run_seq, cause } => session::stop(spec, entity, *run_seq, cause, now),
        Input::LimitDue { limit, observed_ms, doing, active } => {
            let measured = (*limit, *observed_ms);
            session::limit_due(spec, entity, measured, (doing.as_ref(), active.as_ref()), now)
        }
        Input::Active(signal) => session::active(entity, signal),
        Input::CallTimedOut(call) => session::call_timed_out(spec, entity, call, now),
        Input::Action { action, params, trace, asked, .. } => {
            check_size("params", params, PARAMS_MAX_BYTES)?;
            let cause = match asked {
                Some(asked) => asked_by(entity, asked)?,
                None => TransitionCause::Requested,
            };
            refusable().take(action, params, &cause, *trace)
        }
        Input::FirstAction { action, params, trace } => {
            check_size("params", params, PARAMS_MAX_BYTES)?;
            spawn::first_action(entity, &refusable(), (action, params), *trace)
        }
        Input::SpawnEnded(end) => spawn::record_end(entity, end),
        Input::Retry(retry) => retry::decide(spec, entity, retry),
        Input::HandlerEnded(end) => ending::decide(spec, entity, end, now, known),
        Input::StateIdle { generation, idle_ms } => {
            state_idle(spec, entity, context, *generation, *idle_ms)
        }
        Input::ScheduleDue { schedule } => schedule_due(entity, refusable(), *schedule),
        Input::Signal { name, from, dispatch, payload } => {
            check_name("signal", name, NAME_MAX_BYTES).map_err(Refusal::BadSignal)?;
            check_size("payload", payload, SIGNAL_MAX_BYTES)?;
            let resets_idle = resets_idle(spec, entity, name, from.as_ref(), *dispatch);
            Ok(vec![Event::Signal {
                name: name.clone(),
                from: from.clone(),
                dispatch: *dispatch,
                payload: payload.clone(),
                resets_idle,
            }])
        }
    }
}

/// The cause of a transition that a handler asks `entity` for.
fn asked_by(entity: &Entity, asked: &Asked) -> Result<TransitionCause, Refusal> {
    if !(1..=ASK_DEPTH_MAX).contains(&asked.depth) {
        return Err(Refusal::AskTooDeep { max: ASK_DEPTH_MAX });
    }
    if asked.until == AskUntil::Settled && asked.by == entity.entity {
        return Err(Refusal::AskCycle);
    }
    if asked.remaining_ms == 0 {
        return Err(Refusal::AskTooLate);
    }
    Ok(TransitionCause::Asked(asked.clone()))
}

fn state_idle<'a>(
    spec: &Spec,
    entity: &Entity,
    context: impl Fn(MayRefuse<'a>) -> ActionContext<'a>,
    generation: u64,
    idle_ms: u64,
) -> Result<Vec<Event>, Refusal> {
    let timer = entity.idle_timer(spec).filter(|timer| timer.generation == generation);
    let timeout = spec.timeouts.get(&entity.state);
    let (Some(timer), Some(timeout)) = (timer, timeout) else { return Err(Refusal::StaleTimer) };
    if idle_ms < timer.after_ms {
        return Err(Refusal::NotIdleYet { idle_ms, after_ms: timer.after_ms });
    }
    let action = timeout.on_timeout.to_string();
    let trace = own_trace(entity, b"idle");
    let take = |may_refuse, params: &Object| {
        context(may_refuse).take(&action, params, &TransitionCause::StateIdle, trace)
    };
    let taken = match unless_unobserved(take(MayRefuse::Invariants, &timeout.params))? {
        // It has to end the state, so that it is taken nevertheless.
        Err(refusal @ Refusal::InvariantBroken(_)) => {
            let mut params = timeout.params.clone();
            params.insert(REFUSED.to_owned(), Value::from(refusal.to_string()));
            unless_unobserved(take(MayRefuse::Nothing, &params))?
        }
        taken => taken,
    };
    let mut events = vec![Event::StateIdle {
        state: entity.state.clone(),
        after_ms: timer.after_ms,
        idle_ms,
        occurrence: entity.occurrences_of(&entity.state).saturating_add(1),
        action,
        taken: taken.is_ok(),
        observed: Vec::new(),
    }];
    events.extend(taken.unwrap_or_default());
    Ok(events)
}

fn schedule_due(
    entity: &Entity,
    context: ActionContext<'_>,
    number: u64,
) -> Result<Vec<Event>, Refusal> {
    let schedule = entity.schedule(number).ok_or(Refusal::UnknownSchedule { number })?;
    let taken = context.after_a_schedule().take(
        &schedule.action,
        &Object::new(),
        &TransitionCause::Scheduled { schedule: number },
        own_trace(entity, &number.to_be_bytes()),
    );
    let taken = unless_unobserved(taken)?;
    let unspawnable = match &taken {
        Err(Refusal::Unspawnable(unspawnable)) => Some(Box::new(unspawnable.clone())),
        _ => None,
    };
    let mut events = vec![Event::ScheduleDue {
        schedule: number,
        action: schedule.action.clone(),
        taken: taken.is_ok(),
        unspawnable,
        observed: Vec::new(),
    }];
    events.extend(taken.unwrap_or_default());
    Ok(events)
}

/// Checks that `entity` accepts a signal called `name` of a client, or of another entity's handler. If it
/// takes no actions any more, or its session does not run, such a signal has no effect, so its sender
/// gets an error. Journals
/// contain such signals, so this is not a part of [`decide`].
///
/// # Errors
/// The name is not valid, the entity has ended, or the run of the session is stopping or has stopped.
pub fn check_sent_signal(spec: &Spec, entity: &Entity, name: &str) -> Result<(), Refusal> {
    check_signal_name(name).map_err(Refusal::BadSignal)?;
    match entity.session() {
        Some(session) => session.require_running(),
        None if spec.is_terminal(&entity.state) => {
            Err(Refusal::NotTaken { action: name.to_owned(), state: entity.state.clone() })
        }
        None => Ok(()),
    }
}

/// Only a signal from elsewhere, of another entity or from outside, shows that this one is not
/// forgotten.
fn resets_idle(
    spec: &Spec,
    entity: &Entity,
    name: &str,
    from: Option<&EntityRef>,
    dispatch: Option<DispatchId>,
) -> bool {
    let listed = spec
        .timeouts
        .get(&entity.state)
        .is_some_and(|timeout| timeout.reset_on.iter().any(|reset| reset == name));
    // Under earlier versions of the rules, only signals of other entities did.
    let from_others = from.map_or(spec.rules >= RulesVersion::V3, |from| *from != entity.entity);
    listed && dispatch.is_none() && from_others
}

/// The trace of what an entity does by itself. It is derived, not drawn, so that a replay derives
/// it again.
fn own_trace(entity: &Entity, what: &[u8]) -> TraceContext {
    let digest = Sha256::new()
        .chain_update(entity.incarnation.as_bytes())
        .chain_update(entity.sequence.0.to_be_bytes())
        .chain_update(what)
        .finalize();
    let mut bytes = [0; 24];
    bytes.copy_from_slice(&digest[..24]);
    TraceContext::root(bytes)
}

fn check_size(
    what: &'static str,
    value: &impl serde::Serialize,
    max: usize,
) -> Result<(), Refusal> {
    size(value, max).map(|_| ()).ok_or(Refusal::TooLarge { what, max })
}

/// The size of `value` in bytes as JSON; `None` if it exceeds `max`.
pub(crate) fn size(value: &impl serde::Serialize, max: usize) -> Option<usize> {
    let mut counted = Counted { left: max };
    // The only errors are that the limit is exceeded, or that a number has no JSON form.
    serde_json::to_writer(&mut counted, value).ok()?;
    Some(max - counted.left)
}

/// Counts what is written, and fails when the limit is exceeded.
struct Counted {
    left: usize,
}

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.left.checked_sub(bytes.len()) {
            Some(left) => self.left = left,
            None => return Err(std::io::ErrorKind::FileTooLarge.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
