//! The context of a run, in the form that its guest reads, created when it is first read.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use sandglass_model::{DispatchId, TraceContext};

use crate::covered;
use crate::dispatch::Dispatch;
use crate::opaque::opaque;

/// The context of one run.
pub struct RunContext {
    facts: Option<Facts>,
    json: OnceLock<Arc<[u8]>>,
}

// The text repeats what the embedder has passed, and templates that are replaced within
// `template::RESOLVED_MAX_BYTES`.
covered!(RunContext: facts, json);

/// The parts of a context.
pub struct Facts {
    /// The dispatch.
    pub dispatch: Arc<Dispatch>,
    /// Its id.
    pub id: DispatchId,
    /// The span of the run.
    pub trace: TraceContext,
    /// The remaining budget at its start, in milliseconds.
    pub remaining_ms: u64,
    /// The name of its module.
    pub module: Arc<str>,
    /// The configuration with its templates replaced, if it has any.
    pub resolved: Option<BTreeMap<String, String>>,
}

// They may contain the values of secrets.
opaque!(RunContext as "RunContext" { facts });
opaque!(Facts as "Facts" { dispatch, id });

impl Facts {
    /// The configuration that the guest sees.
    pub fn config(&self) -> &BTreeMap<String, String> {
        self.resolved.as_ref().unwrap_or(&self.dispatch.context.config)
    }
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
            Some(facts) => facts.dispatch.context_json(facts).into(),
            None => Arc::default(),
        })
    }
}
