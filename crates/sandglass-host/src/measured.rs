//! Measures what the host keeps in memory for a handler run between two calls of its guest, as far as
//! types of Wasmtime keep it.
//!
//! It continues [`sandglass_supervisor::measured`] in a trait of this crate, because types of
//! Wasmtime can implement no other. Every field of [`RunStore`](crate::store::RunStore) and of what
//! it contains, and every resource of the table, has a type that implements it.

use std::sync::Arc;

use sandglass_model::WallTime;
use sandglass_supervisor::capability::outside::Outside;
use sandglass_supervisor::capability::{spans, streams};
use sandglass_supervisor::host_memory::Charge;
use sandglass_supervisor::measured;
use sandglass_supervisor::node::NodeAccess;
use sandglass_supervisor::supervision::Supervision;
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

use crate::abi::Moments;
use crate::abi::node_pack::RandomStream;
use crate::evaluation::Evaluation;

/// A value that outlives a host call, in the state of a handler run or in its resource table.
pub(crate) trait Measured {
    /// Bytes that the value keeps and that are not charged otherwise.
    fn uncharged_bytes(&self) -> u64;
}

/// Implements [`Measured`] for types that the supervisor measures.
macro_rules! measured_by_the_supervisor {
    ($($type:ty),+ $(,)?) => {$(
        impl Measured for $type {
            #[inline]
            fn uncharged_bytes(&self) -> u64 {
                measured::Measured::uncharged_bytes(self)
            }
        }
    )+};
}

/// Implements [`Measured`] for types that keep nothing uncharged. Only this file uses it, for types
/// of other crates and for those that no guest makes larger.
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

measured_by_the_supervisor!(bool, u64, String, WallTime, Charge, Supervision);
measured_by_the_supervisor!(Outside, streams::OutgoingRequest, streams::IncomingResponse);
measured_by_the_supervisor!(spans::Handle, Arc<dyn NodeAccess>);

// Of a fixed size.
keeps_nothing!(Memory, Moments, TypedFunc<i32, i32>, RandomStream);

// Shared by all handler runs of a host.
keeps_nothing!(Arc<Evaluation>);

// State and resources of Wasmtime's WASI. Of a fixed size, except for the beginning of one line for
// each standard stream, and for the text of an error, which Wasmtime writes.
keeps_nothing!(WasiP1Ctx, WasiHttpCtx, DynPollable, DynInputStream, DynOutputStream);
keeps_nothing!(RequestOptions, Network, wasmtime::Error);

// Parts of an open request, which is charged, and of a body, which its request counts.
keeps_nothing!(HostFutureIncomingResponse, HostIncomingBody, HostFutureTrailers, HostOutgoingBody);

impl<T: Measured> Measured for Option<T> {
    #[inline]
    fn uncharged_bytes(&self) -> u64 {
        self.as_ref().map_or(0, T::uncharged_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RunStore;
    use proptest::prelude::*;
    use sandglass_supervisor::capability::spans::{Attributes, SpanEnd};
    use sandglass_supervisor::secret::Secret;
    use sandglass_telemetry::trace::Kind;
    use serde_json::json;

    proptest! {
        /// The account has what the state keeps, after every call.
        #[test]
        fn the_state_of_a_run_is_charged(
            steps in prop::collection::vec((0_u8..4, 0_usize..2_000), 0..100),
        ) {
            let mut store = RunStore::idle();
            let (mut open, mut secrets) = (Vec::new(), 0);
            for (nth, (step, size)) in steps.into_iter().enumerate() {
                let text = format!("text {nth} {}", "x".repeat(size));
                match step {
                    0 => {
                        let attributes = vec![("a".to_owned(), json!(text))];
                        let span = store.guest_mut().spans.start(None, "s", Kind::Internal, attributes);
                        open.push(span.expect("it has no parent"));
                    }
                    1 => {
                        if let Some(span) = open.pop() {
                            let ended = store.guest_mut().spans.end(span, Attributes::new(), SpanEnd::Done);
                            prop_assert_eq!(ended, Ok(()));
                        }
                    }
                    2 => store.guest_mut().fail(&text),
                    _ => {
                        secrets += text.len() as u64;
                        store.give_secret("key", &Secret::new(text));
                    }
                }
                store.charge(&[]).expect("the account has room");
                let memory = store.guest().memory.clone();
                prop_assert_eq!(memory.held(), store.uncharged_bytes());
                let texts = store.guest().last_error().len();
                prop_assert!(memory.held() >= secrets + texts as u64);
            }
            let memory = store.guest().memory.clone();
            drop(store);
            prop_assert_eq!(memory.held(), 0);
        }
    }

    #[test]
    fn a_run_ends_when_its_state_is_larger_than_its_account() {
        let mut store = RunStore::idle();
        store.give_secret("key", &Secret::new("x".repeat(17 << 20)));
        let error = store.charge(&[]).expect_err("it does not fit");
        assert!(error.is::<sandglass_supervisor::host_memory::OutOfHostMemory>(), "{error:?}");
    }
}
