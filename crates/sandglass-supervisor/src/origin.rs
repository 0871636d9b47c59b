//! The dispatch behind a host call, what it is granted, and its permit to run.

use std::sync::Arc;

use sandglass_model::{DispatchId, TraceContext};

use crate::admission::AdmittedDispatch;
use crate::dispatch::Dispatch;
use crate::manifest::Manifest;

/// The dispatch behind a host call, for code that outlives a borrow of the store.
#[derive(Debug)]
pub struct Origin {
    /// The dispatch.
    pub dispatch: Arc<Dispatch>,
    /// What the integration is granted.
    pub manifest: Arc<Manifest>,
    /// The id of the dispatch.
    pub id: DispatchId,
    /// The span of the run.
    pub trace: TraceContext,
    /// Its permit to run.
    pub admitted: Arc<AdmittedDispatch>,
}
