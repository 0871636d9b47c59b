//! What a guest is, told from its bytes: its ABI, imports, exports, sizes, WASI use and
//! debug information, beside what this host has. Nothing is compiled and nothing runs.

mod group;
mod permissions;
mod scan;
mod wit;

use std::sync::Arc;

use sandglass_model::{ModuleHash, Rejection, RejectionKind};
use serde::Serialize;

use crate::abi::node_pack;
use crate::detection::abi_of;
use crate::host::Host;
use crate::module::{self, component, core_module};
use crate::sandbox::Sandbox;
use crate::structure::{self, Bound};
use sandglass_supervisor::manifest::Abi;
use sandglass_supervisor::rejection::{in_a_line, rejection};
use sandglass_supervisor::settings::MAX_TABLE_ELEMENTS;

pub use group::Grant;
pub use permissions::{Granted, NotGranted, Permissions, Unused};

use scan::{Exported, Imported as Asked, Scan};

/// Most imports and exports that are told, and custom sections: more than a person reads,
/// and above what toolchains make. The others are counted.
const TOLD_MAX: usize = 1_000;

/// Most unknown imports of which the nearest known one is looked for: each is compared
/// with all that the host has.
const NEAREST_MAX: usize = 50;

/// What a guest is.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// What it is written against.
    pub abi: Abi,
    /// The same with the version of it that this host has.
    pub contract: &'static str,
    /// The hash of its bytes, as manifests name it.
    pub sha256: ModuleHash,
    /// Whether the bytes are text (`.wat`); sizes are then those of the binary form.
    pub is_text: bool,
    /// How large it is.
    pub size: Size,
    /// Core modules that it is made of; 1 for a core module itself.
    pub modules: u32,
    /// Functions of its own.
    pub functions: u64,
    /// The largest of them, at most ten.
    pub largest_functions: Vec<LargeFunction>,
    /// What it imports, at most a thousand.
    pub imports: Vec<Import>,
    /// How many more it imports.
    pub imports_omitted: u64,
    /// What it exports, at most a thousand.
    pub exports: Vec<Export>,
    /// How many more it exports.
    pub exports_omitted: u64,
    /// What a guest of its kind exports and it doesn't.
    pub missing_exports: Vec<MissingExport>,
    /// Its linear memories, at most a hundred.
    pub memories: Vec<Memory>,
    /// Its tables, at most a hundred.
    pub tables: Vec<Table>,
    /// Whether code of it runs before its handler is called: a `start` function, or the
    /// `_initialize` of a WASI reactor. It is inside the handler's budget.
    pub runs_at_start: bool,
    /// What it imports of WASI, by interface.
    pub wasi: Vec<WasiUse>,
    /// What it carries for those who look for mistakes.
    pub debug: DebugInformation,
    /// What made it, by its own account.
    pub producers: Vec<Producer>,
    /// What a guest of this host may have at most, whatever its manifest says.
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
    /// Its size, in bytes; of all sections of this name together.
    pub bytes: u64,
}

/// A function, and the size of its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LargeFunction {
    /// Its name, where the module carries names.
    pub name: Option<String>,
    /// Which core module it is in, from 0, in the order of the file.
    pub module: u32,
    /// Its index there.
    pub index: u32,
    /// Its body, in bytes.
    pub bytes: u64,
}

/// Something that a guest imports.
#[derive(Clone, Debug, Serialize)]
pub struct Import {
    /// The module or interface, as the guest spells it.
    pub module: String,
    /// The name in there.
    pub name: String,
    /// Its type, as the guest has it.
    pub signature: String,
    /// How reports and `host_call_timeouts` of a manifest name it; none where it is unknown.
    pub host_function: Option<&'static str>,
    /// What it is about: `http`, `log`, `wasi`; none where it is unknown.
    pub group: Option<&'static str>,
    /// Whether a handler can wait in it.
    pub waits: bool,
    /// Whether this host has it, with this type as far as can be told without compiling.
    pub is_known: bool,
    /// The type that this host has it with, where that is another one.
    pub expected_signature: Option<String>,
    /// The known one that is most like it, where it is unknown.
    pub nearest: Option<String>,
    /// What this host has of its package instead, where that is another version.
    pub other_version: Option<&'static str>,
    /// What a manifest has to grant so that it can be used.
    pub needs: Option<Grant>,
}

/// Something that a guest exports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its type.
    pub signature: String,
    /// Whether the host uses it.
    pub is_used: bool,
    /// The type that it must have, where it has another.
    pub expected_signature: Option<String>,
}

/// Something that a guest of its kind must export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingExport {
    /// Its name.
    pub name: &'static str,
    /// The type that it must have; where there are two, both.
    pub signature: String,
    /// What it exports that is most like it.
    pub nearest: Option<String>,
}

/// A linear memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What it begins with, in bytes.
    pub initial_bytes: u64,
    /// What it says that it never grows beyond, in bytes.
    pub maximum_bytes: Option<u64>,
    /// Whether it is shared with threads, which this host doesn't run.
    pub is_shared: bool,
    /// Whether its addresses have 64 bits, which this host doesn't run.
    pub is_64_bit: bool,
    /// Whether it is imported, which this host has none for.
    pub is_imported: bool,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Elements that it begins with.
    pub initial_elements: u64,
    /// Elements that it says that it never grows beyond.
    pub maximum_elements: Option<u64>,
}

/// An interface of WASI that a guest imports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WasiUse {
    /// The interface, as the guest spells it.
    pub interface: String,
    /// How many functions of it.
    pub functions: u64,
    /// Those of them that this host has and refuses: there are no files and no sockets.
    pub refused: Vec<String>,
}

/// What a guest carries for those who look for mistakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DebugInformation {
    /// Names of functions: stacks and traps can tell them.
    pub function_names: bool,
    /// DWARF lines: stacks and traps can tell files and lines.
    pub lines: bool,
    /// A source map, which this host doesn't read.
    pub source_map: bool,
}

/// A language, compiler or toolchain that had a part in a guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Producer {
    /// What it did: `language`, `processed-by`, `sdk`.
    pub field: String,
    /// Its name.
    pub name: String,
    /// Its version; may be empty.
    pub version: String,
}

/// What a guest may have at most, whatever its manifest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostBounds {
    /// Its linear memories together, in bytes.
    pub memory_bytes: u64,
    /// One table.
    pub table_elements: u64,
    /// The body of one function, in bytes.
    pub function_bytes: u64,
}

impl Host {
    /// What the guest is that `bytes`, text or binary, are: told without compiling it. What
    /// can only be told by that, [`Host::load`] tells.
    ///
    /// # Errors
    /// They are no WebAssembly, or not valid with any feature that there is.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Inspection, Rejection> {
        let binary = structure::to_binary(bytes)?;
        structure::check(&binary)?;
        let abi = abi_of(&binary)?;
        let scan = Scan::of(&binary).map_err(|error| {
            let message = format!("{abi} that is not valid: {}", in_a_line(&error.to_string()));
            rejection(RejectionKind::InvalidModule, message)
        })?;
        let sandbox = self.usual_sandbox()?;
        let is_text = !bytes.starts_with(b"\0asm");
        Ok(inspected(abi, ModuleHash::of(bytes), is_text, scan, &sandbox, self.max_memory_bytes()))
    }
}

fn inspected(
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
    let mut looked_for = 0;
    let imports = scan.imports.into_iter().map(|asked| match abi {
        Abi::Core => core_import(sandbox, asked, &mut looked_for),
        Abi::Component => component_import(sandbox, asked, &mut looked_for),
        Abi::NodePack => pack_import(sandbox, asked, &mut looked_for),
    });
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
        imports: imports.collect(),
        imports_omitted: scan.imports_omitted,
        exports,
        exports_omitted: scan.exports_omitted,
        missing_exports,
        memories: scan.memories,
        tables: scan.tables,
        runs_at_start: scan.starts || initializes,
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

/// Whether one more unknown import is compared with the known ones.
fn looks(looked_for: &mut usize) -> bool {
    *looked_for += 1;
    *looked_for <= NEAREST_MAX
}

fn core_import(sandbox: &Sandbox, asked: Asked, looked_for: &mut usize) -> Import {
    let Asked { module, name, signature } = asked;
    let known = sandbox.imports.get(&(module.clone(), name.clone()));
    let wanted = known.map(core_module::shown);
    let embedders = sandbox.embedders.iter().map(|linked| &linked.function);
    let own = embedders
        .filter(|own| own.interface() == module && own.field() == name)
        .map(|own| own.full_name())
        .next();
    let nearest = match known {
        None if looks(looked_for) => core_module::nearest_import(sandbox, &module, &name),
        _ => None,
    };
    Import {
        host_function: sandbox.functions.named(&module, &name),
        group: known.map(|_| group::of_core(&module, &name)),
        waits: sandbox.functions.waiting(&module, &name).is_some(),
        is_known: known.is_some(),
        expected_signature: wanted.filter(|wanted| *wanted != signature),
        nearest,
        other_version: None,
        needs: known.and_then(|_| group::grant(group::of_core(&module, &name), own)),
        module,
        name,
        signature,
    }
}

fn component_import(sandbox: &Sandbox, asked: Asked, looked_for: &mut usize) -> Import {
    let Asked { module, name, signature } = asked;
    let interface = component::without_version(&module);
    let functions = &sandbox.component_functions;
    let other_version = component::other_version(&module);
    let is_known = other_version.is_none() && functions.has(interface, &name);
    let own = component::embedders(sandbox, interface, &name);
    let group = group::of_component(interface);
    let nearest = if is_known || other_version.is_some() || !looks(looked_for) {
        None
    } else if functions.interfaces().any(|known| known == interface) {
        component::nearest_import(sandbox, &format!("{interface}.{name}"))
    } else {
        component::nearest_import(sandbox, interface)
    };
    Import {
        host_function: functions.named(interface, &name).filter(|_| is_known),
        group: is_known.then_some(group),
        waits: functions.waiting(interface, &name).is_some(),
        is_known,
        expected_signature: None,
        nearest: nearest.map(str::to_owned),
        other_version,
        needs: if is_known { group::grant(group, own) } else { None },
        module,
        name,
        signature,
    }
}

fn pack_import(sandbox: &Sandbox, asked: Asked, looked_for: &mut usize) -> Import {
    let Asked { module, name, signature } = asked;
    let known = node_pack::import(&module, &name);
    let nearest = match known {
        None if looks(looked_for) => module::node_pack::nearest_import(&module, &name),
        _ => None,
    };
    Import {
        host_function: sandbox.pack_functions.named(&module, &name),
        group: known.map(|_| group::of_pack(&name)),
        waits: false,
        is_known: known.is_some(),
        expected_signature: known
            .filter(|known| known.form(&signature).is_none())
            .map(|known| known.wanted()),
        nearest,
        other_version: None,
        needs: None,
        module,
        name,
        signature,
    }
}

/// Something that the host uses of a guest, and the types that it may have.
type Used = (&'static str, &'static [&'static str]);

/// What the host uses of a guest.
fn used(abi: Abi) -> Vec<Used> {
    const MEMORY: Used = (core_module::MEMORY, &["a memory"]);
    match abi {
        Abi::Core => vec![MEMORY, (core_module::RUN, &["(i32, i32) -> (i32)"])],
        Abi::Component => vec![(component::HANDLE, &[component::HANDLER])],
        Abi::NodePack => {
            let of_pack = node_pack::EXPORTS.iter().map(|export| (export.name, export.types));
            std::iter::once(MEMORY).chain(of_pack).collect()
        }
    }
}

/// What it exports, and what a guest of its kind does and it doesn't.
fn exports(abi: Abi, found: Vec<Exported>) -> (Vec<Export>, Vec<MissingExport>) {
    let used = used(abi);
    let missing = used.iter().filter(|(name, _)| !found.iter().any(|one| one.name == *name));
    let missing = missing.map(|(name, types)| {
        let nearest = module::nearest(name, found.iter().map(|one| one.name.as_str()));
        let signature = types.join(" or ");
        MissingExport { name, signature, nearest: nearest.map(str::to_owned) }
    });
    let missing = missing.collect();
    let told = found.into_iter().map(|Exported { name, signature }| {
        let wanted = used.iter().find(|(used, _)| *used == name).map(|(_, wanted)| *wanted);
        let initializes = abi != Abi::Component && name == core_module::INITIALIZE;
        let wanted: Option<&[&str]> = wanted.or(initializes.then_some(&["() -> ()"]));
        Export {
            is_used: wanted.is_some(),
            expected_signature: wanted
                .filter(|wanted| !wanted.contains(&signature.as_str()))
                .map(|wanted| wanted.join(" or ")),
            name,
            signature,
        }
    });
    (told.collect(), missing)
}

/// What is imported of WASI, by interface.
fn wasi(imports: &[Asked]) -> Vec<WasiUse> {
    let mut used: Vec<WasiUse> = Vec::new();
    for Asked { module, name, .. } in imports.iter().filter(|one| group::is_wasi(&one.module)) {
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
