//! Components: whether they fit the WIT world, and what is wrong if they do not.

use std::collections::BTreeSet;

use sandglass_model::{Rejection, RejectionKind};
use wasmtime::component;
use wasmtime::component::types::ComponentItem;

use super::source::Source;
use super::{Needs, NotCompiled, nearest, nearest_export, wit};
use crate::abi::{self, world::IntegrationPre};
use crate::sandbox::Sandbox;
use crate::store::RunStore;
use sandglass_supervisor::manifest::Abi;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::text::printable;

/// The export that is the handler.
pub(crate) const HANDLE: &str = "handle";

/// The world that has this export, for messages.
const WORLD: &str = Abi::Component.contract();

/// Both worlds, for messages.
const WORLDS: &str = "sandglass:integration 0.1 and 0.2";

/// The packages of which this host has certain versions: each with the prefixes of compatible ones,
/// and with their names in messages.
const VERSIONS: [(&str, [&str; 2], &str); 2] = [
    ("sandglass:integration/", ["0.1.", "0.2."], WORLDS),
    ("wasi:", ["0.2.", "0.3."], "WASI 0.2 and 0.3"),
];

/// A component that is compiled, linked, and known to fit.
pub(crate) struct Component {
    pub(crate) pre: IntegrationPre<RunStore>,
}

/// Compiles and links the component.
pub(super) fn compile(
    sandbox: &Sandbox,
    source: &Source<'_>,
) -> Result<(Component, Needs), NotCompiled> {
    let component: component::Component = source.load()?;
    let Imported { waits_in, embedders, asynchronous } = check_imports(sandbox, &component)?;
    check_export(sandbox, &component, source.binary)?;
    let pre = pre_instance(sandbox, &component, &asynchronous)
        .and_then(IntegrationPre::new)
        .map_err(|error| {
            let why = printable(&format!("{error:#}"));
            rejection(
                RejectionKind::WrongSignature,
                format!(
                    "component imports something with another type than this host has it: {why}; \
                     build it for WASI 0.2 or 0.3 and {WORLDS}"
                ),
            )
        })?;
    let required = component.resources_required();
    let needs = Needs {
        context_bytes: 0,
        memories: required.as_ref().map_or(2, |required| required.num_memories.into()),
        initial_table_elements: required
            .and_then(|required| required.max_initial_table_size)
            .unwrap_or(0),
        waits_in,
        embedders,
    };
    Ok((Component { pre }, needs))
}

/// What a [`Needs`] has to know of the imports of a component.
#[derive(Default)]
struct Imported {
    waits_in: Vec<String>,
    embedders: Vec<String>,
    /// Those of the embedder's functions that it imports as asynchronous ones, by their names.
    asynchronous: BTreeSet<String>,
}

/// Links the component.
fn pre_instance(
    sandbox: &Sandbox,
    component: &component::Component,
    asynchronous: &BTreeSet<String>,
) -> wasmtime::Result<component::InstancePre<RunStore>> {
    let linker = &sandbox.component_linker;
    let other = abi::embedder::with_asynchronous(linker, &sandbox.embedders_linked, |signature| {
        asynchronous.contains(&signature.full_name())
    })?;
    other.as_ref().unwrap_or(linker).instantiate_pre(component)
}

/// Checks that this host has everything that `component` imports.
fn check_imports(
    sandbox: &Sandbox,
    component: &component::Component,
) -> Result<Imported, Rejection> {
    let mut imported = Imported::default();
    let ty = component.component_type();
    for (name, import) in ty.imports(&sandbox.engine) {
        let interface = key(name);
        let instance = match import.ty {
            ComponentItem::ComponentInstance(instance) => instance,
            // An alias of a type of an interface.
            ComponentItem::Type(_) => continue,
            _ => return Err(missing_import(sandbox, name, interface)),
        };
        check_version(sandbox, name)?;
        for (function, item) in instance.exports(&sandbox.engine) {
            let ComponentItem::ComponentFunc(ty) = item.ty else { continue };
            let functions = &sandbox.component_functions;
            if functions.find(interface, function).is_none() {
                let asked = format!("{interface}.{function}");
                return Err(missing_import(sandbox, &format!("{name}.{function}"), &asked));
            }
            imported.waits_in.extend(functions.waiting(interface, function).map(str::to_owned));
            if let Some(name) = sandbox.embedders_component_function(interface, function) {
                if ty.async_() {
                    imported.asynchronous.insert(name.clone());
                }
                imported.embedders.push(name);
            }
        }
    }
    Ok(imported)
}

/// `package/interface` without a version: the linker matches versions.
pub(crate) fn without_version(interface: &str) -> &str {
    interface.split_once('@').map_or(interface, |(name, _)| name)
}

/// Whether an interface has a version that only the engine for several calls has.
pub(crate) fn is_current(interface: &str) -> bool {
    let Some((name, version)) = interface.split_once('@') else { return false };
    let is = |package: &str, compatible: &str| {
        name.starts_with(package) && version.starts_with(compatible)
    };
    is("wasi:", "0.3.") || is("sandglass:integration/", "0.2.")
}

/// The name of `interface` in the table of functions: without a version, or, if it is a current one,
/// with the part that compatible versions share.
pub(crate) fn key(interface: &str) -> &str {
    match is_current(interface) {
        true => interface.rsplit_once('.').map_or(interface, |(key, _)| key),
        false => without_version(interface),
    }
}

/// The version that this host has of the package of `interface`, if the version of `interface` is not
/// compatible with it.
pub(crate) fn other_version(interface: &str) -> Option<&'static str> {
    let (name, version) = interface.split_once('@')?;
    let (_, compatible, here) = VERSIONS.iter().find(|(package, ..)| name.starts_with(package))?;
    let starts = |compatible: &&str| version.starts_with(*compatible);
    let fits = compatible.iter().any(starts) && !version.contains('-');
    (!fits).then_some(here)
}

/// Rejects an interface that this host has in an incompatible version.
fn check_version(sandbox: &Sandbox, interface: &str) -> Result<(), Rejection> {
    let here = other_version(interface);
    let name = without_version(interface);
    let mut known = sandbox.component_functions.interfaces().map(without_version);
    match here.filter(|_| known.any(|known| known == name)) {
        Some(here) => {
            let is_candidate =
                interface.split_once('@').is_some_and(|(_, version)| version.contains('-'));
            let note = match is_candidate {
                true => " (a release candidate is another version)",
                false => "",
            };
            Err(rejection(
                RejectionKind::MissingImport,
                format!(
                    "component imports `{}`, and this host has {here} of it{note}; build it for that \
                     version",
                    printable(interface)
                ),
            ))
        }
        None => Ok(()),
    }
}

fn missing_import(sandbox: &Sandbox, shown: &str, asked: &str) -> Rejection {
    let near = nearest_import(sandbox, asked)
        .map(|near| format!("; did you mean `{near}`?"))
        .unwrap_or_default();
    rejection(
        RejectionKind::MissingImport,
        format!(
            "component imports `{}`, which this host does not have ({WORLDS}, WASI 0.2 and 0.3){near}",
            printable(shown)
        ),
    )
}

/// The import that is most like `asked`.
pub(crate) fn nearest_import<'a>(sandbox: &'a Sandbox, asked: &str) -> Option<&'a str> {
    let functions = &sandbox.component_functions;
    nearest(asked, functions.interfaces().chain(functions.names()))
}

fn check_export(
    sandbox: &Sandbox,
    component: &component::Component,
    binary: &[u8],
) -> Result<(), Rejection> {
    let ty = component.component_type();
    if ty.get_export(&sandbox.engine, HANDLE).is_none() {
        let near = nearest_export(HANDLE, ty.exports(&sandbox.engine).map(|(name, _)| name));
        return Err(rejection(
            RejectionKind::MissingExport,
            format!(
                "component does not export `{HANDLE}`{near}; a handler is built for the world \
                 `integration` of {WORLD}"
            ),
        ));
    }
    let problem = match wit::exported_function(binary, HANDLE) {
        Some(handle) if HANDLERS.contains(&&*handle) => return Ok(()),
        Some(handle) => format!(
            " with another type than a handler of {WORLDS} has; it is {}, and must be {HANDLER}, \
             or async",
            printable(&handle)
        ),
        None => ", and it is no function".to_owned(),
    };
    Err(rejection(RejectionKind::WrongSignature, format!("component exports `{HANDLE}`{problem}")))
}

/// A handler's type after the text `$before`, as [`wit::function`] writes it.
macro_rules! handler {
    ($before:literal) => {
        concat!(
            $before,
            "func(context: record { tenant: string, entity-type: string, \
             entity-id: string, trigger-action: string, trigger-params: string, \
             entity-state: string, integration-config: list<tuple<string, string>>, \
             trace-id: string, agent-id: option<string>, session-id: option<string>, \
             dispatch-id: string, deadline-remaining-ms: u64, attempt: u32 }) \
             -> result<record { action: option<string>, params: string }, variant { \
             plain(string), typed(record { category: string, code: string, \
             retryability: option<string>, outcome: option<string>, details: option<string>, \
             diagnostic: option<string> }) }>"
        )
    };
}

const HANDLER: &str = handler!("");

/// The types that a handler may have: of version 0.1 of the world, and of 0.2.
pub(crate) const HANDLERS: [&str; 2] = [HANDLER, handler!("async ")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::testing::{compile, sandbox, sandbox_of};
    use crate::sandbox::{Concurrency, EngineKind, Target};
    use sandglass_model::Allocation;
    use sandglass_supervisor::functions::Function;
    use sandglass_supervisor::settings::Settings;
    use std::sync::Arc;

    /// Imports all of WASI 0.2's command world, `wasi:http`'s outgoing handler and the world
    /// `integration`, as `wit-component` makes a dummy of it.
    const IMPORTS_EVERYTHING: &[u8] = include_bytes!("../../tests/all/imports_everything.wasm");

    /// As [`IMPORTS_EVERYTHING`], of WASI 0.3 with the client of `wasi:http`, and of the world 0.2.
    const IMPORTS_EVERYTHING_ASYNC: &[u8] =
        include_bytes!("../../tests/all/imports_everything_async.wasm");

    /// What generated code has, and links only if it is configured to; and steps of streams.
    const NOT_IMPORTED: [&str; 8] = [
        "sandglass:integration/http@0.2.[read]response.body",
        "sandglass:integration/http@0.2.[write]request.body",
        "wasi:cli/stderr@0.3.[write]data",
        "wasi:cli/stdout@0.3.[write]data",
        "wasi:http/client@0.3.[read]response.body",
        "wasi:http/client@0.3.[write]request.body",
        "wasi:http/types.[method]response-outparam.send-informational",
        "wasi:sockets/network.network-error-code",
    ];

    fn sandbox_for_one() -> Arc<Sandbox> {
        sandbox(&Settings { max_runs: 1, ..Settings::default() })
    }

    fn sandbox_for_tasks() -> Arc<Sandbox> {
        let target = Target { concurrency: Concurrency::SeveralCalls, ..EngineKind::USUAL.target };
        let kind = EngineKind { target, allocation: Allocation::OnDemand };
        sandbox_of(&Settings::default(), kind)
    }

    #[test]
    fn the_host_has_every_import_of_the_worlds_with_its_type() {
        assert!(compile(&sandbox_for_one(), IMPORTS_EVERYTHING).is_ok());
        let sandbox = sandbox_for_tasks();
        for component in [IMPORTS_EVERYTHING, IMPORTS_EVERYTHING_ASYNC] {
            let compiled = compile(&sandbox, component).map_err(NotCompiled::rejection);
            assert_eq!(compiled.map(drop), Ok(()));
        }
    }

    /// The names are written by hand beside generated traits, so they could be wrong.
    #[test]
    fn each_function_has_the_name_that_components_import_it_by() {
        let sandbox = sandbox_for_tasks();
        let mut imported = BTreeSet::new();
        for binary in [IMPORTS_EVERYTHING, IMPORTS_EVERYTHING_ASYNC] {
            let component =
                component::Component::from_binary(&sandbox.engine, binary).expect("it is valid");
            let ty = component.component_type();
            for (interface, import) in ty.imports(&sandbox.engine) {
                let ComponentItem::ComponentInstance(instance) = import.ty else { continue };
                let interface = key(interface);
                for (name, item) in instance.exports(&sandbox.engine) {
                    imported.insert(match item.ty {
                        ComponentItem::ComponentFunc(_) => format!("{interface}.{name}"),
                        ComponentItem::Resource(_) => format!("{interface}.[resource-drop]{name}"),
                        _ => continue,
                    });
                }
            }
        }
        let name = |function: &Function| format!("{}.{}", function.module, function.field);
        let named: BTreeSet<String> = sandbox.component_functions.iter().map(name).collect();
        let not_imported: Vec<_> = named.difference(&imported).collect();
        assert_eq!(not_imported, NOT_IMPORTED, "no component can import others");
        // A resource has its drop only in the interface that defines it.
        let unnamed: Vec<_> =
            imported.difference(&named).filter(|name| !name.contains("[resource-drop]")).collect();
        assert!(unnamed.is_empty(), "{unnamed:?} have no names");
    }

    #[test]
    fn the_functions_that_a_component_can_wait_in_are_found() {
        let Ok(compiled) = compile(&sandbox_for_one(), IMPORTS_EVERYTHING) else {
            panic!("it fits")
        };
        let waits: BTreeSet<&str> = compiled.needs.waits_in.iter().map(String::as_str).collect();
        let expected = BTreeSet::from([
            "sandglass:integration/ask.ask",
            "sandglass:integration/http.[method]incoming-response.read",
            "sandglass:integration/http.[method]outgoing-request.write",
            "sandglass:integration/http.[static]outgoing-request.finish",
            "sandglass:integration/http.open",
            "sandglass:integration/http.send",
            "sandglass:integration/secrets.get",
            "sandglass:integration/signal.send",
            "wasi:io/poll.[method]pollable.block",
            "wasi:io/poll.poll",
            "wasi:io/streams.[method]input-stream.blocking-read",
            "wasi:io/streams.[method]input-stream.blocking-skip",
            "wasi:io/streams.[method]output-stream.blocking-flush",
            "wasi:io/streams.[method]output-stream.blocking-splice",
            "wasi:io/streams.[method]output-stream.blocking-write-and-flush",
            "wasi:io/streams.[method]output-stream.blocking-write-zeroes-and-flush",
        ]);
        assert_eq!(waits, expected);

        // A guest is killed in each of them: in the fixtures, or in tests of asks, signals and secrets
        // that never arrive.
        let fixtures = include_str!("../../../../guest-fixtures/fixtures.toml");
        let dies_in_it = |name: &&&str| fixtures.contains(&format!("\"{name}\""));
        let untried: BTreeSet<&str> =
            waits.iter().filter(|name| !dies_in_it(name)).copied().collect();
        let without = BTreeSet::from([
            "sandglass:integration/ask.ask",
            "sandglass:integration/secrets.get",
            "sandglass:integration/signal.send",
        ]);
        assert_eq!(untried, without);
    }
}
