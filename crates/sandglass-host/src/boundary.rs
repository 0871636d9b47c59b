//! The one place where a guest enters and leaves the host: every host function
//! of every ABI passes here, WASI included.
//!
//! ```text
//! guest --> enter: past the deadline, or stopped? -> end the run, dying in `guest`
//!             |    name, count and time the call, open its span
//!             v
//!           the function itself; where it waits, raced with the deadline
//!             |
//!           leave: past the deadline, or stopped? -> end the run, dying in the function
//! guest <--   +    close the span, account the time
//! ```
//!
//! An expired deadline ends the run: it is a typed error that unwinds the guest,
//! which can neither ignore nor catch it.

use sandglass_model::{Cause, Monotonic};
use sandglass_telemetry::Span;
use sandglass_telemetry::trace::{Kind, names};
use wasmtime::{Caller, Error, Result};

use crate::functions::FunctionId;
use crate::race::CallEnded;
use crate::store::RunStore;

pub(crate) use crate::race::Race;

/// The root cause of the error that unwinds a guest whose run must end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the run was stopped: {0:?}")]
pub(crate) struct Stopped(pub(crate) Cause);

/// A call that has entered and must leave.
#[must_use = "a call that entered must leave"]
pub(crate) struct Entered(());

/// Lets a call of `function` in, unless the run must end.
pub(crate) fn enter(store: &mut RunStore, function: FunctionId) -> Result<Entered> {
    store.accounting.arrive();
    let now = check(store)?;
    store.accounting.enter(function, now);
    let name = store.functions.name(function);
    store.call_span =
        store.span.child(names::HOST_CALL, Kind::Internal, &[(names::FUNCTION, name.into())]);
    Ok(Entered(()))
}

/// Lets a call out again with its answer, unless the run must end.
pub(crate) fn leave<R, E: CallError>(
    store: &mut RunStore,
    _entered: Entered,
    answer: Result<R, E>,
) -> Result<R, E> {
    let now = check(store).map_err(E::ending)?;
    if let Err(error) = &answer
        && error.ends_the_run()
    {
        // Such a call stays the present one: the run died in there.
        return answer;
    }
    let name = store.accounting.current(&store.functions).map(str::to_owned);
    let took = store.accounting.leave(now);
    let ended = store.run.take_call_ended();
    if let Some(ended) = ended {
        store.call_span.error(names::CALL_ENDED, &ended.to_string());
    }
    if let Some(name) = name {
        store.metrics.host_call(&name, took);
        if let Some(CallEnded::TimedOut(_)) = ended {
            store.metrics.host_call_timed_out(&name);
        }
    }
    store.call_span = Span::disabled();
    answer
}

/// Lets a call out whose wait may have been cut.
pub(crate) fn leave_race<R, E: CallError>(
    store: &mut RunStore,
    entered: Entered,
    answer: Result<Option<R>, E>,
) -> Result<R, E> {
    let answer = answer.and_then(|answer| {
        // A race is lost only where the run must end, and then leaving says so.
        answer.ok_or_else(|| E::ending(Error::from(Stopped(Cause::Deadline))))
    });
    leave(store, entered, answer)
}

/// The error of a host function: one that ends the run, or, in some ABIs, one that
/// the guest gets and goes on with.
pub(crate) trait CallError {
    /// The error that ends the run with `error`.
    fn ending(error: Error) -> Self;

    fn ends_the_run(&self) -> bool;
}

impl CallError for Error {
    fn ending(error: Error) -> Self {
        error
    }

    fn ends_the_run(&self) -> bool {
        true
    }
}

/// What a host function answers that may wait: nothing where its wait was cut.
pub(crate) trait Raced {
    type Answer;
    type Error;

    fn ending(error: Error) -> Self::Error;
}

impl<R, E: CallError> Raced for Result<R, E> {
    type Answer = Result<Option<R>, E>;
    type Error = E;

    fn ending(error: Error) -> E {
        E::ending(error)
    }
}

/// Reads the clock, and ends the run where it must end: notes what is running, and
/// answers the error that unwinds the guest. Where there are frames to unwind,
/// Wasmtime attaches them to that error.
pub(crate) fn check(store: &mut RunStore) -> Result<Monotonic> {
    let now = store.now();
    warn(store, now);
    let Some(cause) = store.run.due(now) else { return Ok(now) };
    if store.accounting.current(&store.functions).is_some() {
        store.call_span.error(names::UNFINISHED, "the run ended inside this call");
    }
    store.stopped_in = Some(store.present_span());
    Err(Error::from(Stopped(cause)))
}

/// Notes in the trace, once, that the soft deadline has passed.
fn warn(store: &mut RunStore, now: Monotonic) {
    if !store.warned && store.run.should_stop(now) {
        store.warned = true;
        let left = store.run.deadline().since(store.run.soft_deadline()).as_millis();
        let left = u64::try_from(left).unwrap_or(u64::MAX);
        store.span.event(names::SOFT_DEADLINE_PASSED, &[(names::SOFT_BEFORE_MS, left.into())]);
    }
}

/// Runs a component's call of a host function that never waits.
pub(crate) fn call<R, E: CallError>(
    store: &mut RunStore,
    function: FunctionId,
    call: impl FnOnce(&mut RunStore) -> Result<R, E>,
) -> Result<R, E> {
    let entered = enter(store, function).map_err(E::ending)?;
    let answer = call(store);
    leave(store, entered, answer)
}

/// Runs a core module's call of a host function that never waits.
pub(crate) fn call_from_module<R>(
    caller: &mut Caller<'_, RunStore>,
    function: FunctionId,
    call: impl FnOnce(&mut Caller<'_, RunStore>) -> Result<R>,
) -> Result<R> {
    let entered = enter(caller.data_mut(), function)?;
    let answer = call(caller);
    leave(caller.data_mut(), entered, answer)
}

/// Links a host function that never waits:
/// `instant! { linker, functions, MODULE; fn name(caller, a: i32) -> i32 { .. } }`.
macro_rules! instant {
    ($linker:expr, $functions:expr, $module:expr;
     fn $name:ident($caller:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty $body:block) => {{
        let function =
            $functions.add($module, stringify!($name), $crate::functions::Class::Instant);
        $linker.func_wrap(
            $module,
            stringify!($name),
            move |mut caller: wasmtime::Caller<'_, $crate::store::RunStore> $(, $arg: $ty)*|
                -> wasmtime::Result<$ret> {
                $crate::boundary::call_from_module(&mut caller, function, |$caller| $body)
            },
        )?;
    }};
}

/// Links a host function that may wait. Its body awaits through `race`, and
/// answers `Ok(None)` where the race was lost:
/// `waiting! { linker, functions, MODULE; fn name(caller, race, a: i32) -> i32 { .. } }`.
macro_rules! waiting {
    ($linker:expr, $functions:expr, $module:expr;
     fn $name:ident($caller:ident, $race:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty $body:block) => {{
        let function = $functions.add($module, stringify!($name), $crate::functions::Class::Async);
        $linker.func_wrap_async(
            $module,
            stringify!($name),
            move |mut caller: wasmtime::Caller<'_, $crate::store::RunStore>, ($($arg,)*): ($($ty,)*)| {
                Box::new(async move {
                    let entered = $crate::boundary::enter(caller.data_mut(), function)?;
                    let $race = $crate::race::Race::of(caller.data());
                    let answer: wasmtime::Result<Option<$ret>> = {
                        let $caller = &mut caller;
                        async $body.await
                    };
                    $crate::boundary::leave_race(caller.data_mut(), entered, answer)
                })
            },
        )?;
    }};
}

/// The class of a component's host function, by the word that begins its line:
/// `instant` ones never wait; `polled` ones are asynchronous and don't wait all
/// the same; `waiting` ones do.
macro_rules! class {
    (instant) => {
        $crate::functions::Class::Instant
    };
    (polled) => {
        $crate::functions::Class::Instant
    };
    (waiting) => {
        $crate::functions::Class::Async
    };
}

/// One function of a component's import: a method of the generated trait, which
/// the store's data implements. A body that may wait does so through `race`, and
/// answers `Ok(None)` where the race was lost.
macro_rules! import {
    (instant $function:expr;
     fn $name:ident($store:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty $body:block) => {
        fn $name(&mut self $(, $arg: $ty)*) -> $ret {
            const FUNCTION: $crate::functions::FunctionId = $function;
            $crate::boundary::call(self, FUNCTION, |$store| $body)
        }
    };
    ($class:ident $function:expr;
     fn $name:ident($store:ident, $race:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty $body:block) => {
        async fn $name(&mut self $(, $arg: $ty)*) -> $ret {
            const FUNCTION: $crate::functions::FunctionId = $function;
            let entered = $crate::boundary::enter(self, FUNCTION)
                .map_err(<$ret as $crate::boundary::Raced>::ending)?;
            let $race = $crate::race::Race::of(self);
            let answer: <$ret as $crate::boundary::Raced>::Answer = {
                let $store = &mut *self;
                async move $body.await
            };
            $crate::boundary::leave_race(self, entered, answer)
        }
    };
}

/// Has the store's data implement what components import, one line for each
/// function, by its WIT name, and lists them all in a table:
/// `imports! { TABLE from FIRST; "package/interface" in module { Trait { class "name" fn .. } } }`.
/// What generated code links is complete by its type; the names are checked by a
/// test.
macro_rules! imports {
    ($table:ident from $first:expr;
     $($interface:literal in $($module:ident)::+ {
        $($trait:ident {
            $($class:ident $wit:literal
              fn $name:ident($($arg:ident $(: $ty:ty)?),*) -> $ret:ty $body:block)*
            $(=> fn $convert:ident($error:ident: $from:ty) -> $to:ty $converted:block)*
        })*
     })*) => {
        pub(crate) const $table: &[$crate::functions::Import] = &[
            $($($($crate::functions::Import {
                interface: $interface,
                function: $wit,
                class: $crate::boundary::class!($class),
            },)*)*)*
        ];
        $(const _: () = {
            #[allow(unused_imports, reason = "an interface without types of its own")]
            use $($module)::+::*;
            $(impl $trait for $crate::store::RunStore {
                $($crate::boundary::import! { $class
                    $crate::functions::FunctionId::of($first, $table, $interface, $wit);
                    fn $name($($arg $(: $ty)?),*) -> $ret $body
                })*
                $(fn $convert(&mut self, $error: $from) -> $to $converted)*
            })*
        };)*
    };
}

pub(crate) use {class, import, imports, instant, waiting};
