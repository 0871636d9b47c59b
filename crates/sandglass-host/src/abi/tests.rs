//! The host functions that guests can import: documented, charged, and tried by a fixture.

use std::collections::BTreeSet;

use sandglass_supervisor::functions::{Class, Functions, Reads};
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
    for function in functions.iter() {
        let (name, class, reads) = (function.name(), function.class(), function.reads());
        let waits = if class == Class::Instant { "no" } else { "yes" };
        writeln!(page, "| `{name}` | {waits} | {} |", bound(reads))
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
    super::env::link(&mut linker, &mut core).expect("they are linked");
    super::wasi::preview1::link(&mut linker, &mut core).expect("they are linked");
    let mut linker = wasmtime::component::Linker::new(&engine);
    super::wasi::link(&mut linker, &mut components).expect("they are linked");
    super::world::link(&mut linker, &mut components).expect("they are linked");
    let mut linker = wasmtime::Linker::new(&engine);
    super::node_pack::link(&mut linker, &mut packs, |_| super::node_pack::PairForm::Two)
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
            functions.iter().map(|one| name(one.module(), one.field())).collect();
        assert_eq!(linked, listed);
        assert_eq!(listed.len(), functions.iter().count(), "a function is listed twice");
    };

    let (mut linker, mut core) = (wasmtime::Linker::new(&engine), Functions::default());
    super::env::link(&mut linker, &mut core).expect("they are linked");
    super::wasi::preview1::link(&mut linker, &mut core).expect("they are linked");
    check(&linker, &core);

    let (mut linker, mut packs) = (wasmtime::Linker::new(&engine), Functions::default());
    super::node_pack::link(&mut linker, &mut packs, |_| super::node_pack::PairForm::Two)
        .expect("they are linked");
    check(&linker, &packs);
}

/// A guest is killed in each import of this fixture, elsewhere.
#[test]
fn the_fixture_that_imports_everything_imports_what_a_core_module_finds() {
    let engine = wasmtime::Engine::default();
    let mut linker = wasmtime::Linker::new(&engine);
    let mut functions = Functions::default();
    super::env::link(&mut linker, &mut functions).expect("they are linked");
    super::wasi::preview1::link(&mut linker, &mut functions).expect("they are linked");
    let linked: BTreeSet<_> = functions
        .iter()
        // It needs a grant, and who dies in it died in what was asked: `ask:TYPE.ACTION`.
        .filter(|function| function.field() != "host_ask")
        .map(|function| (function.module().to_owned(), function.field().to_owned()))
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
