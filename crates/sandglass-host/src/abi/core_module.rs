//! Calls the handler of a core module: its initializer, its context, its export, and its result,
//! which it gives in one of two ways.

use std::sync::Arc;

use sandglass_model::{Failure, FailureKind, Outcome, RejectionKind};
use sandglass_supervisor::argument::Unreadable;
use wasmtime::{Extern, Func, Instance, InstancePre, Memory, ModuleExport, Store};

use crate::module::core_module::CoreModule;
use crate::store::RunStore;
use sandglass_supervisor::capability::result::violation;
use sandglass_supervisor::rejection::rejection;

use super::{Called, guest_memory, result};

/// Size of a WebAssembly page, in bytes.
pub(crate) const PAGE_BYTES: u64 = 64 << 10;

/// Instantiates `compiled` in `store` and calls its handler.
///
/// # Errors
/// The guest trapped, or its run had to end ([`Stopped`](super::Stopped)).
pub(crate) async fn call(
    compiled: &CoreModule,
    store: &mut Store<RunStore>,
) -> wasmtime::Result<Called> {
    let (instance, memory) = instantiate(&compiled.pre, &compiled.memory, store).await?;
    let guest = Guest { compiled, instance, memory };
    guest.initialize(store).await?;
    super::begin_running(store.data_mut())?;

    let context = match guest.place_context(store).await? {
        Ok(placed) => placed,
        Err(outcome) => return Ok(Called::NotCalled(outcome)),
    };
    let run = function(&instance, store, &compiled.run).typed::<(i32, i32), i32>(&*store)?;
    let returned = run.call_async(&mut *store, context).await?;
    super::check_return(store)?;
    Ok(Called::Returned(guest.read_result(store, returned)))
}

/// Makes an instance of a core module that exports its memory as `memory`.
///
/// # Errors
/// The module's start function trapped, or the run had to end.
pub(super) async fn instantiate(
    pre: &InstancePre<RunStore>,
    memory: &ModuleExport,
    store: &mut Store<RunStore>,
) -> wasmtime::Result<(Instance, Memory)> {
    // A budget of zero ends before the guest begins.
    store.data_mut().check_fast()?;
    let instance = pre.instantiate_async(&mut *store).await?;
    let memory = instance
        .get_module_export(&mut *store, memory)
        .and_then(Extern::into_memory)
        .expect("its exports were checked when it was loaded");
    // Found by its index, where host functions would look up its name.
    store.data_mut().memory.handle = Some(memory);
    Ok((instance, memory))
}

/// An exported function.
pub(super) fn function(
    instance: &Instance,
    store: &mut Store<RunStore>,
    export: &ModuleExport,
) -> Func {
    instance
        .get_module_export(store, export)
        .and_then(Extern::into_func)
        .expect("its exports were checked when it was loaded")
}

struct Guest<'a> {
    compiled: &'a CoreModule,
    instance: Instance,
    memory: Memory,
}

impl Guest<'_> {
    /// A WASI reactor is initialized before any other export of it is called.
    async fn initialize(&self, store: &mut Store<RunStore>) -> wasmtime::Result<()> {
        let Some(initialize) = &self.compiled.initialize else { return Ok(()) };
        let initialize = function(&self.instance, store, initialize).typed::<(), ()>(&*store)?;
        initialize.call_async(store, ()).await
    }

    /// Writes the context behind what the guest has declared of its memory, which grows if that is
    /// necessary, unless the guest fetches the context itself.
    async fn place_context(
        &self,
        store: &mut Store<RunStore>,
    ) -> wasmtime::Result<Result<(i32, i32), Outcome>> {
        if self.compiled.fetches_context {
            return Ok(Ok((0, 0)));
        }
        let context = Arc::clone(store.data().guest().context.json());
        let len = i32::try_from(context.len())?;
        let (size, needed) =
            (self.memory.size(&*store), (context.len() as u64).div_ceil(PAGE_BYTES));
        let present = u64::from(self.compiled.has_context_page);
        let at = (size - present) * PAGE_BYTES;
        let missing = needed.saturating_sub(present);
        if missing > 0 && self.memory.grow_async(&mut *store, missing).await.is_err() {
            return Ok(Err(match &store.data().memory.limiter.denied {
                Some(breach) => Outcome::Limit(breach.clone()),
                None => Outcome::Rejected(rejection(
                    RejectionKind::NeedsTooMuch,
                    format!("guest's memory has no room for its context of {len} bytes"),
                )),
            }));
        }
        self.memory.write(&mut *store, usize::try_from(at)?, &context)?;
        Ok(Ok((u32::try_from(at)?.cast_signed(), len)))
    }

    /// The guest's result: what it set, or what the returned pointer points to; exactly one of them.
    fn read_result(&self, store: &mut Store<RunStore>, returned: i32) -> Outcome {
        let is_pointer = returned > 0;
        let bytes = match (store.data().guest().result.is_set(), is_pointer) {
            (true, true) => Err(violation(
                FailureKind::MultipleSources,
                "the guest set its result and returned a pointer to one; do one of the two"
                    .to_owned(),
            )),
            (true, false) => store.data_mut().guest_mut().result.take(),
            (false, true) => self.read_pointed(store, returned).map(Some),
            (false, false) => Ok(None),
        };
        match bytes {
            Ok(Some(bytes)) => result::outcome(&bytes, &store.data().guest().redactor),
            Ok(None) => Outcome::Failed(violation(
                FailureKind::AbsentResult,
                "the guest gave no result: it called no `host_set_result` and returned no pointer"
                    .to_owned(),
            )),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// The result of older guests: at the pointer, after its length.
    #[allow(clippy::disallowed_methods, reason = "the result has a limit of its own")]
    fn read_pointed(&self, store: &Store<RunStore>, ptr: i32) -> Result<Vec<u8>, Failure> {
        let memory = self.memory.data(store);
        let outside = |unreadable: Unreadable| {
            violation(FailureKind::ResultOutOfBounds, unreadable.to_string())
        };
        let before = ptr.checked_sub(4).unwrap_or(-1);
        let length = guest_memory::slice(memory, "the length before the result", before, 4)
            .map_err(outside)?;
        let length = i32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        let bytes = guest_memory::slice(memory, "the result", ptr, length).map_err(outside)?;
        result::check_size("the result", bytes.len(), store.data().guest().grants.response_bytes)?;
        Ok(bytes.to_vec())
    }
}
