//! What the end of a guest's code means: the first cause that was named decides.

use sandglass_model::{
    Cancellation, Cause, EndPoint, Frame, LimitBreach, LimitKind, Monotonic, Outcome,
    RejectionKind, Trap, TrapKind,
};
use wasmtime::{Store, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use crate::abi::Called;
use crate::abi::node_pack::NotAllocated;
use crate::store::{RunStore, frames};
use sandglass_supervisor::boundary::Stopped;
use sandglass_supervisor::host_memory::OutOfHostMemory;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::run::Phase;
use sandglass_supervisor::run::Run;
use sandglass_supervisor::text::printable;

/// The place where a run was when it ended.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dying_span: String,
    pub(crate) ended_at: EndPoint,
    pub(crate) backtrace: Vec<Frame>,
}

/// How a run ended, as far as it is known before everything is measured. A
/// deadline's outcome stands as a cancellation until then.
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    pub(crate) cause: Cause,
    pub(crate) place: Option<Place>,
}

impl Ending {
    /// What it means that a call came back like this at `now`; `fuel` is what the
    /// guest might spend.
    pub(crate) fn of(
        store: &mut Store<RunStore>,
        called: wasmtime::Result<Called>,
        now: Monotonic,
        fuel: Option<u64>,
    ) -> Self {
        let run = store.data().run().clone();
        let error = match called {
            Ok(Called::Returned(outcome)) => {
                return Self { outcome, cause: run.name(Cause::Returned), place: None };
            }
            Ok(Called::NotCalled(outcome)) => {
                return match run.name(Cause::NotStarted) {
                    Cause::NotStarted => Self { outcome, cause: Cause::NotStarted, place: None },
                    cause => Self::stopped(store, &run, cause, Vec::new()),
                };
            }
            Err(error) => error,
        };
        let stopped = error.downcast_ref::<Stopped>().map(|stopped| stopped.0);
        match stopped.or_else(|| run.due(now)).unwrap_or_else(|| run.name(Cause::Trap)) {
            Cause::Trap => died(store, &error, fuel),
            cause => Self::stopped(store, &run, cause, unwound(&error)),
        }
    }

    fn stopped(
        store: &mut Store<RunStore>,
        run: &Run,
        cause: Cause,
        backtrace: Vec<Frame>,
    ) -> Self {
        let data = store.data_mut();
        let dying_span = data.take_dying_span();
        let place = Place { dying_span, ended_at: data.point(), backtrace };
        let outcome = cancelled(run, cause, Some(place.dying_span.clone()));
        Self { outcome, cause, place: Some(place) }
    }
}

/// That a run was stopped for `cause`, in `dying_span`.
pub(crate) fn cancelled(run: &Run, cause: Cause, dying_span: Option<String>) -> Outcome {
    let by = sandglass_model::CancelledBy::of(cause);
    Outcome::Cancelled(Cancellation { by, reason: run.reason(), dying_span })
}

/// What it means that a guest died of itself.
fn died(store: &Store<RunStore>, error: &wasmtime::Error, fuel: Option<u64>) -> Ending {
    if error.is::<wasmtime::PoolConcurrencyLimitError>() {
        // A place to run has a slot of each kind; a guest that wants more finds none.
        let message = format!("host has no slot left for what the module needs: {error}");
        let outcome = Outcome::Rejected(rejection(RejectionKind::HostUnavailable, message));
        return Ending { outcome, cause: Cause::NotStarted, place: None };
    }
    let data = store.data();
    let is_guests = error.is::<wasmtime::ThrownException>() || error.is::<I32Exit>();
    if never_came_to_be(data, error) && !is_guests && data.limiter().denied().is_none() {
        // Neither the guest's code nor its limits: the system has no memory, or no mappings.
        let message = format!("host can't make an instance of the module: {error:#}");
        let outcome = Outcome::Rejected(rejection(RejectionKind::HostUnavailable, message));
        return Ending { outcome, cause: Cause::NotStarted, place: None };
    }
    let place = Some(Place {
        dying_span: data.present_span(),
        ended_at: data.point(),
        backtrace: unwound(error),
    });
    if let Some(error) = error.downcast_ref::<OutOfHostMemory>() {
        return Ending { outcome: Outcome::Limit(error.breach()), cause: Cause::Trap, place };
    }
    let outcome = match (error.downcast_ref::<wasmtime::Trap>(), data.limiter().denied()) {
        (Some(wasmtime::Trap::OutOfFuel), _) => Outcome::Limit(spent(fuel.unwrap_or(0))),
        (_, Some(breach)) if follows_a_refusal(error) || never_came_to_be(data, error) => {
            Outcome::Limit(breach.clone())
        }
        _ => Outcome::Trapped(trap(error)),
    };
    Ending { outcome, cause: Cause::Trap, place }
}

/// The frames that `error` unwound.
fn unwound(error: &wasmtime::Error) -> Vec<Frame> {
    error.downcast_ref::<WasmBacktrace>().map(frames).unwrap_or_default()
}

fn spent(limit: u64) -> LimitBreach {
    LimitBreach { kind: LimitKind::WasmFuel, limit, observed: limit.saturating_add(1) }
}

/// Whether a guest that was refused memory ends like this: by giving up, or by
/// touching what it didn't get.
fn follows_a_refusal(error: &wasmtime::Error) -> bool {
    // Where the heap for exceptions may not grow, nothing else can follow.
    let no_heap = error.downcast_ref() == Some(&wasmtime::Trap::AllocationTooLarge);
    no_heap
        || matches!(
            trap(error).kind,
            TrapKind::Unreachable
                | TrapKind::MemoryOutOfBounds
                | TrapKind::TableOutOfBounds
                | TrapKind::Exit
                | TrapKind::UncaughtException
        )
}

/// Whether a guest could not be instantiated, by no doing of its code: what it
/// begins with was refused.
fn never_came_to_be(data: &RunStore, error: &wasmtime::Error) -> bool {
    let in_own_code = !data.is_in_host_call();
    data.phase() == Phase::Instantiating && in_own_code && !error.is::<wasmtime::Trap>()
}

fn trap(error: &wasmtime::Error) -> Trap {
    use wasmtime::Trap as T;
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        return Trap { kind: TrapKind::Exit, message: format!("guest exited with code {code}") };
    }
    if error.is::<wasmtime::ThrownException>() {
        let message = "guest threw an exception that nothing caught".to_owned();
        return Trap { kind: TrapKind::UncaughtException, message };
    }
    if let Some(not_allocated) = error.downcast_ref::<NotAllocated>() {
        return Trap { kind: TrapKind::MemoryOutOfBounds, message: not_allocated.to_string() };
    }
    let Some(trap) = error.downcast_ref::<T>() else {
        // Only a host function answers another error: its arguments made no sense.
        let message = printable(&format!("host call failed: {}", error.root_cause()));
        return Trap { kind: TrapKind::BadHostCall, message };
    };
    let kind = match trap {
        T::UnreachableCodeReached => TrapKind::Unreachable,
        T::StackOverflow => TrapKind::StackOverflow,
        T::MemoryOutOfBounds | T::HeapMisaligned | T::ArrayOutOfBounds => {
            TrapKind::MemoryOutOfBounds
        }
        T::TableOutOfBounds => TrapKind::TableOutOfBounds,
        T::IndirectCallToNull | T::BadSignature | T::NullReference => TrapKind::BadIndirectCall,
        T::IntegerOverflow | T::IntegerDivisionByZero | T::BadConversionToInteger => {
            TrapKind::Arithmetic
        }
        _ => TrapKind::Other,
    };
    Trap { kind, message: trap.to_string() }
}
