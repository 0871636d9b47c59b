//! Measures what the host keeps in memory for a run between two calls of its guest.
//!
//! The boundary charges the result to the run's account each time a call leaves. Every field of
//! [`RunStore`](crate::store::RunStore) and of what it contains has a type that implements
//! [`Measured`], and [`measured!`] and [`covered!`] name all fields. Therefore a new field does not
//! compile until its type states how much it keeps, and a host function has no other place that
//! outlives its call. Types that need not be measured are listed in this file alone.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use sandglass_model::{Monotonic, TraceContext, WallTime};
use sandglass_telemetry::{Metrics, Span};
use wasmtime::{Memory, TypedFunc};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::bindings::io::poll::Pollable as DynPollable;
use wasmtime_wasi::p2::bindings::io::streams::{
    InputStream as DynInputStream, OutputStream as DynOutputStream,
};
use wasmtime_wasi::p2::bindings::sockets::network::Network;
use wasmtime_wasi_http::p2::body::{HostFutureTrailers, HostIncomingBody, HostOutgoingBody};
use wasmtime_wasi_http::p2::types::HostFutureIncomingResponse;
use wasmtime_wasi_http::{RequestOptions, WasiHttpCtx};

use crate::abi::node_pack::RandomStream;
use crate::capability::Grants;
use crate::capability::named_streams::Streams;
use crate::capability::signal::Signals;
use crate::dispatch::CallLimits;
use crate::functions::{FunctionId, Functions};
use crate::host_memory::{Charge, HostMemory};
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

/// Implements [`Measured`] for a structure that keeps nothing uncharged, because it charges what
/// grows in it, or bounds it as a comment beside the macro says. All fields are listed, so that a
/// new one does not compile until somebody has considered it.
macro_rules! covered {
    ($type:ty: $($field:ident),+ $(,)?) => {
        impl $crate::measured::Measured for $type {
            #[inline]
            fn uncharged_bytes(&self) -> u64 {
                let Self { $($field: _),+ } = self;
                0
            }
        }
    };
}

/// Implements [`Measured`] for types that keep nothing uncharged. Only this file uses it, for types
/// of other crates and for those that no guest makes larger; a type that a host function changes
/// uses [`measured!`] or [`covered!`].
macro_rules! keeps_nothing {
    ($($type:ty),+ $(,)?) => {$(
        impl Measured for $type {
            #[inline]
            fn uncharged_bytes(&self) -> u64 {
                0
            }
        }
    )+};
}

pub(crate) use {covered, measured};

// Of a fixed size.
keeps_nothing!(bool, u32, u64, i64, usize, AtomicU32, Duration, Monotonic, WallTime, TraceContext);
keeps_nothing!(Phase, FunctionId, RunClock, Memory, TypedFunc<i32, i32>, RandomStream);

// Charged already.
keeps_nothing!(Charge, HostMemory, Streams);

// Made before the guest runs, or shared by runs, whose tenants are charged for it.
keeps_nothing!(Ticker, Functions, Origin, Grants, Metrics, CallLimits);
keeps_nothing!(dyn Signals, dyn NodeAccess);

// The host's own notes of a run: the present call, and one reason to stop.
keeps_nothing!(Run);

// Has a limit of its own, `[recording] size`.
keeps_nothing!(Tape);

// What a span contains is exported after the run; `Spans` counts what the guest gives it.
keeps_nothing!(Span);

// State and resources of Wasmtime's WASI. Of a fixed size, apart from the beginning of one line for
// each standard stream, and from the text of an error, which Wasmtime writes.
keeps_nothing!(WasiP1Ctx, WasiHttpCtx, DynPollable, DynInputStream, DynOutputStream);
keeps_nothing!(RequestOptions, Network, wasmtime::Error);

// Parts of an open request, which is charged, and of a body, which its request counts.
keeps_nothing!(HostFutureIncomingResponse, HostIncomingBody, HostFutureTrailers, HostOutgoingBody);

impl Measured for String {
    #[inline]
    fn uncharged_bytes(&self) -> u64 {
        self.capacity() as u64
    }
}

impl<T: Measured + ?Sized> Measured for Arc<T> {
    #[inline]
    fn uncharged_bytes(&self) -> u64 {
        T::uncharged_bytes(self)
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
