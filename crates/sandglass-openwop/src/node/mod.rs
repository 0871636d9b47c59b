//! What executes nodes: child runs, and the nodes of packs.

pub(crate) mod dispatch;
pub(crate) mod packed;

use sandglass_model::RunReport;
use sandglass_workflow::event::{Kind, RunError, RunEvent};
use sandglass_workflow::json_size;
use sandglass_workflow::node::End;
use serde_json::Value;

/// Most of what a node has logged before it failed that is kept, in bytes of JSON.
const SAID_MAX_BYTES: usize = 64 << 10;

/// How a node has ended, and what the host says of it where it was a pack's.
#[derive(Debug)]
pub(crate) struct Executed {
    pub(crate) end: End,
    /// What happened on the way.
    pub(crate) events: Vec<RunEvent>,
    /// Its pack's answer.
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

    pub(crate) fn failed(code: &str, message: impl Into<String>) -> Self {
        End::Failed(RunError::new(code, message)).into()
    }

    /// The last lines that a node has logged which has failed; what else it has done is undone.
    pub(crate) fn said_in_vain(&mut self) -> Vec<RunEvent> {
        if !matches!(self.end, End::Failed(_) | End::Broken) {
            return Vec::new();
        }
        let mut bytes = 0_usize;
        let lines = std::mem::take(&mut self.events).into_iter().rev();
        let lines = lines.filter(|event| event.kind == Kind::LogAppended).take_while(|event| {
            bytes = bytes.saturating_add(json_size(&event.payload));
            bytes <= SAID_MAX_BYTES
        });
        let mut lines: Vec<RunEvent> = lines.collect();
        lines.reverse();
        lines
    }

    pub(crate) fn from_decision((end, events): (End, Vec<RunEvent>)) -> Self {
        Self { events, ..end.into() }
    }
}
