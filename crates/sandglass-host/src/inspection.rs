//! Describes a guest from its bytes: its ABI, imports, exports, sizes, WASI use and debug information,
//! compared with what this host has. Nothing is compiled or executed.

mod group;
mod permissions;
mod scan;

use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_model::{ModuleHash, Rejection, RejectionKind};
use serde::Serialize;

use crate::abi::wasi::preview1;
use crate::abi::{concurrent, node_pack};
use crate::detection::abi_of;
use crate::host::Host;
use crate::module::{self, component, core_module};
use crate::sandbox::{Concurrency, Sandbox};
use crate::structure::{self, Bodies, Bound};
use sandglass_supervisor::manifest::Abi;
use sandglass_supervisor::rejection::{in_a_line, rejection};
use sandglass_supervisor::settings::MAX_TABLE_ELEMENTS;

pub use group::Grant;
pub use permissions::{Granted, NotGranted, Permissions, Unused};

use scan::Scan;

/// Most imports, exports and custom sections that are listed: more than a person reads, and more than
/// toolchains make. The others are counted.
const LISTED_MAX: usize = 1_000;

/// Most unknown imports for which the nearest known one is searched, because each is compared with all
/// that the host has.
const NEAREST_MAX: usize = 50;

/// A description of a guest.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The contract that it is written against.
    pub abi: Abi,
    /// The contract with the version that this host has.
    pub contract: &'static str,
    /// The hash of its bytes, as in manifests.
    pub sha256: ModuleHash,
    /// Whether the bytes are text (`.wat`); sizes are then those of the binary form.
    pub is_text: bool,
    /// How large it is.
    pub size: Size,
    /// Core modules that it consists of; 1 for a core module.
    pub modules: u32,
    /// Functions that it defines.
    pub functions: u64,
    /// The largest functions, at most ten.
    pub largest_functions: Vec<LargeFunction>,
    /// Its imports, at most a thousand.
    pub imports: Vec<Import>,
    /// Count of further imports.
    pub imports_omitted: u64,
    /// Its exports, at most a thousand.
    pub exports: Vec<Export>,
    /// Count of further exports.
    pub exports_omitted: u64,
    /// Exports that a guest of its kind must have, and that are missing.
    pub missing_exports: Vec<MissingExport>,
    /// Its linear memories, at most a hundred.
    pub memories: Vec<Memory>,
    /// Its tables, at most a hundred.
    pub tables: Vec<Table>,
    /// Whether code of it is executed before its handler is called: a `start` function, or the
    /// `_initialize` of a WASI reactor. That counts against the handler's budget.
    pub runs_at_start: bool,
    /// The versions of WASI that it needs, such as `preview 1`, `0.2` and `0.3`.
    pub wasi_versions: Vec<String>,
    /// Whether it is an asynchronous component, which can have several calls in flight.
    pub is_asynchronous: bool,
    /// What it imports of WASI, by interface.
    pub wasi: Vec<WasiUse>,
    /// Its information for debugging.
    pub debug: DebugInformation,
    /// The tools that made it, as it states itself.
    pub producers: Vec<Producer>,
    /// The limits of this host, whatever a manifest grants.
    pub host: HostBounds,
}

/// Sizes, in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Size {
    /// The whole file, in binary form.
    pub total: u64,
    /// The bodies of its functions.
    pub code: u64,
    /// Data segments.
    pub data: u64,
    /// Custom sections together.
    pub custom: u64,
    /// Each custom section, the largest first.
    pub custom_sections: Vec<CustomSection>,
}

/// A custom section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CustomSection {
    /// Its name.
    pub name: String,
    /// Size of all sections with this name together, in bytes.
    pub bytes: u64,
}

/// A function, and the size of its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LargeFunction {
    /// Its name; `None` if the module has none.
    pub name: Option<String>,
    /// The core module that it is in, counted from 0 in the order of the file.
    pub module: u32,
    /// Its index in that module.
    pub index: u32,
    /// Size of its body, in bytes.
    pub bytes: u64,
}

/// An import of a guest.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Import {
    /// The module or interface, as the guest spells it.
    pub module: String,
    /// The name in that module.
    pub name: String,
    /// Its type in the guest.
    pub signature: String,
    /// Its name in reports and in `host_call_timeouts` of a manifest; `None` if it is unknown.
    pub host_function: Option<&'static str>,
    /// Its topic, such as `http`, `log`, `wasi`; `None` if it is unknown.
    pub group: Option<&'static str>,
    /// Whether a handler can wait in it.
    pub waits: bool,
    /// Who provides it.
    pub provider: Provider,
    /// Whether this host has it, and with this type, as far as that is known without compiling.
    pub is_known: bool,
    /// Its type in this host, if that differs.
    pub expected_signature: Option<String>,
    /// If it is unknown: the known import that is most like it.
    pub nearest: Option<String>,
    /// The version of its package in this host, if that is not compatible.
    pub other_version: Option<&'static str>,
    /// The grant that it needs.
    pub needs: Option<Grant>,
}

/// Who provides what a guest imports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// Every host.
    BuiltIn,
    /// The embedder of this host.
    Embedder,
    /// Not this host. Unless the import is misspelled, an embedder must provide it.
    #[default]
    Missing,
}

/// An export of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its type.
    pub signature: String,
    /// Whether the host uses it.
    pub is_used: bool,
    /// The type that it must have, if it has another.
    pub expected_signature: Option<String>,
}

/// An export that a guest of its kind must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingExport {
    /// Its name.
    pub name: &'static str,
    /// The type that it must have, or both if there are two.
    pub signature: String,
    /// The export that is most like it.
    pub nearest: Option<String>,
}

/// A linear memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Initial size, in bytes.
    pub initial_bytes: u64,
    /// Maximum size that it declares, in bytes.
    pub maximum_bytes: Option<u64>,
    /// Whether it is shared between threads, which this host does not support.
    pub is_shared: bool,
    /// Whether its addresses have 64 bits, which this host does not support.
    pub is_64_bit: bool,
    /// Whether it is imported, which this host does not support.
    pub is_imported: bool,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Initial count of elements.
    pub initial_elements: u64,
    /// Maximum count of elements that it declares.
    pub maximum_elements: Option<u64>,
}

/// An interface of WASI that a guest imports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WasiUse {
    /// The interface, as the guest spells it.
    pub interface: String,
    /// Count of its functions that are imported.
    pub functions: u64,
    /// Functions among these that this host refuses, because there are no files and no sockets.
    pub refused: Vec<String>,
}

/// Information for debugging in a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DebugInformation {
    /// Names of functions, for backtraces.
    pub function_names: bool,
    /// DWARF lines, for files and lines in backtraces.
    pub lines: bool,
    /// A source map, which this host does not read.
    pub source_map: bool,
}

/// A language, compiler or toolchain that contributed to a guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Producer {
    /// Its part: `language`, `processed-by`, `sdk`.
    pub field: String,
    /// Its name.
    pub name: String,
    /// Its version; may be empty.
    pub version: String,
}

/// Limits of a host, whatever a manifest grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostBounds {
    /// Linear memories of one guest together, in bytes.
    pub memory_bytes: u64,
    /// One table.
    pub table_elements: u64,
    /// The body of one function, in bytes.
    pub function_bytes: u64,
}

impl Host {
    /// Describes the guest in `bytes`, text or binary, without compiling it. [`Host::load`] finds what
    /// only compiling can find.
    ///
    /// # Errors
    /// They are not WebAssembly, or not valid with any feature that exists.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Inspection, Rejection> {
        let binary = structure::to_binary(bytes)?;
        structure::check(&binary, Bodies::Checked)?;
        let abi = abi_of(&binary)?;
        let scan = Scan::of(&binary).map_err(|error| {
            let message = format!("{abi} that is not valid: {}", in_a_line(&error.to_string()));
            rejection(RejectionKind::InvalidModule, message)
        })?;
        let concurrency = structure::demands(&binary).concurrency;
        let sandbox = match concurrency {
            Concurrency::OneCall => self.usual_sandbox()?,
            Concurrency::SeveralCalls => self.sandbox_for_tasks()?,
        };
        let is_text = !bytes.starts_with(b"\0asm");
        let mut guest =
            describe(abi, ModuleHash::of(bytes), is_text, scan, &sandbox, self.max_memory_bytes());
        if concurrency == Concurrency::SeveralCalls {
            (guest.is_asynchronous, guest.contract) = (true, concurrent::CONTRACT);
        }
        Ok(guest)
    }
}

fn describe(
    abi: Abi,
    sha256: ModuleHash,
    is_text: bool,
    scan: Scan,
    sandbox: &Arc<Sandbox>,
    memory_bytes: u64,
) -> Inspection {
    let wasi = wasi(&scan.imports);
    let initializes = abi != Abi::Component
        && scan.exports.iter().any(|export| export.name == core_module::INITIALIZE);
    let (mut imports, mut searches) = (scan.imports, 0);
    imports.iter_mut().for_each(|import| describe_import(abi, sandbox, import, &mut searches));
    let (exports, missing_exports) = exports(abi, scan.exports);
    Inspection {
        abi,
        contract: abi.contract(),
        sha256,
        is_text,
        size: scan.size,
        modules: scan.modules,
        functions: scan.functions,
        largest_functions: scan.largest,
        imports,
        imports_omitted: scan.imports_omitted,
        exports,
        exports_omitted: scan.exports_omitted,
        missing_exports,
        memories: scan.memories,
        tables: scan.tables,
        runs_at_start: scan.starts || initializes,
        wasi_versions: wasi_versions(&wasi),
        is_asynchronous: false,
        wasi,
        debug: scan.debug,
        producers: scan.producers.into_iter().collect(),
        host: HostBounds {
            memory_bytes,
            table_elements: MAX_TABLE_ELEMENTS.into(),
            function_bytes: Bound::FunctionBytes.most(),
        },
    }
}

fn describe_import(abi: Abi, sandbox: &Sandbox, import: &mut Import, searches: &mut usize) {
    match abi {
        Abi::Core => describe_core_import(sandbox, import),
        Abi::Component => describe_component_import(sandbox, import),
        Abi::NodePack => describe_pack_import(sandbox, import),
    }
    import.is_known = import.group.is_some();
    import.provider = match import.group {
        Some(group::OWN) => Provider::Embedder,
        Some(_) => Provider::BuiltIn,
        None => Provider::Missing,
    };
    if !import.is_known && import.other_version.is_none() {
        *searches += 1;
        if *searches <= NEAREST_MAX {
            import.nearest = nearest_import(abi, sandbox, import);
        }
    }
}

fn nearest_import(abi: Abi, sandbox: &Sandbox, import: &Import) -> Option<String> {
    let Import { module, name, .. } = import;
    match abi {
        Abi::Core => core_module::nearest_import(sandbox, module, name),
        Abi::NodePack => module::node_pack::nearest_import(module, name),
        Abi::Component => {
            let interface = component::key(module);
            let mut interfaces = sandbox.component_functions.interfaces();
            let near = match interfaces.any(|known| known == interface) {
                true => component::nearest_import(sandbox, &format!("{interface}.{name}")),
                false => component::nearest_import(sandbox, interface),
            };
            near.map(str::to_owned)
        }
    }
}

fn describe_core_import(sandbox: &Sandbox, import: &mut Import) {
    let (module, name) = (&import.module, &import.name);
    let Some(known) = sandbox.imports.get(&(module.clone(), name.clone())) else { return };
    let own = sandbox.embedders_function(module, name);
    let group = if own.is_some() { group::OWN } else { group::of_core(module, name) };
    import.host_function = sandbox.functions.find(module, name).map(|function| function.name);
    import.group = Some(group);
    import.waits = sandbox.functions.waiting(module, name).is_some();
    import.needs = group::grant(group, own);
    import.expected_signature =
        Some(core_module::describe_type(known)).filter(|known| *known != import.signature);
}

fn describe_component_import(sandbox: &Sandbox, import: &mut Import) {
    let (interface, name) = (component::key(&import.module), &import.name);
    let functions = &sandbox.component_functions;
    import.other_version = component::other_version(&import.module);
    import.waits = functions.waiting(interface, name).is_some();
    if import.other_version.is_some() || functions.find(interface, name).is_none() {
        return;
    }
    let group = group::of_component(component::without_version(interface));
    import.host_function = functions.find(interface, name).map(|function| function.name);
    import.group = Some(group);
    import.needs = group::grant(group, sandbox.embedders_component_function(interface, name));
}

fn describe_pack_import(sandbox: &Sandbox, import: &mut Import) {
    let (module, name) = (&import.module, &import.name);
    let Some(known) = node_pack::import(module, name) else { return };
    import.host_function = sandbox.pack_functions.find(module, name).map(|function| function.name);
    import.group = Some(group::of_pack(name));
    import.expected_signature = known.form(&import.signature).is_none().then(|| known.expected());
}

/// An export that the host uses, and the types that it may have.
type UsedExport = (&'static str, &'static [&'static str]);

/// The exports that the host uses.
fn used_exports(abi: Abi) -> Vec<UsedExport> {
    const MEMORY: UsedExport = (core_module::MEMORY, &["a memory"]);
    match abi {
        Abi::Core => vec![MEMORY, (core_module::RUN, &[core_module::HANDLER])],
        Abi::Component => vec![(component::HANDLE, &component::HANDLERS)],
        Abi::NodePack => {
            let of_pack = node_pack::EXPORTS.iter().map(|export| (export.name, export.types));
            std::iter::once(MEMORY).chain(of_pack).collect()
        }
    }
}

/// The exports of a guest, and those that a guest of its kind must have and that are missing.
fn exports(abi: Abi, mut found: Vec<Export>) -> (Vec<Export>, Vec<MissingExport>) {
    let used = used_exports(abi);
    let missing = used.iter().filter(|(name, _)| !found.iter().any(|one| one.name == *name));
    let missing = missing.map(|(name, types)| {
        let nearest = module::nearest(name, found.iter().map(|one| one.name.as_str()));
        let signature = types.join(" or ");
        MissingExport { name, signature, nearest: nearest.map(str::to_owned) }
    });
    let missing = missing.collect();
    for export in &mut found {
        let expected = used.iter().find(|(used, _)| *used == export.name).map(|(_, types)| *types);
        let initializes = abi != Abi::Component && export.name == core_module::INITIALIZE;
        let expected: Option<&[&str]> =
            expected.or(initializes.then_some(&[core_module::INITIALIZER]));
        export.is_used = expected.is_some();
        export.expected_signature = expected
            .filter(|types| !types.contains(&export.signature.as_str()))
            .map(|types| types.join(" or "));
    }
    (found, missing)
}

/// The versions of WASI in `used`.
fn wasi_versions(used: &[WasiUse]) -> Vec<String> {
    let version = |used: &WasiUse| match used.interface.split_once('@') {
        Some((_, version)) => {
            // Versions with the same first two numbers are compatible.
            version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")
        }
        None if used.interface == preview1::MODULE => "preview 1".to_owned(),
        None => "preview 0".to_owned(),
    };
    let versions: BTreeSet<String> = used.iter().map(version).collect();
    versions.into_iter().collect()
}

/// The imports of WASI, by interface.
fn wasi(imports: &[Import]) -> Vec<WasiUse> {
    let mut used: Vec<WasiUse> = Vec::new();
    for Import { module, name, .. } in imports.iter().filter(|one| group::is_wasi(&one.module)) {
        let at = used.iter().position(|one| one.interface == *module).unwrap_or_else(|| {
            used.push(WasiUse { interface: module.clone(), functions: 0, refused: Vec::new() });
            used.len() - 1
        });
        used[at].functions += 1;
        if group::is_refused(module, name) {
            used[at].refused.push(name.clone());
        }
    }
    used
}
