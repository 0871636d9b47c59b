//! Who makes a host call: the dispatch, what it is granted, and its place to run.

use std::sync::Arc;

use sandglass_model::{DispatchId, TraceContext};

use crate::admission::Place;
use crate::dispatch::Dispatch;
use crate::manifest::Manifest;

/// The run behind a host call, for whatever outlives a borrow of its store.
pub(crate) struct Origin {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) id: DispatchId,
    /// The span of the run.
    pub(crate) trace: TraceContext,
    pub(crate) place: Arc<Place>,
}
