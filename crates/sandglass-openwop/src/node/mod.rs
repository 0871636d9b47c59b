//! What executes nodes: child runs, and the nodes of packs.

pub(crate) mod dispatch;
pub(crate) mod packed;

use sandglass_model::RunReport;
use sandglass_workflow::error::{ErrorCode, RunError};
use sandglass_workflow::event::{Kind, RunEvent};
use sandglass_workflow::node::End;
use serde_json::Value;

/// Most bytes of JSON that are kept of what a node logged before it failed.
const LOGGED_MAX_BYTES: usize = 64 << 10;

/// How a node ended, with the report of the host if it was a pack's.
#[derive(Debug)]
pub(crate) struct Executed {
    pub(crate) end: End,
    /// What happened on the way.
    pub(crate) events: Vec<RunEvent>,
    /// The response of its pack.
    pub(crate) response: Option<Value>,
    pub(crate) report: Option<Box<RunReport>>,
}

impl From<End> for Executed {
    fn from(end: End) -> Self {
        Self { end, events: Vec::new(), response: None, report: None }
    }
}

impl Executed {
    pub(crate) fn completed(outputs: Value) -> Self {
        End::Completed(outputs).into()
    }

    pub(crate) fn failed(code: ErrorCode, message: impl Into<String>) -> Self {
        End::Failed(RunError::new(code, message)).into()
    }

    /// Takes the last lines that the node logged, if it failed; its other events are dropped.
    pub(crate) fn take_logged(&mut self) -> Vec<RunEvent> {
        if !matches!(self.end, End::Failed(_) | End::Broken) {
            return Vec::new();
        }
        let mut bytes = 0_usize;
        let lines = std::mem::take(&mut self.events).into_iter().rev();
        let lines = lines.filter(|event| event.kind() == Kind::LogAppended).take_while(|event| {
            bytes = bytes.saturating_add(event.payload.json_size());
            bytes <= LOGGED_MAX_BYTES
        });
        let mut lines: Vec<RunEvent> = lines.collect();
        lines.reverse();
        lines
    }

    /// The end of a turn of an orchestrator, whose decision is `event`, unless it is held.
    pub(crate) fn decided((end, event): (End, Option<RunEvent>)) -> Self {
        Self { events: event.into_iter().collect(), ..end.into() }
    }
}
