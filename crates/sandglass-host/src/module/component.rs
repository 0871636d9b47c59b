//! Components: whether they fit the WIT world, and what is wrong where they don't.

use sandglass_model::{Rejection, RejectionKind};
use wasmtime::component::types::{ComponentFunc, ComponentItem};
use wasmtime::component::{self, Type};

use super::source::{NotMade, Source};
use super::{Needs, NotCompiled, is_valid_somewhere, nearest};
use crate::abi::world::IntegrationPre;
use crate::sandbox::Sandbox;
use crate::store::RunStore;
use sandglass_supervisor::manifest::Abi;
use sandglass_supervisor::rejection::{in_a_line, rejection};
use sandglass_supervisor::text::printable;

/// The export that a handler is.
pub(crate) const HANDLE: &str = "handle";

/// The world whose export it is, for messages.
const WORLD: &str = Abi::Component.contract();

/// The packages that this host has in one version, each with what versions that are
/// compatible with it begin with, and how it is told.
const VERSIONS: [(&str, &str, &str); 2] =
    [("sandglass:integration/", "0.1.", WORLD), ("wasi:", "0.2.", "WASI 0.2")];

/// A component that is compiled, linked, and known to fit.
pub(crate) struct Component {
    pub(crate) pre: IntegrationPre<RunStore>,
}

/// Compiles and links what `source` has.
pub(super) fn compile(
    sandbox: &Sandbox,
    source: &Source<'_>,
) -> Result<(Component, Needs), NotCompiled> {
    let component: component::Component = source.compiled().map_err(not_made)?;
    let Imported { waits_in, embedders } = check_imports(sandbox, &component)?;
    check_export(sandbox, &component)?;
    let pre = sandbox
        .component_linker
        .instantiate_pre(&component)
        .and_then(IntegrationPre::new)
        .map_err(|error| {
            let why = printable(&format!("{error:#}"));
            rejection(
                RejectionKind::WrongSignature,
                format!(
                    "component imports something with another type than this host has it: {why}; \
                     build it for WASI 0.2 and {WORLD}"
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

fn not_made(why: NotMade) -> NotCompiled {
    match why {
        NotMade::NotCompiled(rejection) => rejection.into(),
        NotMade::TooLarge(error, made) => {
            NotCompiled::TooLargeForSlot(needs_too_much(&error), made)
        }
    }
}

fn needs_too_much(error: &wasmtime::Error) -> Rejection {
    rejection(
        RejectionKind::NeedsTooMuch,
        format!("component needs more than a guest of this host can have: {error:#}"),
    )
}

/// Tells a component that isn't valid from one that uses what is off here, and
/// from one that is too large for the compiler.
pub(super) fn not_compiled(binary: &[u8], error: &wasmtime::Error) -> Rejection {
    let invalid = error.is::<wasmparser::BinaryReaderError>();
    let why = in_a_line(&format!("{error:#}"));
    match (invalid, is_valid_somewhere(binary)) {
        (_, false) => {
            rejection(RejectionKind::InvalidModule, format!("component is not valid: {why}"))
        }
        (true, true) => rejection(
            RejectionKind::UnsupportedModule,
            format!("component uses a WebAssembly feature that is off in this host: {why}"),
        ),
        (false, true) => needs_too_much(error),
    }
}

/// What a component imports that is to be remembered.
#[derive(Default)]
struct Imported {
    waits_in: Vec<String>,
    embedders: Vec<String>,
}

/// Checks that this host has all that `component` imports.
fn check_imports(
    sandbox: &Sandbox,
    component: &component::Component,
) -> Result<Imported, Rejection> {
    let mut imported = Imported::default();
    let ty = component.component_type();
    for (name, import) in ty.imports(&sandbox.engine) {
        let interface = without_version(name);
        let instance = match import.ty {
            ComponentItem::ComponentInstance(instance) => instance,
            // A name for a type of an interface.
            ComponentItem::Type(_) => continue,
            _ => return Err(missing_import(sandbox, name, interface)),
        };
        check_version(sandbox, name)?;
        for (function, item) in instance.exports(&sandbox.engine) {
            if !matches!(item.ty, ComponentItem::ComponentFunc(_)) {
                continue;
            }
            let functions = &sandbox.component_functions;
            if !functions.has(interface, function) {
                let asked = format!("{interface}.{function}");
                return Err(missing_import(sandbox, &asked, &asked));
            }
            imported.waits_in.extend(functions.waiting(interface, function).map(str::to_owned));
            imported.embedders.extend(embedders(sandbox, interface, function));
        }
    }
    Ok(imported)
}

/// The name of this import as manifests have it, where it is the embedder's own.
pub(crate) fn embedders(sandbox: &Sandbox, interface: &str, function: &str) -> Option<String> {
    sandbox
        .component_embedders
        .iter()
        .map(|linked| &linked.function)
        .find(|own| own.unversioned() == interface && own.field() == function)
        .map(|own| own.full_name())
}

/// `package/interface`, whatever version of it is asked for: the linker matches
/// versions.
pub(crate) fn without_version(interface: &str) -> &str {
    interface.split_once('@').map_or(interface, |(name, _)| name)
}

/// The version that this host has of the package of `interface`, where it is asked for in
/// another that isn't compatible with it.
pub(crate) fn other_version(interface: &str) -> Option<&'static str> {
    let (name, version) = interface.split_once('@')?;
    let (_, compatible, here) = VERSIONS.iter().find(|(package, ..)| name.starts_with(package))?;
    let fits = version.starts_with(compatible) && !version.contains('-');
    (!fits).then_some(here)
}

/// Refuses an interface that this host has in a version that isn't compatible.
fn check_version(sandbox: &Sandbox, interface: &str) -> Result<(), Rejection> {
    let here = other_version(interface);
    let known = |name: &str| sandbox.component_functions.interfaces().any(|known| known == name);
    match here.filter(|_| known(without_version(interface))) {
        Some(here) => Err(rejection(
            RejectionKind::MissingImport,
            format!(
                "component imports `{}`, and this host has {here} of it; build it for that version",
                printable(interface)
            ),
        )),
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
            "component imports `{}`, which this host doesn't have ({WORLD} and WASI 0.2){near}",
            printable(shown)
        ),
    )
}

/// What can be imported that is most like `asked`.
pub(crate) fn nearest_import<'a>(sandbox: &'a Sandbox, asked: &str) -> Option<&'a str> {
    let functions = &sandbox.component_functions;
    nearest(asked, functions.interfaces().chain(functions.names()))
}

fn check_export(sandbox: &Sandbox, component: &component::Component) -> Result<(), Rejection> {
    let ty = component.component_type();
    match ty.get_export(&sandbox.engine, HANDLE).map(|export| export.ty) {
        Some(ComponentItem::ComponentFunc(handle)) => {
            let handle = shown_function(&handle);
            if handle == HANDLER {
                return Ok(());
            }
            Err(rejection(
                RejectionKind::WrongSignature,
                format!(
                    "component exports `{HANDLE}` with another type than a handler of {WORLD} \
                     has; it is {}, and must be {HANDLER}",
                    printable(&handle)
                ),
            ))
        }
        Some(_) => Err(rejection(
            RejectionKind::WrongSignature,
            format!("component exports `{HANDLE}`, and it is no function"),
        )),
        None => {
            let near = nearest(HANDLE, ty.exports(&sandbox.engine).map(|(name, _)| name))
                .map(|near| format!(" (the nearest that it exports is `{}`)", printable(near)))
                .unwrap_or_default();
            Err(rejection(
                RejectionKind::MissingExport,
                format!(
                    "component doesn't export `{HANDLE}`{near}; a handler is built for the world \
                     `integration` of {WORLD}"
                ),
            ))
        }
    }
}

/// The handler's type, as [`shown_function`] writes it.
pub(crate) const HANDLER: &str = "func(context: record { tenant: string, entity-type: string, \
    entity-id: string, trigger-action: string, trigger-params: string, entity-state: string, \
    integration-config: list<tuple<string, string>>, trace-id: string, agent-id: option<string>, \
    session-id: option<string>, dispatch-id: string, deadline-remaining-ms: u64, attempt: u32 }) \
    -> result<record { action: option<string>, params: string }, variant { plain(string), \
    typed(record { category: string, code: string, retryability: option<string>, \
    outcome: option<string>, details: option<string>, diagnostic: option<string> }) }>";

fn shown_function(function: &ComponentFunc) -> String {
    let params = list(function.params().map(|(name, ty)| format!("{name}: {}", shown(&ty))));
    let results = list(function.results().map(|ty| shown(&ty)));
    let arrow = if results.is_empty() { "" } else { " -> " };
    format!("func({params}){arrow}{results}")
}

/// A type as WIT writes it, with everything that it is made of.
fn shown(ty: &Type) -> String {
    let or_nothing = |ty: Option<Type>| ty.as_ref().map_or_else(|| "_".to_owned(), shown);
    match ty {
        Type::Bool => "bool".to_owned(),
        Type::S8 => "s8".to_owned(),
        Type::U8 => "u8".to_owned(),
        Type::S16 => "s16".to_owned(),
        Type::U16 => "u16".to_owned(),
        Type::S32 => "s32".to_owned(),
        Type::U32 => "u32".to_owned(),
        Type::S64 => "s64".to_owned(),
        Type::U64 => "u64".to_owned(),
        Type::Float32 => "f32".to_owned(),
        Type::Float64 => "f64".to_owned(),
        Type::Char => "char".to_owned(),
        Type::String => "string".to_owned(),
        Type::List(items) => format!("list<{}>", shown(&items.ty())),
        Type::Option(some) => format!("option<{}>", shown(&some.ty())),
        Type::Result(result) => {
            format!("result<{}, {}>", or_nothing(result.ok()), or_nothing(result.err()))
        }
        Type::Tuple(tuple) => format!("tuple<{}>", list(tuple.types().map(|ty| shown(&ty)))),
        Type::Record(record) => {
            let fields =
                record.fields().map(|field| format!("{}: {}", field.name, shown(&field.ty)));
            format!("record {{ {} }}", list(fields))
        }
        Type::Variant(variant) => {
            let cases = variant.cases().map(|case| match case.ty {
                Some(ty) => format!("{}({})", case.name, shown(&ty)),
                None => case.name.to_owned(),
            });
            format!("variant {{ {} }}", list(cases))
        }
        Type::Enum(names) => format!("enum {{ {} }}", list(names.names().map(str::to_owned))),
        Type::Flags(names) => format!("flags {{ {} }}", list(names.names().map(str::to_owned))),
        Type::Own(_) | Type::Borrow(_) => "a resource".to_owned(),
        _ => "a type of another kind".to_owned(),
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiling::Compiler;
    use crate::host_function::{BlockingCalls, Registry};
    use crate::sandbox::EngineKind;
    use sandglass_model::{ModuleHash, SystemClock};
    use sandglass_supervisor::settings::Settings;
    use sandglass_telemetry::Metrics;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    /// Imports all of WASI 0.2's command world, `wasi:http`'s outgoing handler and the
    /// world `integration`, as `wit-component` makes a dummy of it.
    const IMPORTS_EVERYTHING: &[u8] = include_bytes!("../../tests/all/imports_everything.wasm");

    /// What generated code has, but links only where it is asked to.
    const UNSTABLE: [&str; 2] = [
        "wasi:http/types.[method]response-outparam.send-informational",
        "wasi:sockets/network.network-error-code",
    ];

    fn sandbox() -> Sandbox {
        let settings = Settings { max_runs: 1, ..Settings::default() };
        let blocking = BlockingCalls::new(1, Metrics::disabled());
        let registry = Registry::new(Vec::new(), blocking).expect("no functions");
        Sandbox::new(&settings, EngineKind::USUAL, &registry).expect("a sandbox")
    }

    fn compiled(sandbox: &Sandbox) -> Result<(Component, Needs), NotCompiled> {
        let hash = ModuleHash::of(IMPORTS_EVERYTHING);
        let (engine, binary) = (&sandbox.engine, IMPORTS_EVERYTHING);
        let (metrics, clock) = (&Metrics::disabled(), &SystemClock::new());
        let (compiler, closed) = (&Compiler::InProcess, &AtomicBool::new(false));
        let metering = sandbox.kind.metering;
        let (made, folder) = (None, None);
        let source = Source {
            engine,
            metering,
            compiler,
            closed,
            made,
            folder,
            hash,
            binary,
            metrics,
            clock,
        };
        compile(sandbox, &source)
    }

    #[test]
    fn the_host_has_all_of_the_worlds_with_their_types() {
        assert!(compiled(&sandbox()).is_ok());
    }

    /// The names are written by hand beside generated traits, so they might lie.
    #[test]
    fn each_function_has_the_name_that_components_import_it_by() {
        let sandbox = sandbox();
        let component = component::Component::from_binary(&sandbox.engine, IMPORTS_EVERYTHING)
            .expect("it is valid");
        let ty = component.component_type();
        let mut imported = BTreeSet::new();
        for (interface, import) in ty.imports(&sandbox.engine) {
            let ComponentItem::ComponentInstance(instance) = import.ty else { continue };
            let interface = without_version(interface);
            for (name, item) in instance.exports(&sandbox.engine) {
                imported.insert(match item.ty {
                    ComponentItem::ComponentFunc(_) => format!("{interface}.{name}"),
                    ComponentItem::Resource(_) => format!("{interface}.[resource-drop]{name}"),
                    _ => continue,
                });
            }
        }
        let named: BTreeSet<String> =
            sandbox.component_functions.names().map(str::to_owned).collect();
        let not_imported: Vec<_> = named.difference(&imported).collect();
        assert_eq!(not_imported, UNSTABLE, "no component can import others");
        // A resource has its drop in the interface that it comes from alone.
        let unnamed: Vec<_> =
            imported.difference(&named).filter(|name| !name.contains("[resource-drop]")).collect();
        assert!(unnamed.is_empty(), "{unnamed:?} have no names");
    }

    #[test]
    fn what_waits_is_known() {
        let Ok((_, needs)) = compiled(&sandbox()) else { panic!("it fits") };
        let waits: BTreeSet<&str> = needs.waits_in.iter().map(String::as_str).collect();
        let expected = BTreeSet::from([
            "sandglass:integration/ask.ask",
            "sandglass:integration/http.[method]incoming-response.read",
            "sandglass:integration/http.[method]outgoing-request.write",
            "sandglass:integration/http.[static]outgoing-request.finish",
            "sandglass:integration/http.open",
            "sandglass:integration/http.send",
            "sandglass:integration/secrets.get",
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

        // A guest is killed in each: by the fixtures, or by tests of asks and of secrets
        // that never come.
        let fixtures = include_str!("../../../../guest-fixtures/fixtures.toml");
        let dies_in_it = |name: &&&str| fixtures.contains(&format!("\"{name}\""));
        let untried: BTreeSet<&str> =
            waits.iter().filter(|name| !dies_in_it(name)).copied().collect();
        let without =
            BTreeSet::from(["sandglass:integration/ask.ask", "sandglass:integration/secrets.get"]);
        assert_eq!(untried, without);
    }
}
