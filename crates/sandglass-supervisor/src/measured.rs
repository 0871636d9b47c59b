//! Measures what the host keeps in memory for a run between two calls of its guest.
//!
//! The boundary charges the result to the run's account each time a call leaves. Every field of
//! [`Supervision`](crate::supervision::Supervision) and of what it contains has a type that
//! implements [`Measured`], and the macros [`measured!`](crate::measured!) and [`covered!`](crate::covered!) name all fields. Therefore a new field does not
//! compile until its type states how much it keeps, and a host function has no other place that
//! outlives its call. Types that need not be measured are listed in this file alone.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::capability::Grants;
use crate::capability::named_streams::Streams;
use crate::dispatch::Dispatch;
use crate::functions::{FunctionId, Functions};
use crate::host_memory::{Charge, HostMemory};
use crate::lease::Lease;
use crate::node::NodeAccess;
use crate::origin::Origin;
use crate::race::CallEnded;
use crate::recording::RunRecording;
use crate::run::{Phase, Run};
use crate::run_clock::RunClock;
use crate::ticker::Ticker;
use sandglass_model::{DispatchId, Monotonic, TraceContext, WallTime};
use sandglass_telemetry::{Metrics, Span};

/// A value that outlives a host call, in the state of a run or in its resource table.
pub trait Measured {
    /// Bytes outside of `size_of::<Self>()` that a guest or an upstream server can make larger and
    /// that no [`Charge`] covers. It takes a few nanoseconds, because each call computes it.
    fn uncharged_bytes(&self) -> u64;
}

/// Implements [`Measured`](crate::measured::Measured) for a structure as the sum of its fields, of
/// which none is left out. `in path;` names another trait with the same method.
#[macro_export]
macro_rules! measured {
    ($type:ty: $($field:ident),+ $(,)?) => {
        $crate::measured!(in $crate::measured::Measured; $type: $($field),+);
    };
    (in $trait:path; $type:ty: $($field:ident),+ $(,)?) => {
        impl $trait for $type {
            #[inline]
            fn uncharged_bytes(&self) -> u64 {
                let Self { $($field),+ } = self;
                0 $(+ <_ as $trait>::uncharged_bytes($field))+
            }
        }
    };
}

/// Implements [`Measured`](crate::measured::Measured) for a structure that keeps nothing uncharged,
/// because it charges what grows in it, or bounds it as a comment beside the macro says. All fields
/// are listed, so that a new one does not compile until it has been considered. `in path;` names
/// another trait with the same method.
#[macro_export]
macro_rules! covered {
    ($type:ty: $($field:ident),+ $(,)?) => {
        $crate::covered!(in $crate::measured::Measured; $type: $($field),+);
    };
    (in $trait:path; $type:ty: $($field:ident),+ $(,)?) => {
        impl $trait for $type {
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

// Of a fixed size.
keeps_nothing!(bool, u32, u64, i64, usize, AtomicU32, Duration, Monotonic, WallTime, TraceContext);
keeps_nothing!(Phase, FunctionId, RunClock, DispatchId, CallEnded);

// Charged already.
keeps_nothing!(Charge, HostMemory, Streams);

// Made before the guest runs, or shared by runs, whose tenants are charged for it.
keeps_nothing!(Ticker, Functions, Origin, Grants, Metrics, Dispatch, Lease);
keeps_nothing!(dyn NodeAccess);

// The host's own notes of a run: the present call, and one reason to stop.
keeps_nothing!(Run);

// Has a limit of its own, `[recording] size`.
keeps_nothing!(RunRecording);

// What a span contains is exported after the run; `Spans` counts what the guest gives it.
keeps_nothing!(Span);

impl<T: Measured> Measured for Box<T> {
    #[inline]
    fn uncharged_bytes(&self) -> u64 {
        T::uncharged_bytes(self)
    }
}

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
