//! The one place where a guest enters and leaves the host: every host function of every ABI passes
//! here, WASI included. It connects Wasmtime's linkers with the decisions of
//! [`sandglass_supervisor::boundary`], and charges what each call leaves behind.
//!
//! ```text
//! guest --> park: effects outside begin only under the lease of the host
//!             |
//!           enter: deadline, count, record the arguments --+--> the function --> leave: deadline,
//!                                                          |                     charge, record
//!                                                          +--> the recorded result --> leave
//! ```

use sandglass_model::Cause;
use sandglass_supervisor::boundary::Stopped;
use sandglass_supervisor::functions::{Class, FunctionId, Functions, Reads};
use sandglass_supervisor::recording::{Packer, Source};
use wasmtime::{Caller, Error, Result};

use crate::abi::guest_memory::{CallFailure, FailureCode};
use crate::abi::passed::{Passed, Recorded};
use crate::abi::{env, guest_memory, node_pack};
use crate::store::RunStore;

/// A call that has entered and must leave.
#[must_use = "a call that entered must leave"]
pub(crate) struct Entered {
    result_from: Source,
    touched: Touched,
    /// Whether what the call leaves behind is charged to the account.
    is_charged: bool,
}

/// Calls that pass only numbers are charged one in this many times. Each can leave only some hundred
/// bytes behind, and measuring would take a tenth of the time of the shortest call.
const CHARGED_ONE_IN: u64 = 64;

/// Numbers of the resources that a component's call takes or returns. When the call leaves, each is
/// measured in the resource table and charged to the run's account; one that is gone is no longer
/// charged. A call changes no other resource, so this is complete.
#[derive(Debug, Default)]
pub(crate) struct Touched(Vec<u32>);

impl Touched {
    #[inline]
    pub(crate) fn add(&mut self, number: u32) {
        self.0.push(number);
    }
}

/// Adds a function to the table of a linker. Names of the `env` ABI and of OpenWOP are unique, so
/// reports contain them without their modules.
pub(crate) fn add(
    functions: &mut Functions,
    module: &'static str,
    field: &'static str,
    class: Class,
    reads: Reads,
) -> FunctionId {
    let name = if [env::MODULE, node_pack::MODULE].contains(&module) {
        field.to_owned()
    } else {
        format!("{module}.{field}")
    };
    functions.add(module, field, name, class, reads)
}

/// Waits until a call of `function` may begin, if it needs the lease of the host and that has run out.
/// The wait is in a box of its own, so that it does not enlarge the future of each call.
#[inline]
pub(crate) async fn park(store: &mut RunStore, function: FunctionId) -> Result<()> {
    if store.must_park(function) {
        Box::pin(store.park(function)).await?;
    }
    Ok(())
}

/// Begins a call of `function`, unless the run must end.
#[inline]
pub(crate) fn enter(
    store: &mut RunStore,
    function: FunctionId,
    arguments: impl FnOnce(&mut Packer<'_>),
) -> Result<Entered> {
    let result_from = store.enter(function, arguments)?;
    Ok(Entered { result_from, touched: Touched::default(), is_charged: true })
}

/// Most buffers that a list may name: `IOV_MAX` of POSIX. Functions refuse longer lists, and
/// recordings do not read beyond it.
pub(crate) const LISTED_MAX: u32 = 1024;

/// What a core module's call passes.
pub(crate) struct Arguments<'a> {
    pub(crate) numbers: &'a [i64],
    /// Pointers and lengths of the texts and bytes that the call reads.
    pub(crate) texts: &'a [(i32, i32)],
    /// Pointers and lengths of lists of such pairs.
    pub(crate) lists: &'a [(i32, i32)],
}

/// As [`enter`], for a core module, most of whose arguments are in its memory.
#[inline]
pub(crate) fn enter_from_module(
    caller: &mut Caller<'_, RunStore>,
    function: FunctionId,
    arguments: &Arguments<'_>,
) -> Result<Entered> {
    let store = caller.data_mut();
    let reads = store.calls.functions.reads(function);
    let readable_bytes = reads.bytes_for(store.guest());
    store.memory.allow_reads(readable_bytes);
    let is_charged = reads != Reads::Numbers || store.calls().is_multiple_of(CHARGED_ONE_IN);
    let entered = match store.calls.recording.is_off() {
        true => enter(store, function, |_| {}),
        false => enter_with_recording(caller, function, arguments),
    }?;
    Ok(Entered { is_charged, ..entered })
}

#[allow(clippy::disallowed_methods, reason = "a recording keeps no more than its limit")]
fn enter_with_recording(
    caller: &mut Caller<'_, RunStore>,
    function: FunctionId,
    arguments: &Arguments<'_>,
) -> Result<Entered> {
    let memory = guest_memory::memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    enter(store, function, |to| {
        arguments.numbers.iter().for_each(|number| to.signed(*number));
        arguments.texts.iter().for_each(|place| pass(to, memory, *place));
        for (at, count) in arguments.lists {
            let listed = guest_memory::slice(memory, "a list", *at, count.wrapping_mul(8));
            for place in listed.unwrap_or_default().chunks_exact(8).take(LISTED_MAX as usize) {
                pass(to, memory, (word(place), word(&place[4..])));
            }
        }
    })
}

/// Passes the text or bytes at this place; null if it is outside of the guest's memory.
fn pass(to: &mut Packer<'_>, memory: &[u8], (ptr, len): (i32, i32)) {
    match guest_memory::slice(memory, "an argument", ptr, len) {
        Ok(bytes) => to.text_or_bytes(bytes),
        Err(_) => to.null(),
    }
}

/// The first four of `bytes` as a number.
fn word(bytes: &[u8]) -> i32 {
    bytes.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes))
}

impl Entered {
    /// Notes that the call takes the resources in `argument`.
    #[inline]
    pub(crate) fn takes(mut self, argument: &impl Passed) -> Self {
        argument.resources(&mut self.touched);
        self
    }

    /// The recorded result of a component's call; `None` if it is not replayed. If the guest got an
    /// error, [`failed`] gives it that error.
    pub(crate) fn recorded<R: Recorded, E: CallError>(
        &self,
        store: &mut RunStore,
    ) -> Option<Result<R, E>> {
        if self.result_from == Source::Function {
            return None;
        }
        Some(match store.recorded_result(R::unpack)? {
            Ok(Some(result)) => Ok(result),
            Ok(None) => Err(E::ending(Error::msg("the call failed in the recorded run"))),
            Err(stopped) => Err(E::ending(stopped.into())),
        })
    }

    /// The recorded result of a core module's call; `None` if it is not replayed. Also writes to the
    /// guest's memory what the recorded call wrote.
    #[inline]
    pub(crate) fn recorded_for_module<R: Recorded>(
        &self,
        caller: &mut Caller<'_, RunStore>,
    ) -> Option<Result<R>> {
        if self.result_from == Source::Function {
            return None;
        }
        let replayed = replay_call(caller);
        Some(replayed.map_err(|stopped| caller.data_mut().end(stopped.0).into()))
    }
}

/// Reads what the recorded call returned, and writes what it wrote to the guest's memory.
#[cold]
fn replay_call<R: Recorded>(caller: &mut Caller<'_, RunStore>) -> Result<R, Stopped> {
    let nothing = || Stopped(Cause::Cancel);
    let replayer = caller.data_mut().calls.recording.replayer().ok_or_else(nothing)?;
    let result = replayer.answer(R::unpack)?.ok_or_else(nothing)?;
    let writes = replayer.writes()?;
    for (at, bytes) in writes {
        let memory = guest_memory::memory(caller).map_err(|_| nothing())?;
        if memory.write(&mut *caller, at as usize, &bytes).is_err() {
            let replayer = caller.data_mut().calls.recording.replayer().ok_or_else(nothing)?;
            return Err(replayer.no_room(at, bytes.len()));
        }
    }
    Ok(result)
}

/// Ends a call with its result, unless the run must end.
#[inline]
pub(crate) fn leave<R: Passed, E: CallError>(
    store: &mut RunStore,
    mut entered: Entered,
    result: Result<R, E>,
) -> Result<R, E> {
    let now = store.check_fast().map_err(|stopped| E::ending(stopped.into()))?;
    if let Ok(result) = &result {
        result.resources(&mut entered.touched);
    }
    if entered.is_charged && entered.result_from == Source::Function {
        store.charge(&entered.touched.0).map_err(E::ending)?;
    }
    match &result {
        // The guest gets the recorded error from `record_error`.
        Err(_) if entered.result_from == Source::Recording => {}
        // The call stays the present one, because the run ends inside it: it is the dying span.
        Err(error) if error.ends_the_run() => return result,
        Err(_) => {}
        Ok(result) => store.calls.recording.record_result(&mut |packer| result.pass(packer)),
    }
    let is_failure = result.as_ref().map_or(true, Passed::is_failure);
    store.leave(now, is_failure).map_err(|stopped| E::ending(stopped.into()))?;
    result
}

/// Records the error of the call that has just left, and returns it in the form of its ABI, which is
/// also the form in which it is recorded.
pub(crate) fn record_error<E: Recorded>(
    store: &mut RunStore,
    error: impl FnOnce(&mut RunStore) -> Result<E>,
) -> Result<E> {
    if let Some(recorded) = store.recorded_error(E::unpack) {
        return Ok(recorded?);
    }
    let error = error(store)?;
    store.calls.recording.record_error(&mut |packer| error.pass(packer));
    let mut touched = Touched::default();
    error.resources(&mut touched);
    // The call has left, so it must not end the run here: a replay could not find the place. What
    // does not fit is charged by the next call that takes the resource.
    let _ = store.charge(&touched.0);
    Ok(error)
}

/// Ends a call whose wait raced with the end of the run. `Ok(None)` means that the wait lost the
/// race: the run must end.
pub(crate) fn leave_race<R: Passed, E: CallError>(
    store: &mut RunStore,
    entered: Entered,
    result: Result<Option<R>, E>,
) -> Result<R, E> {
    let result = result.and_then(|result| {
        // A race is lost only if the run must end, and then `leave` returns that.
        result.ok_or_else(|| E::ending(Error::from(Stopped(Cause::Deadline))))
    });
    leave(store, entered, result)
}

/// The error of a host function: one that ends the run, or, in some ABIs, one that the guest gets
/// before it goes on.
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

/// The result type of a host function that may wait, with what its body returns while it races
/// with the end of the run: `Ok(None)` if the wait lost the race.
pub(crate) trait Raced {
    type Cut;
    type Error: CallError;
}

impl<R, E: CallError> Raced for Result<R, E> {
    type Cut = Result<Option<R>, E>;
    type Error = E;
}

/// Executes a component's call of a host function that never waits.
pub(crate) fn execute<R: Recorded, E: CallError>(
    store: &mut RunStore,
    entered: Entered,
    call: impl FnOnce(&mut RunStore) -> Result<R, E>,
) -> Result<R, E> {
    let result = match entered.recorded(store) {
        Some(result) => result,
        None => call(store),
    };
    leave(store, entered, result)
}

/// Executes a core module's call of a host function that never waits.
#[inline]
pub(crate) fn execute_for_module<R: Recorded + FailureCode>(
    caller: &mut Caller<'_, RunStore>,
    entered: Entered,
    call: impl FnOnce(&mut Caller<'_, RunStore>) -> Result<R, CallFailure>,
) -> Result<R> {
    let result = match entered.recorded_for_module(caller) {
        Some(result) => result,
        None => {
            call(caller).or_else(|failure| failure.report(caller.data_mut()).map(|()| R::FAILED))
        }
    };
    leave(caller.data_mut(), entered, result)
}

/// Ends a core module's call of a host function that may have waited.
pub(crate) fn leave_race_for_module<R: Passed + FailureCode>(
    store: &mut RunStore,
    entered: Entered,
    result: Result<Option<R>, CallFailure>,
) -> Result<R> {
    let result = result.or_else(|failure| failure.report(store).map(|()| Some(R::FAILED)));
    leave_race(store, entered, result)
}

/// Links host functions of core modules that never wait, each with the texts that it reads, each a
/// pointer and a length, and how much of the guest's memory it may read ([`Reads`]), which
/// `abi::guest_memory` enforces. A body returns `Result<_, CallFailure>`:
/// `instant! { linker, functions, MODULE; fn name(caller, a: i32, ptr: i32, len: i32) reads [(ptr, len)] up_to (BOUND) -> i32 { .. } }`.
///
/// [`Reads`]: sandglass_supervisor::functions::Reads
macro_rules! instant {
    ($linker:expr, $functions:expr, $module:expr; $(
     fn $name:ident($caller:ident $(, $arg:ident: $ty:ty)*)
     $(reads [$(($ptr:expr, $len:expr)),*] up_to ($reads:expr))? $(gathers ($list:expr, $count:expr))?
     -> $ret:ty $body:block)+) => {$({
        let (module, name) = ($module, stringify!($name));
        let class = ::sandglass_supervisor::functions::Class::Instant;
        let reads = $crate::boundary::reads!($($reads)?);
        let function = $crate::boundary::add($functions, module, name, class, reads);
        #[allow(clippy::disallowed_methods, reason = "this is the boundary")]
        let linked = $linker.func_wrap(
            module,
            name,
            move |mut caller: wasmtime::Caller<'_, $crate::store::RunStore> $(, $arg: $ty)*|
                -> wasmtime::Result<$ret> {
                let arguments = $crate::boundary::Arguments {
                    numbers: &[$(i64::from($arg)),*],
                    texts: &[$($(($ptr, $len)),*)?],
                    lists: &[$(($list, $count))?],
                };
                let entered =
                    $crate::boundary::enter_from_module(&mut caller, function, &arguments)?;
                // The exception above is not for the body.
                #[deny(clippy::disallowed_methods)]
                let call = |$caller: &mut wasmtime::Caller<'_, $crate::store::RunStore>|
                    -> Result<$ret, $crate::abi::guest_memory::CallFailure> { $body };
                $crate::boundary::execute_for_module(&mut caller, entered, call)
            },
        );
        linked?;
    })+};
}

/// As [`instant!`], for host functions that may wait. A body awaits through `race`, and returns
/// `Ok(None)` if the race was lost:
/// `waiting! { linker, functions, MODULE; fn name(caller, race, a: i32) -> i32 { .. } }`.
macro_rules! waiting {
    ($linker:expr, $functions:expr, $module:expr; $(
     fn $name:ident($caller:ident, $race:ident $(, $arg:ident: $ty:ty)*)
     $(reads [$(($ptr:expr, $len:expr)),*] up_to ($reads:expr))? $(gathers ($list:expr, $count:expr))?
     -> $ret:ty $body:block)+) => {$({
        let (module, name) = ($module, stringify!($name));
        let class = ::sandglass_supervisor::functions::Class::Async;
        let reads = $crate::boundary::reads!($($reads)?);
        let function = $crate::boundary::add($functions, module, name, class, reads);
        #[allow(clippy::disallowed_methods, reason = "this is the boundary")]
        let linked = $linker.func_wrap_async(
            module,
            name,
            move |mut caller: wasmtime::Caller<'_, $crate::store::RunStore>, ($($arg,)*): ($($ty,)*)| {
                Box::new(async move {
                    $crate::boundary::park(caller.data_mut(), function).await?;
                    let entered = {
                        let arguments = $crate::boundary::Arguments {
                            numbers: &[$(i64::from($arg)),*],
                            texts: &[$($(($ptr, $len)),*)?],
                            lists: &[$(($list, $count))?],
                        };
                        $crate::boundary::enter_from_module(&mut caller, function, &arguments)?
                    };
                    if let Some(recorded) = entered.recorded_for_module(&mut caller) {
                        return $crate::boundary::leave(caller.data_mut(), entered, recorded);
                    }
                    let $race = ::sandglass_supervisor::race::Race::of(caller.data());
                    #[deny(clippy::disallowed_methods)]
                    let result: Result<Option<$ret>, $crate::abi::guest_memory::CallFailure> = {
                        let $caller = &mut caller;
                        async $body.await
                    };
                    $crate::boundary::leave_race_for_module(caller.data_mut(), entered, result)
                })
            },
        );
        linked?;
    })+};
}

/// What a function may read; one that names no bound reads only its numbers.
macro_rules! reads {
    () => {
        ::sandglass_supervisor::functions::Reads::Numbers
    };
    ($reads:expr) => {
        $reads
    };
}

/// The class of a component's host function, by the first word of its line: `instant` and `polled`
/// functions never wait, although `polled` ones are asynchronous; `waiting` functions do.
macro_rules! class {
    (instant) => {
        ::sandglass_supervisor::functions::Class::Instant
    };
    (polled) => {
        ::sandglass_supervisor::functions::Class::Instant
    };
    (waiting) => {
        ::sandglass_supervisor::functions::Class::Async
    };
}

/// One function of a component's import: a method of the generated trait, which the data of a store
/// implements. A body that may wait does so through `race`, and returns `Ok(None)` if the race was
/// lost.
macro_rules! import {
    (instant $function:expr;
     fn $name:ident($store:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty $body:block) => {
        fn $name(&mut self $(, $arg: $ty)*) -> $ret {
            const FUNCTION: ::sandglass_supervisor::functions::FunctionId = $function;
            let entered = $crate::boundary::enter(self, FUNCTION, |_to| {
                $($crate::abi::passed::Passed::pass(&$arg, _to);)*
            })
            .map_err(<<$ret as $crate::boundary::Raced>::Error as $crate::boundary::CallError>::ending)?$(.takes(&$arg))*;
            $crate::boundary::execute(self, entered, |$store| $body)
        }
    };
    ($class:ident $function:expr;
     fn $name:ident($store:ident, $race:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty $body:block) => {
        async fn $name(&mut self $(, $arg: $ty)*) -> $ret {
            const FUNCTION: ::sandglass_supervisor::functions::FunctionId = $function;
            $crate::boundary::park(self, FUNCTION)
                .await
                .map_err(<<$ret as $crate::boundary::Raced>::Error as $crate::boundary::CallError>::ending)?;
            let entered = $crate::boundary::enter(self, FUNCTION, |_to| {
                $($crate::abi::passed::Passed::pass(&$arg, _to);)*
            })
            .map_err(<<$ret as $crate::boundary::Raced>::Error as $crate::boundary::CallError>::ending)?$(.takes(&$arg))*;
            if let Some(recorded) = entered.recorded(self) {
                return $crate::boundary::leave(self, entered, recorded);
            }
            let $race = ::sandglass_supervisor::race::Race::of(self);
            let result: <$ret as $crate::boundary::Raced>::Cut = {
                let $store = &mut *self;
                async move $body.await
            };
            $crate::boundary::leave_race(self, entered, result)
        }
    };
}

/// Implements what components import for the data of a store, one entry for each function, with its
/// WIT name, and lists all of them in a table:
/// `imports! { TABLE from FIRST; "package/interface" in module { Trait { class "name" fn .. } } }`.
/// The types of the generated code ensure that no function is missing; the test
/// `each_function_has_the_name_that_components_import_it_by` checks the names.
macro_rules! imports {
    ($table:ident from $first:expr;
     $($interface:literal in $($module:ident)::+ {
        $($trait:ident {
            $($class:ident $wit:literal
              fn $name:ident($($arg:ident $(: $ty:ty)?),*) -> $ret:ty $body:block)*
        })*
     })*) => {
        pub(crate) const $table: &[::sandglass_supervisor::functions::Import] = &[
            $($($(::sandglass_supervisor::functions::Import {
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
                    ::sandglass_supervisor::functions::FunctionId::of($first, $table, $interface, $wit);
                    fn $name($($arg $(: $ty)?),*) -> $ret $body
                })*
            })*
        };)*
    };
}

pub(crate) use {class, import, imports, instant, reads, waiting};
