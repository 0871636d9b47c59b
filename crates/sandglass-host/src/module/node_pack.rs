//! Packs of OpenWOP nodes: whether they fit version 1 of that ABI, and what is wrong if they do not.

use std::collections::BTreeMap;

use sandglass_model::{Rejection, RejectionKind};
use wasmtime::{InstancePre, Linker, Module, ModuleExport};

use super::core_module::{MEMORY, check_memory, describe_type, initializer};
use super::source::Source;
use super::{Needs, NotCompiled, nearest, nearest_export};
use crate::abi::node_pack::{self as abi, PairForm};
use crate::store::RunStore;
use sandglass_supervisor::functions::Functions;
use sandglass_supervisor::manifest::Abi;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::text::printable;

/// A pack that is compiled, linked, and known to fit.
pub(crate) struct NodePack {
    pub(crate) pre: InstancePre<RunStore>,
    pub(crate) memory: ModuleExport,
    pub(crate) initialize: Option<ModuleExport>,
    pub(crate) abi_version: ModuleExport,
    pub(crate) pack_name: PairExport,
    pub(crate) node_count: ModuleExport,
    pub(crate) node_id_at: PairExport,
    pub(crate) alloc: ModuleExport,
    pub(crate) free: ModuleExport,
    pub(crate) node_invoke: PairExport,
}

/// An export that returns a pair.
pub(crate) struct PairExport {
    pub(crate) function: ModuleExport,
    pub(crate) form: PairForm,
}

/// Whether `binary`, a core module, is a pack.
pub(crate) fn is_node_pack(binary: &[u8]) -> bool {
    let payloads = wasmparser::Parser::new(0).parse_all(binary).map_while(Result::ok);
    let exports = payloads.into_iter().find_map(|payload| match payload {
        wasmparser::Payload::ExportSection(section) => Some(section),
        _ => None,
    });
    let exports = exports.into_iter().flatten().map_while(Result::ok);
    exports.into_iter().any(|export| abi::marks_a_pack(export.name))
}

/// Compiles and links the pack.
pub(super) fn compile(source: &Source<'_>) -> Result<(NodePack, Needs), NotCompiled> {
    let module: Module = source.load()?;
    check_memory(&module)?;
    let forms = check_imports(&module)?;
    let pre = link(source, &module, &forms).map_err(|error| {
        rejection(RejectionKind::WrongSignature, format!("pack cannot be linked: {error:#}"))
    })?;
    let plain = |name| export(&module, name).map(|export| export.function);
    // No call of a pack waits.
    let needs = Needs::of_core_module(&module);
    let pack = NodePack {
        memory: module.get_export_index(MEMORY).expect("it was checked"),
        initialize: initializer(&module)?,
        abi_version: plain(abi::ABI_VERSION)?,
        pack_name: export(&module, abi::PACK_NAME)?,
        node_count: plain(abi::NODE_COUNT)?,
        node_id_at: export(&module, abi::NODE_ID_AT)?,
        alloc: plain(abi::ALLOC)?,
        free: plain(abi::FREE)?,
        node_invoke: export(&module, abi::NODE_INVOKE)?,
        pre,
    };
    Ok((pack, needs))
}

/// Links the host's functions in the forms in which the module imports them.
fn link(
    source: &Source<'_>,
    module: &Module,
    forms: &BTreeMap<&'static str, PairForm>,
) -> wasmtime::Result<InstancePre<RunStore>> {
    let mut linker = Linker::new(source.engine);
    // The same functions in the same order as in the table of the sandbox, so the ids are the same.
    let form_of = |name: &str| forms.get(name).copied().unwrap_or(PairForm::Two);
    abi::link(&mut linker, &mut Functions::default(), form_of)?;
    linker.instantiate_pre(module)
}

/// The function that the module exports as `name`, as every pack must.
fn export(module: &Module, name: &str) -> Result<PairExport, Rejection> {
    let known = abi::export(name).expect("it is of the ABI");
    let expected = known.expected();
    let Some((ty, function)) = module.get_export(name).zip(module.get_export_index(name)) else {
        let near = nearest_export(name, module.exports().map(|export| export.name()));
        return Err(rejection(
            RejectionKind::MissingExport,
            format!(
                "pack does not export `{name}`{near}; an OpenWOP node pack exports a function \
                 {expected} under that name"
            ),
        ));
    };
    let ty = describe_type(&ty);
    match known.form(&ty) {
        Some(form) => Ok(PairExport { function, form }),
        None => Err(rejection(
            RejectionKind::WrongSignature,
            format!("pack exports `{name}` as {ty}, and it must be {expected}"),
        )),
    }
}

/// Checks what the module imports. Returns the form of each function that returns a pair.
fn check_imports(module: &Module) -> Result<BTreeMap<&'static str, PairForm>, Rejection> {
    let mut forms = BTreeMap::new();
    for import in module.imports() {
        let Some(known) = abi::import(import.module(), import.name()) else {
            return Err(missing_import(import.module(), import.name()));
        };
        let (name, ty) = (known.name, describe_type(&import.ty()));
        let Some(form) = known.form(&ty) else {
            return Err(rejection(
                RejectionKind::WrongSignature,
                format!(
                    "pack imports `{}.{name}` as {ty}, and it is {}",
                    abi::MODULE,
                    known.expected()
                ),
            ));
        };
        if forms.insert(name, form).is_some_and(|before| before != form) {
            return Err(rejection(
                RejectionKind::WrongSignature,
                format!("pack imports `{}.{name}` with both of its types; use one", abi::MODULE),
            ));
        }
    }
    Ok(forms)
}

fn missing_import(module: &str, name: &str) -> Rejection {
    let asked = format!("{module}.{name}");
    let why = if module.starts_with("wasi") {
        "there is no WASI for them; build for `wasm32-unknown-unknown` or without a libc".to_owned()
    } else {
        nearest_import(module, name).map_or_else(
            || format!("they import from `{}` alone", abi::MODULE),
            |near| format!("did you mean `{near}`?"),
        )
    };
    rejection(
        RejectionKind::MissingImport,
        format!(
            "pack imports `{}`, which this host does not have for packs ({}): {why}",
            printable(&asked),
            Abi::NodePack.contract(),
        ),
    )
}

/// The import of packs that is most like `name` of `module`.
pub(crate) fn nearest_import(module: &str, name: &str) -> Option<String> {
    let full = |name: &str| format!("{}.{name}", abi::MODULE);
    let known: Vec<String> = abi::imports().map(full).collect();
    if abi::imports().any(|known| known == name) {
        return Some(full(name));
    }
    nearest(&format!("{module}.{name}"), known.iter().map(String::as_str)).map(str::to_owned)
}
