//! Errors teach: each code has a page, whose example is what the binary prints, and a run
//! that ends badly tells where, what led to it, and where to read on.

mod binary;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use binary::{Folder, fixture, repository, sandglass};

/// What a line says, without what differs from run to run: times, counts, ids and hashes.
fn lasting(line: &str) -> String {
    let mut lasting = String::new();
    for word in line.split_whitespace() {
        let is_part = |c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.';
        let varies = |part: &str| {
            let is_id = part.len() >= 12 && part.chars().all(|c| c.is_ascii_hexdigit());
            let has_unit = ["us", "ms", "s", "m"].contains(&part);
            is_id || has_unit || part.starts_with(|c: char| c.is_ascii_digit())
        };
        for part in word.split_inclusive(is_part) {
            let (text, end) = match part.strip_suffix(is_part) {
                Some(text) => part.split_at(text.len()),
                None => (part, ""),
            };
            lasting += if varies(text) { "" } else { text };
            lasting += end;
        }
        lasting.push(' ');
    }
    lasting.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The commands of a page's example, each with the lines that it prints.
fn examples(page: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            is_console = language == "console";
        } else if is_console {
            match (line.strip_prefix("$ "), found.last_mut()) {
                (Some(command), _) => found.push((command.to_owned(), Vec::new())),
                (None, Some((_, lines))) => lines.push(line.to_owned()),
                (None, None) => panic!("a console begins with a command: {line}"),
            }
        }
    }
    found
}

/// What a command of the pages prints, in the folder of the repository.
fn printed(command: &str) -> String {
    let words = command.split(' ').map(|word| word.trim_matches('\'')).collect::<Vec<_>>();
    assert_eq!(words[0], "sandglass", "{command}");
    let mut binary = Command::new(env!("CARGO_BIN_EXE_sandglass"));
    let told = binary
        .args(&words[1..])
        .current_dir(repository("."))
        .env_remove("SANDGLASS_LOG")
        .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
        .output()
        .expect("the binary starts");
    String::from_utf8(told.stdout).expect("text") + &String::from_utf8_lossy(&told.stderr)
}

#[test]
fn the_examples_of_the_error_pages_are_real_output() {
    let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut count = 0;
    for file in fs::read_dir(repository("docs/errors")).expect("the pages") {
        let path = file.expect("a page").path();
        if path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let page = fs::read_to_string(&path).expect("text");
        for (command, lines) in examples(&page) {
            let printed = known
                .entry(command.clone())
                .or_insert_with(|| printed(&command).lines().map(lasting).collect());
            count += lines.len();
            for line in lines {
                assert!(
                    printed.contains(&lasting(&line)),
                    "{}: `{command}` doesn't print\n{}\nbut\n{}",
                    path.display(),
                    lasting(&line),
                    printed.join("\n")
                );
            }
        }
    }
    assert!(count > 100, "the examples are found: {count} lines");
}

#[test]
fn a_code_is_explained_and_a_wrong_one_names_the_nearest() {
    let all = sandglass(&[&"explain"]).exits(0).out;
    assert!(all.lines().any(|line| line.starts_with("missing_import ")), "{all}");
    let page = sandglass(&[&"explain", &"missing_import"]).exits(0);
    assert!(page.out.starts_with("missing_import: the guest imports"), "{}", page.out);
    let said = page.says("did you mean `env.host_http_call`?").out;
    assert!(!said.contains("```") && !said.contains("]("), "{said}");
    sandglass(&[&"explain", &"wasm_memory"]).exits(0).says("wasm-memory: ");
    sandglass(&[&"explain", &"missing_inport"]).exits(2).says("did you mean `missing_import`?");
    sandglass(&[&"explain", &"xyz\u{1b}[2J"]).exits(2).says("lists all codes");
    let json = sandglass(&[&"explain", &"exit", &"--json"]).exits(0).out;
    let page: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(page["code"], "exit");
    assert!(
        page["title"].is_string() && page["text"].as_str().is_some_and(|text| text.len() > 200)
    );
    let json = sandglass(&[&"explain", &"--json"]).exits(0).out;
    let list: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
    assert_eq!(list.len(), all.lines().count());
}

/// Waits in one call, after others, until it is killed.
const SLEEPS: &str = r#"(module
    (import "env" "host_log" (func $log (param i32 i32 i32 i32)))
    (import "wasi_snapshot_preview1" "poll_oneoff"
        (func $poll (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "debug")
    (func (export "run") (param i32 i32) (result i32)
        (local $count i32)
        (loop $again
            (call $log (i32.const 0) (i32.const 5) (i32.const 0) (i32.const 5))
            (local.set $count (i32.add (local.get $count) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $count) (i32.const 20))))
        (i64.store (i32.const 1048) (i64.const 3600000000000))
        (i32.store (i32.const 1040) (i32.const 1))
        (drop (call $poll (i32.const 1024) (i32.const 2048) (i32.const 1) (i32.const 4096)))
        i32.const 0))"#;

#[test]
fn a_killed_handler_reports_what_it_waited_for_and_the_remaining_time() {
    let folder = Folder::new();
    let guest = folder.write("sleeps.wat", SLEEPS);
    let said = sandglass(&[&"run", &guest, &"--deadline", &"500ms"]).exits(124);
    let line = |name: &str| {
        let found = said.out.lines().find(|line| line.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("no `{name}` in\n{}", said.out)).to_owned()
    };
    let waited = line("waited");
    assert!(waited.contains("in wasi_snapshot_preview1.poll_oneoff, called with "), "{waited}");
    assert!(waited.ends_with(" of 500ms left"), "{waited}");
    assert!(line("last calls").contains("(13 earlier)"), "{}", said.out);
    assert!(line("explain").ends_with("sandglass explain handler_deadline_exceeded"));
    assert!(line("memory").contains(" at most, of 65536 KiB"), "{}", said.out);
    let shown = said.out.lines().filter(|line| line.contains("host_log ")).count();
    assert_eq!(shown, 7 + 1, "the last of them, and the sum: {}", said.out);
}

#[test]
fn a_trap_names_the_source_line_or_how_to_get_it() {
    let of = |guest: &str| sandglass(&[&"run", &fixture(guest)]).exits(126).out;
    let panics = of("built/panics.wasm");
    let place = panics.lines().find_map(|line| line.trim_start().strip_prefix("where"));
    assert!(place.is_some_and(|place| place.contains("panics/src/lib.rs:")), "{panics}");
    assert!(!panics.contains("hint"), "it has lines: {panics}");
    let traps = of("wat/traps.wat");
    assert!(traps.contains("  hint       the guest has no line numbers"), "{traps}");
    assert!(!traps.contains("\n  where"), "{traps}");
    let last = traps.lines().last().unwrap_or_default().trim();
    assert!(
        last.starts_with("explain") && last.ends_with("sandglass explain unreachable"),
        "{last}"
    );
}

#[test]
fn why_and_check_name_the_code_too() {
    let folder = Folder::new();
    let journal = folder.path("runs.db");
    let guest = fixture("wat/traps.wat");
    sandglass(&[&"run", &guest, &"--journal", &journal]).exits(126);
    sandglass(&[&"why", &journal]).exits(0).says("sandglass explain unreachable");

    let missing = fixture("wat/missing_import.wat");
    sandglass(&[&"check", &missing])
        .exits(1)
        .says("run `sandglass explain missing_import` for details");
    let json = sandglass(&[&"check", &missing, &"--json"]).exits(1).out;
    let findings: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
    assert_eq!(findings[0]["code"], "missing_import", "{json}");
}
