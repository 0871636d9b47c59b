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

use sandglass_model::{CallOutcome, Cause, Monotonic};
use sandglass_telemetry::trace::names;
use wasmtime::{Caller, Error, Result};

use crate::abi::guest_memory;
use crate::accounting::CallName;
use crate::functions::{FunctionId, Reads};
use crate::race::CallEnded;
use crate::recording::passing::{Packer, Passed, Recorded};
use crate::recording::{Player, Source};
use crate::store::RunStore;

pub(crate) use crate::race::Race;

/// The root cause of the error that unwinds a guest whose run must end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the run was stopped: {0:?}")]
pub(crate) struct Stopped(pub(crate) Cause);

/// A call that has entered and must leave.
#[must_use = "a call that entered must leave"]
pub(crate) struct Entered {
    answers_from: Source,
    touched: Touched,
    /// Whether the account is charged with what it leaves behind.
    is_charged: bool,
}

impl Entered {
    fn new(answers_from: Source) -> Self {
        Self { answers_from, touched: Touched::default(), is_charged: true }
    }
}

/// Of the calls that pass only numbers, the account is charged after one in so many: each of them
/// can leave some hundred bytes behind, and measuring takes a tenth of the time of the shortest.
const CHARGED_ONE_IN: u64 = 64;

/// Numbers of the resources that a component's call takes or returns. When the call leaves, each
/// is measured in the resource table, and charged to what the host holds for the run; one that is
/// gone is no longer charged. A call changes no other resource.
#[derive(Debug, Default)]
pub(crate) struct Touched(Vec<u32>);

impl Touched {
    #[inline]
    pub(crate) fn add(&mut self, number: u32) {
        self.0.push(number);
    }
}

/// Lets a call of `function` in, with its arguments, unless the run must end.
pub(crate) fn enter(
    store: &mut RunStore,
    function: FunctionId,
    arguments: impl FnOnce(&mut Packer<'_>),
) -> Result<Entered> {
    store.accounting.arrive();
    let now = glance(store)?;
    store.accounting.enter(function, now);
    store.run.present.calls(function, now);
    store.call_spans.begin(function, &store.functions);
    if store.tape.is_off() {
        return Ok(Entered::new(Source::Function));
    }
    let name = store.functions.name(function);
    let begun = store.tape.begin(name, arguments);
    if let Some(about) = store.tape.player().and_then(Player::about) {
        store.accounting.is_about(about);
    }
    match begun {
        Ok(answers_from) => Ok(Entered::new(answers_from)),
        Err(stopped) => Err(end(store, stopped.0)),
    }
}

/// Most places that a list of them may have: `IOV_MAX` of POSIX. Functions refuse longer lists,
/// and recordings do not read beyond it.
pub(crate) const LISTED_MAX: u32 = 1024;

/// What a core module's call passes.
pub(crate) struct Arguments<'a> {
    /// Its numbers.
    pub(crate) numbers: &'a [i64],
    /// Where the texts and bytes are that it points to, and their lengths.
    pub(crate) texts: &'a [(i32, i32)],
    /// Where a list of such places is, and how many it has.
    pub(crate) list: Option<(i32, i32)>,
}

/// The same, for a core module, whose memory has most of its arguments.
#[inline]
pub(crate) fn enter_from_module(
    caller: &mut Caller<'_, RunStore>,
    function: FunctionId,
    arguments: &Arguments<'_>,
) -> Result<Entered> {
    let store = caller.data_mut();
    let reads = store.functions.reads(function);
    store.readable_bytes = reads.bytes_for(&store.guest);
    let is_charged =
        reads != Reads::Numbers || store.accounting.count().is_multiple_of(CHARGED_ONE_IN);
    let entered = match store.tape.is_off() {
        true => enter(store, function, |_| {}),
        false => enter_on_tape(caller, function, arguments),
    }?;
    Ok(Entered { is_charged, ..entered })
}

#[allow(clippy::disallowed_methods, reason = "the tape keeps no more than its limit")]
fn enter_on_tape(
    caller: &mut Caller<'_, RunStore>,
    function: FunctionId,
    arguments: &Arguments<'_>,
) -> Result<Entered> {
    let memory = guest_memory::memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    enter(store, function, |to| {
        arguments.numbers.iter().for_each(|number| to.signed(*number));
        arguments.texts.iter().for_each(|place| pass(to, memory, *place));
        if let Some((at, count)) = arguments.list {
            let listed = guest_memory::slice(memory, "a list", at, count.wrapping_mul(8));
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

/// The number that the first four of `bytes` are.
fn word(bytes: &[u8]) -> i32 {
    bytes.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes))
}

impl Entered {
    /// The same call, which takes `argument`.
    #[inline]
    pub(crate) fn takes(mut self, argument: &impl Passed) -> Self {
        argument.resources(&mut self.touched);
        self
    }

    /// The recorded answer of a component's call, where it is played. An error of the
    /// guest's follows by [`failed`].
    pub(crate) fn answer<R: Recorded, E: CallError>(
        &self,
        store: &mut RunStore,
    ) -> Option<Result<R, E>> {
        let player = self.player(store)?;
        Some(match player.answer() {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(E::ending(Error::msg("the call failed in the recorded run"))),
            Err(stopped) => Err(E::ending(end(store, stopped.0))),
        })
    }

    /// The recorded answer of a core module's call, where it is played; and what it
    /// wrote is written.
    #[inline]
    pub(crate) fn answer_module<R: Recorded>(
        &self,
        caller: &mut Caller<'_, RunStore>,
    ) -> Option<Result<R>> {
        self.player(caller.data_mut())?;
        let played = played(caller);
        Some(played.map_err(|stopped| end(caller.data_mut(), stopped.0)))
    }

    #[inline]
    fn player<'a>(&self, store: &'a mut RunStore) -> Option<&'a mut Player> {
        match self.answers_from {
            Source::Function => None,
            Source::Tape => store.tape.player(),
        }
    }
}

/// Gives a core module what the recorded call answered, and wrote to its memory.
fn played<R: Recorded>(caller: &mut Caller<'_, RunStore>) -> Result<R, Stopped> {
    let nothing = || Stopped(Cause::Cancel);
    let player = caller.data_mut().tape.player().ok_or_else(nothing)?;
    let answer = player.answer()?.ok_or_else(nothing)?;
    let writes = player.writes()?;
    for (at, bytes) in writes {
        let memory = guest_memory::memory(caller).map_err(|_| nothing())?;
        if memory.write(&mut *caller, at as usize, &bytes).is_err() {
            let player = caller.data_mut().tape.player().ok_or_else(nothing)?;
            return Err(player.no_room(at, bytes.len()));
        }
    }
    Ok(answer)
}

/// Lets a call out again with its answer, unless the run must end.
pub(crate) fn leave<R: Passed, E: CallError>(
    store: &mut RunStore,
    mut entered: Entered,
    answer: Result<R, E>,
) -> Result<R, E> {
    let now = glance(store).map_err(E::ending)?;
    if let Ok(answer) = &answer {
        answer.resources(&mut entered.touched);
    }
    if entered.is_charged && entered.answers_from == Source::Function {
        store.charge(&entered.touched.0).map_err(E::ending)?;
    }
    match &answer {
        // Which one follows, by `failed`.
        Err(_) if entered.answers_from == Source::Tape => {}
        // Such a call stays the present one: the run died in there.
        Err(error) if error.ends_the_run() => return answer,
        Err(_) => {}
        Ok(answer) => store.tape.answered(answer),
    }
    let ended = store.run.take_call_ended();
    if let Some(ended) = ended {
        store.tell_call_ended(now, names::CALL_ENDED, &ended.to_string());
    }
    let has_failed = store.guest.take_failure();
    let outcome = match (ended, &answer) {
        (Some(ended), _) => ended.outcome(),
        (None, Ok(answer)) if !has_failed && !answer.is_failure() => CallOutcome::Ok,
        _ => CallOutcome::Failed,
    };
    store.run.present.in_guest(store.phase, now);
    if let Some((call, took)) = store.accounting.leave(now, outcome) {
        store.call_spans.end(took, outcome != CallOutcome::Ok, &store.functions);
        match call {
            CallName::Function(function) => store.functions.took(*function, &store.metrics, took),
            CallName::Subject(name) => store.metrics.host_call(name, took),
        }
        if let Some(CallEnded::TimedOut(limit)) = ended {
            store.metrics.host_call_timed_out(call.text(&store.functions));
            store.accounting.timed_out(limit);
        }
    }
    if store.tape.player().is_some() {
        // The recorded run may have been ended in the guest's code behind this call.
        check(store).map_err(E::ending)?;
    }
    answer
}

/// The error that the guest gets from the call that has just left: in the form of its
/// ABI, in which it is recorded.
pub(crate) fn failed<E: Recorded>(
    store: &mut RunStore,
    error: impl FnOnce(&mut RunStore) -> Result<E>,
) -> Result<E> {
    let recorded = store.tape.player().and_then(Player::error);
    let told = match recorded {
        Some(recorded) => recorded,
        None => {
            let error = error(store)?;
            store.tape.failed(&error);
            let mut touched = Touched::default();
            error.resources(&mut touched);
            // The call has left, so it cannot end the run: a replay would not find where. What does
            // not fit is charged by the next call that takes the resource.
            let _ = store.charge(&touched.0);
            Ok(error)
        }
    };
    told.map_err(|stopped| end(store, stopped.0))
}

/// Lets a call out whose wait may have been cut.
pub(crate) fn leave_race<R: Passed, E: CallError>(
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

/// As [`check`], for a moment from which the guest goes on: by the processor's counter,
/// unless that says that the deadline has passed. So a guest is given the few nanoseconds by which it is off, and
/// none is ended too early by them.
#[inline]
pub(crate) fn glance(store: &mut RunStore) -> Result<Monotonic> {
    let now = store.clock.glance();
    if now <= store.quiet_until && store.run.cause().is_none() {
        store.looked_at = now;
        return Ok(now);
    }
    look_again(store, now)
}

/// The same where the run may have to end.
#[cold]
fn look_again(store: &mut RunStore, now: Monotonic) -> Result<Monotonic> {
    if now > store.run.deadline() { check(store) } else { check_at(store, now) }
}

/// Reads the clock, and ends the run where it must end: notes what is running, and
/// answers the error that unwinds the guest. Where there are frames to unwind,
/// Wasmtime attaches them to that error.
pub(crate) fn check(store: &mut RunStore) -> Result<Monotonic> {
    let now = store.now();
    check_at(store, now)
}

fn check_at(store: &mut RunStore, now: Monotonic) -> Result<Monotonic> {
    store.looked_at = now;
    let (accounting, phase) = (&store.accounting, store.phase);
    let ended_there =
        store.tape.player().and_then(|player| player.ends_at(accounting.point(), phase));
    match ended_there.or_else(|| store.run.due(now)) {
        Some(cause) => Err(end(store, cause)),
        None => Ok(now),
    }
}

/// The error that ends the run for `cause`; what is running is noted.
#[cold]
fn end(store: &mut RunStore, cause: Cause) -> Error {
    if store.accounting.current(&store.functions).is_some() {
        let now = store.looked_at;
        store.tell_call_cut(now);
        store.tell_call_ended(now, names::UNFINISHED, "the run ended inside this call");
    }
    store.stopped_in = Some(store.present_span());
    Error::from(Stopped(store.run.name(cause)))
}

/// Carries out a component's call of a host function that never waits.
pub(crate) fn carry_out<R: Recorded, E: CallError>(
    store: &mut RunStore,
    entered: Entered,
    call: impl FnOnce(&mut RunStore) -> Result<R, E>,
) -> Result<R, E> {
    let answer = match entered.answer(store) {
        Some(answer) => answer,
        None => call(store),
    };
    leave(store, entered, answer)
}

/// Carries out a core module's call of a host function that never waits.
pub(crate) fn carry_out_for_module<R: Recorded>(
    caller: &mut Caller<'_, RunStore>,
    entered: Entered,
    call: impl FnOnce(&mut Caller<'_, RunStore>) -> Result<R>,
) -> Result<R> {
    let answer = match entered.answer_module(caller) {
        Some(answer) => answer,
        None => call(caller),
    };
    leave(caller.data_mut(), entered, answer)
}

/// Links a host function that never waits, with the texts that it reads, each a
/// pointer and a length, and how much of the guest's memory it may read ([`Reads`]), which
/// `abi::guest_memory` enforces:
/// `instant! { linker, functions, MODULE; fn name(caller, a: i32, ptr: i32, len: i32) reads [(ptr, len)] up_to (BOUND) -> i32 { .. } }`.
///
/// [`Reads`]: crate::functions::Reads
macro_rules! instant {
    ($linker:expr, $functions:expr, $module:expr;
     fn $name:ident($caller:ident $(, $arg:ident: $ty:ty)*)
     $(reads [$(($ptr:expr, $len:expr)),*] up_to ($reads:expr))? $(gathers ($list:expr, $count:expr))?
     -> $ret:ty $body:block) => {{
        let function = $functions.add(
            $module,
            stringify!($name),
            $crate::functions::Class::Instant,
            $crate::boundary::reads!($($reads)?),
        );
        #[allow(clippy::disallowed_methods, reason = "this is the boundary")]
        let linked = $linker.func_wrap(
            $module,
            stringify!($name),
            move |mut caller: wasmtime::Caller<'_, $crate::store::RunStore> $(, $arg: $ty)*|
                -> wasmtime::Result<$ret> {
                let arguments = $crate::boundary::arguments!(
                    [$($arg),*] [$($(($ptr, $len)),*)?] $(($list, $count))?
                );
                let entered =
                    $crate::boundary::enter_from_module(&mut caller, function, &arguments)?;
                $crate::boundary::carry_out_for_module(&mut caller, entered, |$caller| {
                    // Of the body, the exception above says nothing.
                    #[deny(clippy::disallowed_methods)]
                    let answer: wasmtime::Result<$ret> = $body;
                    answer
                })
            },
        );
        linked?;
    }};
}

/// Links a host function that may wait, likewise. Its body awaits through `race`, and
/// answers `Ok(None)` where the race was lost:
/// `waiting! { linker, functions, MODULE; fn name(caller, race, a: i32) -> i32 { .. } }`.
macro_rules! waiting {
    ($linker:expr, $functions:expr, $module:expr;
     fn $name:ident($caller:ident, $race:ident $(, $arg:ident: $ty:ty)*)
     $(reads [$(($ptr:expr, $len:expr)),*] up_to ($reads:expr))? $(gathers ($list:expr, $count:expr))?
     -> $ret:ty $body:block) => {{
        let function = $functions.add(
            $module,
            stringify!($name),
            $crate::functions::Class::Async,
            $crate::boundary::reads!($($reads)?),
        );
        #[allow(clippy::disallowed_methods, reason = "this is the boundary")]
        let linked = $linker.func_wrap_async(
            $module,
            stringify!($name),
            move |mut caller: wasmtime::Caller<'_, $crate::store::RunStore>, ($($arg,)*): ($($ty,)*)| {
                Box::new(async move {
                    let entered = {
                        let arguments = $crate::boundary::arguments!(
                            [$($arg),*] [$($(($ptr, $len)),*)?] $(($list, $count))?
                        );
                        $crate::boundary::enter_from_module(&mut caller, function, &arguments)?
                    };
                    if let Some(answer) = entered.answer_module(&mut caller) {
                        return $crate::boundary::leave(caller.data_mut(), entered, answer);
                    }
                    let $race = $crate::race::Race::of(caller.data());
                    #[deny(clippy::disallowed_methods)]
                    let answer: wasmtime::Result<Option<$ret>> = {
                        let $caller = &mut caller;
                        async $body.await
                    };
                    $crate::boundary::leave_race(caller.data_mut(), entered, answer)
                })
            },
        );
        linked?;
    }};
}

macro_rules! arguments {
    ([$($number:expr),*] [$($text:expr),*] $($list:expr)?) => {
        $crate::boundary::Arguments {
            numbers: &[$(i64::from($number)),*],
            texts: &[$($text),*],
            list: $crate::boundary::optional!($($list)?),
        }
    };
}

/// What a function reads that names no texts: its numbers alone.
macro_rules! reads {
    () => {
        $crate::functions::Reads::Numbers
    };
    ($reads:expr) => {
        $reads
    };
}

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
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
            let entered = $crate::boundary::enter(self, FUNCTION, |_to| {
                $($crate::recording::passing::Passed::pass(&$arg, _to);)*
            })
            .map_err(<$ret as $crate::boundary::Raced>::ending)?$(.takes(&$arg))*;
            $crate::boundary::carry_out(self, entered, |$store| $body)
        }
    };
    ($class:ident $function:expr;
     fn $name:ident($store:ident, $race:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty $body:block) => {
        async fn $name(&mut self $(, $arg: $ty)*) -> $ret {
            const FUNCTION: $crate::functions::FunctionId = $function;
            let entered = $crate::boundary::enter(self, FUNCTION, |_to| {
                $($crate::recording::passing::Passed::pass(&$arg, _to);)*
            })
            .map_err(<$ret as $crate::boundary::Raced>::ending)?$(.takes(&$arg))*;
            if let Some(answer) = entered.answer(self) {
                return $crate::boundary::leave(self, entered, answer);
            }
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

pub(crate) use {arguments, class, import, imports, instant, optional, reads, waiting};
