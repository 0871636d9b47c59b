//! Measures what the host keeps in memory for a run between two calls of its guest.
//!
//! The boundary charges the result to the run's account each time a call leaves. Every field of
//! [`RunStore`](crate::store::RunStore) and of what it contains has a type that implements
//! [`Measured`], and [`measured!`] names all fields. Therefore a new field does not compile until
//! its type states how much it keeps, and a host function has no other place that outlives its
//! call.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{Monotonic, TraceContext, WallTime};
use sandglass_telemetry::{Metrics, Span};
use wasmtime::{Memory, TypedFunc};

use crate::accounting::Accounting;
use crate::capability::Grants;
use crate::capability::cache::CacheView;
use crate::capability::context::RunContext;
use crate::capability::log::GuestLog;
use crate::capability::outside::Outside;
use crate::capability::signal::Signals;
use crate::capability::speaker::Speaker;
use crate::dispatch::CallLimits;
use crate::functions::{FunctionId, Functions};
use crate::host_memory::{Charge, HostMemory};
use crate::limiter::Limiter;
use crate::node::NodeAccess;
use crate::origin::Origin;
use crate::recording::Tape;
use crate::run::Run;
use crate::run_clock::RunClock;
use crate::store::Phase;
use crate::ticker::Ticker;

/// A value that outlives a host call, in the state of a run or in its resource table.
pub(crate) trait Measured {
    /// Bytes outside of `size_of::<Self>()` that a guest or an upstream server can make larger and
    /// that no [`Charge`] covers. It takes a few nanoseconds, because each call computes it.
    fn uncharged_bytes(&self) -> u64;
}

/// Implements [`Measured`] for a structure as the sum of its fields, of which none is left out.
macro_rules! measured {
    ($type:ty: $($field:ident),+ $(,)?) => {
        impl $crate::measured::Measured for $type {
            #[inline]
            fn uncharged_bytes(&self) -> u64 {
                let Self { $($field),+ } = self;
                0 $(+ $crate::measured::Measured::uncharged_bytes($field))+
            }
        }
    };
}

/// Implements [`Measured`] for types that keep nothing that is uncharged.
macro_rules! keeps_nothing {
    ($($type:ty),+ $(,)?) => {$(
        impl $crate::measured::Measured for $type {
            #[inline]
            fn uncharged_bytes(&self) -> u64 {
                0
            }
        }
    )+};
}

pub(crate) use {keeps_nothing, measured};

// Of a fixed size.
keeps_nothing!(bool, u32, u64, i64, usize, Duration, Monotonic, WallTime, TraceContext);
keeps_nothing!(Phase, FunctionId, RunClock, Memory, TypedFunc<i32, i32>);

// Charged already.
keeps_nothing!(Charge, HostMemory);

// Made before the guest runs, or shared by runs, whose tenants are charged for it.
keeps_nothing!(Arc<Ticker>, Arc<Functions>, Arc<Origin>, Arc<Grants>, Arc<Speaker>, Metrics);
keeps_nothing!(RunContext, CallLimits, CacheView, GuestLog, Arc<dyn Signals>, Arc<dyn NodeAccess>);

// The host's own notes of a run, within fixed bounds: sums by function, the first and last calls,
// the present call, and one reason to stop.
keeps_nothing!(Arc<Run>, Accounting, Limiter);

// Has a limit of its own, `[recording] size`.
keeps_nothing!(Tape);

// What a span contains is exported after the run; `Spans` counts what the guest gives it.
keeps_nothing!(Span, Arc<Span>);

// Sends requests, each of which is charged from the moment that it exists.
keeps_nothing!(Outside);

impl Measured for String {
    #[inline]
    fn uncharged_bytes(&self) -> u64 {
        self.capacity() as u64
    }
}

impl<T: Measured> Measured for Option<T> {
    #[inline]
    fn uncharged_bytes(&self) -> u64 {
        self.as_ref().map_or(0, T::uncharged_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::spans::{Attributes, SpanEnd};
    use crate::secret::Secret;
    use crate::store::RunStore;
    use proptest::prelude::*;
    use sandglass_telemetry::trace::Kind;
    use serde_json::json;

    proptest! {
        /// The account has what the state keeps, after every call.
        #[test]
        fn the_state_of_a_run_is_charged(
            steps in prop::collection::vec((0_u8..5, 0_usize..2_000), 0..100),
        ) {
            let mut store = RunStore::idle();
            let (mut open, mut secrets) = (Vec::new(), 0);
            for (nth, (step, size)) in steps.into_iter().enumerate() {
                let text = format!("text {nth} {}", "x".repeat(size));
                match step {
                    0 => {
                        let attributes = vec![("a".to_owned(), json!(text))];
                        let span = store.guest.start_span(None, "s", Kind::Internal, attributes);
                        open.push(span.expect("it has no parent"));
                    }
                    1 => {
                        if let Some(span) = open.pop() {
                            let ended = store.guest.end_span(span, Attributes::new(), SpanEnd::Done);
                            prop_assert_eq!(ended, Ok(()));
                        }
                    }
                    2 => store.guest.fail(&text),
                    3 => store.stopped_in = Some(text),
                    _ => {
                        secrets += text.len() as u64;
                        store.give_secret("key", &Secret::new(text));
                    }
                }
                store.charge(&[]).expect("the account has room");
                let memory = store.guest.memory.clone();
                prop_assert_eq!(memory.held(), store.uncharged_bytes());
                let texts = store.guest.last_error().len()
                    + store.stopped_in.as_ref().map_or(0, String::len);
                prop_assert!(memory.held() >= secrets + texts as u64);
            }
            let memory = store.guest.memory.clone();
            drop(store);
            prop_assert_eq!(memory.held(), 0);
        }
    }

    #[test]
    fn a_run_ends_when_its_state_is_larger_than_its_account() {
        let mut store = RunStore::idle();
        store.stopped_in = Some("x".repeat(17 << 20));
        let error = store.charge(&[]).expect_err("it does not fit");
        assert!(error.is::<crate::host_memory::OutOfHostMemory>(), "{error:?}");
    }
}
