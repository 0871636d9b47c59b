//! Modules: from bytes of unknown origin to something that can be instantiated, or to a rejection that
//! states what is wrong with them.

mod cache;
pub(crate) mod component;
mod context_page;
pub(crate) mod core_module;
mod in_progress;
pub(crate) mod node_pack;
mod source;
pub(crate) mod wit;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use sandglass_model::{Allocation, GuestLimits, ModuleHash, Rejection, RejectionKind};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::DispatchMetrics;

use crate::abi::core_module::PAGE_BYTES;
use crate::compiled_folder::Entry;
use crate::detection;
use crate::host::brief::Brief;
use crate::mappings;
use crate::sandbox::{Concurrency, EngineKind, MAX_TABLES, Sandbox, Target, Tier};
use crate::structure::{self, Bodies, Checks, Demands, InstanceState};
use crate::symbols::{self, Symbols};
use sandglass_supervisor::manifest::{Abi, Manifest};
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::settings::MAX_TABLE_ELEMENTS;
use sandglass_supervisor::text::printable;

pub(crate) use cache::{Key, ModuleCache};
use component::Component;
use core_module::CoreModule;
pub(crate) use in_progress::{Compilation, CompileResult, Found, InProgress};
use node_pack::NodePack;
use source::Source;
pub(crate) use source::{CompiledBefore, Compiling, compile_here};

/// Longest name that is compared with others, in characters: comparing costs the square of it.
const NAME_MAX_CHARS: usize = 128;

/// How similar a known name must be to be suggested (Jaro-Winkler, 1 is equal): misspellings score
/// above this, unrelated names below.
const SIMILAR: f64 = 0.8;

/// A module that is compiled, linked, and known to fit the contract.
pub(crate) struct Compiled {
    pub(crate) hash: ModuleHash,
    pub(crate) code: Code,
    /// What it was compiled for, and is executed in.
    pub(crate) sandbox: Arc<Sandbox>,
    /// Resolves the frames of its guests.
    pub(crate) symbols: Arc<Symbols>,
    pub(crate) needs: Needs,
    /// How many stacks one handler run may have at the same time.
    stacks: u64,
    /// What it occupies before its code runs.
    pub(crate) state: InstanceState,
    /// Size of its machine code and the data that belongs to it, in bytes.
    pub(crate) code_bytes: u64,
    /// How many of its last handlers were brief.
    pub(crate) brief: Brief,
    /// Metrics of dispatches, by entity type and action.
    announced: RwLock<Announced>,
}

type Announced = BTreeMap<String, BTreeMap<String, DispatchMetrics>>;

/// The code of a guest.
pub(crate) enum Code {
    Module(CoreModule),
    Component(Component),
    NodePack(NodePack),
}

impl Code {
    fn bytes(&self) -> u64 {
        let image = match self {
            Self::Module(module) => module.pre.module().image_range(),
            Self::Component(component) => component.pre.instance_pre().component().image_range(),
            Self::NodePack(pack) => pack.pre.module().image_range(),
        };
        image.end.addr().saturating_sub(image.start.addr()) as u64
    }

    /// The contract that it is written against.
    pub(crate) const fn abi(&self) -> Abi {
        match self {
            Self::Module(_) => Abi::Core,
            Self::Component(_) => Abi::Component,
            Self::NodePack(_) => Abi::NodePack,
        }
    }
}

/// What a module needs before its code runs, and where it can wait.
#[derive(Default)]
pub(crate) struct Needs {
    /// What the host adds to its memory for its context at least, in bytes.
    pub(crate) context_bytes: u64,
    /// Count of linear memories.
    pub(crate) memories: u64,
    /// Elements of its largest table.
    pub(crate) initial_table_elements: u64,
    /// Names of the host functions that it imports and can wait in.
    pub(crate) waits_in: Vec<String>,
    /// The embedder's own functions that it imports, as manifests name them.
    pub(crate) embedders: Vec<String>,
}

impl Needs {
    /// Those of a core module that imports nothing and gets no context.
    fn of_core_module(module: &wasmtime::Module) -> Self {
        let required = module.resources_required();
        Self {
            memories: required.num_memories.into(),
            initial_table_elements: required.max_initial_table_size.unwrap_or(0),
            ..Self::default()
        }
    }
}

/// Pairs of entity type and action for which a module is announced; metrics do not distinguish more
/// of them anyway.
const MAX_ANNOUNCED: usize = 1000;

impl Compiled {
    /// Reserves the memory mappings of one handler run; `None` if the process has too few left.
    pub(crate) fn reserve_mappings(&self) -> Option<mappings::Reserved> {
        match self.sandbox.kind.allocation {
            Allocation::Pooled => mappings::reserve_for_run(self.needs.memories),
            Allocation::OnDemand => {
                mappings::reserve_for_run_on_demand(self.needs.memories, self.stacks)
            }
        }
    }

    /// The metrics of its dispatches. The counters of its handlers are exported before the first
    /// handler ends, because a counter that appears with its first event shows no increase.
    pub(crate) fn announce(
        &self,
        metrics: &Metrics,
        entity_type: &str,
        action: &str,
    ) -> DispatchMetrics {
        if !metrics.is_enabled() {
            return DispatchMetrics::default();
        }
        let of = |announced: &Announced| announced.get(entity_type)?.get(action).cloned();
        let known = of(&self.announced.read().unwrap_or_else(PoisonError::into_inner));
        if let Some(known) = known {
            return known;
        }
        let mut announced = self.announced.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = of(&announced) {
            return known;
        }
        let dispatches = metrics.dispatch_metrics(entity_type, action);
        if announced.values().map(BTreeMap::len).sum::<usize>() < MAX_ANNOUNCED {
            let spans: Vec<&str> = self.needs.waits_in.iter().map(String::as_str).collect();
            metrics.expect_dispatches(entity_type, action, &spans);
            let actions = announced.entry(entity_type.to_owned()).or_default();
            actions.insert(action.to_owned(), dispatches.clone());
        }
        dispatches
    }
}

/// The kind of module that bytes are, by their first bytes or, in text, their first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    CoreModule,
    Component,
}

impl Kind {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        if detection::is_component(bytes) { Self::Component } else { Self::CoreModule }
    }

    /// The largest one that `limits` allow, in bytes.
    pub(crate) fn allowed_bytes(self, limits: &GuestLimits) -> u64 {
        match self {
            Self::CoreModule => limits.module_bytes,
            Self::Component => limits.component_bytes,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::CoreModule => "module",
            Self::Component => "component",
        })
    }
}

/// Why bytes are not compiled.
pub(crate) enum NotCompiled {
    /// This host does not run them.
    Refused(Rejection),
    /// They need more than a slot of this engine's pool has. An engine without a pool may run the code.
    TooLargeForSlot(Rejection, CompiledBefore),
}

impl NotCompiled {
    pub(crate) fn rejection(self) -> Rejection {
        match self {
            Self::Refused(rejection) | Self::TooLargeForSlot(rejection, _) => rejection,
        }
    }
}

impl From<Rejection> for NotCompiled {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

/// Compiles `bytes`, text or binary, with their hash, for `sandbox`, or finds their code.
///
/// # Errors
/// This host does not run them, or they are too large for a slot. The rejection states what is wrong,
/// where, and what to do.
pub(crate) fn compile(
    sandbox: Arc<Sandbox>,
    (hash, bytes): (ModuleHash, &[u8]),
    compiling: Compiling<'_>,
) -> Result<Compiled, NotCompiled> {
    let mut binary = structure::to_binary(bytes)?;
    let kind = Kind::of(&binary);
    let entry = Entry::of(&sandbox.engine, hash, kind);
    let kept = compiling.find(&entry);
    // Code is kept only after the bodies of its functions were checked.
    let bodies = if kept.is_some() { Bodies::Skipped } else { Bodies::Checked };
    let Checks { state, most_bulk } = structure::check(&binary, bodies)?;
    if sandbox.kind.target.tier == Tier::Baseline && most_bulk > BASELINE_BULK_MAX {
        return Err(too_much_in_bulk(most_bulk).into());
    }
    let symbols = Symbols::of(hash, &binary);
    // What is compiled, and what core modules have at their first page, differs from the bytes.
    let has_context_page = if kept.is_none() || kind == Kind::CoreModule {
        let binary = binary.to_mut();
        symbols::hide_names(binary);
        add_context_page(binary)
    } else {
        false
    };
    let (engine, target) = (&sandbox.engine, sandbox.kind.target);
    let source = Source { engine, target, entry, binary: &binary, kept, compiling };
    let (code, needs) = match kind {
        Kind::CoreModule if node_pack::is_node_pack(&binary) => {
            let (pack, needs) = node_pack::compile(&source)?;
            (Code::NodePack(pack), needs)
        }
        Kind::CoreModule => {
            let (module, needs) = core_module::compile(&sandbox, &source, has_context_page)?;
            (Code::Module(module), needs)
        }
        Kind::Component => {
            let (component, needs) = component::compile(&sandbox, &source)?;
            (Code::Component(component), needs)
        }
    };
    let stacks = match code {
        Code::Module(_) => 1,
        // The host calls its allocator inside of the host calls that it makes.
        Code::NodePack(_) => 2,
        Code::Component(_) => structure::demands(&binary).stacks,
    };
    if stacks > STACKS_MAX {
        return Err(too_many_stacks(stacks).into());
    }
    Ok(Compiled {
        hash,
        stacks,
        code_bytes: code.bytes(),
        code,
        sandbox,
        symbols,
        needs,
        state,
        brief: Brief::default(),
        announced: RwLock::default(),
    })
}

/// Adds the page for its context to the memory of `binary`, if it is a core module to which the host
/// can add it, and returns whether it did.
fn add_context_page(binary: &mut [u8]) -> bool {
    Kind::of(binary) == Kind::CoreModule
        && !node_pack::is_node_pack(binary)
        && context_page::add(binary)
}

/// Bulk instructions that one function of baseline code may have. That code is interrupted at loops and at
/// the entries of functions, and not before each bulk instruction, as optimized code is. So this many can be
/// executed after the deadline, each on at most [`BASELINE_MEMORY_BYTES`]: a second altogether. The
/// interpreter of JavaScript has 126 in its largest function.
const BASELINE_BULK_MAX: u64 = 128;

/// The largest memory limit of guests with baseline code, in bytes.
pub(crate) const BASELINE_MEMORY_BYTES: u64 = 64 << 20;

fn too_much_in_bulk(most_bulk: u64) -> Rejection {
    rejection(
        RejectionKind::UnsupportedModule,
        format!(
            "a function has {most_bulk} bulk instructions, and baseline code may have \
             {BASELINE_BULK_MAX}"
        ),
    )
}

/// Most stacks of one handler run: more than components of toolchains have instances, and 128 MiB if a
/// guest fills all of them, which no limit counts.
const STACKS_MAX: u64 = 256;

fn too_many_stacks(stacks: u64) -> Rejection {
    rejection(
        RejectionKind::ModuleTooLarge,
        format!(
            "component has {} instances of core modules whose tasks may wait at the same time, and {} \
             are allowed; compose it of fewer components",
            stacks.saturating_sub(1),
            STACKS_MAX - 1
        ),
    )
}

/// The engine for `bytes`, where `kind` is what their manifest requires. It has no pool if no slot can
/// execute them whose memories have `slot_memory_bytes`: a pack of nodes, whose handler runs need two
/// stacks where a slot has one; a core module that is larger; a component that needs more stacks.
pub(crate) fn engine_for(kind: EngineKind, bytes: &[u8], slot_memory_bytes: u64) -> EngineKind {
    let Ok(binary) = structure::to_binary(bytes) else { return kind };
    let (concurrency, fits) = match Kind::of(&binary) {
        Kind::CoreModule => {
            let mut binary = binary.into_owned();
            add_context_page(&mut binary);
            let fits = !node_pack::is_node_pack(&binary)
                && !is_too_large_for_slot(&binary, slot_memory_bytes);
            (Concurrency::OneCall, fits)
        }
        Kind::Component => {
            let Demands { concurrency, stacks } = structure::demands(&binary);
            (concurrency, stacks <= concurrency.stacks_per_slot().into())
        }
    };
    EngineKind {
        target: Target { concurrency, ..kind.target },
        allocation: if fits { kind.allocation } else { Allocation::OnDemand },
    }
}

/// Whether a core module declares more than a slot of a pool has whose memories have
/// `slot_memory_bytes`, so that it is not compiled for a slot in vain. False if it cannot be parsed.
/// For a component, only its compiled form states what it instantiates.
fn is_too_large_for_slot(binary: &[u8], slot_memory_bytes: u64) -> bool {
    let (mut tables, mut largest_table, mut largest_memory) = (0_u32, 0, 0);
    for payload in wasmparser::Parser::new(0).parse_all(binary).filter_map(Result::ok) {
        match payload {
            wasmparser::Payload::TableSection(section) => {
                for table in section.into_iter().filter_map(Result::ok) {
                    tables = tables.saturating_add(1);
                    largest_table = largest_table.max(table.ty.initial);
                }
            }
            wasmparser::Payload::MemorySection(section) => {
                for memory in section.into_iter().filter_map(Result::ok) {
                    let bytes = memory.initial.saturating_mul(PAGE_BYTES);
                    largest_memory = largest_memory.max(bytes);
                }
            }
            _ => {}
        }
    }
    tables > MAX_TABLES
        || largest_table > u64::from(MAX_TABLE_ELEMENTS)
        || largest_memory > slot_memory_bytes
}

/// The rejection of a module that its engine has no room for.
fn needs_too_much(kind: Kind, error: &wasmtime::Error) -> Rejection {
    rejection(
        RejectionKind::NeedsTooMuch,
        format!("{kind} needs more than a guest of this host can have: {error:#}"),
    )
}

/// The one of `known` that `name` may be a misspelling of.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name: String = name.chars().take(NAME_MAX_CHARS).collect::<String>().to_lowercase();
    known
        .filter(|known| known.len() <= NAME_MAX_CHARS)
        .map(|known| (strsim::jaro_winkler(&name, &known.to_lowercase()), known))
        .filter(|(likeness, _)| *likeness >= SIMILAR)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, known)| known)
}

/// The part of a message that names the export most like `name`, if there is one.
fn nearest_export<'a>(name: &str, exports: impl Iterator<Item = &'a str>) -> String {
    nearest(name, exports)
        .map(|near| format!(" (the nearest that it exports is `{}`)", printable(near)))
        .unwrap_or_default()
}

/// Checks that `manifest` grants the embedder's own functions that `compiled` imports.
pub(crate) fn check_functions(compiled: &Compiled, manifest: &Manifest) -> Result<(), Rejection> {
    match compiled.needs.embedders.iter().find(|name| !manifest.functions.contains(*name)) {
        Some(name) => Err(rejection(
            RejectionKind::MissingGrant,
            format!("module imports `{name}`, which its manifest does not grant; name it there"),
        )),
        None => Ok(()),
    }
}

/// Checks what a manifest grants against what the module needs and the host has.
pub(crate) fn check_limits(
    compiled: &Compiled,
    limits: &GuestLimits,
    host_max_memory_bytes: u64,
) -> Result<(), Rejection> {
    check_grants(limits, host_max_memory_bytes)?;
    check_tables(compiled, limits)?;
    check_memory(compiled, limits, host_max_memory_bytes)
}

fn check_grants(limits: &GuestLimits, host_max_memory_bytes: u64) -> Result<(), Rejection> {
    let what = if limits.memory_bytes > host_max_memory_bytes {
        format!(
            "{} bytes of memory, and this host gives at most {host_max_memory_bytes}",
            limits.memory_bytes
        )
    } else if limits.table_elements > u64::from(MAX_TABLE_ELEMENTS) {
        format!(
            "tables of {} elements, and a host gives at most {MAX_TABLE_ELEMENTS}",
            limits.table_elements
        )
    } else {
        return Ok(());
    };
    Err(rejection(RejectionKind::InvalidDispatch, format!("integration is granted {what}")))
}

fn check_tables(compiled: &Compiled, limits: &GuestLimits) -> Result<(), Rejection> {
    let (needed, granted) = (compiled.needs.initial_table_elements, limits.table_elements);
    if needed <= granted {
        return Ok(());
    }
    let remedy = remedy(granted < u64::from(MAX_TABLE_ELEMENTS));
    let message = format!(
        "module begins with a table of {needed} elements, and it may have {granted}; {remedy}"
    );
    Err(rejection(RejectionKind::NeedsTooMuch, message))
}

fn check_memory(
    compiled: &Compiled,
    limits: &GuestLimits,
    host_max_memory_bytes: u64,
) -> Result<(), Rejection> {
    let (memory, charged) = (compiled.state.memory_bytes, compiled.state.charged_bytes());
    let context = compiled.needs.context_bytes;
    let granted = limits.memory_bytes;
    if charged.saturating_add(context) <= granted {
        return Ok(());
    }
    let mut needs = format!("module begins with {memory} bytes of memory");
    let other = charged.saturating_sub(memory);
    if other > 0 {
        needs += &format!(
            ", {other} more for its tables, globals, segments and instances beyond the first 1048576"
        );
    }
    if context > 0 {
        needs += &format!(" and needs {context} more for its context");
    }
    let remedy = remedy(granted < host_max_memory_bytes);
    let message = format!("{needs}, and it may have {granted}; {remedy}");
    Err(rejection(RejectionKind::NeedsTooMuch, message))
}

/// What an operator can do about a grant that is too small.
const fn remedy(can_be_granted: bool) -> &'static str {
    if can_be_granted { "grant it more" } else { "no host grants more, so make it smaller" }
}

/// What tests need to compile modules.
#[cfg(test)]
mod testing {
    use super::*;
    use crate::compiling::Compiler;
    use crate::host_function::{BlockingCalls, Registry};
    use crate::sandbox::EngineKind;
    use sandglass_supervisor::settings::Settings;
    use std::sync::atomic::AtomicBool;

    pub(super) fn sandbox(settings: &Settings) -> Arc<Sandbox> {
        sandbox_of(settings, EngineKind::USUAL)
    }

    pub(super) fn sandbox_of(settings: &Settings, kind: EngineKind) -> Arc<Sandbox> {
        let blocking = Arc::new(BlockingCalls::new(1, Metrics::disabled()));
        let registry = Registry::new(Vec::new(), blocking).expect("no functions");
        Arc::new(Sandbox::new(settings, kind, &registry).expect("a sandbox"))
    }

    pub(super) fn compile(sandbox: &Arc<Sandbox>, bytes: &[u8]) -> Result<Compiled, NotCompiled> {
        let compiling = Compiling {
            compiler: &Compiler::InProcess,
            closed: &AtomicBool::new(false),
            compiled_before: None,
            folder: None,
            metrics: &Metrics::disabled(),
            clock: &sandglass_model::SystemClock::new(),
        };
        super::compile(Arc::clone(sandbox), (ModuleHash::of(bytes), bytes), compiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox;
    use sandglass_supervisor::settings::Settings;

    #[test]
    fn a_module_that_is_too_large_for_a_slot_is_recognized_before_it_is_compiled() {
        let settings = Settings { max_runs: 1, slot_memory_bytes: 1 << 20, ..Settings::default() };
        let sandbox = testing::sandbox(&settings);
        let tables = |count| "(table 1 funcref)".repeat(count);
        for (rest, too_large) in [
            // With the page for the context.
            ("(memory (export \"memory\") 15)".to_owned(), false),
            ("(memory (export \"memory\") 16)".to_owned(), true),
            ("(memory (export \"memory\") 1) (table 100000 funcref)".to_owned(), false),
            ("(memory (export \"memory\") 1) (table 100001 funcref)".to_owned(), true),
            (format!("(memory (export \"memory\") 1) {}", tables(4)), false),
            (format!("(memory (export \"memory\") 1) {}", tables(5)), true),
        ] {
            let guest = format!(
                "(module {rest} (func (export \"run\") (param i32 i32) (result i32) i32.const 0))"
            );
            let slot_memory_bytes = sandbox::slot_memory_bytes(&settings);
            let engine = engine_for(EngineKind::USUAL, guest.as_bytes(), slot_memory_bytes);
            assert_eq!(engine.allocation == Allocation::OnDemand, too_large, "{rest}");
            assert_eq!(engine.target, EngineKind::USUAL.target);
            let compiled = testing::compile(&sandbox, guest.as_bytes());
            let found = matches!(compiled, Err(NotCompiled::TooLargeForSlot(..)));
            assert_eq!(found, too_large, "the compiler agrees: {rest}");
        }
        let invalid = engine_for(EngineKind::USUAL, b"(module", 1);
        assert_eq!(invalid, EngineKind::USUAL, "the compiler rejects it");
    }

    #[test]
    fn components_with_tasks_streams_or_current_imports_get_the_engine_for_several_calls() {
        const NESTED: &str = "(component $c (core module $m) (core instance (instantiate $m)))
            (instance (instantiate $c)) (instance (instantiate $c))";
        let several = Concurrency::SeveralCalls;
        let (pooled, on_demand) = (Allocation::Pooled, Allocation::OnDemand);
        for (inside, concurrency, allocation) in [
            ("", Concurrency::OneCall, pooled),
            (NESTED, Concurrency::OneCall, pooled),
            (
                "(import \"wasi:clocks/system-clock@0.2.9\" (instance))",
                Concurrency::OneCall,
                pooled,
            ),
            ("(import \"wasi:clocks/system-clock@0.3.0\" (instance))", several, pooled),
            (
                "(import \"sandglass:integration/http@0.1.1\" (instance))",
                Concurrency::OneCall,
                pooled,
            ),
            ("(import \"sandglass:integration/http@0.2.0\" (instance))", several, pooled),
            ("(import \"f\" (func async))", several, pooled),
            ("(import \"i\" (instance (export \"f\" (func async (result u8)))))", several, pooled),
            ("(type (stream u8))", several, pooled),
            ("(type (list (future string)))", several, pooled),
            ("(core func (canon waitable-set.new))", several, pooled),
            ("(core func (canon backpressure.inc))", several, pooled),
            (&format!("(type (stream u8)) {NESTED}"), several, on_demand),
        ] {
            let component = format!("(component {inside})");
            let engine = engine_for(EngineKind::USUAL, component.as_bytes(), 1 << 20);
            let Target { concurrency: found, .. } = engine.target;
            assert_eq!((found, engine.allocation), (concurrency, allocation), "{component}");
        }
    }
}
