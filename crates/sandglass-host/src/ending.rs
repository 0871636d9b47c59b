//! Turns the end of a guest's code into an outcome. The first cause that was set decides.

use sandglass_model::{
    Cancellation, Cause, EndPoint, Failure, FailureKind, Frame, LimitBreach, LimitKind, Monotonic,
    Outcome, RejectionKind, Trap, TrapKind,
};
use wasmtime::{Store, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use crate::abi::node_pack::NotAllocated;
use crate::abi::{Called, MESSAGE_MAX_BYTES};
use crate::store::{RunStore, frames};
use sandglass_supervisor::boundary::Stopped;
use sandglass_supervisor::capability::log::cut;
use sandglass_supervisor::host_memory::OutOfHostMemory;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::run::Phase;
use sandglass_supervisor::run::Run;
use sandglass_supervisor::supervision::DyingSpan;
use sandglass_supervisor::text::printable;

/// Where a handler run was when it ended.
#[derive(Debug)]
pub(crate) struct EndLocation {
    pub(crate) dying: DyingSpan,
    pub(crate) ended_at: EndPoint,
    pub(crate) backtrace: Vec<Frame>,
}

/// How a handler run ended, as far as it is known before everything is measured. If a deadline ended
/// it, the outcome is a cancellation until then.
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    pub(crate) cause: Cause,
    pub(crate) end_location: Option<EndLocation>,
}

impl Ending {
    /// The ending of a handler whose call returned `called` at `now`, with a limit of `fuel`.
    pub(crate) fn of(
        store: &mut Store<RunStore>,
        called: wasmtime::Result<Called>,
        now: Monotonic,
        fuel: Option<u64>,
    ) -> Self {
        let run = store.data().run().clone();
        let error = match called {
            Ok(Called::Returned(outcome)) => {
                let outcome = fail_if_denied(store.data_mut(), outcome);
                return Self { outcome, cause: run.set_cause(Cause::Returned), end_location: None };
            }
            Ok(Called::NotCalled(outcome)) => {
                return match run.set_cause(Cause::NotStarted) {
                    Cause::NotStarted => {
                        Self { outcome, cause: Cause::NotStarted, end_location: None }
                    }
                    cause => Self::stopped(store, &run, cause, Vec::new()),
                };
            }
            Err(error) => error,
        };
        let stopped = error.downcast_ref::<Stopped>().map(|stopped| stopped.0);
        match stopped.or_else(|| run.due(now)).unwrap_or_else(|| run.set_cause(Cause::Trap)) {
            Cause::Trap => trapped(store, &error, fuel),
            cause => Self::stopped(store, &run, cause, unwound_frames(&error)),
        }
    }

    fn stopped(
        store: &mut Store<RunStore>,
        run: &Run,
        cause: Cause,
        backtrace: Vec<Frame>,
    ) -> Self {
        let data = store.data_mut();
        let dying = data.take_dying_span();
        let end_location = EndLocation { dying, ended_at: data.point(), backtrace };
        let outcome = cancelled(run, cause, Some(end_location.dying.name.clone()));
        Self { outcome, cause, end_location: Some(end_location) }
    }
}

/// Makes a success a failure if a call was refused that is not granted, and the guest ignored that.
fn fail_if_denied(store: &mut RunStore, outcome: Outcome) -> Outcome {
    let completion = match outcome {
        Outcome::Completed(completion) if store.guest().grants.fails_if_denied => completion,
        other => return other,
    };
    match store.guest_mut().take_refusal() {
        None => Outcome::Completed(completion),
        Some(why) => Outcome::Failed(Failure {
            kind: FailureKind::Denied,
            message: cut(&why, MESSAGE_MAX_BYTES),
            result: Some(completion.result),
        }),
    }
}

/// The outcome of a handler run that was stopped for `cause` in `dying_span`.
pub(crate) fn cancelled(run: &Run, cause: Cause, dying_span: Option<String>) -> Outcome {
    let by = sandglass_model::CancelledBy::of(cause);
    Outcome::Cancelled(Cancellation { by, reason: run.reason(), dying_span })
}

/// The ending of a guest that failed by itself.
fn trapped(store: &Store<RunStore>, error: &wasmtime::Error, fuel: Option<u64>) -> Ending {
    let not_started = |message: String| Ending {
        outcome: Outcome::Rejected(rejection(RejectionKind::HostUnavailable, message)),
        cause: Cause::NotStarted,
        end_location: None,
    };
    if error.is::<wasmtime::PoolConcurrencyLimitError>() {
        // A permit comes with a slot of each kind, but a guest may need more than one.
        return not_started(format!("host has no slot left for what the module needs: {error}"));
    }
    let data = store.data();
    let denied = data.memory.limiter.denied.as_ref();
    let is_guests = error.is::<wasmtime::ThrownException>() || error.is::<I32Exit>();
    let is_not_instantiated = is_not_instantiated(data, error);
    if is_not_instantiated && !is_guests && denied.is_none() {
        // Neither the guest's code nor its limits: the system has no memory, or no mappings.
        return not_started(format!("host can't make an instance of the module: {error:#}"));
    }
    let end_location = Some(EndLocation {
        dying: data.dying_span(),
        ended_at: data.point(),
        backtrace: unwound_frames(error),
    });
    if let Some(error) = error.downcast_ref::<OutOfHostMemory>() {
        return Ending {
            outcome: Outcome::Limit(error.breach()),
            cause: Cause::Trap,
            end_location,
        };
    }
    let outcome = match (error.downcast_ref::<wasmtime::Trap>(), denied) {
        (Some(wasmtime::Trap::OutOfFuel), _) => Outcome::Limit(out_of_fuel(fuel.unwrap_or(0))),
        (_, Some(breach)) if can_follow_a_refusal(error) || is_not_instantiated => {
            Outcome::Limit(breach.clone())
        }
        _ => Outcome::Trapped(trap(error)),
    };
    Ending { outcome, cause: Cause::Trap, end_location }
}

/// The frames that `error` unwound.
fn unwound_frames(error: &wasmtime::Error) -> Vec<Frame> {
    error.downcast_ref::<WasmBacktrace>().map(frames).unwrap_or_default()
}

fn out_of_fuel(limit: u64) -> LimitBreach {
    LimitBreach { kind: LimitKind::WasmFuel, limit, observed: limit.saturating_add(1) }
}

/// Whether a guest that was refused memory can end like this: by giving up, or by accessing what it did
/// not get.
fn can_follow_a_refusal(error: &wasmtime::Error) -> bool {
    // The heap for exceptions could not grow.
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

/// Whether a guest could not be instantiated for another reason than its own code.
fn is_not_instantiated(data: &RunStore, error: &wasmtime::Error) -> bool {
    let in_own_code = !data.is_in_host_call();
    data.watch.phase == Phase::Instantiating && in_own_code && !error.is::<wasmtime::Trap>()
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
        // All other errors are those of host functions with invalid arguments.
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
