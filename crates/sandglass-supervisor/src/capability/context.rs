//! What a run is told about why it runs, in the form in which its guest asks for it:
//! made once, for those who ask.

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

// The text of what the embedder has given, made once.
covered!(RunContext: facts, json);

/// What it is made of.
#[derive(Debug)]
pub struct Facts {
    /// The dispatch.
    pub dispatch: Arc<Dispatch>,
    /// Its id.
    pub id: DispatchId,
    /// The span of the run.
    pub trace: TraceContext,
    /// What is left of its budget as it begins, in milliseconds.
    pub remaining_ms: u64,
}

impl RunContext {
    /// The context that these facts make.
    pub fn of(facts: Facts) -> Self {
        Self { facts: Some(facts), json: OnceLock::new() }
    }

    /// The context that was made before.
    pub fn made(json: Arc<[u8]>) -> Self {
        Self { facts: None, json: json.into() }
    }

    /// What it is made of; nothing where it was made before.
    pub const fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// The JSON of the users' ABI.
    pub fn json(&self) -> &Arc<[u8]> {
        self.json.get_or_init(|| self.facts.as_ref().map_or_else(Arc::default, Facts::json))
    }
}

impl Facts {
    fn json(&self) -> Arc<[u8]> {
        self.dispatch.context_json(self.id, self.trace, self.remaining_ms).into()
    }
}
