//! Executes the calls of components: one at a time, or beside others.

use wasmtime::StoreContextMut;
use wasmtime::component::Accessor;

use super::Linked;
use super::typed::Returned;
use super::value::{Value, Wire};
use crate::abi::concurrent::{self, Begun};
use crate::abi::passed::Passed;
use crate::boundary;
use crate::store::RunStore;
use sandglass_supervisor::host_memory::Charge;
use sandglass_supervisor::race::Race;

/// As [`execute`], with a typed result.
pub(super) async fn execute_typed<R: Returned>(
    store: StoreContextMut<'_, RunStore>,
    function: &Linked,
    values: Vec<Value>,
) -> wasmtime::Result<(Result<R::Wire, String>,)> {
    typed::<R>(execute(store, function, values).await?)
}

fn typed<R: Returned>(
    result: Result<Value, String>,
) -> wasmtime::Result<(Result<R::Wire, String>,)> {
    let wrong =
        || wasmtime::format_err!("a host function returned a value of another type than its own");
    Ok((match result {
        Ok(value) => Ok(R::Wire::from_value(value).ok_or_else(wrong)?),
        Err(why) => Err(why),
    },))
}

/// Executes a component's call of `function`.
pub(super) async fn execute(
    mut store: StoreContextMut<'_, RunStore>,
    function: &Linked,
    values: Vec<Value>,
) -> wasmtime::Result<Result<Value, String>> {
    let store = store.data_mut();
    boundary::park(store, function.id).await?;
    let entered =
        boundary::enter(store, function.id, |to| values.iter().for_each(|value| value.pass(to)))?;
    let answer = match entered.recorded::<Result<Value, String>, wasmtime::Error>(store) {
        Some(answer) => boundary::leave(store, entered, answer)?,
        None => {
            let race = Race::of(store);
            let answer = race.call(function.call(store, values, None)).await;
            let answer = answer.map(|answer| answer.map_err(|error| error.why));
            boundary::leave_race(store, entered, Ok::<_, wasmtime::Error>(answer))?
        }
    };
    Ok(answer.map_err(|why| store.guest().redactor.text(why)))
}

/// As [`execute_typed`], beside other calls.
pub(super) async fn execute_typed_beside<R: Returned>(
    calling: &Accessor<RunStore>,
    function: &Linked,
    values: Vec<Value>,
) -> wasmtime::Result<(Result<R::Wire, String>,)> {
    typed::<R>(execute_beside(calling, function, values).await?)
}

/// Executes a component's call of `function`, which is in flight beside others.
pub(super) async fn execute_beside(
    calling: &Accessor<RunStore>,
    function: &Linked,
    values: Vec<Value>,
) -> wasmtime::Result<Result<Value, String>> {
    let passed = values.clone();
    let result = concurrent::call(
        calling,
        function.id,
        move |to| passed.iter().for_each(|value| value.pass(to)),
        |store, race| {
            let (wait, memory) = (function.call(store, values, None), store.guest().memory.clone());
            Ok(Begun::waits(async move {
                let result = race.call(wait).await?;
                // Until the guest gets it, which may be after other results.
                Some(result.map_err(|error| error.why).and_then(|value| {
                    let charge = memory.charge(value.heap_bytes());
                    charge.map(|charge| (value, charge)).map_err(|error| error.to_string())
                }))
            }))
        },
        |_, result: Result<(Value, Charge), String>| Ok(result.map(|(value, _charge)| value)),
    )
    .await?;
    Ok(result.map_err(|why| calling.with(|mut store| store.get().guest().redactor.text(why))))
}
