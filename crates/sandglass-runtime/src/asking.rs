//! Asks and signals between entities: carried from the handler that sends them to the mailbox of the other
//! entity, with the answer back. If another host owns that entity, they go there instead.
//!
//! Whether an ask is accepted, and the budget of the handlers that it starts, is decided by
//! `sandglass-liveness`. Handlers wait beside the mailbox of their entity, so an entity whose
//! handler waits for an answer can be asked itself.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sandglass_liveness::{Entity, Refusal};
use sandglass_model::{
    Answered, Ask, AskError, AskUntil, Asked, DispatchId, Dispatched, EntityRef, EntitySignal,
    Monotonic, Object, SignalError, TraceContext, WallTime,
};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use crate::actor::{Handle, Message, View};
use crate::error::ActorError;
use crate::handlers::Stop;
use crate::other_hosts::{
    OtherHosts, RemoteAsk, RemoteRequest, RemoteResponse, RemoteSessionOver, RemoteSignal,
};
use crate::reading::seen;
use crate::request::Signal;
use crate::runtime::Runtime;
use crate::serving::Origin;
use crate::shared::Shared;
use crate::waiting::Wait;
use crate::{timer, watch};

/// Carries the asks of one handler, on the runtime's clock, and its signals. The handlers that an ask
/// starts have at most the time that the asking handler has left.
#[derive(Clone)]
pub struct Asking {
    shared: Weak<Shared>,
    by: EntityRef,
    tenant: Arc<str>,
    /// When the handler was dispatched, or a little later.
    dispatched_at: WallTime,
    /// Identifies the handler; its asks differ in its remaining time.
    asked: Asked,
    trace: TraceContext,
    /// Stops the handler.
    stop: Stop,
    /// How many signals the handler has sent to other entities.
    signals_sent: Arc<AtomicU32>,
}

/// Most signals of one handler run to other entities. Each is a record of an entity that cannot slow
/// the sender down.
pub const SIGNALS_SENT_PER_RUN_MAX: u32 = 1_000;

/// An ask, as the asked entity finds it in its mailbox.
pub(crate) struct IncomingAsk {
    pub(crate) action: String,
    pub(crate) params: Object,
    pub(crate) trace: TraceContext,
    pub(crate) asked: Asked,
    pub(crate) tenant: Arc<str>,
    pub(crate) parent_budget: ParentBudget,
}

/// The time that the handlers that an ask starts have at most: what the asker has left.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParentBudget {
    /// The asker's deadline.
    pub(crate) not_after: Option<Monotonic>,
    /// `None` if it does not wait until they have ended.
    pub(crate) waiting: Option<WaitingAsker>,
}

impl ParentBudget {
    /// The asker's remaining time in milliseconds; `None` if the asker does not wait, or has no time
    /// left.
    pub(crate) fn remaining_ms(&self, now: Monotonic) -> Option<u64> {
        self.waiting.as_ref().filter(|asker| asker.is_waiting())?;
        let left_ms = remaining_ms(self.not_after?, now);
        (left_ms > 0).then_some(left_ms)
    }
}

/// An asker that waits until an entity has settled, as seen by the handlers that work for it.
#[derive(Clone, Debug)]
pub(crate) struct WaitingAsker {
    is_answered: watch::Receiver<bool>,
    by: EntityRef,
    dispatch: DispatchId,
    /// Stops the asker.
    stop: Stop,
}

/// The end of the session whose handler had asked.
#[derive(Clone, Debug)]
pub(crate) struct ParentOver {
    pub(crate) parent: EntityRef,
    /// Its handler that asked.
    pub(crate) asker: DispatchId,
    /// Why it is over.
    pub(crate) why: Arc<str>,
}

impl WaitingAsker {
    /// The handler that `asked` names, which `stop` stops, and where it is noted that it has its answer. If
    /// that is dropped before, the asker is gone.
    pub(crate) fn new(asked: &Asked, stop: Stop) -> (watch::Sender<bool>, Self) {
        let (answered, is_answered) = watch::channel(false);
        let (by, dispatch) = (asked.by.clone(), asked.dispatch);
        (answered, Self { is_answered, by, dispatch, stop })
    }

    /// Whether the asker still waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !*self.is_answered.borrow() && self.is_answered.has_changed().is_ok()
    }

    /// The end of the asker's session, if it was stopped for good.
    pub(crate) fn parent_over(&self) -> Option<ParentOver> {
        let why = self.stop.over()?;
        Some(ParentOver { parent: self.by.clone(), asker: self.dispatch, why })
    }

    /// Waits until the asker has gone without an answer; pending forever if it has got one.
    pub(crate) async fn abandoned(mut self) {
        if self.is_answered.wait_for(|is_answered| *is_answered).await.is_ok() {
            std::future::pending().await
        }
    }
}

impl Asking {
    /// The runtime that executes the handler, once it has recovered all entities; `None` if it is gone.
    /// A handler that starts entities, or waits for some that it does not ask, needs it.
    pub async fn runtime(&self) -> Option<Runtime> {
        let mut recovered = self.shared.upgrade()?.runtime.subscribe();
        let runtime = recovered.wait_for(Option::is_some).await.ok()??;
        runtime.upgrade().map(Runtime)
    }

    pub(crate) fn new(
        shared: &Arc<Shared>,
        entity: &Entity,
        dispatched: &Dispatched,
        stop: Stop,
    ) -> Self {
        let by = &entity.entity;
        let asked = Asked {
            by: by.clone(),
            dispatch: dispatched.dispatch,
            attempt: dispatched.attempt,
            until: AskUntil::default(),
            remaining_ms: 0,
            depth: dispatched.depth.saturating_add(1),
        };
        let dispatched_at = shared.clock.wall();
        let shared = Arc::downgrade(shared);
        let (tenant, trace) = (entity.tenant.as_str().into(), dispatched.trace);
        let signals_sent = Arc::default();
        Self { shared, by: by.clone(), tenant, dispatched_at, asked, trace, stop, signals_sent }
    }

    /// Whether a registered spec of `entity_type` declares `action`.
    #[must_use]
    pub fn knows(&self, entity_type: &str, action: &str) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let specs = shared.specs();
        specs.types.get(entity_type).is_some_and(|spec| spec.actions.contains_key(action))
    }

    /// Carries out one ask. If the future is dropped, the caller stops waiting; an action that
    /// the asked entity has taken by then stays taken.
    ///
    /// # Errors
    /// The asked entity does not exist, refused the action, or could not be reached in time.
    pub async fn ask(self, ask: Ask) -> Result<Answered, AskError> {
        let shared = self.shared.upgrade().ok_or_else(gone)?;
        let Ask { target, action, params, until, not_after, trace } = ask;
        let _wait = match until {
            AskUntil::Settled => Some(Wait::enter(&shared, &self.by, &target).await?),
            AskUntil::Transition => None,
        };
        let trace = self.within(trace);
        let asked = Asked { until, ..self.asked };
        if let Some(hosts) = shared.way_to(&target).await {
            let remaining_ms = remaining_ms(not_after, shared.clock.now());
            let asked = Asked { remaining_ms, ..asked };
            let (tenant, caused_at) = (self.tenant.to_string(), self.dispatched_at);
            let ask = RemoteAsk { target, action, params, trace, asked, tenant, caused_at };
            return ask_elsewhere(&shared, hosts, ask, self.stop).await;
        }
        let (answered, waiting) = WaitingAsker::new(&asked, self.stop);
        let waiting = (until == AskUntil::Settled).then_some(waiting);
        let (reply, answer) = oneshot::channel();
        let incoming = Box::new(IncomingAsk {
            action,
            params,
            trace,
            asked,
            tenant: self.tenant,
            parent_budget: ParentBudget { not_after: Some(not_after), waiting },
        });
        let message = Message::Ask { incoming, reply };
        shared.wait_behind(self.dispatched_at, &self.by, &target).await;
        let view = put(&shared, &target, Origin::Inside, message).await.map_err(to_asker)?;
        let taken = answer.await.map_err(|_| gone())??;
        match until {
            AskUntil::Transition => Ok(taken),
            AskUntil::Settled => settle(&target, view, &taken, &answered).await,
        }
    }

    /// Sends one signal to another entity, and waits until that has recorded it. If the future is
    /// dropped, the signal may still be recorded.
    ///
    /// # Errors
    /// The entity does not exist, refused the signal, or could not be reached; or the handler has sent
    /// [`SIGNALS_SENT_PER_RUN_MAX`].
    pub async fn signal(self, signal: EntitySignal) -> Result<(), SignalError> {
        if self.signals_sent.fetch_add(1, Ordering::Relaxed) >= SIGNALS_SENT_PER_RUN_MAX {
            self.signals_sent.store(SIGNALS_SENT_PER_RUN_MAX, Ordering::Relaxed);
            return Err(SignalError::Refused(format!(
                "a handler sends at most {SIGNALS_SENT_PER_RUN_MAX} signals to other entities"
            )));
        }
        let shared = self.shared.upgrade().ok_or_else(|| to_sender(ActorError::Closed))?;
        let EntitySignal { target, name, payload } = signal;
        if let Some(hosts) = shared.way_to(&target).await {
            let (from, tenant) = (self.by, self.tenant.to_string());
            let caused_at = self.dispatched_at;
            let signal = RemoteSignal { target, name, from, payload, tenant, caused_at };
            let request = RemoteRequest::Signal(Box::new(signal));
            return match hosts.send(&shared.here(), &request).await {
                Ok(RemoteResponse::Signal(recorded)) => recorded,
                Ok(_) => Err(SignalError::Unavailable(other_response())),
                Err(undelivered) => Err(SignalError::Unavailable(undelivered.to_string())),
            };
        }
        shared.wait_behind(self.dispatched_at, &self.by, &target).await;
        let signal = Box::new(Signal { name, from: Some(self.by), payload });
        let (reply, recorded) = oneshot::channel();
        let message = Message::Signal { signal, tenant: Some(self.tenant), reply };
        put(&shared, &target, Origin::Inside, message).await.map_err(to_sender)?;
        recorded.await.unwrap_or(Err(ActorError::Closed)).map_err(to_sender)
    }

    /// The span of an ask, if it is in the trace of the handler that asks.
    fn within(&self, span: TraceContext) -> TraceContext {
        if span.trace_id == self.trace.trace_id { span } else { self.trace }
    }
}

/// Puts `message` into the mailbox of `target`, and returns the view of that entity. A handler that a
/// restart executes again may send it before all entities are recovered; it waits for them, and so does
/// one for an entity of a partition that is being adopted.
pub(crate) async fn put(
    shared: &Shared,
    target: &EntityRef,
    origin: Origin,
    message: Message,
) -> Result<watch::Receiver<View>, ActorError> {
    let mut runtime = shared.runtime.subscribe();
    let runtime = runtime.wait_for(Option::is_some).await.map_err(|_| ActorError::Closed)?;
    shared.wait_until_adopted(target).await;
    let runtime = runtime.and_then(|runtime| runtime.upgrade()).ok_or(ActorError::Closed)?;
    let put = |handle: &Handle| (handle.mailbox.try_send(message), handle.watch());
    let (put, view) = runtime.reach(target, origin, put)?;
    match put {
        Ok(()) => Ok(view),
        Err(TrySendError::Full(_)) => Err(ActorError::MailboxFull(target.clone())),
        Err(TrySendError::Closed(_)) => Err(ActorError::Closed),
    }
}

/// Waits until `target` has settled after it has taken the action of an ask, and notes that the asker has
/// its answer.
pub(crate) async fn settle(
    target: &EntityRef,
    view: watch::Receiver<View>,
    taken: &Answered,
    answered: &watch::Sender<bool>,
) -> Result<Answered, AskError> {
    let settled = seen(view, |now| now.sequence >= taken.sequence && now.is_settled());
    let settled = settled.await.map_err(|error| match error {
        ActorError::Elsewhere(_) => AskError::Unavailable(format!(
            "{target} has taken the action, and its host lost it before it settled; whether its handlers \
             have worked is not known"
        )),
        error => to_asker(error),
    })?;
    answered.send_replace(true);
    Ok(Answered {
        sequence: settled.sequence,
        state: settled.state.clone(),
        fields: settled.variables.clone(),
    })
}

/// How long the end of an asker's session may take to reach the host of the asked entity.
const SESSION_OVER_MAX: Duration = Duration::from_secs(1);

/// Sends an ask to another host. `stop` stops the asker.
async fn ask_elsewhere(
    shared: &Arc<Shared>,
    hosts: Arc<dyn OtherHosts>,
    ask: RemoteAsk,
    stop: Stop,
) -> Result<Answered, AskError> {
    let runtime = shared.runtime.borrow().as_ref().and_then(Weak::upgrade).ok_or_else(gone)?;
    let threads = runtime.threads.clone();
    drop(runtime);
    let Asked { dispatch, attempt, .. } = ask.asked;
    let over =
        RemoteSessionOver { target: ask.target.clone(), dispatch, attempt, why: String::new() };
    let (here, to) = (shared.here(), Arc::clone(&hosts));
    let watching = (ask.asked.until == AskUntil::Settled).then(|| Arc::clone(shared));
    let sending = async move {
        let target = ask.target.clone();
        let request = RemoteRequest::Ask(Box::new(ask));
        let watch = async {
            if let Some(shared) = watching {
                shared.watch_elsewhere(&*to, &target).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            answer = to.send(&here, &request) => answer,
            never = watch => never,
        }
    };
    let sending = threads.spawn(sending);
    let _open = OpenAsk {
        shared: Arc::clone(shared),
        hosts,
        threads,
        sending: sending.abort_handle(),
        stop,
        over: Some(over),
    };
    match sending.await.map_err(|_| gone())? {
        Ok(RemoteResponse::Ask(answer)) => answer,
        Ok(_) => Err(AskError::Unavailable(other_response())),
        Err(undelivered) => Err(AskError::Unavailable(undelivered.to_string())),
    }
}

/// An ask that another host has. If this is dropped first, the request is ended. If the reason is the end of
/// the asker's session, that host gets the reason before.
struct OpenAsk {
    shared: Arc<Shared>,
    hosts: Arc<dyn OtherHosts>,
    threads: tokio::runtime::Handle,
    sending: tokio::task::AbortHandle,
    stop: Stop,
    over: Option<RemoteSessionOver>,
}

impl Drop for OpenAsk {
    fn drop(&mut self) {
        if self.sending.is_finished() {
            return;
        }
        let sending = self.sending.clone();
        let Some((why, over)) = self.stop.over().zip(self.over.take()) else {
            sending.abort();
            return;
        };
        let (hosts, here) = (Arc::clone(&self.hosts), self.shared.here());
        let clock = Arc::clone(&self.shared.clock);
        let over = RemoteRequest::SessionOver(RemoteSessionOver { why: why.to_string(), ..over });
        self.threads.spawn(async move {
            tokio::select! {
                biased;
                _ = hosts.send(&here, &over) => {}
                () = timer::until(&*clock, clock.now().after(SESSION_OVER_MAX)) => {}
            }
            sending.abort();
        });
    }
}

fn other_response() -> String {
    "the host that owns the entity gave another kind of response; use the same version on all hosts"
        .to_owned()
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Asking").field(&self.asked).finish()
    }
}

/// The time until `not_after` in milliseconds, rounded up.
pub(crate) fn remaining_ms(not_after: Monotonic, now: Monotonic) -> u64 {
    let left: Duration = not_after.since(now);
    u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(crate) fn gone() -> AskError {
    to_asker(ActorError::Closed)
}

/// The reason that the handler which asked gets.
pub(crate) fn to_asker(error: ActorError) -> AskError {
    let text = error.to_string();
    match error {
        ActorError::UnknownEntity(_) | ActorError::UnknownType { .. } => {
            AskError::UnknownTarget(text)
        }
        ActorError::Busy { busy, .. } => AskError::Busy(busy),
        ActorError::Refused { refusal, .. } => match refusal {
            Refusal::UnknownAction { .. } => AskError::UnknownTarget(text),
            Refusal::AskCycle => AskError::Cycle,
            Refusal::AskTooDeep { max } => AskError::TooDeep(max),
            Refusal::AskTooLate => AskError::TimedOut(text),
            _ => AskError::Refused(text),
        },
        ActorError::EntityExists(_)
        | ActorError::Conflict { .. }
        | ActorError::HandlerDeadlineExceeded(_)
        | ActorError::NotAnOperator { .. }
        | ActorError::UnknownDispatch { .. } => AskError::Refused(text),
        ActorError::Fenced { .. }
        | ActorError::Elsewhere(_)
        | ActorError::MailboxFull(_)
        | ActorError::JournalUnavailable { .. }
        | ActorError::Journal(_)
        | ActorError::NoRandomness
        | ActorError::Closed => AskError::Unavailable(text),
    }
}

/// The reason that the handler which sent a signal gets.
pub(crate) fn to_sender(error: ActorError) -> SignalError {
    match to_asker(error) {
        AskError::UnknownTarget(why) => SignalError::UnknownTarget(why),
        AskError::Unavailable(why) => SignalError::Unavailable(why),
        other => SignalError::Refused(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_rounded_up_and_never_negative() {
        let at = |nanos| Monotonic::from_nanos(nanos);
        for (not_after, now, left) in [(1, 0, 1), (1_000_000, 0, 1), (1_000_001, 0, 2), (5, 9, 0)] {
            assert_eq!(remaining_ms(at(not_after), at(now)), left, "{not_after} - {now}");
        }
    }

    fn waiting_for(is_answered: watch::Receiver<bool>) -> WaitingAsker {
        let by = "Session/parent".parse().expect("a name");
        let dispatch = "b7fe14e2fde4b443f0a8e0b918aafe8d".parse().expect("an id");
        WaitingAsker { is_answered, by, dispatch, stop: Stop::default() }
    }

    #[tokio::test]
    async fn only_an_asker_without_an_answer_abandons() {
        let (answered, waiting) = watch::channel(false);
        let waiting = waiting_for(waiting);
        assert!(waiting.is_waiting());
        drop(answered);
        assert!(!waiting.is_waiting());
        waiting.abandoned().await;
        let (answered, waiting) = watch::channel(false);
        let waiting = waiting_for(waiting);
        answered.send_replace(true);
        drop(answered);
        assert!(!waiting.is_waiting());
        tokio::select! {
            biased;
            () = waiting.abandoned() => panic!("it has its answer"),
            () = std::future::ready(()) => {}
        }
    }
}
