//! The page about limits on modules is generated from the bounds.

use std::fmt::Write as _;

use super::*;

/// The page is generated: `SANDGLASS_WRITE_DOCS=1 cargo test -p sandglass-host --lib
/// the_page_of_modules` writes it.
#[test]
fn the_page_of_modules_lists_each_bound() {
    let mut page = include_str!("page.md").to_owned();
    for bound in Bound::ALL {
        writeln!(page, "| {} | {} |", bound.what(), bound.most()).expect("memory takes it");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/module-limits.md");
    if std::env::var_os("SANDGLASS_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).expect("the page can be written");
    }
    let stored = std::fs::read_to_string(path).expect("the page is there");
    assert_eq!(stored, page, "write it again with SANDGLASS_WRITE_DOCS=1");
}

#[test]
fn only_the_bodies_of_functions_are_skipped() {
    let module = |declared: &str, locals: u64| {
        let locals = " i64".repeat(usize::try_from(locals).expect("few"));
        wat::parse_str(format!("(module {declared} (func (local{locals})))")).expect("a module")
    };
    let too_many = Bound::FunctionLocals.most() + 1;
    let in_body = module("", too_many);
    assert!(check(&in_body, Bodies::Checked).is_err());
    assert!(check(&in_body, Bodies::Skipped).is_ok());
    let tables =
        "(table 1 funcref)".repeat(usize::try_from(Bound::Tables.most() + 1).expect("few"));
    assert!(check(&module(&tables, 1), Bodies::Skipped).is_err());
    let memory = module("(memory 3)", 1);
    let [checked, skipped] =
        [Bodies::Checked, Bodies::Skipped].map(|bodies| check(&memory, bodies));
    let (checked, skipped) = (checked.expect("small"), skipped.expect("small"));
    assert_eq!(checked.state.memory_bytes, skipped.state.memory_bytes);
}
