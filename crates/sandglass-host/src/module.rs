//! Modules: from bytes that anybody sent to something that can be run, or to a
//! sentence that says what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_model::{Clock, GuestLimits, ModuleHash, Rejection, RejectionKind};
use sandglass_telemetry::Metrics;
use wasmtime::{ExternType, FuncType, InstancePre, Module, ModuleExport, ValType};

use crate::abi;
use crate::abi::core_module::PAGE_BYTES;
use crate::error::rejection;
use crate::host_function::HostFunction;
use crate::manifest::Manifest;
use crate::sandbox::{Metering, Sandbox};
use crate::store::{RunStore, printable};

/// The export that a handler is.
const RUN: &str = "run";
const MEMORY: &str = "memory";

/// The export that a WASI reactor is initialised by, before any other is called.
const INITIALIZE: &str = "_initialize";

/// Longest name that is compared with others, in characters.
const NAME_MAX_CHARS: usize = 128;

/// How unlike a known name may be to be suggested (Jaro-Winkler, 1 is equal):
/// misspellings score above this, unrelated names below.
const SIMILAR: f64 = 0.8;

/// A module that is compiled, linked, and known to fit the contract.
pub(crate) struct Compiled {
    pub(crate) hash: ModuleHash,
    pub(crate) pre: InstancePre<RunStore>,
    pub(crate) run: ModuleExport,
    pub(crate) memory: ModuleExport,
    pub(crate) initialize: Option<ModuleExport>,
    pub(crate) metering: Metering,
    /// It asks for its context, so the host writes none into its memory.
    pub(crate) fetches_context: bool,
    pub(crate) imports_wasi: bool,
    /// Linear memory that it needs to begin with, in bytes.
    pub(crate) initial_memory_bytes: u64,
    /// Elements of the largest table that it begins with.
    pub(crate) initial_table_elements: u64,
    /// Names of the host functions that it can wait in.
    pub(crate) waits_in: Vec<String>,
    /// The embedder's own functions that it imports, as manifests name them.
    pub(crate) embedders: Vec<String>,
    /// What compiling it took.
    pub(crate) compile_time: Duration,
    announced: Mutex<BTreeSet<(String, String)>>,
}

/// Pairs of entity type and action for which a module is announced; more than
/// metrics keep apart anyway.
const MAX_ANNOUNCED: usize = 1000;

impl Compiled {
    /// Has the counters of its handlers exported before the first of them ends,
    /// so that the first event counts.
    pub(crate) fn announce(&self, metrics: &Metrics, entity_type: &str, action: &str) {
        let pair = (entity_type.to_owned(), action.to_owned());
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        if announced.len() < MAX_ANNOUNCED && announced.insert(pair) {
            let spans: Vec<&str> = self.waits_in.iter().map(String::as_str).collect();
            metrics.expect_dispatches(entity_type, action, &spans);
        }
    }
}

/// Compiles `bytes`, text or binary, for `sandbox`.
///
/// # Errors
/// They are no module that this host runs; the rejection says what, where, and
/// what to do.
pub(crate) fn compile(
    sandbox: &Sandbox,
    metering: Metering,
    clock: &dyn Clock,
    bytes: &[u8],
) -> Result<Compiled, Rejection> {
    let began = clock.now();
    let binary = binary(bytes)?;
    let module = Module::new(&sandbox.engine, &binary)
        .map_err(|error| not_compiled(sandbox, &binary, &error))?;
    let run = check_exports(&module)?;
    check_imports(sandbox, &module)?;
    let fetches_context = module.imports().any(|import| import.name() == abi::env::GET_CONTEXT);
    if !fetches_context {
        check_room_for_context(&module)?;
    }
    let pre = sandbox.linker.instantiate_pre(&module).map_err(|error| {
        rejection(RejectionKind::WrongSignature, format!("module can't be linked: {error:#}"))
    })?;
    let memory = module.get_export_index(MEMORY).expect("its exports were checked");
    let from = |wanted: &str| module.imports().any(|import| import.module() == wanted);
    let compiled = Compiled {
        hash: ModuleHash::of(bytes),
        run,
        memory,
        initialize: initializer(&module)?,
        metering,
        fetches_context,
        imports_wasi: from(abi::wasi_preview1::MODULE),
        initial_memory_bytes: initial_memory_bytes(&module),
        initial_table_elements: module.resources_required().max_initial_table_size.unwrap_or(0),
        waits_in: waits_in(sandbox, &module),
        embedders: embedders(sandbox, &module),
        compile_time: clock.now().since(began),
        announced: Mutex::default(),
        pre,
    };
    Ok(compiled)
}

fn binary(bytes: &[u8]) -> Result<Vec<u8>, Rejection> {
    /// `\0asm`, then the version and layer of a component.
    const COMPONENT: [u8; 8] = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];
    let binary = wat::parse_bytes(bytes).map_err(|error| {
        let what = if str::from_utf8(bytes).is_ok() {
            format!("module is no WebAssembly text: {}", in_one_line(&error.to_string()))
        } else {
            "module is no WebAssembly: it begins with neither \\0asm nor text".to_owned()
        };
        rejection(RejectionKind::InvalidModule, what)
    })?;
    if binary.starts_with(&COMPONENT) {
        return Err(rejection(
            RejectionKind::UnsupportedModule,
            "module is a component, and this version runs core modules; build it as a core module",
        ));
    }
    Ok(binary.into_owned())
}

/// A parser's message with its place, without the picture that it draws of it.
fn in_one_line(message: &str) -> String {
    let mut lines = message.lines();
    let what = lines.next().unwrap_or_default();
    match lines.find_map(|line| line.trim().strip_prefix("--> <anon>:")) {
        Some(place) => format!("{what} (at {place})"),
        None => what.to_owned(),
    }
}

/// Tells a module that isn't valid from one that uses what is off here, and from
/// one that is too large for a slot of the pool.
fn not_compiled(sandbox: &Sandbox, binary: &[u8], error: &wasmtime::Error) -> Rejection {
    let valid_somewhere = wasmparser::Validator::new_with_features(wasmparser::WasmFeatures::all())
        .validate_all(binary)
        .is_ok();
    match Module::validate(&sandbox.engine, binary) {
        Err(invalid) if valid_somewhere => rejection(
            RejectionKind::UnsupportedModule,
            format!("module uses a WebAssembly feature that is off in this host: {invalid:#}"),
        ),
        Err(invalid) => {
            rejection(RejectionKind::InvalidModule, format!("module is not valid: {invalid:#}"))
        }
        Ok(()) => rejection(
            RejectionKind::NeedsTooMuch,
            format!("module needs more than a guest of this host can have: {error:#}"),
        ),
    }
}

fn check_exports(module: &Module) -> Result<ModuleExport, Rejection> {
    match module.get_export(MEMORY) {
        Some(ExternType::Memory(memory)) if !memory.is_64() && !memory.is_shared() => {}
        Some(other) => {
            return Err(rejection(
                RejectionKind::WrongSignature,
                format!(
                    "module exports `{MEMORY}` as {}, and it must be a 32-bit memory",
                    shown(&other)
                ),
            ));
        }
        None => return Err(missing_export(module, MEMORY, "a memory")),
    }
    match module.get_export(RUN) {
        Some(ExternType::Func(run)) if is_handler(&run) => {}
        Some(other) => {
            return Err(rejection(
                RejectionKind::WrongSignature,
                format!(
                    "module exports `{RUN}` as {}, and it must be (i32, i32) -> (i32)",
                    shown(&other)
                ),
            ));
        }
        None => return Err(missing_export(module, RUN, "a function (i32, i32) -> (i32)")),
    }
    Ok(module.get_export_index(RUN).expect("it was just found"))
}

/// A guest that doesn't ask for its context gets it in memory grown for it.
fn check_room_for_context(module: &Module) -> Result<(), Rejection> {
    match module.get_export(MEMORY) {
        Some(ExternType::Memory(memory)) if memory.maximum() == Some(memory.minimum()) => {
            Err(rejection(
                RejectionKind::NeedsTooMuch,
                format!(
                    "module's memory can't grow, so there is no room for its context; raise the \
                     memory's maximum, or import `{}`",
                    abi::env::GET_CONTEXT
                ),
            ))
        }
        _ => Ok(()),
    }
}

fn initializer(module: &Module) -> Result<Option<ModuleExport>, Rejection> {
    match module.get_export(INITIALIZE) {
        None => Ok(None),
        Some(ExternType::Func(function))
            if function.params().len() == 0 && function.results().len() == 0 =>
        {
            Ok(module.get_export_index(INITIALIZE))
        }
        Some(other) => Err(rejection(
            RejectionKind::WrongSignature,
            format!("module exports `{INITIALIZE}` as {}, and it must be () -> ()", shown(&other)),
        )),
    }
}

fn is_handler(run: &FuncType) -> bool {
    let is_i32 = |ty: ValType| matches!(ty, ValType::I32);
    run.params().len() == 2
        && run.params().all(is_i32)
        && run.results().len() == 1
        && run.results().all(is_i32)
}

fn missing_export(module: &Module, name: &str, what: &str) -> Rejection {
    let near = nearest(name, module.exports().map(|export| export.name()))
        .map(|near| format!(" (the nearest that it exports is `{}`)", printable(near)))
        .unwrap_or_default();
    rejection(
        RejectionKind::MissingExport,
        format!("module doesn't export `{name}`{near}; a handler exports {what} under that name"),
    )
}

fn check_imports(sandbox: &Sandbox, module: &Module) -> Result<(), Rejection> {
    for import in module.imports() {
        let key = (import.module().to_owned(), import.name().to_owned());
        let Some(known) = sandbox.imports.get(&key) else {
            return Err(missing_import(sandbox, import.module(), import.name()));
        };
        let same = match (known, import.ty()) {
            (ExternType::Func(known), ExternType::Func(asked)) => known.matches(&asked),
            _ => false,
        };
        if !same {
            return Err(rejection(
                RejectionKind::WrongSignature,
                format!(
                    "module imports `{}.{}` as {}, and it is {}",
                    key.0,
                    key.1,
                    shown(&import.ty()),
                    shown(known)
                ),
            ));
        }
    }
    Ok(())
}

fn missing_import(sandbox: &Sandbox, module: &str, name: &str) -> Rejection {
    let asked = format!("{module}.{name}");
    let known: Vec<String> =
        sandbox.imports.keys().map(|(module, name)| format!("{module}.{name}")).collect();
    let near = nearest(&asked, known.iter().map(String::as_str))
        .map(|near| format!("; did you mean `{near}`?"))
        .unwrap_or_default();
    rejection(
        RejectionKind::MissingImport,
        format!("module imports `{}`, which this host doesn't have{near}", printable(&asked)),
    )
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A longer name is nobody's misspelling, and comparing it costs its square.
    let name: String = name.chars().take(NAME_MAX_CHARS).collect::<String>().to_lowercase();
    known
        .filter(|known| known.len() <= NAME_MAX_CHARS)
        .map(|known| (strsim::jaro_winkler(&name, &known.to_lowercase()), known))
        .filter(|(likeness, _)| *likeness >= SIMILAR)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, known)| known)
}

/// A type as a person writes it.
fn shown(ty: &ExternType) -> String {
    match ty {
        ExternType::Func(function) => {
            let list = |types: Vec<String>| format!("({})", types.join(", "));
            let params = list(function.params().map(|ty| ty.to_string()).collect());
            let results = list(function.results().map(|ty| ty.to_string()).collect());
            format!("{params} -> {results}")
        }
        ExternType::Memory(memory) if memory.is_64() => "a 64-bit memory".to_owned(),
        ExternType::Memory(_) => "a memory".to_owned(),
        ExternType::Global(_) => "a global".to_owned(),
        ExternType::Table(_) => "a table".to_owned(),
        ExternType::Tag(_) => "a tag".to_owned(),
    }
}

fn initial_memory_bytes(module: &Module) -> u64 {
    match module.get_export(MEMORY) {
        Some(ExternType::Memory(memory)) => memory.minimum().saturating_mul(memory.page_size()),
        _ => 0,
    }
}

fn waits_in(sandbox: &Sandbox, module: &Module) -> Vec<String> {
    module
        .imports()
        .filter_map(|import| sandbox.functions.waiting(import.module(), import.name()))
        .map(str::to_owned)
        .collect()
}

/// The embedder's own functions that `module` imports.
fn embedders(sandbox: &Sandbox, module: &Module) -> Vec<String> {
    let imported = |import: &wasmtime::ImportType<'_>| {
        let functions = sandbox.embedders.iter().map(|linked| &linked.function);
        let found = |function: &&Arc<HostFunction>| {
            function.interface() == import.module() && function.field() == import.name()
        };
        functions.into_iter().find(found).map(|function| function.full_name())
    };
    module.imports().filter_map(|import| imported(&import)).collect()
}

/// Checks that `manifest` grants what `compiled` imports of the embedder's own.
pub(crate) fn check_functions(compiled: &Compiled, manifest: &Manifest) -> Result<(), Rejection> {
    match compiled.embedders.iter().find(|name| !manifest.functions.contains(*name)) {
        Some(name) => Err(rejection(
            RejectionKind::MissingGrant,
            format!("module imports `{name}`, which its manifest doesn't grant; name it there"),
        )),
        None => Ok(()),
    }
}

/// Compiled modules, by the hash of their bytes. The one that was used longest
/// ago makes room.
pub(crate) struct ModuleCache {
    capacity: usize,
    held: Mutex<Held>,
}

type Key = (ModuleHash, Metering);

#[derive(Default)]
struct Held {
    modules: BTreeMap<Key, (u64, Arc<Compiled>)>,
    uses: u64,
}

impl ModuleCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), held: Mutex::default() }
    }

    pub(crate) fn find(&self, key: Key) -> Option<Arc<Compiled>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.uses += 1;
        let now = held.uses;
        let (used, module) = held.modules.get_mut(&key)?;
        *used = now;
        Some(Arc::clone(module))
    }

    /// Keeps `module`; where somebody else was sooner, that one is kept and answered.
    pub(crate) fn keep(&self, module: Compiled) -> Arc<Compiled> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.uses += 1;
        let now = held.uses;
        let key = (module.hash, module.metering);
        let (_, kept) = held.modules.entry(key).or_insert_with(|| (now, Arc::new(module)));
        let kept = Arc::clone(kept);
        if held.modules.len() > self.capacity {
            let oldest =
                held.modules.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                held.modules.remove(&oldest);
            }
        }
        kept
    }
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
    if compiled.initial_table_elements > limits.table_elements {
        return Err(rejection(
            RejectionKind::NeedsTooMuch,
            format!(
                "module begins with a table of {} elements, and it may have {}; grant it more",
                compiled.initial_table_elements, limits.table_elements
            ),
        ));
    }
    // A page at least, for the context of a guest that doesn't ask for it.
    let for_context = if compiled.fetches_context { 0 } else { PAGE_BYTES };
    if compiled.initial_memory_bytes.saturating_add(for_context) > limits.memory_bytes {
        return Err(rejection(
            RejectionKind::NeedsTooMuch,
            format!(
                "module begins with {} bytes of memory and needs {for_context} more for its context, \
                 and it may have {}; grant it more",
                compiled.initial_memory_bytes, limits.memory_bytes
            ),
        ));
    }
    Ok(())
}
