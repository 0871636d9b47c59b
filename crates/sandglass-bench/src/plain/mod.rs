//! The baseline: the same guests in Wasmtime alone. Each dispatch has a store, an instance and a
//! host function of its own, but there is no queue, no deadline and no report.

mod component;
mod tasks;

use std::sync::Arc;

pub(crate) use component::PlainComponent;
pub(crate) use tasks::PlainTasks;
use wasmtime::{
    Caller, Config, Enabled, Engine, Extern, Instance, InstanceAllocationStrategy, InstancePre,
    Linker, Module, ModuleExport, PoolingAllocationConfig, Result, Store, TypedFunc, bail,
    format_err,
};

/// How the baseline allocates instances.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pool {
    /// As fast as possible: pages stay resident, the kernel finds the dirty ones (`PAGEMAP_SCAN`,
    /// if it is available), and nothing is prepared for concurrent components.
    Best,
    /// The same, prepared for concurrent components.
    BestConcurrent,
    /// With the defaults of Wasmtime's pool.
    Default,
}

/// Memory that stays resident in a slot, in bytes: more than these guests touch.
const KEEP_RESIDENT_BYTES: usize = 4 << 20;

fn engine(pool: Pool) -> Result<Engine> {
    let mut config = Config::new();
    let mut pooling = PoolingAllocationConfig::new();
    config.concurrency_support(matches!(pool, Pool::BestConcurrent));
    if let Pool::Best | Pool::BestConcurrent = pool {
        pooling
            .pagemap_scan(Enabled::Auto)
            .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
            .table_keep_resident(KEEP_RESIDENT_BYTES);
    }
    // Guests that could not be interrupted would execute faster, and be comparable to nothing.
    config
        .epoch_interruption(true)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pooling));
    Engine::new(&config)
}

/// A core module, compiled and linked.
pub(crate) struct Plain {
    engine: Engine,
    pre: InstancePre<State>,
    run: ModuleExport,
    memory: Arc<ModuleExport>,
}

/// The state that the host functions of one dispatch share.
struct State {
    memory: Arc<ModuleExport>,
    result: Vec<u8>,
}

impl Plain {
    #[allow(clippy::disallowed_methods, reason = "it is Wasmtime without a host")]
    pub(crate) fn new(guest: &str, pool: Pool) -> Result<Self> {
        let engine = engine(pool)?;
        let module = Module::new(&engine, guest)?;
        let export = |name| {
            module.get_export_index(name).ok_or_else(|| format_err!("the guest exports no {name}"))
        };
        let (run, memory) = (export("run")?, Arc::new(export("memory")?));
        let mut linker = Linker::new(&engine);
        linker
            .func_wrap("env", "host_get_context", |_: i32, _: i32| 0)?
            .func_wrap("env", "host_should_stop", || 0)?
            .func_wrap("env", "host_set_result", set_result)?;
        let pre = linker.instantiate_pre(&module)?;
        Ok(Self { engine, pre, run, memory })
    }

    /// Executes the guest on an instance of its own, and returns its result.
    pub(crate) fn dispatch(&self) -> Result<Vec<u8>> {
        let mut store = self.store();
        let instance = self.pre.instantiate(&mut store)?;
        self.handler(&mut store, instance)?.call(&mut store, (0, 0))?;
        Ok(store.into_data().result)
    }

    /// Executes the guest on a stack of its own, so that it could wait, and returns its result.
    pub(crate) async fn dispatch_async(&self) -> Result<Vec<u8>> {
        let mut store = self.store();
        let instance = self.pre.instantiate_async(&mut store).await?;
        self.handler(&mut store, instance)?.call_async(&mut store, (0, 0)).await?;
        Ok(store.into_data().result)
    }

    fn store(&self) -> Store<State> {
        let state = State { memory: Arc::clone(&self.memory), result: Vec::new() };
        let mut store = Store::new(&self.engine, state);
        store.set_epoch_deadline(1);
        store
    }

    fn handler(
        &self,
        store: &mut Store<State>,
        instance: Instance,
    ) -> Result<TypedFunc<(i32, i32), i32>> {
        let run = instance.get_module_export(&mut *store, &self.run).and_then(Extern::into_func);
        run.ok_or_else(|| format_err!("`run` is no function"))?.typed(store)
    }
}

#[allow(clippy::disallowed_methods, reason = "it is Wasmtime without a host")]
fn set_result(mut caller: Caller<'_, State>, ptr: u32, len: u32) -> Result<()> {
    let memory = Arc::clone(&caller.data().memory);
    let Some(Extern::Memory(memory)) = caller.get_module_export(&memory) else {
        bail!("`memory` is no memory");
    };
    let (memory, state) = memory.data_and_store_mut(&mut caller);
    let end = (ptr as usize).saturating_add(len as usize);
    let bytes = memory.get(ptr as usize..end);
    let bytes = bytes.ok_or_else(|| format_err!("the result lies outside of the memory"))?;
    state.result = str::from_utf8(bytes)?.as_bytes().to_vec();
    Ok(())
}
