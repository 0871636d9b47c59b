//! Every host function that guests can import is documented and in the fixture that imports all.

use std::collections::BTreeSet;

use sandglass_supervisor::functions::{
    Class, Functions, Reach, Reads, SEND_AT_ONCE, WAIT_INSIDE, WASI_SENDS,
};
use wasmparser::{Parser, Payload};
use wasmtime::{Engine, Linker};

use crate::store::RunStore;

/// The bound, as the page shows it.
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
    write!(
        page,
        "\n## {title}\n| function | may wait | needs a lease | reads at most |\n|---|---|---|---|\n"
    )
    .expect("writing to a String cannot fail");
    for function in functions.iter() {
        let (name, class, reads) = (function.name, function.class, function.reads);
        let waits = if class == Class::Instant { "no" } else { "yes" };
        let leased = if function.reach == Reach::Outside { "yes" } else { "no" };
        writeln!(page, "| `{name}` | {waits} | {leased} | {} |", bound(reads))
            .expect("writing to a String cannot fail");
    }
}

fn link_core() -> (Linker<RunStore>, Functions) {
    let (mut linker, mut functions) = (Linker::new(&Engine::default()), Functions::default());
    super::env::link(&mut linker, &mut functions).expect("they are linked");
    super::wasi::preview1::link(&mut linker, &mut functions).expect("they are linked");
    (linker, functions)
}

fn link_packs() -> (Linker<RunStore>, Functions) {
    let (mut linker, mut functions) = (Linker::new(&Engine::default()), Functions::default());
    super::node_pack::link(&mut linker, &mut functions, |_| super::node_pack::PairForm::Two)
        .expect("they are linked");
    (linker, functions)
}

fn link_components() -> Functions {
    let mut functions = Functions::default();
    let mut linker = wasmtime::component::Linker::new(&Engine::default());
    super::wasi::link(&mut linker, &mut functions).expect("they are linked");
    super::world::link(&mut linker, &mut functions).expect("they are linked");
    functions
}

/// What only asynchronous components import, without files and sockets, which are denied.
fn list_asynchronous() -> Functions {
    let mut functions = Functions::default();
    super::concurrent::list(&mut functions);
    functions
}

/// An exception that names no function would not hold back the one that was meant.
#[test]
fn the_exceptions_of_what_needs_a_lease_are_functions_with_the_class_that_they_except() {
    let tables = [link_core().1, link_components(), list_asynchronous()];
    let find = |(module, field): (&str, &str)| {
        tables.iter().find_map(|table| table.find(module, field)).expect(field)
    };
    for exception in SEND_AT_ONCE {
        let function = find(exception);
        assert_eq!((function.class, function.reach), (Class::Instant, Reach::Outside));
    }
    for exception in WASI_SENDS {
        let function = find(exception);
        assert_eq!((function.class, function.reach), (Class::Async, Reach::Outside));
    }
    for exception in WAIT_INSIDE {
        let function = find(exception);
        assert_eq!((function.class, function.reach), (Class::Async, Reach::Inside));
    }
}

/// The page is generated: `SANDGLASS_WRITE_DOCS=1 cargo test -p sandglass-host --lib
/// the_page_of_host_functions` writes it.
#[test]
fn the_page_of_host_functions_lists_each_with_its_bound() {
    let components = link_components();
    let mut page = include_str!("functions.md").to_owned();
    section(&mut page, "Core modules", &link_core().1);
    section(&mut page, "Components", &components);
    section(&mut page, "Asynchronous components", &list_asynchronous());
    section(&mut page, "Packs of nodes", &link_packs().1);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/host-functions.md");
    if std::env::var_os("SANDGLASS_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).expect("the page can be written");
    }
    let stored = std::fs::read_to_string(path).expect("the page is there");
    assert_eq!(stored, page, "write it again with SANDGLASS_WRITE_DOCS=1");
}

/// A function that is linked without the boundary is in the linker and not in the table.
#[test]
fn core_modules_and_packs_find_what_the_tables_list_and_nothing_else() {
    for (linker, functions) in [link_core(), link_packs()] {
        let mut store = wasmtime::Store::new(linker.engine(), RunStore::idle());
        let name = |module: &str, field: &str| (module.to_owned(), field.to_owned());
        let linked: BTreeSet<_> =
            linker.iter(&mut store).map(|(module, field, _)| name(module, field)).collect();
        let listed: BTreeSet<_> =
            functions.iter().map(|one| name(&one.module, &one.field)).collect();
        assert_eq!(linked, listed);
        assert_eq!(listed.len(), functions.iter().count(), "a function is listed twice");
    }
}

/// A guest is killed in each import of this fixture, in the tests of fixtures.
#[test]
fn the_fixture_that_imports_everything_imports_what_a_core_module_finds() {
    let (_, functions) = link_core();
    let linked: BTreeSet<_> = functions
        .iter()
        // They need a grant, and the dying span is `ask:TYPE.ACTION` or `signal:TYPE.NAME`.
        .filter(|function| !["host_ask", "host_signal"].contains(&&*function.field))
        .map(|function| (function.module.to_string(), function.field.to_string()))
        .collect();

    let fixture = include_str!("../../../../guest-fixtures/wat/imports_everything.wat");
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
