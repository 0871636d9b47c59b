//! What callers can do with sessions: stop and resume them, and read their status.

use std::sync::Arc;
use std::time::Duration;

use sandglass_liveness::Refusal;
use sandglass_liveness::decide::{directive, handler_cause};
use sandglass_liveness::session::{Ceilings, RunPhase, StatusView};
use sandglass_model::{EntityRef, StopCause};
use sandglass_telemetry::metrics::CancelTarget;
use tokio::task::JoinSet;

use crate::actor::{Handle, Message};
use crate::error::ActorError;
use crate::publish::Snapshot;
use crate::request::{Accepted, SessionResume, SessionStop, SessionStopped};
use crate::runtime::Runtime;
use crate::serving::Origin;
use crate::{specs, timer};

/// How long a stop waits for its record before handlers are stopped without it: a disk that hangs
/// must not keep a handler alive.
const RECORD_FIRST: Duration = Duration::from_secs(1);

impl Runtime {
    /// Sets upper bounds on the limits of runs that start from now on; present runs keep their
    /// limits. Entities that become sessions by this start their first run when they next have
    /// something to do.
    pub fn set_ceilings(&self, ceilings: Ceilings) {
        let shared = &self.0.shared;
        // Counters of entities that become sessions by this begin at zero, too.
        specs::expect(&shared.telemetry.metrics, &shared.specs(), &ceilings);
        shared.set_ceilings(ceilings);
    }

    /// Stops the run of a session: queued handlers never start, and handlers in flight are ended,
    /// even in the middle of a host call. The first cause holds.
    ///
    /// An operator's stop is final: if the run is stopping already, its handlers lose their grace,
    /// and a session that would go on after that, or waits to be resumed, is cancelled.
    ///
    /// # Errors
    /// The session is not stopped: the caller is not an operator
    /// ([`Builder::operators`](crate::Builder::operators)), there is no such session, the expected
    /// run is not its present one, or the run has stopped, or is stopping and the caller is not an
    /// operator.
    pub async fn stop_session(
        &self,
        entity: &EntityRef,
        stop: SessionStop,
    ) -> Result<SessionStopped, ActorError> {
        let StopCause::Operator { by, .. } = &stop.cause else {
            return self.stop_run(entity, stop).await;
        };
        let metrics = &self.0.shared.telemetry.metrics;
        self.allows(by).inspect_err(|_| metrics.cancel_refused(CancelTarget::Session))?;
        let (cause, reason) = handler_cause(&stop.cause);
        loop {
            let stopped = self.stop_run(entity, stop.clone()).await;
            let Err(ActorError::Refused { refusal: Refusal::RunStopping { run_seq, .. }, .. }) =
                stopped
            else {
                return stopped;
            };
            self.0
                .reach(entity, Origin::Inside, |handle| handle.stops.clone())?
                .kill(None, cause, &reason);
            let has_stopped = |snapshot: &Snapshot| {
                let session = snapshot.session.as_ref();
                session.is_none_or(|session| {
                    session.run_seq != run_seq || matches!(session.phase, RunPhase::Stopped(_))
                })
            };
            self.wait_until(entity, has_stopped).await?;
        }
    }

    async fn stop_run(
        &self,
        entity: &EntityRef,
        stop: SessionStop,
    ) -> Result<SessionStopped, ActorError> {
        let (cause, reason) = handler_cause(&stop.cause);
        let (has_grace, code) = (stop.cause.has_grace(), stop.cause.code());
        let is_final = !directive(&stop.cause, 0).goes_on();
        // A partition that is being released has to become quiet, so a stop is not refused meanwhile.
        let answer =
            self.send_message(entity, Origin::Inside, |reply| Message::Stop { stop, reply });
        let clock = Arc::clone(&self.0.shared.clock);
        let late = clock.now().after(RECORD_FIRST);
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = timer::until(&*clock, late), if !has_grace => {}
        }
        let stops = self.0.reach(entity, Origin::Inside, |handle| handle.stops.clone())?;
        if is_final {
            stops.set_session_over(&format!("{entity} was stopped ({code})"));
        }
        stops.kill(None, cause, &reason);
        answer.await
    }

    /// Stops the runs of all sessions that have work in flight, because the host is about to shut
    /// down ([`Runtime::shutdown`]): each stop is recorded, and requests that the handlers stop
    /// gracefully. If a stop cannot be recorded now, it happens nevertheless. Sessions whose spec
    /// states `stop_at_shutdown = false` go on until the runtime shuts down.
    pub async fn stop_sessions_for_shutdown(&self) {
        let specs = self.0.shared.specs();
        let busy: Vec<EntityRef> = {
            let entities = self.0.shared.table.lock();
            let snapshots = entities.all_awake().filter_map(Handle::snapshot);
            let is_busy = |snapshot: &Arc<Snapshot>| {
                let session = snapshot.session.as_ref();
                let spec = specs.known.get(&snapshot.spec);
                session.is_some_and(|session| session.is_running())
                    && !snapshot.in_flight.is_empty()
                    && spec.is_none_or(|spec| spec.stops_at_shutdown())
            };
            snapshots.filter(is_busy).map(|snapshot| snapshot.entity.clone()).collect()
        };
        let mut stops = JoinSet::new();
        for entity in busy {
            let runtime = self.clone();
            stops.spawn(async move {
                let stop = SessionStop { run_seq: None, cause: StopCause::Shutdown };
                // If it has ended meanwhile, there is nothing to stop.
                drop(runtime.stop_session(&entity, stop).await);
            });
        }
        while stops.join_next().await.is_some() {}
    }

    /// Resumes a session that waits for it: starts its next run, and dispatches the handlers again
    /// that the stop has cut.
    ///
    /// # Errors
    /// The session does not go on: the caller is not an operator, there is no such session, it is
    /// running, it is over, or its last run is not the expected one.
    pub async fn resume_session(
        &self,
        entity: &EntityRef,
        resume: SessionResume,
    ) -> Result<Accepted, ActorError> {
        self.allows(&resume.by)?;
        let resume = Box::new(resume);
        self.send_message(entity, Origin::Outside, |reply| Message::Resume { resume, reply }).await
    }

    /// Whether `by` may stop and resume sessions.
    fn allows(&self, by: &str) -> Result<(), ActorError> {
        match &self.0.shared.operators {
            Some(operators) if !operators.contains(by) => {
                Err(ActorError::NotAnOperator { by: by.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// The status of sessions, and of other entities with handlers in flight, that are behind `after`
    /// and awake and that `is_wanted` accepts, in the order of their names. Entities with work in
    /// flight are always awake.
    #[must_use]
    pub fn awake_sessions(
        &self,
        after: Option<&EntityRef>,
        is_wanted: impl Fn(&Snapshot) -> bool,
    ) -> Vec<StatusView> {
        let wanted: Vec<_> = {
            let entities = self.0.shared.table.lock();
            let snapshots = entities.all_awake().filter_map(Handle::snapshot);
            let wanted = snapshots.filter(|snapshot| {
                after.is_none_or(|after| snapshot.entity > *after) && is_wanted(snapshot)
            });
            wanted.collect()
        };
        wanted.iter().filter_map(|snapshot| self.status_now(snapshot)).collect()
    }

    /// The status of the entity that `snapshot` shows, with the host calls of its handlers up to now;
    /// `None` if it is not a session and has no handlers in flight.
    #[must_use]
    pub fn status_now(&self, snapshot: &Snapshot) -> Option<StatusView> {
        let shared = &self.0.shared;
        // An entity without a status costs no search for activity.
        snapshot.watched()?;
        let now = shared.clock.wall();
        let active = shared.last_active(&snapshot.entity, snapshot.handlers());
        snapshot.status(now, active.map(|active| active.signal(now)))
    }

    /// The status of an entity, and what its first handler in flight is doing; `None` if it is not a
    /// session and has no handlers in flight.
    ///
    /// # Errors
    /// There is no such entity, or the journal cannot be read.
    pub async fn session_status(
        &self,
        entity: &EntityRef,
    ) -> Result<Option<StatusView>, ActorError> {
        let snapshot = self.entity(entity).await?;
        let Some(mut view) = self.status_now(&snapshot) else { return Ok(None) };
        let first = snapshot.in_flight.first();
        let doing = first.and_then(|run| self.0.shared.handlers.doing(run.dispatch));
        view.host_call = doing.map(|doing| doing.place);
        Ok(Some(view))
    }
}
