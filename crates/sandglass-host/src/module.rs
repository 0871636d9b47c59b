//! Modules: from bytes that anybody sent to something that can be run, or to a
//! sentence that says what is wrong with them.

mod cache;
pub(crate) mod component;
pub(crate) mod core_module;
mod in_progress;
pub(crate) mod node_pack;
mod source;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};

use sandglass_model::{Allocation, Clock, GuestLimits, ModuleHash, Rejection, RejectionKind};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::DispatchMetrics;

use crate::abi::core_module::PAGE_BYTES;
use crate::compiled_folder::CompiledFolder;
use crate::compiling::Compiler;
use crate::mappings;
use crate::sandbox::{MAX_TABLES, Sandbox};
use crate::structure::{self, InstanceState};
use crate::symbols::{self, Symbols};
use sandglass_supervisor::manifest::Manifest;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::settings::MAX_TABLE_ELEMENTS;

pub(crate) use cache::{Key, ModuleCache};
use component::Component;
use core_module::CoreModule;
pub(crate) use in_progress::{Boarding, Flights, Made};
use node_pack::NodePack;
use source::Source;
pub(crate) use source::{MadeElsewhere, compile_here};

/// Longest name that is compared with others, in characters.
const NAME_MAX_CHARS: usize = 128;

/// How unlike a known name may be to be suggested (Jaro-Winkler, 1 is equal):
/// misspellings score above this, unrelated names below.
const SIMILAR: f64 = 0.8;

/// A module that is compiled, linked, and known to fit the contract.
pub(crate) struct Compiled {
    pub(crate) hash: ModuleHash,
    pub(crate) code: Code,
    /// What it was compiled for, and runs in.
    pub(crate) sandbox: Arc<Sandbox>,
    /// What resolves the frames of its guests.
    pub(crate) symbols: Arc<Symbols>,
    pub(crate) needs: Needs,
    /// What it occupies before its code runs.
    pub(crate) state: InstanceState,
    /// Size of its machine code and what belongs to that, in bytes.
    pub(crate) code_bytes: u64,
    /// By entity type and action, the metrics of those dispatches for which it is announced.
    announced: RwLock<Announced>,
}

type Announced = BTreeMap<String, BTreeMap<String, DispatchMetrics>>;

/// The kinds of guests.
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

    /// Stacks that a run of it may have at the same time.
    const fn stacks(&self) -> u64 {
        match self {
            Self::Module(_) | Self::Component(_) => 1,
            // The host calls it from inside of what it calls.
            Self::NodePack(_) => 2,
        }
    }
}

/// What a module needs to begin with, and where it can wait.
pub(crate) struct Needs {
    /// What the host adds to its memory for its context, at least, in bytes.
    pub(crate) context_bytes: u64,
    /// How many linear memories it has.
    pub(crate) memories: u64,
    /// Elements of its largest table.
    pub(crate) initial_table_elements: u64,
    /// Names of the host functions that it can wait in.
    pub(crate) waits_in: Vec<String>,
    /// The embedder's own functions that it imports, as manifests name them.
    pub(crate) embedders: Vec<String>,
}

/// Pairs of entity type and action for which a module is announced; more than
/// metrics keep apart anyway.
const MAX_ANNOUNCED: usize = 1000;

impl Compiled {
    /// The memory mappings of one run of it; none, where the process has too few left.
    pub(crate) fn mappings(&self) -> Option<mappings::Held> {
        match self.sandbox.kind.allocation {
            Allocation::Pooled => mappings::of_run(self.needs.memories),
            Allocation::OnDemand => {
                mappings::of_run_on_demand(self.needs.memories, self.code.stacks())
            }
        }
    }

    /// The metrics of dispatches of it. The counters of its handlers are exported before
    /// the first of them ends, so that the first event counts.
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

/// The kind of module that bytes seem to be, before anything is made of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    CoreModule,
    Component,
}

impl Kind {
    /// By the first bytes of a binary, and the first word of a text.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        /// `\0asm`, then the version and layer of a component.
        const COMPONENT: [u8; 8] = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];
        let in_text = || {
            let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_start);
            let mut code = lines.filter(|line| !line.is_empty() && !line.starts_with(b";;"));
            code.next().is_some_and(|line| line.starts_with(b"(component"))
        };
        if bytes.starts_with(&COMPONENT) || in_text() { Self::Component } else { Self::CoreModule }
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
    /// They are no module that this host runs.
    Refused(Rejection),
    /// They are, and need more than a slot of this engine's pool has; what they were
    /// compiled to may do for another engine.
    TooLargeForSlot(Rejection, MadeElsewhere),
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

/// Where code may be already, what compiles it if it is not, and where the compiler's time is
/// counted.
#[derive(Clone, Copy)]
pub(crate) struct Compiling<'a> {
    pub(crate) compiler: &'a Compiler,
    /// Set when the host shuts down.
    pub(crate) closed: &'a AtomicBool,
    /// What an engine made of the same bytes that can't run it.
    pub(crate) made: Option<&'a MadeElsewhere>,
    pub(crate) folder: Option<&'a CompiledFolder>,
    pub(crate) metrics: &'a Metrics,
    pub(crate) clock: &'a dyn Clock,
}

/// Compiles `bytes`, text or binary, for `sandbox`; or finds what was made of them.
///
/// # Errors
/// They are no module that this host runs, or too large for a slot; the rejection says
/// what, where, and what to do.
pub(crate) fn compile(
    sandbox: Arc<Sandbox>,
    bytes: &[u8],
    how: Compiling<'_>,
) -> Result<Compiled, NotCompiled> {
    let Compiling { compiler, closed, made, folder, metrics, clock } = how;
    let mut binary = structure::to_binary(bytes)?.into_owned();
    let structure = structure::check(&binary)?;
    let hash = ModuleHash::of(bytes);
    let symbols = Symbols::of(hash, &binary);
    symbols::hide_names(&mut binary);
    let engine = &sandbox.engine;
    let metering = sandbox.kind.metering;
    let binary = &binary;
    let source =
        Source { engine, metering, compiler, closed, made, folder, hash, binary, metrics, clock };
    let (code, needs) = match Kind::of(binary) {
        Kind::CoreModule if node_pack::is_one(binary) => {
            let (pack, needs) = node_pack::compile(&source)?;
            (Code::NodePack(pack), needs)
        }
        Kind::CoreModule => {
            let (module, needs) = core_module::compile(&sandbox, &source)?;
            (Code::Module(module), needs)
        }
        Kind::Component => {
            let (component, needs) = component::compile(&sandbox, &source)?;
            (Code::Component(component), needs)
        }
    };
    Ok(Compiled {
        hash,
        code_bytes: code.bytes(),
        code,
        sandbox,
        symbols,
        needs,
        state: structure.state,
        announced: RwLock::default(),
    })
}

/// Whether `bytes` are a core module that runs in no slot of a pool whose memories have
/// `slot_memory_bytes`: a pack of nodes, or one that is larger.
pub(crate) fn needs_no_slot(bytes: &[u8], slot_memory_bytes: u64) -> bool {
    let Ok(binary) = structure::to_binary(bytes) else { return false };
    Kind::of(&binary) == Kind::CoreModule
        && (node_pack::is_one(&binary) || is_too_large_for_slot(&binary, slot_memory_bytes))
}

/// Whether `binary`, a core module, is larger than a slot of a pool whose memories
/// have `slot_memory_bytes`: told from what it declares, so that it isn't compiled for a
/// slot in vain. What can't be parsed isn't; nor is a component, of which only its
/// compiled form tells what it instantiates.
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

/// Whether `binary` is valid with every feature that there is.
fn is_valid_somewhere(binary: &[u8]) -> bool {
    wasmparser::Validator::new_with_features(wasmparser::WasmFeatures::all())
        .validate_all(binary)
        .is_ok()
}

/// The one of `known` that `name` may be a misspelling of.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A longer name is nobody's misspelling, and comparing it costs its square.
    let name: String = name.chars().take(NAME_MAX_CHARS).collect::<String>().to_lowercase();
    known
        .filter(|known| known.len() <= NAME_MAX_CHARS)
        .map(|known| (strsim::jaro_winkler(&name, &known.to_lowercase()), known))
        .filter(|(likeness, _)| *likeness >= SIMILAR)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, known)| known)
}

/// Checks that `manifest` grants what `compiled` imports of the embedder's own.
pub(crate) fn check_functions(compiled: &Compiled, manifest: &Manifest) -> Result<(), Rejection> {
    match compiled.needs.embedders.iter().find(|name| !manifest.functions.contains(*name)) {
        Some(name) => Err(rejection(
            RejectionKind::MissingGrant,
            format!("module imports `{name}`, which its manifest doesn't grant; name it there"),
        )),
        None => Ok(()),
    }
}

/// What is to be done where something may have too little.
const fn more(can_be_granted: bool) -> &'static str {
    if can_be_granted { "grant it more" } else { "no host grants more, so make it smaller" }
}

/// Checks what a manifest grants against what the module and the host can bear.
pub(crate) fn check_limits(
    compiled: &Compiled,
    limits: &GuestLimits,
    host_max_memory_bytes: u64,
) -> Result<(), Rejection> {
    if limits.memory_bytes > host_max_memory_bytes {
        return Err(rejection(
            RejectionKind::InvalidDispatch,
            format!(
                "integration is granted {} bytes of memory, and this host gives at most \
                 {host_max_memory_bytes}",
                limits.memory_bytes
            ),
        ));
    }
    if limits.table_elements > u64::from(MAX_TABLE_ELEMENTS) {
        return Err(rejection(
            RejectionKind::InvalidDispatch,
            format!(
                "integration is granted tables of {} elements, and a host gives at most \
                 {MAX_TABLE_ELEMENTS}",
                limits.table_elements
            ),
        ));
    }
    if compiled.needs.initial_table_elements > limits.table_elements {
        return Err(rejection(
            RejectionKind::NeedsTooMuch,
            format!(
                "module begins with a table of {} elements, and it may have {}; {}",
                compiled.needs.initial_table_elements,
                limits.table_elements,
                more(limits.table_elements < u64::from(MAX_TABLE_ELEMENTS)),
            ),
        ));
    }
    let for_context = compiled.needs.context_bytes;
    let begins_with = compiled.state.memory_bytes;
    let charged = compiled.state.charged_bytes();
    if charged.saturating_add(for_context) > limits.memory_bytes {
        let beside = match charged.saturating_sub(begins_with) {
            0 => String::new(),
            beside => {
                format!(
                    ", {beside} more for its tables, globals, segments and instances beyond the \
                     first 1048576"
                )
            }
        };
        let for_context = match for_context {
            0 => String::new(),
            more => format!(" and needs {more} more for its context"),
        };
        return Err(rejection(
            RejectionKind::NeedsTooMuch,
            format!(
                "module begins with {begins_with} bytes of memory{beside}{for_context}, and it may have \
                 {}; {}",
                limits.memory_bytes,
                more(limits.memory_bytes < host_max_memory_bytes),
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_function::{BlockingCalls, Registry};
    use crate::sandbox::{self, EngineKind};
    use sandglass_model::SystemClock;
    use sandglass_supervisor::settings::Settings;

    #[test]
    fn what_is_too_large_for_a_slot_is_told_before_it_is_compiled() {
        let settings = Settings { max_runs: 1, slot_memory_bytes: 1 << 20, ..Settings::default() };
        let blocking = BlockingCalls::new(1, Metrics::disabled());
        let registry = Registry::new(Vec::new(), blocking).expect("no functions");
        let sandbox = Sandbox::new(&settings, EngineKind::USUAL, &registry).expect("a sandbox");
        let sandbox = Arc::new(sandbox);
        for (rest, too_large) in [
            ("(memory (export \"memory\") 16)", false),
            ("(memory (export \"memory\") 17)", true),
            ("(memory (export \"memory\") 1) (table 100000 funcref)", false),
            ("(memory (export \"memory\") 1) (table 100001 funcref)", true),
            (
                "(memory (export \"memory\") 1) (table 1 funcref) (table 1 funcref) \
              (table 1 funcref) (table 1 funcref)",
                false,
            ),
            (
                "(memory (export \"memory\") 1) (table 1 funcref) (table 1 funcref) \
              (table 1 funcref) (table 1 funcref) (table 1 funcref)",
                true,
            ),
        ] {
            let guest = format!(
                "(module {rest} (func (export \"run\") (param i32 i32) (result i32) i32.const 0))"
            );
            let told = needs_no_slot(guest.as_bytes(), sandbox::slot_memory_bytes(&settings));
            assert_eq!(told, too_large, "{rest}");
            let (metrics, clock) = (&Metrics::disabled(), &SystemClock::new());
            let (compiler, closed) = (&Compiler::InProcess, &AtomicBool::new(false));
            let (made, folder) = (None, None);
            let how = Compiling { compiler, closed, made, folder, metrics, clock };
            let compiled = compile(Arc::clone(&sandbox), guest.as_bytes(), how);
            let found = matches!(compiled, Err(NotCompiled::TooLargeForSlot(..)));
            assert_eq!(found, too_large, "the compiler agrees: {rest}");
        }
        assert!(!needs_no_slot(b"(module", 1), "that is for the compiler to say");
    }
}
