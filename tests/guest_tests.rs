//! `sandglass test`: the cases that an author writes beside a guest.

mod binary;

use binary::{Folder, Running, fixture, sandglass};

const CASES: &str = r#"
[defaults]
deadline = "15m"
config = { url = "https://example.com/page" }

[[case]]
name = "answers with what the server says"
[[case.answer]]
http = "GET https://example.com/page"
body = "hello"
delay = "3s"
[case.expect]
action = "Finish"
params = { status = 200, body = "hello" }
calls = ["host_get_context", "host_http_call", "host_set_result"]
requests = ["GET https://example.com/page"]
at_least = "3s"
at_most = "4s"

[[case]]
name = "a server that never answers ends by the limit of its call"
[[case.answer]]
http = "GET https://example.com/page"
never = true
[case.expect]
outcome = "failed"
error = "TIMEOUT after 300s (wall-clock kill, process killed)"
"#;

const MANIFEST: &str = r#"
name = "slow_http"
module = "slow_http.wasm"
abi = "core"
[grants]
hosts = ["example.com"]
"#;

/// A folder as an author has it: a guest, its manifest, and its cases.
fn project(cases: &str) -> Folder {
    let folder = Folder::new();
    let guest = std::fs::read(fixture("built/slow_http.wasm")).expect("it is there");
    folder.write("slow_http.wasm", guest);
    folder.write("integration.toml", MANIFEST);
    folder.write("slow_http.test.toml", cases);
    folder
}

fn read(folder: &Folder, name: &str) -> String {
    std::fs::read_to_string(folder.path(name)).expect("it is there")
}

/// Cases of which the first fails.
fn wrong() -> String {
    CASES.replacen("body = \"hello\" }", "body = \"hallo\" }", 1)
}

#[test]
fn cases_pass_or_report_the_difference() {
    let folder = project(CASES);
    let here = folder.path(".");
    sandglass(&[&"test", &here]).exits(0).says("2 passed").says("for 5m");

    folder.write("slow_http.test.toml", wrong());
    sandglass(&[&"test", &here])
        .exits(1)
        .says("FAIL  answers with what the server says")
        .says("-   \"body\": \"hallo\",")
        .says("+   \"body\": \"hello\",")
        .says("host_http_call")
        .says("1 failed, 1 passed");
    sandglass(&[&"test", &here, &"--filter", &"never"]).exits(0).says("1 passed");
    sandglass(&[&"test", &here, &"--filter", &"no such"]).exits(2).says("no case has such a name");
}

#[test]
fn json_and_junit_reports_agree() {
    let folder = project(&wrong());
    let (here, report) = (folder.path("."), folder.path("report.xml"));
    let said = sandglass(&[&"test", &here, &"--json", &"--junit", &report]).exits(1);
    let told: serde_json::Value = serde_json::from_str(&said.out).expect("one object");
    assert_eq!((&told["passed"], &told["failed"]), (&1.into(), &1.into()));
    let cases = &told["suites"][0]["cases"];
    assert_eq!(cases[0]["differences"][0]["what"], "params");
    assert_eq!(cases[0]["differences"][0]["found"]["body"], "hello");
    assert_eq!(cases[1]["passed"], true);
    assert!(cases[1]["virtual_ms"].as_u64().is_some_and(|millis| millis >= 300_000));
    assert_eq!(cases[1]["report"]["host_calls"]["count"], 4);
    let xml = read(&folder, "report.xml");
    for part in ["tests=\"2\"", "failures=\"1\"", "name=\"answers with what the server says\""] {
        assert!(xml.contains(part), "no `{part}` in {xml}");
    }
}

#[test]
fn an_update_shows_the_changes_and_writes_only_expectations() {
    let folder = project(&wrong());
    let here = folder.path(".");
    sandglass(&[&"test", &here, &"--update"])
        .exits(1)
        .says("-params = { status = 200, body = \"hallo\" }")
        .says("+params = { body = \"hello\", status = 200 }")
        .says("written");
    let written = read(&folder, "slow_http.test.toml");
    let unchanged = |text: &str| -> Vec<String> {
        let lines =
            text.lines().filter(|line| !line.starts_with("params") && !line.starts_with("outcome"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(unchanged(&written), unchanged(CASES));
    sandglass(&[&"test", &here]).exits(0).says("2 passed");
    sandglass(&[&"test", &here, &"--update"]).exits(0);
    assert_eq!(read(&folder, "slow_http.test.toml"), written, "nothing was to be changed");

    // A case without expectations gets the usual ones.
    let (begin, _) = CASES.split_once("[case.expect]").expect("it expects something");
    let begin = begin.replacen("body = \"hello\"\ndelay = \"3s\"", "error = \"refused\"", 1);
    folder.write("slow_http.test.toml", begin);
    sandglass(&[&"test", &here, &"--update"]).exits(1);
    let written = read(&folder, "slow_http.test.toml");
    for part in ["outcome = \"failed\"", "error_kind = \"typed_failure\"", "calls = ["] {
        assert!(written.contains(part), "no `{part}` in {written}");
    }
    sandglass(&[&"test", &here]).exits(0);
}

#[test]
fn invalid_test_files_are_refused_with_positions() {
    let folder = project(CASES);
    let here = folder.path(".");
    for (cases, said) in [
        ("", "the file has no cases"),
        ("[[case]]\n", "case 1 has no `name`"),
        ("[[case]]\nname = \"a\"\ninptu = {}\n", "did you mean `input`?"),
        ("[[case]]\nname = \"a\"\ndeadline = 5\n", "`5` has no unit"),
        ("[[case]]\nname = \"a\"\nentity = \"x\"\n", "slow_http.test.toml:3:10"),
        ("[[case]]\nname = \"a\"\nnow = \"noon\"\n", "2026-01-01T00:00:00Z"),
        ("[[case]]\nname = \"a\"\n[[case]]\nname = \"a\"\n", "two cases are named `a`"),
        ("[[case]]\nname = \"a\"\nexpect.outcome = \"timed-out\"\n", "did you mean `timed_out`?"),
        ("[[case]]\nname = \"a\"\n[[case.answer]]\nbody = \"x\"\n", "names no call"),
        ("[[case]]\nname = \"a\"\n[[case.answer]]\nhttp = \"example.com\"\n", "is not a request"),
        ("[[case]]\nname = \"a\"\n[[case.answer]]\nask = \"Order\"\n", "`TYPE.ACTION`"),
        (
            "[[case]]\nname = \"a\"\n[[case.answer]]\nsecret = \"a\"\nvalue = \"b\"\nnever = true\n",
            "more than one kind of reply",
        ),
        ("guest = \"other.wasm\"\n[[case]]\nname = \"a\"\n", "there is no file"),
        ("[[case]]\nname = \"a\"\nsecrets = { NOPE = \"x\" }\n", "does not grant"),
        (
            "[[case]]\nname = \"a\"\n[[case.answer]]\nhttp = \"GET https://*.com/\"\n",
            "allowed at the end only",
        ),
        (
            "[[case]]\nname = \"a\"\n[[case.answer]]\nfunction = \"a:b/c.d\"\n",
            "no [[function]] declares",
        ),
        (
            "[[case]]\nname = \"a\"\nexpect = { at_least = \"2s\", at_most = \"1s\" }\n",
            "`at_least` is larger than `at_most`",
        ),
    ] {
        folder.write("slow_http.test.toml", cases);
        let refused = sandglass(&[&"test", &here]).exits(2);
        refused.says(said);
    }
    let empty = Folder::new();
    sandglass(&[&"test", &empty.path(".")]).exits(2).says("there is no *.test.toml");
    empty.write("a.test.toml", "[[case]]\nname = \"a\"\n");
    sandglass(&[&"test", &empty.path(".")]).exits(2).says("`guest = \"FILE\"`");
    sandglass(&[&"test", &"--watch", &"--json"]).exits(2).says("cannot be used with");
}

#[test]
fn a_guest_that_the_host_rejects_fails_its_cases_with_the_reason() {
    let folder = project(CASES);
    folder.write("slow_http.wasm", "(module)");
    sandglass(&[&"test", &folder.path(".")]).exits(1).says("the host rejects it").says("2 failed");
}

#[test]
fn a_watch_runs_again_when_something_changes() {
    let folder = project(&wrong());
    let here = folder.path(".");
    let mut running = Running::start(&[&"test", &here, &"--watch"]);
    running.line_with("1 failed, 1 passed");
    folder.write("slow_http.test.toml", CASES);
    running.line_with("2 passed");
    folder.write("slow_http.test.toml", "what is this");
    folder.write("slow_http.test.toml", wrong());
    running.line_with("1 failed, 1 passed");
    // Not Ctrl-C: where tests run in the background, that may be ignored from the start.
    running.signal("TERM");
    running.ended();
}

#[test]
fn fifteen_minutes_of_every_kind_of_hang_pass_at_once() {
    let folder = Folder::new();
    let cases = |guest: &str| {
        format!(
            "guest = {guest:?}\n[[case]]\nname = \"hangs\"\ndeadline = \"15m\"\n\
             [case.expect]\noutcome = \"timed_out\"\nat_least = \"15m\"\n"
        )
    };
    for (name, guest) in [("waits", "built/hang.wasm"), ("spins", "wat/spins.wat")] {
        let guest = fixture(guest);
        folder.write(&format!("{name}.test.toml"), cases(&guest.display().to_string()));
    }
    sandglass(&[&"test", &folder.path(".")]).exits(0).says("2 passed").says("for 15m");
}

#[test]
fn a_new_project_contains_what_its_language_needs_and_its_name() {
    let folder = Folder::new();
    for (language, handler, build) in [
        ("rust", "lib.rs", "cargo build --release --target wasm32-wasip2"),
        ("c", "handler.c", "make"),
        ("as", "handler.ts", "npm install"),
        ("js", "handler.js", "npm install"),
        ("python", "handler.py", "make"),
    ] {
        let project = folder.path(&format!("greeter-{language}"));
        let said = sandglass(&[&"new", &project, &"--lang", &language]).exits(0);
        said.says(handler).says(build).says("sandglass test");
        let manifest = std::fs::read_to_string(project.join("integration.toml"));
        let manifest = manifest.expect("it is there");
        assert!(manifest.contains(&format!("name = \"greeter-{language}\"")), "{manifest}");
        for entry in std::fs::read_dir(&project).expect("it is there") {
            let path = entry.expect("it is there").path();
            let text = if path.is_file() { std::fs::read_to_string(&path) } else { continue };
            assert!(!text.expect("it is text").contains("{{"), "{}", path.display());
        }
        // What is there stays there.
        sandglass(&[&"new", &project, &"--lang", &language]).exits(2).says("exists already");
        // Nothing is built yet, which is what a test tells.
        sandglass(&[&"test", &project]).exits(2).says(".wasm");
    }
}

#[test]
fn a_project_name_must_be_valid_in_all_languages() {
    let folder = Folder::new();
    for name in ["Greeter", "1st", "a b", "a.b", "\u{1b}[31m", "-a", &"a".repeat(65)] {
        let project = folder.path(name);
        sandglass(&[&"new", &"--lang", &"c", &"--", &project])
            .exits(2)
            .says("is not a name for a project");
        assert!(!project.exists());
    }
    sandglass(&[&"new", &"greeter", &"--lang", &"cobol"]).exits(2).says("possible values");
    let file = folder.write("taken", "");
    sandglass(&[&"new", &file, &"--lang", &"c"]).exits(2).says("exists already");
}

#[test]
fn functions_of_an_embedder_are_declared_and_answered_by_cases() {
    let folder = Folder::new();
    folder.write(
        "finds.wat",
        r#"(module
        (import "acme:crm/contacts" "find" (func $find (param i32 i32 i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "ann")
        (func (export "run") (param i32 i32) (result i32)
            (call $set (i32.const 64)
                (call $find (i32.const 0) (i32.const 3) (i32.const 64) (i32.const 99)))
            i32.const 0))"#,
    );
    folder.write(
        "integration.toml",
        "name = \"finds\"\nmodule = \"finds.wat\"\nabi = \"core\"\n\
         [grants]\nfunctions = [\"acme:crm/contacts.find\"]\n",
    );
    let cases = |returns: &str| {
        format!(
            "[[function]]\ninterface = \"acme:crm/contacts\"\nname = \"find\"\n\
             params = [\"string\"]\nreturns = \"{returns}\"\n\
             [[case]]\nname = \"finds\"\n[[case.answer]]\n\
             function = \"acme:crm/contacts.find\"\nvalue = {{ success = true }}\ndelay = \"2s\"\n\
             [case.expect]\nresult = {{ success = true }}\nat_least = \"2s\"\n\
             [[case]]\nname = \"waits\"\ndeadline = \"1m\"\n[[case.answer]]\n\
             function = \"acme:crm/contacts.find\"\nnever = true\n\
             [case.expect]\noutcome = \"timed_out\"\ndying_span = \"acme:crm/contacts.find\"\n"
        )
    };
    folder.write("finds.test.toml", cases("string"));
    sandglass(&[&"test", &folder.path(".")]).exits(0).says("2 passed");
    folder.write("finds.test.toml", cases("strign"));
    sandglass(&[&"test", &folder.path(".")]).exits(2).says("did you mean `string`?");
}

#[test]
fn an_update_fills_in_new_cases_and_keeps_comments() {
    let case = "[[case]]\r\nname = \"new\"\r\n[[case.answer]]\r\nhttp = \"*\"\r\nbody = \"x\"\r\n";
    let noted = "[[case]]\r\nname = \"noted\"\r\n[[case.answer]]\r\nhttp = \"*\"\r\nbody = \"x\"\r\n\
                 [case.expect]\r\nparams = 7 # why it is so\r\n";
    let defaults = "[defaults]\r\nconfig = { url = \"https://example.com/page\" }\r\n";
    let folder = project(&format!("{defaults}{case}{noted}"));
    std::fs::rename(folder.path("slow_http.test.toml"), folder.path("real")).expect("renamed");
    let link = folder.path("slow_http.test.toml");
    std::os::unix::fs::symlink(folder.path("real"), &link).expect("a link");
    let here = folder.path(".");
    sandglass(&[&"test", &here, &"--update"]).exits(1).says("written");
    let written = read(&folder, "real");
    assert!(link.is_symlink());
    assert!(written.contains("} # why it is so\r\n"), "{written}");
    assert!(written.contains("calls = ["), "{written}");
    assert_eq!(written.matches('\n').count(), written.matches("\r\n").count());
    sandglass(&[&"test", &here, &"--update"]).exits(0).says("2 passed");
    assert_eq!(read(&folder, "real"), written);
}

#[test]
fn the_guest_is_found_from_its_test_folder() {
    let folder = project("");
    std::fs::remove_file(folder.path("slow_http.test.toml")).expect("it is there");
    let tests = folder.path("tests");
    std::fs::create_dir(&tests).expect("made");
    std::fs::write(tests.join("a.test.toml"), CASES).expect("written");
    sandglass(&[&"test", &folder.path("tests/.")]).exits(0).says("2 passed");
    sandglass(&[&"test", &folder.path(".")]).exits(0).says("2 passed");
}

#[test]
fn null_is_read_and_written_as_json() {
    let folder = Folder::new();
    folder.write(
        "answers.wat",
        r#"(module
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "{\"success\":true,\"action\":\"Finish\",\"params\":{\"next\":null}}")
        (func (export "run") (param i32 i32) (result i32)
            (call $set (i32.const 0) (i32.const 57))
            i32.const 0))"#,
    );
    let here = folder.path(".");
    let case = |expect: &str| format!("[[case]]\nname = \"a\"\n[case.expect]\n{expect}\n");
    folder.write("a.test.toml", case("params_json = '{\"next\": null}'"));
    sandglass(&[&"test", &here]).exits(0).says("1 passed");
    folder.write("a.test.toml", case("params = { next = 1 }"));
    sandglass(&[&"test", &here, &"--update"]).exits(1);
    let written = read(&folder, "a.test.toml");
    assert!(written.contains("params_json = '{\"next\":null}'"), "{written}");
    assert!(!written.contains("params ="), "{written}");
    sandglass(&[&"test", &here]).exits(0).says("1 passed");
    folder.write("a.test.toml", case("params_json = '{'"));
    sandglass(&[&"test", &here]).exits(2).says("a.test.toml:4:15").says("is not valid JSON");
}
