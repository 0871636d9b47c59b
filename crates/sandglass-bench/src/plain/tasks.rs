//! The baseline for asynchronous components, with the bindings that Wasmtime generates.

use wasmtime::component::{
    Accessor, Component, ComponentExportIndex, HasSelf, InstancePre, Linker,
};
use wasmtime::{Engine, Result, Store, format_err};

use super::component::bindings::{Completion, DispatchContext, Failure};
use super::component::context;
use super::{Pool, engine};

#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated, and described in the WIT package"
)]
mod bindings {
    wasmtime::component::bindgen!({
        path: ["../sandglass-guest/wit", "../sandglass-guest/wit-0.2"],
        world: "sandglass:integration/integration@0.2.0",
    });
}

use bindings::sandglass::integration0_2_0::progress;

/// A component, compiled and linked to what the measured component imports.
pub(crate) struct PlainTasks {
    engine: Engine,
    pre: InstancePre<State>,
    handle: ComponentExportIndex,
    context: DispatchContext,
}

/// The host functions of one dispatch share no state.
struct State;

impl progress::Host for State {}

impl<T: Send> progress::HostWithStore<T> for HasSelf<State> {
    async fn emit(_: &Accessor<T, Self>, _: String) -> Result<(), String> {
        Ok(())
    }

    async fn heartbeat(_: &Accessor<T, Self>) {}

    async fn set_status(_: &Accessor<T, Self>, _: String) {}
}

impl PlainTasks {
    pub(crate) fn new(guest: &str) -> Result<Self> {
        let engine = engine(Pool::BestConcurrent)?;
        let component = Component::new(&engine, guest)?;
        let mut linker = Linker::new(&engine);
        progress::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
        let pre = linker.instantiate_pre(&component)?;
        let handle = component.get_export_index(None, "handle");
        let handle = handle.ok_or_else(|| format_err!("the guest exports no handler"))?;
        Ok(Self { engine, pre, handle, context: context() })
    }

    /// Executes the guest on an instance of its own.
    pub(crate) async fn dispatch(&self) -> Result<()> {
        let mut store = Store::new(&self.engine, State);
        store.set_epoch_deadline(1);
        let instance = self.pre.instantiate_async(&mut store).await?;
        let handle = instance
            .get_typed_func::<(&DispatchContext,), (Result<Completion, Failure>,)>(
                &mut store,
                &self.handle,
            )?;
        let (answer,) = handle.call_async(&mut store, (&self.context,)).await?;
        answer.map(drop).map_err(|failure| format_err!("the guest returned {failure:?}"))
    }
}
