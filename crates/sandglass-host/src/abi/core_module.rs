//! Calls a core module's handler as the users' ABI says: its initialiser, its
//! context, its export, and its answer, given in one of two ways.

use std::sync::Arc;

use sandglass_model::{Failure, FailureKind, Outcome, RejectionKind};
use sandglass_supervisor::argument::Unreadable;
use wasmtime::{Extern, Instance, Memory, Store};

use crate::module::core_module::CoreModule;
use crate::store::RunStore;
use sandglass_supervisor::capability::result::violation;
use sandglass_supervisor::rejection::rejection;

use super::{Called, Moments, result, guest_memory};

/// Size of a WebAssembly page, in bytes.
pub(crate) const PAGE_BYTES: u64 = 64 << 10;

/// Instantiates `compiled` in `store` and calls its handler.
///
/// # Errors
/// The guest trapped, or its run had to end ([`Stopped`]).
pub(crate) async fn call(
    compiled: &CoreModule,
    store: &mut Store<RunStore>,
    max_answer_bytes: u64,
    moments: &mut Moments,
) -> wasmtime::Result<Called> {
    // A budget of nothing ends before the guest begins.
    store.data_mut().glance()?;
    let instance = compiled.pre.instantiate_async(&mut *store).await?;
    let guest = Guest { compiled, instance };
    // Found by its place, where host functions would look for its name.
    let memory = guest.memory(&mut *store);
    store.data_mut().set_memory(memory);
    guest.initialize(store).await?;
    super::instantiated(store.data_mut(), moments)?;

    let context = match guest.place_context(store).await? {
        Ok(placed) => placed,
        Err(outcome) => return Ok(Called::NotCalled(outcome)),
    };
    let run = guest.function(store, &compiled.run).typed::<(i32, i32), i32>(&*store)?;
    let returned = run.call_async(&mut *store, context).await?;
    // The clock is read as the export returns: a success past the deadline is
    // none, and one before it stays one however long the rest takes.
    moments.returned = Some(super::returned_in_time(store)?);
    Ok(Called::Returned(guest.read_answer(store, returned, max_answer_bytes)))
}

struct Guest<'a> {
    compiled: &'a CoreModule,
    instance: Instance,
}

impl Guest<'_> {
    /// A WASI reactor is initialised before any other export of it is called.
    async fn initialize(&self, store: &mut Store<RunStore>) -> wasmtime::Result<()> {
        let Some(initialize) = &self.compiled.initialize else { return Ok(()) };
        let initialize = self.function(store, initialize).typed::<(), ()>(&*store)?;
        initialize.call_async(store, ()).await
    }

    /// Where the guest finds its context: in memory grown for it, unless it asks
    /// for it by itself.
    async fn place_context(
        &self,
        store: &mut Store<RunStore>,
    ) -> wasmtime::Result<Result<(i32, i32), Outcome>> {
        if self.compiled.fetches_context {
            return Ok(Ok((0, 0)));
        }
        let context = Arc::clone(store.data().guest().context().json());
        let len = i32::try_from(context.len())?;
        let memory = self.memory(store);
        let at = memory.data_size(&*store);
        let pages = (context.len() as u64).div_ceil(PAGE_BYTES);
        if memory.grow_async(&mut *store, pages).await.is_err() {
            return Ok(Err(match store.data().limiter().denied() {
                Some(breach) => Outcome::Limit(breach.clone()),
                None => Outcome::Rejected(rejection(
                    RejectionKind::NeedsTooMuch,
                    format!("guest's memory has no room for its context of {len} bytes"),
                )),
            }));
        }
        memory.write(&mut *store, at, &context)?;
        Ok(Ok((u32::try_from(at)?.cast_signed(), len)))
    }

    /// The guest's answer: what it set, or what the pointer that it returned
    /// points to; exactly one of the two.
    fn read_answer(&self, store: &mut Store<RunStore>, returned: i32, max_bytes: u64) -> Outcome {
        let pointed = returned > 0;
        let bytes = match (store.data().guest().result.is_set(), pointed) {
            (true, true) => Err(violation(
                FailureKind::MultipleSources,
                "the guest set its result and returned a pointer to one; do one of the two"
                    .to_owned(),
            )),
            (true, false) => store.data_mut().guest_mut().result.take(),
            (false, true) => self.read_pointed(store, returned, max_bytes).map(Some),
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

    /// The result of older guests: at the pointer, its length before it.
    #[allow(clippy::disallowed_methods, reason = "the result has a limit of its own")]
    fn read_pointed(
        &self,
        store: &mut Store<RunStore>,
        ptr: i32,
        max_bytes: u64,
    ) -> Result<Vec<u8>, Failure> {
        let memory = self.memory(store);
        let memory = memory.data(&*store);
        let outside = |unreadable: Unreadable| {
            violation(FailureKind::ResultOutOfBounds, unreadable.to_string())
        };
        let before = ptr.checked_sub(4).unwrap_or(-1);
        let length = guest_memory::slice(memory, "the length before the result", before, 4)
            .map_err(outside)?;
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        let bytes = guest_memory::slice(memory, "the result", ptr, length.cast_signed())
            .map_err(outside)?;
        if u64::from(length) > max_bytes {
            return Err(violation(
                FailureKind::ResultTooLarge,
                format!("the result has {length} bytes, and {max_bytes} are allowed"),
            ));
        }
        Ok(bytes.to_vec())
    }

    fn function(
        &self,
        store: &mut Store<RunStore>,
        export: &wasmtime::ModuleExport,
    ) -> wasmtime::Func {
        self.instance
            .get_module_export(store, export)
            .and_then(Extern::into_func)
            .expect("its exports were checked when it was loaded")
    }

    fn memory(&self, store: &mut Store<RunStore>) -> Memory {
        self.instance
            .get_module_export(store, &self.compiled.memory)
            .and_then(Extern::into_memory)
            .expect("its exports were checked when it was loaded")
    }
}
