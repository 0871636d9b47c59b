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
    let kept = std::fs::read_to_string(path).expect("the page is there");
    assert_eq!(kept, page, "write it anew with SANDGLASS_WRITE_DOCS=1");
}
