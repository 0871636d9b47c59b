//! Core modules: whether they fit the users' own ABI, and what is wrong where they
//! don't.

use std::sync::Arc;

use sandglass_model::{Rejection, RejectionKind};
use wasmtime::{Engine, ExternType, FuncType, InstancePre, Module, ModuleExport, ValType};

use super::source::{NotMade, Source};
use super::{Needs, NotCompiled, is_valid_somewhere, nearest};
use crate::abi;
use crate::host_function::HostFunction;
use crate::sandbox::Sandbox;
use crate::store::RunStore;
use sandglass_supervisor::manifest::Abi;
use sandglass_supervisor::rejection::{in_a_line, rejection};
use sandglass_supervisor::text::printable;

/// The export that a handler is.
pub(crate) const RUN: &str = "run";
pub(crate) const MEMORY: &str = "memory";

/// The export that a WASI reactor is initialised by, before any other is called.
pub(crate) const INITIALIZE: &str = "_initialize";

/// A core module that is compiled, linked, and known to fit.
pub(crate) struct CoreModule {
    pub(crate) pre: InstancePre<RunStore>,
    pub(crate) run: ModuleExport,
    pub(crate) memory: ModuleExport,
    pub(crate) initialize: Option<ModuleExport>,
    /// It asks for its context, so the host writes none into its memory.
    pub(crate) fetches_context: bool,
}

/// Compiles and links what `source` has.
pub(super) fn compile(
    sandbox: &Sandbox,
    source: &Source<'_>,
) -> Result<(CoreModule, Needs), NotCompiled> {
    let module: Module = source.compiled().map_err(uncompiled)?;
    let run = check_exports(&module)?;
    check_imports(sandbox, &module)?;
    let fetches_context = module.imports().any(|import| import.name() == abi::env::GET_CONTEXT);
    if !fetches_context {
        check_room_for_context(&module)?;
    }
    let pre = sandbox.linker.instantiate_pre(&module).map_err(|error| {
        rejection(RejectionKind::WrongSignature, format!("module can't be linked: {error:#}"))
    })?;
    let needs = Needs {
        // A page at least, for the context of a guest that doesn't ask for it.
        context_bytes: if fetches_context { 0 } else { abi::core_module::PAGE_BYTES },
        memories: module.resources_required().num_memories.into(),
        initial_table_elements: module.resources_required().max_initial_table_size.unwrap_or(0),
        waits_in: waits_in(sandbox, &module),
        embedders: embedders(sandbox, &module),
    };
    let compiled = CoreModule {
        run,
        memory: module.get_export_index(MEMORY).expect("its exports were checked"),
        initialize: initializer(&module)?,
        fetches_context,
        pre,
    };
    Ok((compiled, needs))
}

/// Why there is no module of what `source` has.
pub(super) fn uncompiled(why: NotMade) -> NotCompiled {
    match why {
        NotMade::NotCompiled(rejection) => rejection.into(),
        NotMade::TooLarge(error, made) => {
            NotCompiled::TooLargeForSlot(needs_too_much(&error), made)
        }
    }
}

/// Tells a module that isn't valid from one that uses what is off here, and from
/// one that is too large for the compiler.
pub(super) fn not_compiled(engine: &Engine, binary: &[u8], error: &wasmtime::Error) -> Rejection {
    let why = |error: &wasmtime::Error| in_a_line(&format!("{error:#}"));
    match Module::validate(engine, binary) {
        Err(invalid) if is_valid_somewhere(binary) => rejection(
            RejectionKind::UnsupportedModule,
            format!(
                "module uses a WebAssembly feature that is off in this host: {}",
                why(&invalid)
            ),
        ),
        Err(invalid) => rejection(
            RejectionKind::InvalidModule,
            format!("module is not valid: {}", why(&invalid)),
        ),
        Ok(()) => needs_too_much(error),
    }
}

fn needs_too_much(error: &wasmtime::Error) -> Rejection {
    rejection(
        RejectionKind::NeedsTooMuch,
        format!("module needs more than a guest of this host can have: {error:#}"),
    )
}

/// Checks that the module exports its memory, which is where the host reads and writes.
pub(super) fn check_memory(module: &Module) -> Result<(), Rejection> {
    match module.get_export(MEMORY) {
        Some(ExternType::Memory(memory)) if !memory.is_64() && !memory.is_shared() => Ok(()),
        Some(other) => Err(rejection(
            RejectionKind::WrongSignature,
            format!(
                "module exports `{MEMORY}` as {}, and it must be a 32-bit memory",
                shown(&other)
            ),
        )),
        None => Err(missing_export(module, MEMORY, "a memory")),
    }
}

fn check_exports(module: &Module) -> Result<ModuleExport, Rejection> {
    check_memory(module)?;
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

pub(super) fn initializer(module: &Module) -> Result<Option<ModuleExport>, Rejection> {
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
    let near = nearest_import(sandbox, module, name)
        .map(|near| format!("; did you mean `{near}`?"))
        .unwrap_or_default();
    rejection(
        RejectionKind::MissingImport,
        format!(
            "module imports `{}`, which this host doesn't have ({} and WASI preview 1){near}",
            printable(&asked),
            Abi::Core.contract(),
        ),
    )
}

/// What can be imported that is most like `name` of `module`: the function of this name in
/// another module, if there is one.
pub(crate) fn nearest_import(sandbox: &Sandbox, module: &str, name: &str) -> Option<String> {
    let full = |(module, name): &(String, String)| format!("{module}.{name}");
    if let Some(namesake) = sandbox.imports.keys().find(|(_, known)| known == name) {
        return Some(full(namesake));
    }
    let known: Vec<String> = sandbox.imports.keys().map(full).collect();
    nearest(&format!("{module}.{name}"), known.iter().map(String::as_str)).map(str::to_owned)
}

/// A type as a person writes it.
pub(crate) fn shown(ty: &ExternType) -> String {
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
