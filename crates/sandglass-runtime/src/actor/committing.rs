//! Decide, append, apply, act: in this order, and the last only when the records
//! are durable.

use std::sync::Arc;

use sandglass_journal::{self as journal, Batch, Expected, Recording};
use sandglass_liveness::{Command, Decided, Entity, Input, commands};
use sandglass_model::{
    Cause, Decision, DispatchId, Dispatched, Event as RecordedEvent, HandlerEnd, NO_ACTION,
    Outcome, OutcomeKind, Position, Sequence, TraceContext, TransitionCause, WallTime,
};
use sandglass_telemetry::trace::{self, Kind, SpanStart, names};

use super::reservations::Reservations;
use super::runs::Starting;
use super::{Actor, LOST, Ownership};
use crate::asking::ParentBudget;
use crate::error::ActorError;
use crate::shared::recorded;

/// A durable decision.
pub(super) struct Committed {
    pub(super) first: Position,
    /// The handlers that it dispatched.
    pub(super) dispatches: Vec<DispatchId>,
}

/// The records of a decision, which are in the journal.
pub(super) struct Durable {
    /// The entity before it.
    pub(super) before: Entity,
    pub(super) events: Vec<RecordedEvent>,
    /// The entity's sequence with each of them.
    pub(super) sequences: Vec<Sequence>,
    /// The position of the first one.
    pub(super) first: Position,
    pub(super) at: WallTime,
}

/// The handlers that `events` dispatch.
fn dispatched(events: &[RecordedEvent]) -> impl Iterator<Item = DispatchId> {
    events.iter().filter_map(|event| match event {
        RecordedEvent::Dispatched(dispatched) => Some(dispatched.dispatch),
        _ => None,
    })
}

impl Actor {
    /// Ends what was in flight when the host ended, starts what follows, changes to the present version
    /// of its spec, and enforces a limit that has passed meanwhile.
    pub(crate) async fn recover(&mut self) -> Result<(), ActorError> {
        self.count_spawned();
        let lost = self.entity.in_flight().into_iter();
        let ends: Vec<HandlerEnd> =
            lost.map(|run| HandlerEnd::interrupted(&run.dispatched)).collect();
        for end in ends {
            self.commit_input(&Input::HandlerEnded(Arc::new(end))).await?;
        }
        self.follow_spec().await;
        // A limit that passed while the host was down takes effect before the runtime counts as
        // recovered. Otherwise a run of a workflow that is executed again could find that its parent
        // is still running, and would never learn of the parent's end (tests/openwop/children.rs).
        self.update_timers(|_, _, _| ());
        if self.timers.next_limit() <= self.shared.clock.now() {
            self.on_wake().await;
        }
        Ok(())
    }

    /// Decides about `input`, and commits all that follows from it, or nothing.
    pub(super) async fn commit_input(&mut self, input: &Input) -> Result<Committed, ActorError> {
        self.commit_input_with(input, ParentBudget::default(), None).await
    }

    /// As `commit_input`; the handlers that it starts have at most the time that an asking handler
    /// has left, and the recording of the handler that it ends is appended with the records.
    pub(super) async fn commit_input_with(
        &mut self,
        input: &Input,
        parent_budget: ParentBudget,
        recording: Option<Recording>,
    ) -> Result<Committed, ActorError> {
        let at = self.shared.clock.wall();
        let decided = self.shared.decide(&self.spec, &self.entity, input, at).await;
        let decided = decided.map_err(|error| self.journal_failed(error))?;
        let refused = |refusal| ActorError::refused(&self.entity.entity, refusal);
        let decided = decided.map_err(refused)?;
        let (handlers, tenant) = (&*self.shared.handlers, &self.entity.tenant);
        let reservations = Reservations::reserve(handlers, &decided.events, tenant, parent_budget);
        if let (Input::Action { .. } | Input::Retry(_), Some(busy)) =
            (input, reservations.missing())
        {
            return Err(ActorError::Busy { entity: self.entity.entity.clone(), busy });
        }
        self.commit(decided, reservations, at, recording).await
    }

    /// Appends what was decided, with the recording of a handler that it ends, and carries it out.
    pub(super) async fn commit(
        &mut self,
        mut decided: Decided,
        reservations: Reservations,
        at: WallTime,
        recording: Option<Recording>,
    ) -> Result<Committed, ActorError> {
        reservations.name_modules(&*self.shared.handlers, &mut decided);
        let Decided { events, after } = decided;
        let sequences: Vec<Sequence> = self.entity.sequences(&events).collect();
        let records = sequences.iter().copied().zip(events.iter().cloned()).collect();
        let (due, snapshot) = self.snapshot.after(events.len(), &after);
        let batch = Batch::new(after.entity.clone(), Expected::At(self.last), at, records)
            .with_snapshot(snapshot)
            .with_recordings(recording.into_iter().collect());
        let appended = self.shared.append(batch, &self.hold).await;
        let first = appended.map_err(|error| self.journal_failed(error))?;
        self.last = (first.0..).map(Position).take(events.len()).last().unwrap_or(first);
        self.snapshot = due;
        self.pending.succeeded();
        let before = std::mem::replace(&mut self.entity, after);
        if events.iter().any(|event| matches!(event, RecordedEvent::RunStopped(_))) {
            self.shared.note_conversation(&self.spec, &self.entity, self.last, &self.hold);
        }
        self.count_status();
        self.show();
        let dispatches = dispatched(&events).collect();
        self.act_on(Durable { before, events, sequences, first, at }, reservations);
        Ok(Committed { first, dispatches })
    }

    /// Publishes, counts and carries out a decision that is durable and folded in.
    pub(super) fn act_on(&mut self, durable: Durable, reservations: Reservations) {
        let Durable { before, events, sequences, first, at } = durable;
        let stop = events.iter().find_map(|event| match event {
            RecordedEvent::RunStopping(stopping) if !stopping.directive.goes_on() => {
                Some(&stopping.cause)
            }
            _ => None,
        });
        let over = stop.map(|cause| self.session_over_message(cause));
        let commands = commands(Some(&before), &self.entity, &events);
        let mut parent = None;
        for ((sequence, event), place) in sequences.into_iter().zip(events).zip(first.0..) {
            parent = self.publish_and_trace(&before, sequence, &event).or(parent);
            self.count_session(&before, &event, at);
            let entity = Some(before.entity.clone());
            self.shared.publish(recorded(Position(place), at, entity, sequence, event));
        }
        self.carry_out(commands, reservations, parent, over.as_deref());
    }

    fn carry_out(
        &mut self,
        mut commands: Vec<Command>,
        mut reservations: Reservations,
        parent: Option<TraceContext>,
        over: Option<&str>,
    ) {
        let is_start = |command: &Command| matches!(command, Command::Start(_));
        let last_start = commands.iter().rposition(is_start);
        let stops = commands.split_off(last_start.map_or(0, |last| last + 1));
        // The handle of each handler must state why the session is over before the handler is
        // stopped. Handlers that this decision starts have a handle only after the first part.
        over.into_iter().for_each(|over| self.runs.stops.set_session_over(over));
        self.carry_out_each(commands, &mut reservations, parent);
        over.into_iter().for_each(|over| self.runs.stops.set_session_over(over));
        self.carry_out_each(stops, &mut reservations, parent);
        // The loss of the partition kills those that are started by then.
        if last_start.is_some() && self.hold.is_gone() {
            self.runs.stops.kill(None, Cause::OwnershipLost, LOST);
        }
    }

    fn carry_out_each(
        &mut self,
        commands: Vec<Command>,
        reservations: &mut Reservations,
        parent: Option<TraceContext>,
    ) {
        for command in commands {
            match command {
                Command::RequestStop { dispatch } => self.runs.stops.request_stop(Some(dispatch)),
                Command::Kill { dispatch, cause, reason } => {
                    self.runs.stops.kill(Some(dispatch), cause, &reason);
                }
                // Left in flight: the next start, or owner, finds it as interrupted.
                Command::Start(_) if self.is_closing || self.hold.is_gone() => {}
                Command::Start(dispatched) => {
                    let parent_budget = reservations.parent_budget_of(&dispatched);
                    let (shared, spec, entity) = (&self.shared, &self.spec, &self.entity);
                    match reservations.take(dispatched.dispatch) {
                        Ok(reserved) => {
                            let starting = Starting { dispatched, reserved, parent_budget, parent };
                            self.runs.start(shared, spec, entity, starting);
                        }
                        Err(busy) => {
                            self.runs.reject(
                                shared,
                                spec,
                                entity,
                                (dispatched, &parent_budget),
                                busy,
                            );
                        }
                    }
                }
            }
        }
    }

    /// An append has failed, or reading what a decision depends on.
    fn journal_failed(&mut self, error: journal::Error) -> ActorError {
        match error {
            journal::Error::Conflict { entity, .. } => {
                self.give_up_ownership();
                ActorError::Fenced { entity }
            }
            journal::Error::Disowned { .. } if self.hold.is_gone() => {
                self.ownership = Ownership::Gone;
                ActorError::Elsewhere(self.entity.entity.clone())
            }
            journal::Error::Disowned { .. } => {
                self.give_up_ownership();
                ActorError::Fenced { entity: self.entity.entity.clone() }
            }
            journal::Error::Closed => {
                self.ownership = Ownership::JournalClosed;
                self.shown.finish();
                ActorError::Closed
            }
            journal::Error::Unavailable { what } | journal::Error::Damaged { what, .. } => {
                self.pending.failed(&what, self.shared.clock.now());
                ActorError::JournalUnavailable { what }
            }
            other => ActorError::Journal(other),
        }
    }

    /// Counts and traces a record; returns the span of a transition.
    fn publish_and_trace(
        &self,
        before: &Entity,
        sequence: Sequence,
        event: &RecordedEvent,
    ) -> Option<TraceContext> {
        let metrics = &self.shared.telemetry.metrics;
        let entity_type = self.entity.entity.entity_type();
        match event {
            RecordedEvent::Transition { action, from, to, cause, trace, .. } => {
                metrics.transition(entity_type, action);
                return Some(self.trace_transition(sequence, (action, from, to), cause, *trace));
            }
            RecordedEvent::StateIdle { state, action, taken, .. } => {
                metrics.state_timeout(entity_type, state);
                if !taken {
                    let entity = &self.entity.entity;
                    tracing::warn!(%entity, state, action, "the action of the state timer was refused; the timer will fire again");
                }
            }
            RecordedEvent::Dispatched(dispatched) => self.note_default_budget(dispatched),
            RecordedEvent::SpawnRefused { reason, .. } => metrics.spawn_refused(*reason),
            RecordedEvent::Ended(ended) => {
                if let Decision::Superseded { action } = &ended.decision
                    && action != NO_ACTION
                {
                    metrics.outcome_superseded(entity_type, action);
                }
                let run = before.in_flight_handler(ended.dispatch);
                if let (Outcome::Interrupted, Some(run)) = (&ended.outcome, run) {
                    metrics.dispatch_interrupted(entity_type, &run.dispatched.action);
                    self.trace_lost(&run.dispatched);
                }
            }
            _ => {}
        }
        None
    }

    /// The span of a handler that was lost with its host, which could not export it. The span of
    /// what follows is below it.
    fn trace_lost(&self, dispatched: &Dispatched) {
        let entity = &self.entity.entity;
        let dispatch = dispatched.dispatch.to_string();
        let span = self.shared.telemetry.tracer.start(&SpanStart {
            name: names::DISPATCH,
            kind: Kind::Internal,
            context: dispatched.trace,
            parent: None,
            links: &[],
            attributes: &[
                (names::ENTITY_TYPE, entity.entity_type().into()),
                (names::ENTITY_ID, entity.id().into()),
                (names::ACTION, dispatched.action.as_str().into()),
                (names::INTEGRATION, dispatched.integration.as_str().into()),
                (names::DISPATCH_ID, dispatch.as_str().into()),
                (names::OUTCOME, OutcomeKind::Interrupted.as_str().into()),
            ],
        });
        span.error(names::INTERRUPTED, "the host ended while the handler was in flight");
        span.end();
    }

    fn note_default_budget(&self, dispatched: &Dispatched) {
        if dispatched.budget_defaulted {
            let (integration, budget_ms) = (&dispatched.integration, dispatched.budget_ms);
            self.shared.telemetry.metrics.default_budget_used(integration);
            tracing::warn!(integration, budget_ms, "the integration declares no deadline");
        }
    }

    /// A span for the transition, below its cause: the request, or the handler that ended.
    fn trace_transition(
        &self,
        sequence: Sequence,
        (action, from, to): (&str, &str, &str),
        cause: &TransitionCause,
        parent: TraceContext,
    ) -> TraceContext {
        // Derived, so that no two transitions share it and a restart derives it again.
        let context = parent.of_transition(self.entity.incarnation, sequence);
        let handler = [parent];
        let links: &[TraceContext] =
            if matches!(cause, TransitionCause::HandlerEnded { .. }) { &handler } else { &[] };
        // What an entity does by itself has no span above it.
        let of_itself =
            matches!(cause, TransitionCause::StateIdle | TransitionCause::Scheduled { .. });
        let entity = &self.entity.entity;
        let attributes: [trace::Attribute<'_>; 6] = [
            (names::ENTITY_TYPE, entity.entity_type().into()),
            (names::ENTITY_ID, entity.id().into()),
            (names::ACTION, action.into()),
            (names::STATE_FROM, from.into()),
            (names::STATE_TO, to.into()),
            (names::SEQUENCE, sequence.0.into()),
        ];
        let start = SpanStart {
            name: names::TRANSITION,
            kind: Kind::Internal,
            context,
            parent: (!of_itself).then_some(parent),
            links,
            attributes: &attributes,
        };
        self.shared.telemetry.tracer.start(&start).end();
        context
    }
}
