//! The baseline for components, with the bindings that Wasmtime generates.

use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, Result, Store, format_err};

use super::{Pool, engine};

#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated, and described in the WIT package"
)]
pub(super) mod bindings {
    wasmtime::component::bindgen!({
        path: "../sandglass-guest/wit",
        world: "integration",
    });
}

use bindings::sandglass::integration::clock;
use bindings::{DispatchContext, IntegrationPre};

/// A component, compiled and linked to what the measured component imports.
pub(crate) struct PlainComponent {
    engine: Engine,
    pre: IntegrationPre<State>,
    context: DispatchContext,
}

/// The host functions of one dispatch share no state.
struct State;

impl clock::Host for State {
    fn now_ms(&mut self) -> i64 {
        0
    }

    fn deadline_remaining_ms(&mut self) -> u64 {
        1
    }

    fn should_stop(&mut self) -> bool {
        false
    }
}

impl PlainComponent {
    pub(crate) fn new(guest: &str, pool: Pool) -> Result<Self> {
        let engine = engine(pool)?;
        let component = Component::new(&engine, guest)?;
        let mut linker = Linker::new(&engine);
        clock::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
        let pre = IntegrationPre::new(linker.instantiate_pre(&component)?)?;
        Ok(Self { engine, pre, context: context() })
    }

    /// Executes the guest on an instance of its own.
    pub(crate) fn dispatch(&self) -> Result<()> {
        let mut store = Store::new(&self.engine, State);
        store.set_epoch_deadline(1);
        let handler = self.pre.instantiate(&mut store)?;
        let answer = handler.call_handle(&mut store, &self.context)?;
        answer.map(drop).map_err(|failure| format_err!("the guest answered {failure:?}"))
    }
}

/// The context of such a dispatch, in as many bytes as the host's.
pub(super) fn context() -> DispatchContext {
    DispatchContext {
        tenant: "default".to_owned(),
        entity_type: "Bench".to_owned(),
        entity_id: "1".to_owned(),
        trigger_action: "Measure".to_owned(),
        trigger_params: "{}".to_owned(),
        entity_state: "{}".to_owned(),
        integration_config: Vec::new(),
        trace_id: "0".repeat(32),
        agent_id: None,
        session_id: None,
        dispatch_id: "0".repeat(32),
        deadline_remaining_ms: 600_000,
        attempt: 1,
    }
}
