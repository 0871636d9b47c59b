//! The host functions that guests can import: their names and classes, once.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::HostCallMetrics;

use crate::capability::Guest;
use crate::host_function::HostFunction;
use crate::host_memory::HostMemory;

/// How a host function behaves towards the deadline. Each declares one, and
/// there are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It never waits; at the most it tells something.
    Instant,
    /// It may wait; it is dropped where it waits when the deadline passes.
    Async,
    /// It holds a thread, for a bounded time; it goes on unheard where its run ends
    /// first.
    Blocking,
}

/// How much of a guest's memory one call of a host function may read. `abi::guest_memory` enforces
/// it for core modules, and Wasmtime's host-call fuel for components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Its numbers alone.
    Numbers,
    /// So many bytes.
    Bytes(u64),
    /// The largest response that is granted, and a name.
    Response,
    /// The granted scratch, and a name.
    Scratch,
    /// The run's whole account. `guest_memory` checks what is left of it.
    HostMemory,
    /// What one call of a component may pass ([`HostMemory::call_bytes`]).
    Call,
}

impl Reads {
    /// So many bytes.
    pub(crate) const fn bytes(bytes: u32) -> Self {
        Self::Bytes(bytes as u64)
    }

    /// The bound for `guest`, in bytes.
    pub(crate) fn bytes_for(self, guest: &Guest) -> u64 {
        /// Longest name of something that a value is given to.
        const NAME_BYTES: u64 = 1024;
        match self {
            Self::Numbers => 0,
            Self::Bytes(bytes) => bytes,
            Self::Response => guest.response_bytes().saturating_add(NAME_BYTES),
            Self::Scratch => guest.scratch_bytes().saturating_add(NAME_BYTES),
            Self::HostMemory => guest.memory.limit(),
            Self::Call => HostMemory::call_bytes(guest.response_bytes()) as u64,
        }
    }
}

/// One host function of a [`Functions`] table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionId(u16);

impl FunctionId {
    /// Its place in the table.
    #[inline]
    pub(crate) const fn number(self) -> u16 {
        self.0
    }
}

/// A function that components can import.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Import {
    /// Package and interface, without a version.
    pub(crate) interface: &'static str,
    /// Its name in the interface, as components spell it.
    pub(crate) function: &'static str,
    pub(crate) class: Class,
}

impl FunctionId {
    /// The id of a function of `imports`, where those are added to a table that
    /// holds `first` already. Found while this crate is compiled, which fails
    /// where it is missing.
    pub(crate) const fn of(
        first: usize,
        imports: &[Import],
        interface: &str,
        function: &str,
    ) -> Self {
        let mut at = 0;
        loop {
            if same(imports[at].function, function) && same(imports[at].interface, interface) {
                #[allow(clippy::cast_possible_truncation, reason = "a few hundred functions")]
                return Self((first + at) as u16);
            }
            at += 1;
        }
    }
}

/// `==` of texts, for constants.
const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The host functions of one linker, in the order in which they were linked.
#[derive(Debug, Default)]
pub(crate) struct Functions(Vec<Function>);

#[derive(Debug)]
struct Function {
    module: Cow<'static, str>,
    field: Cow<'static, str>,
    /// The name that reports and labels carry: `module.field`, without the
    /// module of the users' own ABI and of OpenWOP's, whose functions carry it themselves.
    name: &'static str,
    class: Class,
    reads: Reads,
    /// What is measured of its calls, once there is one.
    metrics: OnceLock<HostCallMetrics>,
}

/// `name`, which stays as long as the process: reports carry names of host functions without
/// a copy. There are as many as the code of the host and of its embedder names.
fn interned(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name = name.leak();
    names.insert(name);
    name
}

impl Functions {
    pub(crate) fn add(
        &mut self,
        module: &'static str,
        field: &'static str,
        class: Class,
        reads: Reads,
    ) -> FunctionId {
        let bare = [crate::abi::env::MODULE, crate::abi::node_pack::MODULE];
        let name =
            if bare.contains(&module) { field.to_owned() } else { format!("{module}.{field}") };
        self.push((module.into(), field.into()), name, (class, reads))
    }

    /// Adds a function of the embedder's own, which guests find in `module`.
    pub(crate) fn add_embedders(&mut self, function: &HostFunction, module: &str) -> FunctionId {
        let (module, field) = (module.to_owned().into(), function.field().to_owned().into());
        self.push((module, field), function.full_name(), (function.class(), Reads::HostMemory))
    }

    fn push(
        &mut self,
        (module, field): (Cow<'static, str>, Cow<'static, str>),
        name: String,
        (class, reads): (Class, Reads),
    ) -> FunctionId {
        let id =
            u16::try_from(self.0.len()).expect("a linker has a few thousand functions at most");
        let (name, metrics) = (interned(name), OnceLock::new());
        self.0.push(Function { module, field, name, class, reads, metrics });
        FunctionId(id)
    }

    /// Adds all of `imports`, in their order.
    pub(crate) fn add_imports(&mut self, imports: &[Import]) {
        for import in imports {
            self.add(import.interface, import.function, import.class, Reads::Call);
        }
    }

    pub(crate) fn name(&self, id: FunctionId) -> &'static str {
        self.0[usize::from(id.0)].name
    }

    /// How much of a guest's memory one call of it may read.
    #[inline]
    pub(crate) fn reads(&self, id: FunctionId) -> Reads {
        self.0[usize::from(id.0)].reads
    }

    /// Has `metrics`, which are those of the host, told that a call of it took `time`.
    #[inline]
    pub(crate) fn took(&self, id: FunctionId, metrics: &Metrics, time: Duration) {
        // Those of a run that is had again are none, and must not be kept for the others.
        if !metrics.is_enabled() {
            return;
        }
        let Function { name, metrics: looked, .. } = &self.0[usize::from(id.0)];
        looked.get_or_init(|| metrics.of_host_calls(name)).took(time);
    }

    /// The name of the function at this place, if there is one.
    pub(crate) fn at(&self, place: u64) -> Option<&str> {
        let function = self.0.get(usize::try_from(place).ok()?)?;
        Some(function.name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|function| function.name)
    }

    /// The names of those whose calls may have a time limit.
    pub(crate) fn timed(&self) -> impl Iterator<Item = &'static str> {
        let waits = |function: &&Function| {
            function.class != Class::Instant && !function.module.starts_with("wasi")
        };
        self.0.iter().filter(waits).map(|function| function.name)
    }

    /// The modules or interfaces that the functions are in.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.0.chunk_by(|one, next| one.module == next.module).map(|chunk| &*chunk[0].module)
    }

    pub(crate) fn has(&self, module: &str, field: &str) -> bool {
        self.find(module, field).is_some()
    }

    /// The name of this import as reports carry it, where there is such a function.
    pub(crate) fn named(&self, module: &str, field: &str) -> Option<&'static str> {
        self.find(module, field).map(|function| function.name)
    }

    fn find(&self, module: &str, field: &str) -> Option<&Function> {
        self.0.iter().find(|function| function.module == module && function.field == field)
    }

    /// The name of this import as reports carry it, where a guest can wait in it.
    pub(crate) fn waiting(&self, module: &str, field: &str) -> Option<&str> {
        self.find(module, field)
            .filter(|function| function.class != Class::Instant)
            .map(|function| function.name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::abi;
    use wasmparser::{Parser, Payload};

    /// How the table says it.
    fn bound(reads: Reads) -> String {
        match reads {
            Reads::Numbers => "numbers".to_owned(),
            Reads::Bytes(bytes) if bytes < 1 << 20 => format!("{} KiB", bytes.div_ceil(1024)),
            Reads::Bytes(bytes) => format!("{} MiB", bytes.div_ceil(1 << 20)),
            Reads::Response => "the granted `response`, and a name".to_owned(),
            Reads::Scratch => "the granted `scratch`, and a name".to_owned(),
            Reads::HostMemory => "the granted `host_memory`".to_owned(),
            Reads::Call => "one call's bound".to_owned(),
        }
    }

    fn section(page: &mut String, title: &str, functions: &Functions) {
        use std::fmt::Write as _;
        write!(page, "\n## {title}\n| function | may wait | reads at most |\n|---|---|---|\n")
            .expect("memory takes what is written");
        for Function { name, class, reads, .. } in &functions.0 {
            let waits = if *class == Class::Instant { "no" } else { "yes" };
            writeln!(page, "| `{name}` | {waits} | {} |", bound(*reads))
                .expect("memory takes what is written");
        }
    }

    /// The page is generated: `SANDGLASS_WRITE_DOCS=1 cargo test -p sandglass-host --lib
    /// the_page_of_host_functions` writes it.
    #[test]
    fn the_page_of_host_functions_lists_each_with_its_bound() {
        let engine = wasmtime::Engine::default();
        let (mut core, mut components, mut packs) =
            (Functions::default(), Functions::default(), Functions::default());
        let mut linker = wasmtime::Linker::new(&engine);
        abi::env::link(&mut linker, &mut core).expect("they are linked");
        abi::wasi::preview1::link(&mut linker, &mut core).expect("they are linked");
        let mut linker = wasmtime::component::Linker::new(&engine);
        abi::wasi::link(&mut linker, &mut components).expect("they are linked");
        abi::world::link(&mut linker, &mut components).expect("they are linked");
        let mut linker = wasmtime::Linker::new(&engine);
        abi::node_pack::link(&mut linker, &mut packs, |_| abi::node_pack::PairForm::Two)
            .expect("they are linked");
        let mut page = include_str!("functions.md").to_owned();
        section(&mut page, "Core modules", &core);
        section(&mut page, "Components", &components);
        section(&mut page, "Packs of nodes", &packs);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/host-functions.md");
        if std::env::var_os("SANDGLASS_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).expect("the page can be written");
        }
        let kept = std::fs::read_to_string(path).expect("the page is there");
        assert_eq!(kept, page, "write it anew with SANDGLASS_WRITE_DOCS=1");
    }

    /// A function that is linked without the boundary is in the linker and not in the table.
    #[test]
    fn core_modules_and_packs_find_what_the_tables_list_and_nothing_else() {
        let engine = wasmtime::Engine::default();
        let mut store = wasmtime::Store::new(&engine, crate::store::RunStore::idle());
        let mut check = |linker: &wasmtime::Linker<_>, functions: &Functions| {
            let name = |module: &str, field: &str| (module.to_owned(), field.to_owned());
            let linked: BTreeSet<_> =
                linker.iter(&mut store).map(|(module, field, _)| name(module, field)).collect();
            let listed: BTreeSet<_> =
                functions.0.iter().map(|one| name(&one.module, &one.field)).collect();
            assert_eq!(linked, listed);
            assert_eq!(listed.len(), functions.0.len(), "a function is listed twice");
        };

        let (mut linker, mut core) = (wasmtime::Linker::new(&engine), Functions::default());
        abi::env::link(&mut linker, &mut core).expect("they are linked");
        abi::wasi::preview1::link(&mut linker, &mut core).expect("they are linked");
        check(&linker, &core);

        let (mut linker, mut packs) = (wasmtime::Linker::new(&engine), Functions::default());
        abi::node_pack::link(&mut linker, &mut packs, |_| abi::node_pack::PairForm::Two)
            .expect("they are linked");
        check(&linker, &packs);
    }

    /// A guest is killed in each import of this fixture, elsewhere.
    #[test]
    fn the_fixture_that_imports_everything_imports_what_a_core_module_finds() {
        let engine = wasmtime::Engine::default();
        let mut linker = wasmtime::Linker::new(&engine);
        let mut functions = Functions::default();
        abi::env::link(&mut linker, &mut functions).expect("they are linked");
        abi::wasi::preview1::link(&mut linker, &mut functions).expect("they are linked");
        let linked: BTreeSet<_> = functions
            .0
            .iter()
            // It needs a grant, and who dies in it died in what was asked: `ask:TYPE.ACTION`.
            .filter(|function| function.field != "host_ask")
            .map(|function| (function.module.to_string(), function.field.to_string()))
            .collect();

        let fixture = include_str!("../../../guest-fixtures/wat/imports_everything.wat");
        let binary = wat::parse_str(fixture).expect("it is text");
        let mut imported = BTreeSet::new();
        for payload in Parser::new(0).parse_all(&binary) {
            let Ok(Payload::ImportSection(section)) = payload else { continue };
            for import in section.into_imports() {
                let import = import.expect("it is valid");
                imported.insert((import.module.to_owned(), import.name.to_owned()));
            }
        }
        assert_eq!(imported, linked);
    }
}
