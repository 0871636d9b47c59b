//! Calls a pack of OpenWOP nodes (RFC 0008) by version 1 of its ABI: the exports that describe it, and
//! one of its nodes with a request.
//!
//! ```text
//! host                                    pack
//!   openwop_alloc(size of the request) ──▶ ptr
//!   openwop_node_invoke(index, request) ─▶ ... ── imports ──▶ host
//!                                          (after a call, the pack allocates memory for its
//!                                          result)
//!   a copy of the response              ◀─ ptr, len
//!   openwop_free(the response)          ─▶
//! ```

mod contract;
mod imports;
mod random;
mod response;
mod run;

use sandglass_model::{Failure, FailureKind, Outcome, RejectionKind};
use wasmtime::{Instance, Memory, Store, WasmParams, WasmResults};

use crate::module::node_pack::{NodePack, PairExport};
use crate::store::RunStore;
use sandglass_supervisor::capability::result::violation;
use sandglass_supervisor::node::{NodeCall, PACK_NAME_MAX_BYTES, PACK_NODES_MAX, PackDescription};
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::text::printable;

use super::core_module::{function, instantiate};
use super::result::check_size;
use super::{Called, guest_memory};

pub(crate) use contract::{
    ABI_VERSION, ALLOC, EXPORTS, FREE, MODULE, NODE_COUNT, NODE_ID_AT, NODE_INVOKE, PACK_NAME,
    PairForm, export, import, imports, marks_a_pack,
};
pub(crate) use imports::link;
pub(crate) use random::RandomStream;
pub(crate) use run::{NodeRun, NotAllocated};

/// Invokes a node of `pack` in `store`.
///
/// # Errors
/// The guest trapped, or its run had to end ([`Stopped`](super::Stopped)).
pub(crate) async fn invoke(
    pack: &NodePack,
    store: &mut Store<RunStore>,
    call: &NodeCall,
) -> wasmtime::Result<Called> {
    let guest = Guest::instantiate(pack, store, Some(call)).await?;
    let outcome = match guest.invoke(store, call).await {
        Ok(outcome) => outcome,
        Err(error) => run::outcome_of(&error).ok_or(error)?,
    };
    super::check_return(store)?;
    Ok(Called::Returned(outcome))
}

/// Calls the exports by which `pack` describes itself.
///
/// # Errors
/// As [`invoke`].
pub(crate) async fn describe(
    pack: &NodePack,
    store: &mut Store<RunStore>,
) -> wasmtime::Result<Called> {
    let guest = Guest::instantiate(pack, store, None).await?;
    match guest.describe(store).await {
        Ok(Ok(description)) => {
            super::check_return(store)?;
            Ok(Called::Returned(response::description(&description)))
        }
        Ok(Err(refused)) => Ok(Called::NotCalled(refused)),
        Err(error) if run::outcome_of(&error).is_some() => Ok(Called::NotCalled(invalid(
            "pack calls `openwop_interrupt` when it describes itself".to_owned(),
        ))),
        Err(error) => Err(error),
    }
}

/// The outcome of a pack that does not describe itself properly.
fn invalid(why: String) -> Outcome {
    Outcome::Rejected(rejection(RejectionKind::InvalidPack, why))
}

struct Guest<'a> {
    pack: &'a NodePack,
    instance: Instance,
    memory: Memory,
}

impl<'a> Guest<'a> {
    async fn instantiate(
        pack: &'a NodePack,
        store: &mut Store<RunStore>,
        call: Option<&NodeCall>,
    ) -> wasmtime::Result<Self> {
        let (instance, memory) = instantiate(&pack.pre, &pack.memory, store).await?;
        let guest = Self { pack, instance, memory };
        let alloc = function(&instance, store, &pack.alloc).typed(&*store)?;
        let data = store.data_mut();
        let now = data.clock().shared().wall();
        data.node = Some(NodeRun::new(call, now, alloc));
        if let Some(initialize) = &pack.initialize {
            guest.call::<(), ()>(store, initialize, ()).await?;
        }
        super::begin_running(store.data_mut())?;
        Ok(guest)
    }

    async fn invoke(
        &self,
        store: &mut Store<RunStore>,
        call: &NodeCall,
    ) -> wasmtime::Result<Outcome> {
        let len = run::length(&call.request)?;
        let ptr = self.call::<i32, i32>(store, &self.pack.alloc, len).await?;
        run::write(self.memory, &mut *store, ptr, &call.request)?;
        let args = (call.index.cast_signed(), ptr, len);
        let response = self.call_pair(store, &self.pack.node_invoke, args).await?;
        let bytes = match self.read(store, response) {
            Ok(bytes) => bytes,
            Err(failure) => return Ok(Outcome::Failed(failure)),
        };
        self.call::<_, ()>(store, &self.pack.free, response).await?;
        Ok(response::outcome(&bytes))
    }

    /// A copy of the response at this place.
    #[allow(clippy::disallowed_methods, reason = "the response has a limit of its own")]
    fn read(&self, store: &Store<RunStore>, (ptr, len): (i32, i32)) -> Result<Vec<u8>, Failure> {
        if len == 0 {
            let message = format!("`{NODE_INVOKE}` answered no response: its length is 0");
            return Err(violation(FailureKind::AbsentResult, message));
        }
        let bytes = guest_memory::slice(self.memory.data(store), "the response", ptr, len);
        let bytes =
            bytes.map_err(|why| violation(FailureKind::ResultOutOfBounds, why.to_string()))?;
        check_size("the response", bytes.len(), store.data().guest().grants.response_bytes)?;
        Ok(bytes.to_vec())
    }

    async fn describe(
        &self,
        store: &mut Store<RunStore>,
    ) -> wasmtime::Result<Result<PackDescription, Outcome>> {
        let version = self.call::<(), i32>(store, &self.pack.abi_version, ()).await?;
        if version != contract::VERSION {
            return Ok(Err(Outcome::Rejected(rejection(
                RejectionKind::UnsupportedAbiVersion,
                format!(
                    "pack has version {} of the OpenWOP node pack ABI, and this host runs version \
                     {}; build it for that",
                    version.cast_unsigned(),
                    contract::VERSION
                ),
            ))));
        }
        let place = self.call_pair(store, &self.pack.pack_name, ()).await?;
        let name = match self.name(store, PACK_NAME, place) {
            Ok(name) => name,
            Err(refused) => return Ok(Err(refused)),
        };
        let count = self.call::<(), i32>(store, &self.pack.node_count, ()).await?.cast_unsigned();
        if count > PACK_NODES_MAX {
            let why = format!("pack has {count} nodes, and {PACK_NODES_MAX} are allowed");
            return Ok(Err(invalid(why)));
        }
        let mut node_types: Vec<String> = Vec::new();
        for index in 0..count.cast_signed() {
            let place = self.call_pair(store, &self.pack.node_id_at, index).await?;
            match self.name(store, NODE_ID_AT, place) {
                Ok(node) if node_types.contains(&node) => {
                    return Ok(Err(invalid(format!("pack has the node `{node}` more than once"))));
                }
                Ok(node) => node_types.push(node),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        let abi_version = version.cast_unsigned();
        Ok(Ok(PackDescription { abi_version, name, node_types }))
    }

    /// The name at this place, which `export` returned.
    #[allow(clippy::disallowed_methods, reason = "the name has a limit of its own")]
    fn name(
        &self,
        store: &Store<RunStore>,
        export: &'static str,
        (ptr, len): (i32, i32),
    ) -> Result<String, Outcome> {
        let bytes = guest_memory::slice(self.memory.data(store), "the name", ptr, len);
        let bytes = bytes.map_err(|why| invalid(format!("`{export}`: {why}")))?;
        if bytes.is_empty() || bytes.len() > PACK_NAME_MAX_BYTES as usize {
            return Err(invalid(format!(
                "`{export}` answered a name of {} bytes, and it must have 1 to \
                 {PACK_NAME_MAX_BYTES}",
                bytes.len()
            )));
        }
        match str::from_utf8(bytes) {
            Ok(name) if printable(name) == name => Ok(name.to_owned()),
            Ok(_) => Err(invalid(format!("`{export}` answered a name with control characters"))),
            Err(error) => Err(invalid(format!(
                "`{export}` answered a name that is no UTF-8 (byte {})",
                error.valid_up_to()
            ))),
        }
    }

    async fn call_pair<P: WasmParams + Sync>(
        &self,
        store: &mut Store<RunStore>,
        export: &PairExport,
        args: P,
    ) -> wasmtime::Result<(i32, i32)> {
        match export.form {
            PairForm::Two => self.call(store, &export.function, args).await,
            PairForm::Packed => {
                self.call(store, &export.function, args).await.map(PairForm::unpack)
            }
        }
    }

    async fn call<P: WasmParams + Sync, R: WasmResults + Sync>(
        &self,
        store: &mut Store<RunStore>,
        export: &wasmtime::ModuleExport,
        args: P,
    ) -> wasmtime::Result<R> {
        let function = function(&self.instance, store, export).typed::<P, R>(&*store)?;
        function.call_async(store, args).await
    }
}
