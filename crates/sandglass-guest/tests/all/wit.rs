//! Each function, type and interface of the WIT package is documented, and scripts import its version.

use std::path::Path;

const WIT: &str = include_str!("../../wit/integration.wit");
const ASYNC_WIT: &str = include_str!("../../wit-0.2/integration.wit");

/// Whether a line starts an item that needs documentation.
fn starts_an_item(line: &str) -> bool {
    let keywords = ["interface ", "record ", "variant ", "enum ", "resource ", "type ", "world "];
    let functions = [": func(", ": async func(", ": static func("];
    let is_function = functions.iter().any(|function| line.contains(function));
    is_function || keywords.iter().any(|keyword| line.starts_with(keyword))
}

#[test]
fn each_item_is_documented() {
    let lines: Vec<&str> =
        [WIT, ASYNC_WIT].iter().flat_map(|wit| wit.lines()).map(str::trim).collect();
    let items: Vec<usize> = (0..lines.len()).filter(|line| starts_an_item(lines[*line])).collect();
    assert!(items.len() > 75, "{} items", items.len());
    for item in items {
        assert!(
            item > 0 && lines[item - 1].starts_with("///"),
            "line {}: `{}` has no documentation",
            item + 1,
            lines[item]
        );
    }
}

#[test]
fn each_function_that_can_fail_says_when() {
    let mut documentation = String::new();
    for line in [WIT, ASYNC_WIT].iter().flat_map(|wit| wit.lines()).map(str::trim) {
        match line.strip_prefix("///") {
            Some(text) => documentation.push_str(text),
            None => {
                let fails = line.contains("func(") && line.contains("-> result<");
                let is_handler = line.starts_with("export handle");
                assert!(!fails || is_handler || documentation.contains("Errors:"), "`{line}`");
                documentation.clear();
            }
        }
    }
}

/// JavaScript imports an interface by the exact version of the package.
#[test]
fn scripts_import_the_version_of_the_package() {
    const PACKAGE: &str = "package sandglass:integration@";
    let version = WIT.lines().find_map(|line| line.strip_prefix(PACKAGE)?.strip_suffix(';'));
    let version = version.expect("the package has a version");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let javascript = root.join("guest-fixtures/languages/javascript");
    let mut pages = vec![root.join("docs/guests/javascript.md")];
    for folder in ["handlers", "template"] {
        let files = std::fs::read_dir(javascript.join(folder)).expect("a folder");
        let files = files.map(|file| file.expect("a file").path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "js")));
    }
    let mut imports = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("text");
        for import in text.split("sandglass:integration/").skip(1) {
            // Links name the package without an interface.
            let Some((_, after)) = import.split_once('@').filter(|(name, _)| is_name(name)) else {
                continue;
            };
            let end = |c: char| !(c.is_ascii_digit() || c == '.');
            let imported = after.split(end).next().unwrap_or_default();
            assert_eq!(imported, version, "{}", page.display());
            imports += 1;
        }
    }
    assert!(imports >= 8, "{imports} imports");
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}
