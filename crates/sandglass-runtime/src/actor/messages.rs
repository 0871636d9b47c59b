//! The messages in an entity's mailbox, and the answers to them: one at a time, and each answer
//! only once it is durable.

use std::sync::Arc;

use sandglass_liveness::decide::check_sent_signal;
use sandglass_liveness::{Input, Retry, Terms};
use sandglass_model::{Answered, AskError, Asked, DispatchId, EntityRef, TraceContext};
use sandglass_telemetry::Span;
use sandglass_telemetry::trace::{Kind, SpanStart, names};
use tokio::sync::oneshot;

use super::Actor;
use super::committing::Committed;
use crate::asking::{IncomingAsk, ParentOver, remaining_ms, to_asker};
use crate::error::ActorError;
use crate::request::{Accepted, Request, SessionResume, SessionStop, SessionStopped, Signal};
use crate::shared::Shared;

/// A message to an entity, with where its answer goes.
pub(crate) enum Message {
    Act {
        request: Request,
        reply: oneshot::Sender<Result<Accepted, ActorError>>,
    },
    Ask {
        incoming: Box<IncomingAsk>,
        reply: oneshot::Sender<Result<Answered, AskError>>,
    },
    Retry {
        retry: Box<Retry>,
        reply: oneshot::Sender<Result<Accepted, ActorError>>,
    },
    Signal {
        signal: Box<Signal>,
        /// The tenant of the entity that sends it; `None` if no entity does.
        tenant: Option<Arc<str>>,
        reply: oneshot::Sender<Result<(), ActorError>>,
    },
    Stop {
        stop: SessionStop,
        reply: oneshot::Sender<Result<SessionStopped, ActorError>>,
    },
    /// The session of the handler that asked for `dispatch`, and waited for it, is over.
    ParentOver {
        dispatch: DispatchId,
        parent: ParentOver,
    },
    Resume {
        resume: Box<SessionResume>,
        reply: oneshot::Sender<Result<Accepted, ActorError>>,
    },
}

impl Actor {
    pub(super) async fn handle_message(&mut self, message: Message) {
        // A stop is carried out whether it can be recorded or not.
        let is_stop = matches!(message, Message::Stop { .. } | Message::ParentOver { .. });
        if let (Err(error), false) = (self.ready_to_write().await, is_stop) {
            if !matches!(message, Message::Signal { .. }) {
                self.count_refused(&error);
            }
            refuse(message, error);
            return;
        }
        match message {
            // Each caller may have gone away by the time of its answer.
            Message::Act { request, reply } => drop(reply.send(self.act(request).await)),
            // The asker waits no more.
            Message::Ask { reply, .. } if reply.is_closed() => {}
            Message::Ask { incoming, reply } => drop(reply.send(self.asked(*incoming).await)),
            Message::Retry { retry, reply } => {
                let committed = self.commit_input(&Input::Retry(retry)).await;
                drop(reply.send(self.accepted(committed)));
            }
            // The sender waits no more.
            Message::Signal { reply, .. } if reply.is_closed() => {}
            Message::Signal { signal, tenant, reply } => {
                drop(reply.send(self.signal(*signal, tenant).await));
            }
            Message::Resume { resume, reply } => {
                let committed = self.resume(*resume).await;
                drop(reply.send(self.accepted(committed)));
            }
            Message::ParentOver { dispatch, parent } => self.parent_is_over(dispatch, parent).await,
            Message::Stop { stop, reply } => {
                drop(reply.send(self.stop_run(stop.run_seq, stop.cause).await));
            }
        }
    }

    async fn act(&mut self, request: Request) -> Result<Accepted, ActorError> {
        let (input, _root) = input_of(&self.shared, &self.entity.entity, request)?;
        let committed = self.commit_input(&input).await;
        self.create_spawned().await;
        self.accepted(committed)
    }

    /// Takes an action that a handler of another entity asks for.
    async fn asked(&mut self, incoming: IncomingAsk) -> Result<Answered, AskError> {
        let IncomingAsk { action, params, trace, asked, tenant, parent_budget } = incoming;
        self.check_tenant(&tenant).map_err(to_asker)?;
        let now = self.shared.clock.now();
        let remaining_ms = parent_budget.not_after.map_or(u64::MAX, |at| remaining_ms(at, now));
        let asked = Some(Asked { remaining_ms, ..asked });
        let input = Input::Action { action, params, trace, asked, terms: Terms::default() };
        let committed = self.commit_input_with(&input, parent_budget, None).await;
        self.create_spawned().await;
        let accepted = self.accepted(committed).map_err(to_asker)?;
        Ok(Answered {
            sequence: accepted.sequence,
            state: accepted.state,
            fields: self.entity.variables.clone(),
        })
    }

    async fn signal(&mut self, signal: Signal, tenant: Option<Arc<str>>) -> Result<(), ActorError> {
        let Signal { name, from, payload } = signal;
        if let Some(tenant) = &tenant {
            self.check_tenant(tenant)?;
        }
        if from.is_none() || tenant.is_some() {
            check_sent_signal(&self.spec, &self.entity, &name).map_err(|refusal| {
                ActorError::Refused { entity: self.entity.entity.clone(), refusal }
            })?;
        }
        let input = Input::Signal { name, from, dispatch: None, payload };
        self.commit_input(&input).await.map(|_| ())
    }

    /// Refuses what an entity of another tenant sends, as if there were no such entity: a tenant learns
    /// nothing about another.
    fn check_tenant(&self, tenant: &str) -> Result<(), ActorError> {
        if *tenant == *self.entity.tenant {
            return Ok(());
        }
        Err(ActorError::UnknownEntity(self.entity.entity.clone()))
    }

    /// The answer to an action, a retry or a resume.
    fn accepted(&self, committed: Result<Committed, ActorError>) -> Result<Accepted, ActorError> {
        let committed = committed.inspect_err(|error| self.count_refused(error))?;
        Ok(Accepted {
            sequence: self.entity.sequence,
            state: self.entity.state.clone(),
            dispatches: committed.dispatches,
            position: committed.first,
        })
    }

    fn count_refused(&self, error: &ActorError) {
        if let ActorError::JournalUnavailable { .. } = error {
            let reason = sandglass_telemetry::metrics::Refusal::JournalUnavailable;
            self.shared.telemetry.metrics.dispatch_refused(reason);
        }
    }
}

/// The input of a request to `entity`, and the first span of its trace, which lasts until the request
/// is answered.
pub(super) fn input_of(
    shared: &Shared,
    entity: &EntityRef,
    request: Request,
) -> Result<(Input, Span), ActorError> {
    let Request { action, params, trace, expected, idempotency_key: key } = request;
    let (trace, root) = match trace {
        Some(trace) => (trace, Span::disabled()),
        None => root(shared, entity, &action)?,
    };
    let terms = Terms { expected, key };
    Ok((Input::Action { action, params, trace, asked: None, terms }, root))
}

/// A trace for a request that belongs to none, and its first span.
fn root(
    shared: &Shared,
    entity: &EntityRef,
    action: &str,
) -> Result<(TraceContext, Span), ActorError> {
    let context = TraceContext::drawn(&*shared.entropy).map_err(|_| ActorError::NoRandomness)?;
    let span = shared.telemetry.tracer.start(&SpanStart {
        name: names::REQUEST,
        kind: Kind::Server,
        context,
        parent: None,
        links: &[],
        attributes: &[
            (names::ENTITY_TYPE, entity.entity_type().into()),
            (names::ENTITY_ID, entity.id().into()),
            (names::ACTION, action.into()),
        ],
    });
    Ok((context, span))
}

pub(super) fn refuse(message: Message, error: ActorError) {
    // Each caller may have gone away.
    match message {
        Message::Act { reply, .. }
        | Message::Retry { reply, .. }
        | Message::Resume { reply, .. } => drop(reply.send(Err(error))),
        Message::Ask { reply, .. } => drop(reply.send(Err(to_asker(error)))),
        Message::Signal { reply, .. } => drop(reply.send(Err(error))),
        Message::Stop { reply, .. } => drop(reply.send(Err(error))),
        // No answer is expected, and a task that ends stops its handlers.
        Message::ParentOver { .. } => {}
    }
}
