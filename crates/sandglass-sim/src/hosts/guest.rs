//! The handlers of one process: guests that behave as the dice decide. A host call with an effect outside
//! waits at the boundary until the lease of the host is valid, as in `sandglass-supervisor`.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{
    Ask, AskError, AskUntil, Cause, Clock as _, Completion, DeadlineReport, EntityRef,
    EntitySignal, Failure, FailureKind, Monotonic, Object, Outcome, RunReport, SignalError,
};
use sandglass_runtime::{HandlerRun, Handlers, RunFuture};
use serde_json::json;

use super::ledger::{Answer, Key, Kind};
use super::process::Host;
use super::spec::ACTIONS;
use crate::fault::Fault;
use crate::scene::lock;
use crate::world::{at_deadline, cancelled, deadline, timed_out};

/// Runs handlers for one process.
pub(crate) struct Guests(pub(crate) Arc<Host>);

/// One step of a guest before it ends.
enum Move {
    Wait(Duration),
    Effect,
    Ask(EntityRef, &'static str, AskUntil),
    Signal(EntityRef),
}

/// A handler run that is in progress until this value is dropped.
struct Running {
    host: Arc<Host>,
    key: Key,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.host.sim.ledger().runs.note_stop(self.host.life, self.key);
    }
}

impl Handlers for Guests {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let host = Arc::clone(&self.0);
        let key = (run.dispatched.dispatch, run.dispatched.attempt);
        let has_lease = host.lease.is_valid();
        host.sim.ledger().note_start(host.life, &run.entity, key, has_lease);
        // Created with the future, so that the run counts as over even if the future is dropped early.
        let running = Running { host: Arc::clone(&host), key };
        Box::pin(async move {
            let report = host.host_guest(&run).await;
            drop(running);
            report
        })
    }
}

impl Host {
    async fn host_guest(self: &Arc<Self>, run: &HandlerRun) -> RunReport {
        let begun = self.clock.now();
        let (ends_at, owner) = deadline(run, begun);
        let started_at = Some(self.clock.wall());
        let (outcome, cause) = tokio::select! {
            biased;
            request = run.stop.killed() => {
                if request.cause == Cause::OwnershipLost {
                    self.check_loss(&run.entity);
                }
                (Some(cancelled(request.cause, request.reason)), request.cause)
            }
            outcome = self.run_guest(run, ends_at) => (Some(outcome), Cause::Returned),
            () = self.until(ends_at.after(Duration::from_millis(1))) => (None, at_deadline(owner)),
        };
        let deadline = DeadlineReport {
            budget_ms: millis(ends_at.since(begun)),
            elapsed_ms: millis(self.clock.now().since(begun)),
            overrun_us: 0,
            owner,
        };
        let unknown = outcome.clone().unwrap_or(Outcome::Interrupted);
        let report = RunReport::unreported(&run.dispatched, unknown, cause);
        let mut report = RunReport { started_at, deadline, ..report };
        if outcome.is_none() {
            timed_out(&mut report, run);
        }
        report
    }

    async fn run_guest(self: &Arc<Self>, run: &HandlerRun, ends_at: Monotonic) -> Outcome {
        let dice = &self.sim.guests;
        for one in self.draw_moves(&run.entity) {
            match one {
                Move::Wait(time) => self.pause_for(time).await,
                Move::Effect => {
                    self.wait_for_lease().await;
                    self.effect(run);
                }
                Move::Ask(target, action, until) => {
                    self.wait_for_lease().await;
                    self.ask(run, ends_at, target, action, until).await;
                }
                Move::Signal(target) => {
                    self.wait_for_lease().await;
                    self.signal(run, target).await;
                }
            }
        }
        match dice.below(10) {
            0 => std::future::pending().await,
            1 | 2 => Outcome::Failed(Failure {
                kind: FailureKind::GuestFailure,
                message: "no luck".to_owned(),
                result: Some(json!({ "success": false })),
            }),
            _ => Outcome::Completed(Completion {
                action: None,
                params: Object::new(),
                result: json!({ "success": true }),
            }),
        }
    }

    fn draw_moves(&self, of: &EntityRef) -> Vec<Move> {
        let (sim, dice) = (&self.sim, &self.sim.guests);
        let names = sim.story().names.clone();
        let is_calm = sim.is_calm();
        let draw = |_| match dice.below(10) {
            0..=3 => Move::Wait(Duration::from_millis(dice.within(0..=2_500))),
            4 if !is_calm && !names.is_empty() => {
                let target = dice.pick(&names).clone();
                let action = *dice.pick(&ACTIONS[..4]);
                let is_settled = dice.per_mille(500);
                let until = if is_settled { AskUntil::Settled } else { AskUntil::Transition };
                Move::Ask(target, action, until)
            }
            5 if !is_calm && !names.is_empty() => {
                let target = dice.pick(&names).clone();
                if target == *of { Move::Effect } else { Move::Signal(target) }
            }
            _ => Move::Effect,
        };
        (0..dice.below(12)).map(draw).collect()
    }

    /// The boundary that host calls with effects pass.
    async fn wait_for_lease(&self) {
        if !self.sim.has(Fault::UnparkedZombie) {
            self.lease.valid().await;
        }
    }

    /// Something happens outside, which the ledger compares with the truth.
    fn effect(&self, run: &HandlerRun) {
        let key = (run.dispatched.dispatch, run.dispatched.attempt);
        let why = self.why_not_owner(&run.entity);
        self.sim.ledger().note_effect(self.life, &run.entity, key, why);
    }

    /// Why this process may not act for the entity, by the truth.
    fn why_not_owner(&self, entity: &EntityRef) -> Option<String> {
        let (me, partition) = (self.id(), sandglass_model::Partition::of(entity));
        let database = self.sim.database();
        let owner = database.row(partition).owner;
        let is_dead = database.is_dead(me);
        if owner == Some(me) && !is_dead {
            return None;
        }
        let what = if is_dead { "is declared dead" } else { "does not own the partition" };
        Some(format!("{} {what} ({partition})", self.life))
    }

    /// A handler is ended because its host has lost the partition, or could not read it: then what it has
    /// started again by then is ended, and started again later.
    fn check_loss(&self, entity: &EntityRef) {
        let partition = sandglass_model::Partition::of(entity);
        let is_lost = self.why_not_owner(entity).is_some();
        let epoch = self.sim.database().row(partition).epoch;
        let head = *lock(&self.lanes[partition.index()].head);
        let is_other = head.is_none_or(|head| head.epoch != epoch);
        let is_unreadable = lock(&self.adopting).contains(&partition);
        self.sim.ledger().note_kill(self.life, entity, is_lost || is_other || is_unreadable);
    }

    async fn ask(
        &self,
        run: &HandlerRun,
        not_after: Monotonic,
        target: EntityRef,
        action: &str,
        until: AskUntil,
    ) {
        let (id, params) = self.sim.ledger().requests.next(Kind::Ask);
        let dispatched = &run.dispatched;
        let nth = 1_000 + u32::try_from(id).unwrap_or(0);
        let trace = dispatched.trace.of_dispatch(dispatched.dispatch, nth);
        let action = action.to_owned();
        let ask = Ask { target, action, params, until, not_after, trace };
        let answer = match run.asks.clone().ask(ask).await {
            Ok(_) => Answer::Accepted(None),
            Err(
                AskError::Invalid(_)
                | AskError::NotAllowed(_)
                | AskError::UnknownTarget(_)
                | AskError::Cycle
                | AskError::TooDeep(_)
                | AskError::Refused(_)
                | AskError::Busy(_),
            ) => Answer::Refused,
            Err(AskError::TimedOut(_) | AskError::CutShort(_) | AskError::Unavailable(_)) => {
                Answer::Unknown
            }
        };
        self.sim.ledger().note_answer(id, answer);
    }

    async fn signal(&self, run: &HandlerRun, target: EntityRef) {
        let (id, _) = self.sim.ledger().requests.next(Kind::Signal);
        let payload = json!({ "request": id });
        let signal = EntitySignal { target, name: "notice".to_owned(), payload };
        let answer = match run.asks.clone().signal(signal).await {
            Ok(()) => Answer::Accepted(None),
            Err(
                SignalError::Invalid(_)
                | SignalError::NotAllowed(_)
                | SignalError::UnknownTarget(_)
                | SignalError::Refused(_),
            ) => Answer::Refused,
            Err(_) => Answer::Unknown,
        };
        self.sim.ledger().note_answer(id, answer);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
