//! What the tests of several modules need.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use sandglass_model::{
    Clock, DispatchId, EntityRef, ModuleHash, Monotonic, TraceContext, WallTime,
};
use sandglass_telemetry::trace::{CapturedSpans, Kind, names};
use sandglass_telemetry::{Span, SpanStart, Tracer};

use crate::functions::{Class, FunctionId, Functions, Reads};
use crate::origin::CallOrigin;

/// A clock that stands still until a test sets its nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct SetClock(AtomicU64);

impl SetClock {
    pub(crate) fn at(nanos: u64) -> Self {
        Self(AtomicU64::new(nanos))
    }

    pub(crate) fn set(&self, now: Monotonic) {
        self.0.store(now.as_nanos(), Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Monotonic {
        Monotonic::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn wall(&self) -> WallTime {
        WallTime::default()
    }
}

/// A table of functions with these names, and their ids.
pub(crate) fn functions<const N: usize>(names: [&'static str; N]) -> (Functions, [FunctionId; N]) {
    let mut functions = Functions::default();
    let ids =
        names.map(|name| functions.add("env", name, name.to_owned(), Class::Async, Reads::Numbers));
    (functions, ids)
}

/// The origin of a call of some handler.
pub(crate) fn call_origin() -> CallOrigin<'static> {
    static ENTITY: LazyLock<EntityRef> = LazyLock::new(|| "Session/1".parse().expect("valid"));
    CallOrigin {
        tenant: "default",
        entity: &ENTITY,
        action: "Begin",
        dispatch: DispatchId::from_bytes([1; 16]),
        attempt: 1,
        integration: "tools",
        module: ModuleHash::of(b"tools"),
    }
}

/// The span of a dispatch, and the spans that have ended.
pub(crate) fn dispatch_span(context: TraceContext) -> (Span, CapturedSpans) {
    let (tracer, captured) = Tracer::capturing();
    let dispatch = tracer.start(&SpanStart {
        name: names::DISPATCH,
        kind: Kind::Internal,
        context,
        parent: None,
        links: &[],
        attributes: &[],
    });
    (dispatch, captured)
}
