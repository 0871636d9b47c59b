//! What an embedder's function gets to know about the call, and its error.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{Clock, DispatchId, EntityRef, TraceContext};

use crate::abi::guest_memory::FAILED;
use crate::store::RunStore;
use sandglass_supervisor::origin::Origin;
use sandglass_supervisor::run::Run;

/// One call of a host function: its caller, and the time that remains. Cheap to clone.
#[derive(Clone)]
pub struct HostCall {
    origin: Arc<Origin>,
    run: Arc<Run>,
    clock: Arc<dyn Clock>,
    trace: TraceContext,
    /// `None` if the caller gets its result in another way.
    buffer_bytes: Option<u32>,
}

impl HostCall {
    pub(crate) fn of(store: &RunStore, buffer_bytes: Option<u32>) -> Option<Self> {
        let origin = Arc::clone(store.origin.as_ref()?);
        Some(Self {
            trace: store.calls.spans.context().unwrap_or(origin.trace),
            origin,
            run: Arc::clone(store.run()),
            clock: Arc::clone(store.clock().shared()),
            buffer_bytes,
        })
    }

    /// The entity whose handler calls.
    #[must_use]
    pub fn entity(&self) -> &EntityRef {
        &self.origin.dispatch.entity
    }

    /// The tenant of the dispatch.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.origin.dispatch.context.tenant
    }

    /// The dispatch. It is the same for each attempt, so it can be an idempotency key.
    #[must_use]
    pub fn dispatch(&self) -> DispatchId {
        self.origin.id
    }

    /// The attempt of the dispatch, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.origin.dispatch.attempt
    }

    /// The span of this call, for propagation. It is the span of the handler run if spans are not
    /// exported, and after the first 128 calls of a handler run.
    #[must_use]
    pub fn trace(&self) -> TraceContext {
        self.trace
    }

    /// How many bytes the buffer has that a core module passes for the result; `None` for a component,
    /// and for a function of module `env` that returns a number. A longer result is not written, and
    /// the guest gets -2.
    #[must_use]
    pub fn buffer_bytes(&self) -> Option<u32> {
        self.buffer_bytes
    }

    /// The time until the deadline; zero after the handler run has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.run.cause().is_some() {
            return Duration::ZERO;
        }
        self.run.deadline().since(self.clock.now())
    }
}

impl fmt::Debug for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCall")
            .field("entity", self.entity())
            .field("dispatch", &self.dispatch())
            .finish_non_exhaustive()
    }
}

/// Why an embedder's function failed. The guest gets the text and continues. `?` converts any error to
/// one with the text of that error.
#[derive(Debug)]
pub struct HostError {
    pub(crate) why: String,
    pub(crate) code: i32,
}

impl HostError {
    /// A failure with this text.
    pub fn new(why: impl fmt::Display) -> Self {
        Self { why: why.to_string(), code: FAILED }
    }

    /// A failure with this text, for which a function of module `env` returns `code` instead of -1.
    /// Elsewhere, the code is ignored.
    pub fn with_code(code: i32, why: impl fmt::Display) -> Self {
        Self { code, ..Self::new(why) }
    }
}

impl<E: std::error::Error> From<E> for HostError {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}
