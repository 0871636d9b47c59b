//! What clients request of runs: they create, read, cancel, fork and answer them.

mod answer;
mod bounds;
mod error;
mod fork;

use std::fmt;
use std::sync::Arc;

use sandglass_liveness::Refusal;
use sandglass_model::{EntityRef, StopCause};
use sandglass_runtime::{ActorError, Runtime, SessionStop, Snapshot};
use sandglass_telemetry::metrics::OpenwopRefusal;
use sandglass_workflow::automaton::State;
use sandglass_workflow::definition::Definition;
use sandglass_workflow::state::{RunState, RunStatus};

pub(crate) use self::bounds::{bounds, whole};
pub(crate) use self::error::Error;
pub(crate) use self::fork::Overlay;
use crate::engine::Engine;
use crate::feed::Feeds;
use crate::handlers::RunHandlers;
use crate::id;
use crate::log::{ReadError, RunLog, Standing};
use crate::runs::{Runs, is_over};

/// The operator that a client's cancel is by.
pub const OPERATOR: &str = "openwop";

/// What clients request, over a runtime.
pub struct Service {
    pub(crate) runs: Runs,
    feeds: Feeds,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Service {
    /// Takes requests for runs of `runtime`, which has `handlers`. Needs a tokio runtime.
    #[must_use]
    pub fn start(runtime: Runtime, handlers: &RunHandlers) -> Arc<Self> {
        let engine = Arc::clone(&handlers.engine);
        let feeds = Feeds::of(&runtime, &engine);
        Arc::new(Self { runs: Runs { engine, runtime }, feeds })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.runs.engine
    }

    /// The run `id`.
    pub(crate) async fn find(&self, id: &str) -> Result<(EntityRef, Arc<Snapshot>), Error> {
        let entity = id::entity_of(id).ok_or_else(|| Error::no_run(id))?;
        match self.runs.runtime.entity(&entity).await {
            // No client has received the id of a run that has not begun.
            Ok(snapshot) if snapshot.state == State::Pending.as_str() => Err(Error::no_run(id)),
            Ok(snapshot) => Ok((entity, snapshot)),
            Err(ActorError::UnknownEntity(_)) => Err(Error::no_run(id)),
            Err(error) => Err(error.into()),
        }
    }

    /// The log of a run, unless the logs that are being read fill the memory for logs.
    pub(crate) async fn log(&self, id: &str) -> Result<Arc<RunLog>, Error> {
        let (entity, _) = self.find(id).await?;
        self.bounded_log(&entity).await
    }

    /// As [`Service::log`], of a run that another host may own: all that is recorded by now.
    pub(crate) async fn recorded_log(&self, id: &str) -> Result<Arc<RunLog>, Error> {
        let entity = id::entity_of(id).ok_or_else(|| Error::no_run(id))?;
        self.bounded_log(&entity).await
    }

    async fn bounded_log(&self, run: &EntityRef) -> Result<Arc<RunLog>, Error> {
        let max_bytes = self.engine().settings.max_log_bytes;
        if !self.feeds.has_room(run, max_bytes) {
            self.engine().metrics().openwop_refused(OpenwopRefusal::Logs);
            return Err(Error::TooManyLogs(max_bytes));
        }
        Ok(self.whole_log(run).await?)
    }

    /// The log of a run, however much memory other logs take.
    pub(crate) async fn whole_log(&self, run: &EntityRef) -> Result<Arc<RunLog>, ReadError> {
        self.feeds.log(run).await
    }

    /// The definition that a run began with.
    pub(crate) async fn definition_of(&self, log: &RunLog) -> Result<Arc<Definition>, Error> {
        let begin = log.folded().await.projection.begin;
        let begin = begin.ok_or_else(|| Error::no_run(log.run.id()))?;
        let journals = &self.engine().journals;
        Ok(self.engine().library.pinned(journals, &log.run, &begin).await?)
    }

    /// The state of a run.
    pub(crate) async fn standing(&self, log: &RunLog) -> Result<Standing, Error> {
        let definition = self.definition_of(log).await?;
        let folded = log.folded().await;
        let lines = log.all();
        let state = RunState::fold(&definition, lines.iter().map(|line| &line.entry.event));
        Ok(Standing { folded, definition, state })
    }

    /// Cancels a run; returns its status afterwards.
    pub(crate) async fn cancel(&self, id: &str, reason: &str) -> Result<RunStatus, Error> {
        let (entity, _) = self.find(id).await?;
        let cause = StopCause::Operator { by: OPERATOR.to_owned(), reason: reason.to_owned() };
        let stop = SessionStop { run_seq: None, cause };
        match self.runs.runtime.stop_session(&entity, stop).await {
            Ok(stopped) if stopped.is_recorded => {}
            Ok(_) => return Err(Error::StopNotRecorded),
            Err(ActorError::Refused { refusal: Refusal::RunStopped { .. }, .. }) => {
                // It has ended already, which the client learns from its status.
                let log = self.whole_log(&entity).await?;
                return Ok(self.standing(&log).await?.state.status(false));
            }
            Err(ActorError::Refused { refusal: Refusal::RunStopping { .. }, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let snapshot = self.runs.runtime.entity(&entity).await?;
        Ok(if is_over(&snapshot) { RunStatus::Cancelled } else { RunStatus::Cancelling })
    }
}
