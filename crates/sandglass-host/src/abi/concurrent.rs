//! What only asynchronous components have: host functions that several tasks of a guest can wait in at
//! the same time, streams and futures, and the event loop that drives such a guest.
//!
//! `supervisor::in_flight` explains when a guest learns that one of its calls has completed.

mod body;
mod denied;
pub(crate) mod driver;
pub(crate) mod http;
mod stdio;
mod wasi;
mod world;

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sandglass_model::Monotonic;
use sandglass_supervisor::capability::time;
use sandglass_supervisor::functions::{FunctionId, Functions};
use sandglass_supervisor::in_flight::{Delivered, Work};
use sandglass_supervisor::race::Race;
use sandglass_supervisor::recording::{Packer, RunRecording};
use sandglass_supervisor::suspended::CallNote;
use wasmtime::component::{Accessor, HasSelf, Linker};
use wasmtime::{Error, Result};

use crate::abi::passed::{Passed, Recorded};
use crate::boundary::{self, Entered};
use crate::store::RunStore;

/// The WIT package of asynchronous handlers.
pub(crate) const CONTRACT: &str = "sandglass:integration@0.2.0";

/// The index of the first function of this module among those of components.
const FIRST: usize = super::world::END;

/// Access to the store between two steps of an asynchronous function.
type Calling = Accessor<RunStore, HasSelf<RunStore>>;

/// Links what asynchronous components import.
pub(crate) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    list(functions);
    wasi::link(linker)?;
    world::link(linker)?;
    http::link(linker)?;
    denied::link(linker, functions)
}

/// Adds the functions of WASI and of this host to their table, without files and sockets.
pub(crate) fn list(functions: &mut Functions) {
    wasi::IMPORTS.into_iter().for_each(|imports| functions.add_imports(imports));
    functions.add_imports(world::IMPORTS);
    http::IMPORTS.into_iter().for_each(|imports| functions.add_imports(imports));
}

/// What a call waits for, in a form that needs no store. `None` if it lost the race with the end of
/// its run.
type Wait<W> = Pin<Box<dyn Future<Output = Option<W>> + Send>>;

/// What a function does when it is called.
pub(crate) enum Begun<W, R> {
    /// It waits, and is polled after this moment in any case.
    Waits(Wait<W>, Option<Monotonic>),
    /// It has its result at once.
    Has(R),
}

impl<W, R> Begun<W, R> {
    pub(crate) fn waits(wait: impl Future<Output = Option<W>> + Send + 'static) -> Self {
        Self::Waits(Box::pin(wait), None)
    }
}

/// How far a call comes before its guest goes on.
enum Step<W, R> {
    Returned(R),
    /// What it waits for was there at once.
    Ready(Called<W>),
    Suspended(Pending<W>),
}

/// A call that has entered and must leave.
struct Called<W> {
    entered: Entered,
    output: Output<W>,
}

/// Where the work of a call stores what it waited for.
type Output<W> = Arc<Mutex<Option<W>>>;

/// A call whose guest goes on until its completion is delivered. Dropped before, it is cancelled.
struct Pending<W> {
    number: u64,
    delivered: Delivered,
    called: Called<W>,
}

impl<W> Future for Pending<W> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.delivered).poll(context)
    }
}

impl<W> Pending<W> {
    /// Makes the call, whose completion was delivered, the present one.
    fn resume(self, store: &mut RunStore) -> Result<Called<W>> {
        store.resume(self.number)?;
        Ok(self.called)
    }
}

impl<W> Called<W> {
    /// Ends the call with what `finish` makes of what it waited for, or with its recorded result.
    fn leave<R: Recorded>(
        self,
        store: &mut RunStore,
        finish: impl FnOnce(&mut RunStore, W) -> Result<R>,
    ) -> Result<R> {
        let Self { entered, output } = self;
        let result = match entered.recorded(store) {
            Some(recorded) => recorded.map(Some),
            None => {
                let output = output.lock().unwrap_or_else(PoisonError::into_inner).take();
                output.map(|output| finish(store, output)).transpose()
            }
        };
        boundary::leave_race(store, entered, result)
    }
}

/// Calls an asynchronous `function`: enters, begins, waits while the guest goes on, and leaves with
/// what `finish` makes of what it waited for. If that is there at once, the guest does not wait.
///
/// # Errors
/// The run must end.
pub(crate) async fn call<W: Send + 'static, R: Recorded>(
    calling: &Calling,
    function: FunctionId,
    arguments: impl FnOnce(&mut Packer<'_>),
    begin: impl FnOnce(&mut RunStore, Race) -> Result<Begun<W, R>>,
    finish: impl FnOnce(&mut RunStore, W) -> Result<R>,
) -> Result<R> {
    let step = calling.with(|mut access| enter(access.get(), function, arguments, begin))?;
    let mut pending = match step {
        Step::Returned(result) => return Ok(result),
        Step::Ready(called) => {
            return calling.with(|mut access| called.leave(access.get(), finish));
        }
        Step::Suspended(pending) => pending,
    };
    (&mut pending).await;
    calling.with(|mut access| {
        let store = access.get();
        pending.resume(store)?.leave(store, finish)
    })
}

/// Calls a `function` that never waits.
///
/// # Errors
/// The run must end.
fn instant<R: Recorded>(
    store: &mut RunStore,
    function: FunctionId,
    arguments: impl FnOnce(&mut Packer<'_>),
    act: impl FnOnce(&mut RunStore) -> R,
) -> Result<R> {
    let entered = boundary::enter(store, function, arguments)?;
    boundary::execute(store, entered, |store| Ok(act(store)))
}

/// Lets a call of `function` pass that has no arguments and no result that could be recorded.
///
/// # Errors
/// The run must end.
fn pass(store: &mut RunStore, function: FunctionId) -> Result<()> {
    instant(store, function, |_| {}, |_| ())
}

/// As [`instant`], with one argument.
///
/// # Errors
/// The run must end.
fn at_once<R: Recorded>(
    calling: &Calling,
    function: FunctionId,
    argument: &impl Passed,
    act: impl FnOnce(&mut RunStore) -> R,
) -> Result<R> {
    calling.with(|mut access| instant(access.get(), function, |to| argument.pass(to), act))
}

/// Calls a `function` that waits for a time, with one argument.
///
/// # Errors
/// The run must end.
async fn sleep(
    calling: &Calling,
    function: FunctionId,
    argument: &impl Passed,
    duration: impl FnOnce(&mut RunStore) -> Duration,
) -> Result<()> {
    let begin = |store: &mut RunStore, _: Race| {
        let duration = duration(store);
        if duration.is_zero() {
            return Ok(Begun::Has(()));
        }
        let (at, wait) = time::sleep(store, duration);
        let wait = async {
            wait.await;
            Some(())
        };
        Ok(Begun::Waits(Box::pin(wait), Some(at)))
    };
    call(calling, function, |to| argument.pass(to), begin, |_, ()| Ok(())).await
}

/// Begins a call, and suspends it if it has to wait.
fn enter<W: Send + 'static, R: Recorded>(
    store: &mut RunStore,
    function: FunctionId,
    arguments: impl FnOnce(&mut Packer<'_>),
    begin: impl FnOnce(&mut RunStore, Race) -> Result<Begun<W, R>>,
) -> Result<Step<W, R>> {
    let entered = boundary::enter(store, function, arguments)?;
    let output = Output::default();
    if let RunRecording::Replaying(replayer) = &store.calls.recording {
        if replayer.is_suspended() {
            let called = Called { entered, output };
            return suspend(store, function, called, Arc::default(), None);
        }
        if let Some(recorded) = entered.recorded(store) {
            return boundary::leave(store, entered, recorded).map(Step::Returned);
        }
    }
    let note = Arc::new(CallNote::default());
    store.note_in(Some(Arc::clone(&note)));
    let race = Race::of(store);
    let begun = begin(store, race);
    // The function may have named the call, for which the manifest may have another time limit.
    let limits = [Race::of(store).ends_at(), Race::inside(store).ends_at()];
    let parking = store.parking(function, &note);
    store.note_in(None);
    let (wait, wakes_at) = match begun? {
        Begun::Has(result) => {
            return boundary::leave(store, entered, Ok::<_, Error>(result)).map(Step::Returned);
        }
        Begun::Waits(wait, wakes_at) => (wait, wakes_at),
    };
    let stored = Arc::clone(&output);
    let mut work: Work = Box::pin(async move {
        if let Some(parking) = parking
            && !parking.wait().await
        {
            return;
        }
        let output = wait.await;
        *stored.lock().unwrap_or_else(PoisonError::into_inner) = output;
    });
    // Its task is not known yet; one that has to wait is polled again there.
    let called = Called { entered, output };
    let is_ready = work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    if is_ready {
        if let Some(why) = note.ended() {
            store.run().note_call_ended(why);
        }
        return Ok(Step::Ready(called));
    }
    let moments = limits.into_iter().chain([wakes_at]).flatten().collect();
    suspend(store, function, called, note, Some((work, moments)))
}

/// Suspends the present call until its completion is delivered. A replay has no work.
fn suspend<W, R>(
    store: &mut RunStore,
    function: FunctionId,
    called: Called<W>,
    note: Arc<CallNote>,
    work: Option<(Work, Vec<Monotonic>)>,
) -> Result<Step<W, R>> {
    let number = store.suspend(function, note)?;
    if store.is_replay() {
        // The recorded run may have ended before its guest did anything else.
        store.check()?;
    }
    let in_flight = store.in_flight().ok_or_else(|| Error::msg("the guest has no tasks"))?;
    let delivered = in_flight.add(number, work);
    Ok(Step::Suspended(Pending { number, delivered, called }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_is_the_package() {
        let wit = include_str!("../../../sandglass-guest/wit-0.2/integration.wit");
        assert!(wit.contains(&format!("package {CONTRACT};")));
    }
}
