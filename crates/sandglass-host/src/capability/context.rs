//! What a run is told about why it runs, in the form in which its guest asks for it:
//! made once, for those who ask.

use std::sync::{Arc, OnceLock};

use sandglass_model::{DispatchId, TraceContext};

use crate::dispatch::Dispatch;
use crate::measured::covered;

/// The context of one run.
pub(crate) struct RunContext {
    facts: Option<Facts>,
    json: OnceLock<Arc<[u8]>>,
}

// The text of what the embedder has given, made once.
covered!(RunContext: facts, json);

/// What it is made of.
pub(crate) struct Facts {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) id: DispatchId,
    pub(crate) trace: TraceContext,
    /// What is left of its budget as it begins, in milliseconds.
    pub(crate) remaining_ms: u64,
}

impl RunContext {
    /// The context that these facts make.
    pub(crate) fn of(facts: Facts) -> Self {
        Self { facts: Some(facts), json: OnceLock::new() }
    }

    /// The context that was made before.
    pub(crate) fn made(json: Arc<[u8]>) -> Self {
        Self { facts: None, json: json.into() }
    }

    /// What it is made of; nothing where it was made before.
    pub(crate) const fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// The JSON of the users' ABI.
    pub(crate) fn json(&self) -> &Arc<[u8]> {
        self.json.get_or_init(|| self.facts.as_ref().map_or_else(Arc::default, Facts::json))
    }
}

impl Facts {
    fn json(&self) -> Arc<[u8]> {
        self.dispatch.context_json(self.id, self.trace, self.remaining_ms).into()
    }
}
