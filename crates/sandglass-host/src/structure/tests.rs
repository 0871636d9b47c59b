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
