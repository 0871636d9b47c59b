//! The context of a run, in the form that its guest reads, created when it is first read.

use std::sync::{Arc, OnceLock};

use sandglass_model::{DispatchId, TraceContext};

use crate::covered;
use crate::dispatch::Dispatch;

/// The context of one run.
#[derive(Debug)]
pub struct RunContext {
    facts: Option<Facts>,
    json: OnceLock<Arc<[u8]>>,
}

// The text repeats what the embedder has passed.
covered!(RunContext: facts, json);

/// The parts of a context.
#[derive(Debug)]
pub struct Facts {
    /// The dispatch.
    pub dispatch: Arc<Dispatch>,
    /// Its id.
    pub id: DispatchId,
    /// The span of the run.
    pub trace: TraceContext,
    /// The remaining budget at its start, in milliseconds.
    pub remaining_ms: u64,
}

impl RunContext {
    /// Creates a context from its parts.
    pub fn new(facts: Facts) -> Self {
        Self { facts: Some(facts), json: OnceLock::new() }
    }

    /// Creates a context from its recorded JSON.
    pub fn from_json(json: Arc<[u8]>) -> Self {
        Self { facts: None, json: json.into() }
    }

    /// Its parts; `None` in a replay.
    pub const fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// The JSON of the core ABI.
    pub fn json(&self) -> &Arc<[u8]> {
        self.json.get_or_init(|| match &self.facts {
            Some(Facts { dispatch, id, trace, remaining_ms }) => {
                dispatch.context_json(*id, *trace, *remaining_ms).into()
            }
            None => Arc::default(),
        })
    }
}
