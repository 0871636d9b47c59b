//! Takes an action: its transition, what it schedules, and the handlers that it dispatches.

use sandglass_model::signature::stated_shape;
use sandglass_model::{
    DeadlineOwner, DispatchId, Dispatched, EntityRef, Event, Object, Observed, RulesVersion,
    Sequence, TraceContext, TransitionCause, Unspawnable, WallTime,
};
use serde_json::Value;

use super::refusal::{BrokenInvariant, UnmetGuard, shown};
use super::spawn::spawns;
use super::{HANDED_MAX_BYTES, IN_FLIGHT_MAX, OBSERVED_MAX, Refusal, SCHEDULES_MAX, effects, size};
use crate::entity::{Entity, FIELDS_MAX_BYTES, Fields};
use crate::spec::guard::READS_MAX;
use crate::spec::{Action, Effect, Integration, OtherEntities, Scope, Spec};

/// What an action may be refused for, besides its state, its guard and parameters of another type.
#[derive(Clone, Copy, Debug)]
pub(super) enum MayRefuse<'a> {
    /// Bounds, invariants, and an entity that cannot be spawned: this one, if one is known.
    Everything(Option<&'a Unspawnable>),
    /// Invariants. The action has to end the state, because it is that of a timer, or of an ending that is
    /// not a success: what does not fit is left out, and spawns are refused one by one.
    Invariants,
    /// Nothing but its state, its guard and unfit parameters: the last attempt to take an ending or the action
    /// of a timer, because without it the entity could stay in its state forever.
    Nothing,
}

/// What an action is taken in, and how many handlers and schedules count already.
pub(super) struct ActionContext<'a> {
    spec: &'a Spec,
    entity: &'a Entity,
    now: WallTime,
    in_flight: usize,
    schedules: usize,
    /// The time that a waiting asker leaves to what follows a handler, in milliseconds.
    parent_remaining_ms: Option<u64>,
    may_refuse: MayRefuse<'a>,
    /// The states of other entities that are known; `None` if none will be.
    observed: Option<&'a [Observed]>,
}

impl<'a> ActionContext<'a> {
    pub(super) fn new(
        spec: &'a Spec,
        entity: &'a Entity,
        now: WallTime,
        observed: Option<&'a [Observed]>,
    ) -> Self {
        let in_flight = entity.in_flight_count();
        let schedules = entity.schedules().len();
        let (parent_remaining_ms, may_refuse) = (None, MayRefuse::Everything(None));
        Self { spec, entity, now, in_flight, schedules, parent_remaining_ms, may_refuse, observed }
    }

    /// For an action that may be refused for this only.
    pub(super) fn refused_for(self, may_refuse: MayRefuse<'a>) -> Self {
        Self { may_refuse, ..self }
    }

    /// After the end of a handler: it does not count, and its asker has this much time left if it
    /// still waits.
    pub(super) fn after_a_handler(self, parent_remaining_ms: Option<u64>) -> Self {
        Self { in_flight: self.in_flight.saturating_sub(1), parent_remaining_ms, ..self }
    }

    /// After a schedule came due: it does not count.
    pub(super) fn after_a_schedule(self) -> Self {
        Self { schedules: self.schedules.saturating_sub(1), ..self }
    }

    /// The records of the action `name`, if it is taken now.
    pub(super) fn take(
        &self,
        name: &str,
        params: &Object,
        cause: &TransitionCause,
        trace: TraceContext,
    ) -> Result<Vec<Event>, Refusal> {
        let action = self.check_admitted(name, cause)?;
        let entity = self.entity;
        let mut variables = self.variables_after(action, params)?;
        let mut fields = self.fields_after(params, cause)?;
        let spawns = spawns(entity, action, params, trace, self.may_refuse)?;
        for spawn in &spawns {
            match spawn.stored_in.as_ref().and_then(|name| variables.get_mut(name)) {
                Some(variable) => *variable = Value::from(spawn.entity.id()),
                None => fields = fields.after_spawn(spawn),
            }
        }
        let state = action.leads_to(&entity.state).to_owned();
        let after = self.scope(&state, &variables, &fields);
        self.check_invariants(name, after)?;
        let schedules = self.schedule_events(action, after)?;
        let transition = Event::Transition {
            action: name.to_owned(),
            params: params.clone(),
            from: entity.state.clone(),
            to: state.clone(),
            variables: variables.clone(),
            cause: cause.clone(),
            trace,
            observed: Vec::new(),
            idempotency: None,
        };
        let origin = self.origin(cause);
        let started =
            Started { action, params, state: &state, variables: &variables, trace, origin };
        let mut events = vec![transition];
        events.extend(emitted_events(action));
        events.extend(spawns.into_iter().map(|spawn| Event::Spawning(Box::new(spawn))));
        events.extend(schedules);
        events.extend(self.dispatch_events(&started, after)?);
        Ok(events)
    }

    /// The fields after an action with `params`. Only a request is refused because they do not fit: the
    /// ending of a handler or a timer has to be taken.
    fn fields_after(&self, params: &Object, cause: &TransitionCause) -> Result<Fields, Refusal> {
        let (fields, all_fit) = self.entity.fields().after(params);
        let is_request = matches!(cause, TransitionCause::Requested | TransitionCause::Asked(_));
        if !all_fit && is_request && self.spec.rules >= RulesVersion::V3 {
            let what = "parameters of all actions of the entity";
            return Err(Refusal::TooLarge { what, max: FIELDS_MAX_BYTES });
        }
        Ok(fields)
    }

    /// Whether the action has to end the state, so that what does not fit is left out.
    fn has_to_be_taken(&self) -> bool {
        self.spec.rules >= RulesVersion::V3 && !matches!(self.may_refuse, MayRefuse::Everything(_))
    }

    /// The variables after the effects of `action`. If they would be too large and it has to be taken,
    /// parameters set none of them, or no effect changes any.
    fn variables_after(&self, action: &Action, params: &Object) -> Result<Object, Refusal> {
        let before = &self.entity.variables;
        match effects::apply(self.spec, action, params, before) {
            Err(Refusal::TooLarge { .. }) if self.has_to_be_taken() => {
                let without = effects::apply(self.spec, action, &Object::new(), before);
                Ok(without.unwrap_or_else(|_| before.clone()))
            }
            applied => applied,
        }
    }

    /// Checks that the entity keeps its invariants, unless it may break them.
    fn check_invariants(&self, name: &str, after: Scope<'_>) -> Result<(), Refusal> {
        if let MayRefuse::Nothing = self.may_refuse {
            return Ok(());
        }
        let mut invariants = self.spec.invariants.iter();
        match invariants.find(|invariant| !invariant.condition.holds(after)) {
            None => Ok(()),
            Some(broken) => Err(Refusal::InvariantBroken(Box::new(BrokenInvariant {
                action: name.to_owned(),
                invariant: broken.name.to_string(),
                state: after.state.to_owned(),
                message: broken.message.clone(),
            }))),
        }
    }

    /// Which ask leads to the handlers that a transition starts.
    fn origin(&self, cause: &TransitionCause) -> Origin {
        match cause {
            TransitionCause::Asked(asked) => Origin {
                depth: asked.depth,
                asker: Some(asked.dispatch),
                parent_remaining_ms: Some(asked.remaining_ms),
            },
            // It belongs to the same tree of asks. If the asker waits no more, the handler has a
            // budget of its own: it may have to clean up after an asker that has run out of time.
            TransitionCause::HandlerEnded { dispatch } => {
                let ended = self.entity.in_flight_handler(*dispatch).map(|run| &run.dispatched);
                let parent_remaining_ms = self.parent_remaining_ms;
                Origin {
                    depth: ended.map_or(0, |dispatched| dispatched.depth),
                    asker: parent_remaining_ms.and(ended.and_then(|dispatched| dispatched.asker)),
                    parent_remaining_ms,
                }
            }
            TransitionCause::Requested
            | TransitionCause::StateIdle
            | TransitionCause::Scheduled { .. }
            | TransitionCause::Spawned => Origin::default(),
        }
    }

    fn check_admitted(&self, name: &str, cause: &TransitionCause) -> Result<&'a Action, Refusal> {
        let state = &self.entity.state;
        let Some(action) = self.spec.actions.get(name) else {
            let nearest = self.spec.nearest_action(name).map(str::to_owned);
            return Err(Refusal::UnknownAction { action: shown(name), nearest });
        };
        let (action_name, state_name) = (name.to_owned(), state.clone());
        if self.spec.is_terminal(state) || !action.is_taken_from(state) {
            return Err(Refusal::NotTaken { action: action_name, state: state_name });
        }
        let Some(guard) = &action.guard else { return Ok(action) };
        let before = self.scope(state, &self.entity.variables, self.entity.fields());
        let Some(read) = self.read_by(&action.others, before)? else {
            return Err(Refusal::TooManyReads { action: action_name });
        };
        if !guard.holds(before) {
            let observed = before.observed.iter().filter(|one| read.contains(&one.entity));
            let observed = observed.cloned().collect();
            // The refusals of other actions become part of records, or are shown to a guest that asks.
            let is_request = matches!(cause, TransitionCause::Requested);
            let unmet = is_request.then(|| guard.describe_unmet(before)).flatten();
            let (action, state) = (action_name, state_name);
            let guard = UnmetGuard { action, state, observed, unmet };
            return Err(Refusal::GuardRefused(Box::new(guard)));
        }
        Ok(action)
    }

    fn scope<'s>(&self, state: &'s str, variables: &'s Object, fields: &'s Fields) -> Scope<'s>
    where
        'a: 's,
    {
        let (id, observed) = (Some(self.entity.entity.id()), self.observed.unwrap_or_default());
        Scope { id, state, variables, fields, observed }
    }

    /// The entities that a guard reads. Errors with those that have to be read first. `None` if they are too
    /// many for one guard, or with those that were read for other guards, for one decision.
    fn read_by(
        &self,
        others: &[OtherEntities],
        scope: Scope<'_>,
    ) -> Result<Option<Vec<EntityRef>>, Refusal> {
        let mut read: Vec<EntityRef> = Vec::new();
        for other in others {
            let Some(names) = other.names(scope) else { return Ok(None) };
            for name in names.into_iter().flatten() {
                if !read.contains(&name) {
                    read.push(name);
                }
            }
            if read.len() > READS_MAX {
                return Ok(None);
            }
        }
        if let Some(observed) = self.observed {
            let is_known = |name: &EntityRef| observed.iter().any(|one| one.entity == *name);
            let unknown: Vec<EntityRef> =
                read.iter().filter(|name| !is_known(name)).cloned().collect();
            if observed.len() + unknown.len() > OBSERVED_MAX {
                return Ok(None);
            }
            if !unknown.is_empty() {
                return Err(Refusal::Unobserved(unknown));
            }
        }
        Ok(Some(read))
    }

    fn schedule_events(&self, action: &Action, after: Scope<'_>) -> Result<Vec<Event>, Refusal> {
        let mut number = self.entity.next_schedule();
        let mut events = Vec::new();
        for effect in &action.effects {
            let (action, due) = match effect {
                Effect::Schedule { action, delay_ms } => {
                    (action, self.now.after(std::time::Duration::from_millis(*delay_ms)))
                }
                Effect::ScheduleAt { action, field } => {
                    let written = after.get(field);
                    let due = written.as_str().and_then(WallTime::parse);
                    // Nothing is scheduled if the entity has no such time.
                    let Some(due) = due else { continue };
                    (action, due.max(self.now))
                }
                _ => continue,
            };
            if self.schedules + events.len() >= SCHEDULES_MAX {
                if self.has_to_be_taken() {
                    break;
                }
                return Err(Refusal::TooManySchedules { max: SCHEDULES_MAX });
            }
            events.push(Event::Scheduled { schedule: number, action: action.to_string(), due });
            number = number.saturating_add(1);
        }
        Ok(events)
    }

    fn dispatch_events(
        &self,
        started: &Started<'_>,
        after: Scope<'_>,
    ) -> Result<Vec<Event>, Refusal> {
        let declared =
            started.action.dispatches.iter().filter_map(|name| self.spec.integrations.get(name));
        let mut integrations: Vec<&Integration> = Vec::new();
        for integration in declared {
            let is_readable = self.read_by(&integration.others, after)?.is_some();
            let guard = integration.guard.as_ref();
            if is_readable && guard.is_none_or(|guard| guard.holds(after)) {
                integrations.push(integration);
            }
        }
        if self.in_flight + integrations.len() > IN_FLIGHT_MAX {
            return Err(Refusal::TooManyInFlight { max: IN_FLIGHT_MAX });
        }
        started.check_size(integrations.len())?;
        let sequence = self.entity.sequence.next();
        let numbered = (0..).zip(integrations);
        let dispatch = |(nth, integration)| {
            Event::Dispatched(Box::new(self.new_dispatch(started, integration, sequence, nth)))
        };
        Ok(numbered.map(dispatch).collect())
    }

    /// The shape that an earlier action of the session has stated, if `params` state none.
    fn inherited_shape(&self, params: &Object) -> Option<String> {
        let session = self.entity.session().filter(|_| self.spec.rules >= RulesVersion::V3)?;
        if stated_shape(params).is_some() { None } else { session.shape().map(str::to_owned) }
    }

    fn new_dispatch(
        &self,
        started: &Started<'_>,
        integration: &Integration,
        sequence: Sequence,
        nth: u32,
    ) -> Dispatched {
        let dispatch = DispatchId::derive(self.entity.incarnation, sequence, nth, self.now);
        let attempt = 1;
        let Origin { depth, asker, parent_remaining_ms } = started.origin;
        let (budget_ms, owner) =
            smaller_budget(integration.budget_for(started.params), parent_remaining_ms);
        Dispatched {
            dispatch,
            spec: Some(self.spec.digest),
            expected: Some(self.entity.sequence),
            integration: integration.name.to_string(),
            module: integration.module.to_string(),
            module_hash: None,
            action: started.action.name.to_string(),
            params: started.params.clone(),
            state: started.state.to_owned(),
            variables: started.variables.clone(),
            config: integration.config.clone(),
            attempt,
            budget_ms,
            budget_defaulted: integration.budget_defaulted,
            owner,
            asker,
            depth,
            shape: self.inherited_shape(started.params),
            retried: None,
            trace: started.trace.of_dispatch(dispatch, attempt),
        }
    }
}

/// The smaller of a handler's own budget and the time that its parent has left, and whose that is. If
/// they are equal, it is the handler's own.
pub(super) fn smaller_budget(
    own_ms: u64,
    parent_remaining_ms: Option<u64>,
) -> (u64, DeadlineOwner) {
    match parent_remaining_ms {
        Some(left_ms) if left_ms < own_ms => (left_ms, DeadlineOwner::Parent),
        _ => (own_ms, DeadlineOwner::Handler),
    }
}

/// The transition that starts handlers.
struct Started<'a> {
    action: &'a Action,
    params: &'a Object,
    state: &'a str,
    variables: &'a Object,
    trace: TraceContext,
    origin: Origin,
}

/// Which ask leads to handlers.
#[derive(Clone, Copy, Default)]
struct Origin {
    /// The depth of nested asks that lead to them.
    depth: u32,
    /// The handler that asked for the action that starts them.
    asker: Option<DispatchId>,
    /// The time that this handler has left, in milliseconds: the most that they may take.
    parent_remaining_ms: Option<u64>,
}

impl Started<'_> {
    /// Errors if the copies of the parameters and variables, one for each handler, are too large.
    fn check_size(&self, copies: usize) -> Result<(), Refusal> {
        match copies {
            0 => Ok(()),
            copies => check_handed(self.params, self.variables, HANDED_MAX_BYTES / copies),
        }
    }
}

/// The events that an action emits.
fn emitted_events(action: &Action) -> impl Iterator<Item = Event> {
    action.effects.iter().filter_map(|effect| match effect {
        Effect::Emit { event } => {
            Some(Event::Emitted { name: event.to_string(), action: action.name.to_string() })
        }
        _ => None,
    })
}

/// Errors if what the record of a handler repeats is larger than `max` bytes.
pub(super) fn check_handed(params: &Object, variables: &Object, max: usize) -> Result<(), Refusal> {
    let what = "parameters and variables for its handlers";
    size(&(params, variables), max).map(|_| ()).ok_or(Refusal::TooLarge { what, max })
}
