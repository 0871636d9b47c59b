//! What can be asked of sessions: that they stop, that they go on, and how they stand.

use std::sync::Arc;
use std::time::Duration;

use sandglass_liveness::Refusal;
use sandglass_liveness::decide::{directive, told};
use sandglass_liveness::session::{Ceilings, Standing, StatusView};
use sandglass_model::{EntityRef, StopCause};
use sandglass_telemetry::metrics::CancelTarget;
use tokio::task::JoinSet;

use crate::actor::{Handle, Message};
use crate::error::ActorError;
use crate::publish::Snapshot;
use crate::request::{Accepted, SessionResume, SessionStop, SessionStopped};
use crate::runtime::Runtime;
use crate::{specs, timer};

/// How long a stop waits for its record before what runs is ended without: a disk that hangs
/// is not to keep a handler alive.
const RECORD_FIRST: Duration = Duration::from_secs(1);

impl Runtime {
    /// Allows runs of sessions no more than this from now on. A run that goes on keeps the
    /// limits that it was started with; entities that this makes sessions start their first run
    /// when they next have something to do.
    pub fn set_ceilings(&self, ceilings: Ceilings) {
        let shared = &self.0.shared;
        // Counters of entities that this makes sessions begin at zero, too.
        specs::expect(&shared.telemetry.metrics, &shared.specs(), &ceilings);
        shared.set_ceilings(ceilings);
    }

    /// Stops the run of a session: what is queued never starts, and what runs is ended, also
    /// in the middle of a host call. The first cause holds.
    ///
    /// An operator's stop is for good, whatever the session waits for. Where its run is stopping
    /// already, its handlers' grace is over, and where the session is to go on after that, or
    /// waits to be resumed, it is cancelled then.
    ///
    /// # Errors
    /// It isn't stopped: an operator asks who isn't one
    /// ([`Builder::operators`](crate::Builder::operators)), there is no such session, its run
    /// isn't the one that was expected, or it has stopped already, or is about to and no
    /// operator asks.
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
        let (cause, reason) = told(&stop.cause);
        loop {
            let stopped = self.stop_run(entity, stop.clone()).await;
            let Err(ActorError::Refused { refusal: Refusal::RunStopping { run_seq, .. }, .. }) =
                stopped
            else {
                return stopped;
            };
            self.0.reach(entity, |handle| handle.stops.clone())?.request(None, cause, &reason);
            let has_stopped = |snapshot: &Snapshot| {
                let session = snapshot.session.as_ref();
                session.is_none_or(|session| {
                    session.run_seq != run_seq || matches!(session.standing, Standing::Stopped(_))
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
        let (cause, reason) = told(&stop.cause);
        let (has_grace, code) = (stop.cause.has_grace(), stop.cause.code());
        let is_final = !directive(&stop.cause, 0).goes_on();
        let answer = self.ask(entity, |reply| Message::Stop { stop, reply });
        let clock = Arc::clone(&self.0.shared.clock);
        let late = clock.now().after(RECORD_FIRST);
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = timer::until(&*clock, late), if !has_grace => {}
        }
        let stops = self.0.reach(entity, |handle| handle.stops.clone())?;
        if is_final {
            stops.session_is_over(&format!("{entity} was stopped ({code})"));
        }
        stops.request(None, cause, &reason);
        answer.await
    }

    /// Stops the runs of the sessions that have work in flight, since the host is about to shut
    /// down ([`Runtime::shutdown`]): each is recorded, and its handlers are asked to end. Those
    /// that can't be recorded now are stopped all the same. Those whose spec says `stop_at_shutdown =
    /// false` go on until the runtime is shut down.
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
                // One that has ended meanwhile needs none.
                drop(runtime.stop_session(&entity, stop).await);
            });
        }
        while stops.join_next().await.is_some() {}
    }

    /// Has a session go on whose run has stopped and that waits for that: in a new run, with
    /// the handlers dispatched anew that the stop has cut.
    ///
    /// # Errors
    /// It doesn't go on: whoever asks is no operator, there is no such session, it has a run, it is over, or its last run
    /// isn't the one that was expected.
    pub async fn resume_session(
        &self,
        entity: &EntityRef,
        resume: SessionResume,
    ) -> Result<Accepted, ActorError> {
        self.allows(&resume.by)?;
        let resume = Box::new(resume);
        self.ask(entity, |reply| Message::Resume { resume, reply }).await
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

    /// How the sessions behind `after` stand that are awake and that `is_wanted` wants, in the
    /// order of their names. Those with work in flight are among them.
    #[must_use]
    pub fn awake_sessions(
        &self,
        after: Option<&EntityRef>,
        is_wanted: impl Fn(&Snapshot) -> bool,
    ) -> Vec<StatusView> {
        let now = self.0.shared.clock.wall();
        let entities = self.0.shared.table.lock();
        let snapshots = entities.all_awake().filter_map(Handle::snapshot);
        let wanted = snapshots.filter(|snapshot| {
            after.is_none_or(|after| snapshot.entity > *after) && is_wanted(snapshot)
        });
        wanted.filter_map(|snapshot| snapshot.status(now)).collect()
    }

    /// How a session stands now, and what its first handler in flight is in; none where the entity is no session.
    ///
    /// # Errors
    /// There is no such entity, or the journal can't be read.
    pub async fn session_status(
        &self,
        entity: &EntityRef,
    ) -> Result<Option<StatusView>, ActorError> {
        let snapshot = self.entity(entity).await?;
        let Some(mut view) = snapshot.status(self.0.shared.clock.wall()) else { return Ok(None) };
        let first = snapshot.in_flight.first();
        let doing = first.and_then(|run| self.0.shared.handlers.doing(run.dispatch));
        view.host_call = doing.map(|(host_call, _)| host_call);
        Ok(Some(view))
    }
}
