//! Each function, type and interface of the WIT package is documented.

const WIT: &str = include_str!("../../wit/integration.wit");

/// Whether a line starts an item that needs documentation.
fn starts_an_item(line: &str) -> bool {
    let keywords = ["interface ", "record ", "variant ", "enum ", "resource ", "type ", "world "];
    let is_function = line.contains(": func(") || line.contains(": static func(");
    is_function || keywords.iter().any(|keyword| line.starts_with(keyword))
}

#[test]
fn each_item_is_documented() {
    let lines: Vec<&str> = WIT.lines().map(str::trim).collect();
    let items: Vec<usize> = (0..lines.len()).filter(|line| starts_an_item(lines[*line])).collect();
    assert!(items.len() > 60, "{} items", items.len());
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
    for line in WIT.lines().map(str::trim) {
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
