//! Runs, as clients ask for them: created, looked at, cancelled, forked, answered.

mod answer;
mod creation;
mod fork;
pub(crate) mod id;

use std::sync::Arc;

use sandglass_journal::Journal;
use sandglass_liveness::Refusal;
use sandglass_liveness::session::RunPhase;
use sandglass_model::{EntityRef, StopCause};
use sandglass_runtime::{ActorError, Runtime, SessionStop, SessionStopped, Snapshot};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::OpenwopRefusal;

pub(crate) use self::creation::{Bounds, Created, Wanted};
pub(crate) use self::fork::Overlay;
use crate::context::Unknown;
use crate::feed::Feeds;
use crate::handlers::RunHandlers;
use crate::http::error::{Code, Error};
use crate::library::Library;
use crate::log::{RunLog, Standing as RunStanding};
use crate::settings::Settings;
use sandglass_workflow::definition::Definition;
use sandglass_workflow::event::Kind;
use sandglass_workflow::projection::PENDING;
use sandglass_workflow::state::RunState;

/// The operator that a client's cancel is by.
pub const OPERATOR: &str = "openwop";

/// What clients ask for, over a runtime.
#[derive(Debug)]
pub struct Service {
    pub(crate) runtime: Runtime,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) handlers: RunHandlers,
    pub(crate) settings: Settings,
    pub(crate) feeds: Feeds,
}

impl Service {
    /// Takes requests for runs of `runtime`, which has `handlers`, and whose journal `journal`
    /// is. Records the definitions that aren't in it yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// They can't be recorded.
    pub async fn start(
        runtime: Runtime,
        journal: Arc<dyn Journal>,
        handlers: RunHandlers,
        settings: Settings,
    ) -> Result<Arc<Self>, ActorError> {
        handlers.shared.library.keep(&runtime).await?;
        let feeds = Feeds::of(&runtime, &handlers.shared);
        let service = Arc::new(Self { runtime, journal, handlers, settings, feeds });
        service.handlers.shared.service.send_replace(Some(Arc::downgrade(&service)));
        Ok(service)
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.handlers.shared.library
    }

    /// The run with this id.
    pub(crate) async fn find(&self, id: &str) -> Result<(EntityRef, Arc<Snapshot>), Error> {
        let entity = id::entity_of(id).ok_or_else(|| Error::no_run(id))?;
        match self.runtime.entity(&entity).await {
            // One that has not begun was never answered to anybody.
            Ok(snapshot) if snapshot.state == PENDING => Err(Error::no_run(id)),
            Ok(snapshot) => Ok((entity, snapshot)),
            Err(ActorError::UnknownEntity(_)) => Err(Error::no_run(id)),
            Err(error) => Err(error.into()),
        }
    }

    /// The log of a run, unless the logs of others that are read take all there is for them.
    pub(crate) async fn log(&self, id: &str) -> Result<Arc<RunLog>, Error> {
        let (entity, _) = self.find(id).await?;
        let most = self.settings.max_log_bytes;
        if !self.feeds.has_room(&entity, most) {
            self.metrics().openwop_refused(OpenwopRefusal::Logs);
            let message =
                format!("the runs that are read have {most} bytes of events, as many as they may");
            return Err(Error::new(Code::RateLimited, message));
        }
        self.whole_log(&entity).await
    }

    /// The same, whatever others take.
    pub(crate) async fn whole_log(&self, entity: &EntityRef) -> Result<Arc<RunLog>, Error> {
        self.feeds.log(entity).await.map_err(|error| unreadable(&error))
    }

    /// What the host's clock says.
    pub(crate) fn now(&self) -> sandglass_model::Monotonic {
        self.handlers.shared.clock.now()
    }

    /// Where the host's metrics go.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.handlers.shared.host.telemetry().metrics
    }

    /// The definition that a run began with.
    pub(crate) async fn definition_of(&self, log: &RunLog) -> Result<Arc<Definition>, Error> {
        let folded = log.folded().await;
        let begin = folded.projection.begin.as_ref().ok_or_else(|| Error::no_run(log.run.id()))?;
        let definition = self.library().pinned(&*self.journal, begin).await;
        definition.map_err(|unknown| unknown_of(&unknown))
    }

    /// How a run stands.
    pub(crate) async fn standing(&self, log: &RunLog) -> Result<RunStanding, Error> {
        let definition = self.definition_of(log).await?;
        let folded = log.folded().await;
        let lines = log.all();
        let state = RunState::fold(&definition, lines.iter().map(|line| &line.entry.event));
        Ok(RunStanding { folded, definition, state })
    }

    /// Cancels a run; answers how it stands then.
    pub(crate) async fn cancel(&self, id: &str, reason: &str) -> Result<&'static str, Error> {
        let (entity, _) = self.find(id).await?;
        let cause = StopCause::Operator { by: OPERATOR.to_owned(), reason: reason.to_owned() };
        let stop = SessionStop { run_seq: None, cause };
        match self.runtime.stop_session(&entity, stop).await {
            Ok(stopped) if stopped.is_recorded => {}
            Ok(_) => {
                let message = "what the run does is ended, but the journal doesn't take that now, \
                               and a start before it does goes on with the run; ask again later";
                return Err(Error::new(Code::Unavailable, message));
            }
            Err(ActorError::Refused { refusal: Refusal::RunStopped { .. }, .. }) => {
                let log = self.whole_log(&entity).await?;
                let ended = log.all().last().map(|line| line.entry.event.kind);
                return match ended {
                    Some(Kind::RunCancelled) => Ok("cancelled"),
                    _ => Err(Error::new(Code::RunTerminal, "the run has come to its end before")),
                };
            }
            Err(ActorError::Refused { refusal: Refusal::RunStopping { .. }, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let snapshot = self.runtime.entity(&entity).await?;
        Ok(if is_over(&snapshot) { "cancelled" } else { "cancelling" })
    }

    /// Stops a run with `parent`, which it works for.
    pub(crate) async fn stop_with(
        &self,
        run: &EntityRef,
        parent: &EntityRef,
        reason: String,
    ) -> Result<SessionStopped, ActorError> {
        let cause = StopCause::Parent { parent: Some(parent.clone()), reason };
        self.runtime.stop_session(run, SessionStop { run_seq: None, cause }).await
    }

    /// Waits until a run has come to its end.
    pub(crate) async fn until_over(&self, entity: &EntityRef) -> Result<(), ActorError> {
        self.runtime.wait_until(entity, is_over).await.map(drop)
    }
}

/// Whether a run has come to its end.
pub(crate) fn is_over(snapshot: &Snapshot) -> bool {
    snapshot.session.as_ref().is_some_and(|session| session.is_over())
}

/// Whether a run is being stopped.
pub(crate) fn is_stopping(snapshot: &Snapshot) -> bool {
    let session = snapshot.session.as_ref();
    session.is_some_and(|session| matches!(session.phase, RunPhase::Stopping { .. }))
}

fn unreadable(error: &sandglass_journal::Error) -> Error {
    tracing::warn!(%error, "a run's records can't be read");
    Error::new(Code::Unavailable, "the run's records can't be read now; try again later")
}

fn unknown_of(unknown: &Unknown) -> Error {
    tracing::error!(error = %unknown, "a run can't be told");
    Error::new(Code::Internal, "the run's records can't be understood; the host's log says why")
}

/// As clients see how a run stands.
pub(crate) fn status(state: &RunState, is_stopping: bool) -> &'static str {
    match (&state.ended, is_stopping, &state.waiting) {
        (Some((Kind::RunCompleted, _)), ..) => "completed",
        (Some((Kind::RunCancelled, _)), ..) => "cancelled",
        (Some(_), ..) => "failed",
        (None, true, _) => "cancelling",
        (None, false, Some(waiting)) => match waiting.payload["kind"].as_str() {
            Some("approval" | "low-confidence") => "waiting-approval",
            Some("external-event") => "waiting-external",
            _ => "waiting-input",
        },
        (None, false, None) => "running",
    }
}
