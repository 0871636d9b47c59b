//! Configures Wasmtime: the engine, its pool, and the linkers through which the guests of that engine
//! see the host.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use sandglass_model::Allocation;
use wasmtime::{
    Collector, Config, Enabled, Engine, EngineWeak, ExternType, InstanceAllocationStrategy, Linker,
    PoolingAllocationConfig, Result, Store, Strategy, WasmBacktraceDetails, component,
};

use crate::abi;
use crate::abi::node_pack::PairForm;
use crate::host_function::{HostFunction, Linked, Registry, Signature};
use crate::mappings;
use crate::module::Code;
use crate::store::RunStore;
use sandglass_supervisor::functions::Functions;
use sandglass_supervisor::settings::Settings;
use sandglass_supervisor::settings::{MAX_FRAMES, MAX_TABLE_ELEMENTS};
use sandglass_supervisor::ticker::Epoch;

/// Stack for a guest's own frames, in bytes: Wasmtime's default, with which toolchains are tested.
const WASM_STACK_BYTES: usize = 512 << 10;

/// The whole stack of a handler run, with the host functions that it calls, in bytes: enough for an
/// HTTP client in a debug build. Only touched pages are resident.
const RUN_STACK_BYTES: usize = 2 << 20;

/// What stays resident in a slot between two handler runs, in bytes: more than a small handler
/// touches, so that returning pages to the system does not dominate a dispatch.
const KEEP_RESIDENT_BYTES: usize = 4 << 20;

/// Linear memories of one guest. A core module has one, and a heap for exceptions if it throws any. A
/// component may consist of several modules.
const MAX_MEMORIES: u32 = 2;

/// Core modules of one component: toolchains make four, or a few dozen with shared libraries. An
/// instance that is not used costs nothing.
const MAX_CORE_INSTANCES: u32 = 64;

/// Tables of one guest: toolchains make one, hand-written modules a few.
pub(crate) const MAX_TABLES: u32 = 4;

/// Whether an engine counts fuel. Counting slows guest code down, so only guests with a fuel limit pay
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Metering {
    Unmetered,
    Fuel,
}

/// Whether guests of an engine can have several calls in flight, as asynchronous components do. It
/// makes every call of a component slower, so other guests have an engine without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Concurrency {
    OneCall,
    SeveralCalls,
}

impl Concurrency {
    /// Stacks of a slot in a pool. With several calls, a task of the guest may wait on one while
    /// another one runs; a guest of several component instances, each of which can have a task that
    /// waits, is executed on demand.
    pub(crate) const fn stacks_per_slot(self) -> u32 {
        match self {
            Self::OneCall => 1,
            Self::SeveralCalls => 2,
        }
    }
}

/// Which of Wasmtime's compilers makes the code of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tier {
    /// Cranelift.
    Optimizing,
    /// Winch, which compiles in one pass, several times as fast. It lacks exceptions and tail calls.
    Baseline,
}

/// What code is compiled for: the settings of an engine that code depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Target {
    pub(crate) metering: Metering,
    pub(crate) concurrency: Concurrency,
    pub(crate) tier: Tier,
}

/// Which of a host's engines. A module is executed only by the engine that it was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EngineKind {
    pub(crate) target: Target,
    pub(crate) allocation: Allocation,
}

impl EngineKind {
    /// The engine of most guests.
    pub(crate) const USUAL: Self = Self {
        target: Target {
            metering: Metering::Unmetered,
            concurrency: Concurrency::OneCall,
            tier: Tier::Optimizing,
        },
        allocation: Allocation::Pooled,
    };
}

/// One engine and everything that its guests can import.
pub(crate) struct Sandbox {
    pub(crate) kind: EngineKind,
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<RunStore>,
    pub(crate) functions: Arc<Functions>,
    pub(crate) component_linker: component::Linker<RunStore>,
    pub(crate) component_functions: Arc<Functions>,
    /// What packs of OpenWOP nodes import. Each pack has a linker of its own, because functions that
    /// return pairs have two forms.
    pub(crate) pack_functions: Arc<Functions>,
    /// What core modules can import, by module and name, with its type.
    pub(crate) imports: BTreeMap<(String, String), ExternType>,
    /// The embedder's own functions.
    embedders: Vec<Arc<HostFunction>>,
    /// Those that components can import.
    pub(crate) embedders_linked: Vec<Arc<Linked>>,
    /// Those of its pool.
    _mappings: Option<mappings::Reserved>,
}

impl Sandbox {
    pub(crate) fn new(settings: &Settings, kind: EngineKind, registry: &Registry) -> Result<Self> {
        let mappings = match kind.allocation {
            Allocation::Pooled => {
                let stacks = kind.target.concurrency.stacks_per_slot();
                Some(mappings::reserve_for_pool(settings.slots(), stacks)?)
            }
            Allocation::OnDemand => None,
        };
        let engine = Engine::new(&config(settings, kind))?;
        let mut linker = Linker::new(&engine);
        let mut functions = Functions::default();
        abi::env::link(&mut linker, &mut functions)?;
        abi::wasi::preview1::link(&mut linker, &mut functions)?;
        abi::embedder::link(&mut linker, &mut functions, registry)?;
        let imports = known_imports(&engine, &linker);
        let mut component_linker = component::Linker::new(&engine);
        let mut component_functions = Functions::default();
        abi::wasi::link(&mut component_linker, &mut component_functions)?;
        abi::world::link(&mut component_linker, &mut component_functions)?;
        if kind.target.concurrency == Concurrency::SeveralCalls {
            abi::concurrent::link(&mut component_linker, &mut component_functions)?;
        }
        let embedders_linked = abi::embedder::link_components(
            &mut component_linker,
            &mut component_functions,
            registry,
        )?;
        let mut pack_functions = Functions::default();
        abi::node_pack::link(&mut Linker::new(&engine), &mut pack_functions, |_| PairForm::Two)?;
        Ok(Self {
            kind,
            engine,
            linker,
            functions: Arc::new(functions),
            component_linker,
            component_functions: Arc::new(component_functions),
            pack_functions: Arc::new(pack_functions),
            imports,
            embedders: registry.functions().to_vec(),
            embedders_linked,
            _mappings: mappings,
        })
    }

    /// The host functions that a guest can call.
    pub(crate) fn functions_of(&self, code: &Code) -> &Arc<Functions> {
        match code {
            Code::Module(_) => &self.functions,
            Code::Component(_) => &self.component_functions,
            Code::NodePack(_) => &self.pack_functions,
        }
    }

    /// The name, as manifests have it, of the embedder's own function that core modules import as
    /// `name` from `module`; `None` if there is none.
    pub(crate) fn embedders_function(&self, module: &str, name: &str) -> Option<String> {
        let mut all = self.embedders.iter().map(|function| &function.signature);
        all.find(|one| one.interface == module && one.name == name).map(Signature::full_name)
    }

    /// As [`Sandbox::embedders_function`], for components, whose linker matches versions.
    pub(crate) fn embedders_component_function(
        &self,
        interface: &str,
        name: &str,
    ) -> Option<String> {
        let mut all = self.embedders.iter().map(|function| &function.signature);
        all.find(|one| one.unversioned() == interface && one.name == name).map(Signature::full_name)
    }

    pub(crate) fn epoch(&self) -> Box<dyn Epoch> {
        Box::new(WeakEpoch(self.engine.weak()))
    }
}

/// The types of what a linker has. It needs a store to look them up, in which nothing runs.
fn known_imports(
    engine: &Engine,
    linker: &Linker<RunStore>,
) -> BTreeMap<(String, String), ExternType> {
    let mut empty: Store<RunStore> = Store::new(engine, RunStore::idle());
    let known: Vec<_> = linker
        .iter(&mut empty)
        .map(|(module, name, item)| ((module.to_owned(), name.to_owned()), item))
        .collect();
    known.into_iter().map(|(key, item)| (key, item.ty(&empty))).collect()
}

/// An engine that only compiles, for any host's engine with the same target: how instances are
/// allocated makes no difference to code.
pub(crate) fn engine_to_compile(target: Target) -> Result<Engine> {
    let kind = EngineKind { target, allocation: Allocation::OnDemand };
    Engine::new(&config(&Settings::default(), kind))
}

fn config(settings: &Settings, kind: EngineKind) -> Config {
    let frames = settings.backtrace_frames.min(MAX_FRAMES) as usize;
    let (strategy, has_all) = match kind.target.tier {
        Tier::Optimizing => (Strategy::Cranelift, true),
        Tier::Baseline => (Strategy::Winch, false),
    };
    let mut config = Config::new();
    config
        .strategy(strategy)
        .epoch_interruption(true)
        .consume_fuel(kind.target.metering == Metering::Fuel)
        .wasm_exceptions(has_all)
        .wasm_tail_call(has_all)
        .wasm_simd(true)
        .wasm_bulk_memory(true)
        .wasm_multi_value(true)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_gc(false)
        .wasm_function_references(false)
        .collector(Collector::Null)
        .concurrency_support(kind.target.concurrency == Concurrency::SeveralCalls)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(RUN_STACK_BYTES)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_backtrace_max_frames(NonZeroUsize::new(frames))
        .allocation_strategy(match kind.allocation {
            Allocation::Pooled => {
                InstanceAllocationStrategy::Pooling(pool(settings, kind.target.concurrency))
            }
            Allocation::OnDemand => InstanceAllocationStrategy::OnDemand,
        });
    config
}

/// Size of the largest linear memory that a slot of the pool has, in bytes.
pub(crate) fn slot_memory_bytes(settings: &Settings) -> u64 {
    settings.slot_memory_bytes.min(settings.max_memory_bytes)
}

fn pool(settings: &Settings, concurrency: Concurrency) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    let slots = settings.slots();
    let max_memory = usize::try_from(slot_memory_bytes(settings)).unwrap_or(usize::MAX);
    pool.total_core_instances(slots.saturating_mul(MAX_CORE_INSTANCES))
        .total_component_instances(slots)
        .max_core_instances_per_component(MAX_CORE_INSTANCES)
        .max_memories_per_component(MAX_MEMORIES)
        .max_tables_per_component(MAX_TABLES)
        .total_memories(slots.saturating_mul(MAX_MEMORIES))
        .total_tables(slots.saturating_mul(MAX_TABLES))
        .total_stacks(slots.saturating_mul(concurrency.stacks_per_slot()))
        .total_gc_heaps(slots)
        .max_memory_size(max_memory)
        .max_tables_per_module(MAX_TABLES)
        .table_elements(MAX_TABLE_ELEMENTS as usize)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_RESIDENT_BYTES)
        .pagemap_scan(if settings.kernel_features.pagemap_scan {
            Enabled::Auto
        } else {
            Enabled::No
        });
    pool
}

/// Whether slots of the pool are cleaned by the pages that guests have touched.
pub(crate) fn scans_pages(settings: &Settings) -> bool {
    settings.kernel_features.pagemap_scan && PoolingAllocationConfig::is_pagemap_scan_available()
}

struct WeakEpoch(EngineWeak);

impl Epoch for WeakEpoch {
    fn increment(&self) -> bool {
        match self.0.upgrade() {
            Some(engine) => {
                engine.increment_epoch();
                true
            }
            None => false,
        }
    }
}
