//! Core modules: whether they fit the `env` ABI, and what is wrong if they do not.

use sandglass_model::{Rejection, RejectionKind};
use wasmtime::{ExternType, InstancePre, Module, ModuleExport};

use super::source::Source;
use super::{Needs, NotCompiled, nearest, nearest_export};
use crate::abi;
use crate::sandbox::Sandbox;
use crate::store::RunStore;
use sandglass_supervisor::manifest::Abi;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::text::printable;

/// The export that is the handler.
pub(crate) const RUN: &str = "run";
pub(crate) const MEMORY: &str = "memory";

/// The export that initializes a WASI reactor. It is called before any other.
pub(crate) const INITIALIZE: &str = "_initialize";

/// The type of [`RUN`].
pub(crate) const HANDLER: &str = "(i32, i32) -> (i32)";
/// The type of [`INITIALIZE`].
pub(crate) const INITIALIZER: &str = "() -> ()";

/// A core module that is compiled, linked, and known to fit.
pub(crate) struct CoreModule {
    pub(crate) pre: InstancePre<RunStore>,
    pub(crate) run: ModuleExport,
    pub(crate) memory: ModuleExport,
    pub(crate) initialize: Option<ModuleExport>,
    /// It fetches its context itself, so the host does not write one to its memory.
    pub(crate) fetches_context: bool,
    /// The last page of its memory is for its context, until its code is executed.
    pub(crate) has_context_page: bool,
}

/// Compiles and links the module.
pub(super) fn compile(
    sandbox: &Sandbox,
    source: &Source<'_>,
    has_context_page: bool,
) -> Result<(CoreModule, Needs), NotCompiled> {
    let module: Module = source.load()?;
    let run = check_exports(&module)?;
    check_imports(sandbox, &module)?;
    let fetches_context = module.imports().any(|import| import.name() == abi::env::GET_CONTEXT);
    if !fetches_context && !has_context_page {
        check_room_for_context(&module)?;
    }
    let pre = sandbox.linker.instantiate_pre(&module).map_err(|error| {
        rejection(RejectionKind::WrongSignature, format!("module cannot be linked: {error:#}"))
    })?;
    let imported = || module.imports().map(|import| (import.module(), import.name()));
    let needs = Needs {
        // A page at least, for the context of a guest that does not fetch it.
        context_bytes: if fetches_context { 0 } else { abi::core_module::PAGE_BYTES },
        waits_in: imported()
            .filter_map(|(module, name)| sandbox.functions.waiting(module, name))
            .map(str::to_owned)
            .collect(),
        embedders: imported()
            .filter_map(|(module, name)| sandbox.embedders_function(module, name))
            .collect(),
        ..Needs::of_core_module(&module)
    };
    let compiled = CoreModule {
        run,
        memory: module.get_export_index(MEMORY).expect("its exports were checked"),
        initialize: initializer(&module)?,
        fetches_context,
        has_context_page,
        pre,
    };
    Ok((compiled, needs))
}

/// Checks that the module exports its memory, because the host reads and writes there.
pub(super) fn check_memory(module: &Module) -> Result<(), Rejection> {
    match module.get_export(MEMORY) {
        Some(ExternType::Memory(memory)) if !memory.is_64() && !memory.is_shared() => Ok(()),
        Some(other) => Err(wrong_export(MEMORY, &describe_type(&other), "a 32-bit memory")),
        None => Err(missing_export(module, MEMORY, "a memory")),
    }
}

fn check_exports(module: &Module) -> Result<ModuleExport, Rejection> {
    check_memory(module)?;
    exported_function(module, RUN, HANDLER)?
        .ok_or_else(|| missing_export(module, RUN, &format!("a function {HANDLER}")))
}

/// The function of the type `ty` that the module exports as `name`; `None` if it exports nothing under
/// that name.
fn exported_function(
    module: &Module,
    name: &str,
    ty: &str,
) -> Result<Option<ModuleExport>, Rejection> {
    match module.get_export(name).map(|found| describe_type(&found)) {
        Some(found) if found != ty => Err(wrong_export(name, &found, ty)),
        _ => Ok(module.get_export_index(name)),
    }
}

fn wrong_export(name: &str, found: &str, expected: &str) -> Rejection {
    rejection(
        RejectionKind::WrongSignature,
        format!("module exports `{name}` as {found}, and it must be {expected}"),
    )
}

/// A guest that does not fetch its context gets it in memory that is grown for it.
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
    exported_function(module, INITIALIZE, INITIALIZER)
}

fn missing_export(module: &Module, name: &str, what: &str) -> Rejection {
    let near = nearest_export(name, module.exports().map(|export| export.name()));
    rejection(
        RejectionKind::MissingExport,
        format!("module does not export `{name}`{near}; a handler exports {what} under that name"),
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
                    describe_type(&import.ty()),
                    describe_type(known)
                ),
            ));
        }
    }
    Ok(())
}

fn missing_import(sandbox: &Sandbox, module: &str, name: &str) -> Rejection {
    let asked = format!("{module}.{name}");
    let remedy = match nearest_import(sandbox, module, name) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "an embedder must provide it".to_owned(),
    };
    rejection(
        RejectionKind::MissingImport,
        format!(
            "module imports `{}`, which is neither built in ({} and WASI preview 1) nor provided by \
             the embedder of this host; {remedy}",
            printable(&asked),
            Abi::Core.contract(),
        ),
    )
}

/// The import that is most like `name` of `module`: the function with this name in another module, if
/// there is one.
pub(crate) fn nearest_import(sandbox: &Sandbox, module: &str, name: &str) -> Option<String> {
    if module == abi::env::MODULE && name.starts_with(abi::env::OF_EMBEDDERS) {
        return None;
    }
    let full = |(module, name): &(String, String)| format!("{module}.{name}");
    if let Some(namesake) = sandbox.imports.keys().find(|(_, known)| known == name) {
        return Some(full(namesake));
    }
    let known: Vec<String> = sandbox.imports.keys().map(full).collect();
    nearest(&format!("{module}.{name}"), known.iter().map(String::as_str)).map(str::to_owned)
}

/// A type in the notation of messages.
pub(crate) fn describe_type(ty: &ExternType) -> String {
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
