//! How guests see the host: one module for each set of imports, the calls of their handlers, and
//! access to their memory.

pub(crate) mod component;
pub(crate) mod concurrent;
pub(crate) mod core_module;
pub(crate) mod embedder;
pub(crate) mod env;
pub(crate) mod guest_memory;
pub(crate) mod node_pack;
pub(crate) mod passed;
mod result;
pub(crate) mod wasi;
pub(crate) mod world;

#[cfg(test)]
mod tests;

pub(crate) use result::MESSAGE_MAX_BYTES;
use sandglass_model::{Cause, Monotonic, Outcome, RejectionKind};
use wasmtime::Store;

use crate::module::Code;
use crate::store::RunStore;
use sandglass_supervisor::boundary::Stopped;
use sandglass_supervisor::node::Work;
use sandglass_supervisor::rejection::rejection;

/// How the call of a handler ended.
pub(crate) enum Called {
    Returned(Outcome),
    /// The handler was never called, because its memory has no room for the context, or because the
    /// module is of the wrong kind.
    NotCalled(Outcome),
}

/// Moments of a call, for the split of its time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    /// When the guest was ready to be called.
    pub(crate) instantiated: Option<Monotonic>,
    /// When its export returned; `None` if it did not.
    pub(crate) returned: Option<Monotonic>,
}

/// Instantiates `code` in `store` and calls what its `work` names.
///
/// # Errors
/// The guest trapped, or its run had to end ([`Stopped`]).
pub(crate) async fn call(
    (code, work): (&Code, &Work),
    store: &mut Store<RunStore>,
) -> wasmtime::Result<Called> {
    match (code, work) {
        (Code::Module(module), Work::Handle) => core_module::call(module, store).await,
        (Code::Component(component), Work::Handle) => {
            // In a box, so that it does not enlarge the future of other calls.
            Box::pin(component::call(component, store)).await
        }
        (Code::NodePack(pack), Work::Invoke(call)) => node_pack::invoke(pack, store, call).await,
        (Code::NodePack(pack), Work::Describe) => node_pack::describe(pack, store).await,
        (Code::NodePack(_), Work::Handle) => Ok(misdirected(
            "module is an OpenWOP node pack, which has nodes and no handler; a host of OpenWOP \
             workflows invokes them",
        )),
        (Code::Module(_) | Code::Component(_), Work::Invoke(_) | Work::Describe) => {
            Ok(misdirected("module is a handler and no OpenWOP node pack, so it has no nodes"))
        }
    }
}

/// The guest has nothing that could be called for the dispatch.
fn misdirected(why: &str) -> Called {
    Called::NotCalled(Outcome::Rejected(rejection(RejectionKind::InvalidDispatch, why)))
}

/// Notes that the guest is instantiated, and checks that its run may go on, with one reading of the
/// clock for both.
fn begin_running(store: &mut RunStore) -> wasmtime::Result<()> {
    store.begin_running();
    let may_go_on = store.check_fast();
    store.moments.instantiated = Some(store.watch.checked_at);
    Ok(may_go_on.map(drop)?)
}

/// Notes that a handler's export has returned, and when. A result after the deadline does not count;
/// one before it counts however long the rest takes.
fn check_return(store: &mut Store<RunStore>) -> wasmtime::Result<()> {
    let now = store.data_mut().check()?;
    match store.data().run().set_cause(Cause::Returned) {
        Cause::Returned => store.data_mut().moments.returned = Some(now),
        cause => return Err(Stopped(cause).into()),
    }
    Ok(())
}
