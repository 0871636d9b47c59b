//! The dispatch behind a host call: what it is granted, its permit to run, and what clients and secret
//! stores of an embedder see of it.

use std::sync::Arc;

use sandglass_model::{DispatchId, EntityRef, ModuleHash, TraceContext};

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

/// Who makes a call to an [`HttpClient`](crate::capability::http::HttpClient) or to
/// [`Secrets`](crate::secret::Secrets).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOrigin<'a> {
    /// The tenant of the dispatch.
    pub tenant: &'a str,
    /// The entity whose handler calls.
    pub entity: &'a EntityRef,
    /// The action that triggered the handler.
    pub action: &'a str,
    /// The dispatch. It is the same for each attempt, so it can be an idempotency key.
    pub dispatch: DispatchId,
    /// The attempt of the dispatch, from 1.
    pub attempt: u32,
    /// The integration, as reports name it.
    pub integration: &'a str,
    /// The hash of the module that calls.
    pub module: ModuleHash,
}
