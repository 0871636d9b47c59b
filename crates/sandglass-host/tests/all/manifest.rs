//! `integration.toml`: its grants, its diagnostics, and modules that differ from it.

use std::path::Path;
use std::sync::Arc;

use sandglass_host::manifest::{Error, File, Found, Manifests, module_beside};
use sandglass_host::{
    Abi, CallOrigin, DispatchLimits, FixedSecrets, Host, Manifest, Secret, Settings,
};
use sandglass_model::{DispatchId, ModuleHash, RejectionKind};

const MODULE: &str = r#"(module (memory (export "memory") 1 2)
    (func (export "run") (param i32 i32) (result i32) i32.const 0))"#;

const WHOLE: &str = r#"
name = "run_tools"
module = "tools/run_tools.wasm"
sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
abi = "core"
soft_deadline = "10s"
on_denied = "report"

[limits]
memory = "128MiB"
table_elements = 5000
fuel = 1_000_000
response = "2MiB"
module_size = "20MiB"
max_in_flight = 8
max_queued = 0

[limits.host_call_timeouts]
host_http_call = "30s"
"wasi:io/poll.poll" = "500ms"

[grants]
hosts = ["api.example.com", "127.0.0.1:8080"]
secrets = ["API_KEY"]
scratch = "1MiB"
ask = ["Ledger.Reserve", "Stock.*"]
signal = ["Ledger.Ready", "Stock.*"]
functions = ["acme:billing/ledger.charge"]
"#;

const LEAST: &str = "name = \"m\"\nmodule = \"m.wat\"\nabi = \"core\"\n";

fn parsed(source: &str) -> File {
    let parsed = File::parse(source);
    parsed.file.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
}

fn granted(source: &str) -> Manifest {
    parsed(source).manifest(Arc::new(FixedSecrets::default()))
}

/// The diagnostics of a manifest, one line each.
fn diagnostics(source: &str) -> Vec<String> {
    let parsed = File::parse(source);
    assert_eq!(parsed.file.is_none(), !parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    parsed.diagnostics.iter().map(ToString::to_string).collect()
}

#[test]
fn a_manifest_grants_only_what_it_names() {
    let whole = format!("{:?}", granted(WHOLE));
    for part in [
        "name: \"run_tools\"",
        "abi: Some(Core)",
        "module_hash: Some(ModuleHash(e3b0c442",
        "memory_bytes: 134217728",
        "table_elements: 5000",
        "fuel: Some(1000000)",
        "response_bytes: 2097152",
        "module_bytes: 20971520, component_bytes: 33554432",
        "host: \"api.example.com\", port: None",
        "host: \"127.0.0.1\", port: Some(8080)",
        "soft_deadline: Some(10s)",
        "on_denied: Some(Report)",
        "{\"host_http_call\": 30s, \"wasi:io/poll.poll\": 500ms}",
        "scratch_bytes: 1048576",
        "name: Some(\"Reserve\")",
        "name: Some(\"Ready\")",
        "{\"acme:billing/ledger.charge\"}",
        "max_in_flight: Some(8)",
        "max_queued: Some(0)",
    ] {
        assert!(whole.contains(part), "no {part} in {whole}");
    }
    let nothing = Manifest {
        max_memory_bytes: Some(4 << 30),
        max_response_bytes: Some(256 << 20),
        ..Manifest::named("m").abi(Abi::Core)
    };
    assert_eq!(format!("{:?}", granted(LEAST)), format!("{nothing:?}"));
}

#[test]
fn hosts_can_have_bounds_in_tables_of_their_own() {
    let table = "[grants]\nhosts = [\"b.example\"]\n[[grants.host]]\nhost = \"a.example:8443\"\n\
         scheme = \"https\"\npath = \"/v1/\"\n[[grants.host]]\nhost = \"c.example\"\nprivate = true\n";
    let manifest = format!("{:?}", granted(&format!("{LEAST}{table}")));
    for part in [
        r#"host: "a.example", port: Some(8443), scheme: Some(Https), path: Some("/v1"), is_private: false"#,
        r#"host: "b.example", port: None, scheme: None, path: None, is_private: false"#,
        r#"host: "c.example", port: None, scheme: None, path: None, is_private: true"#,
    ] {
        assert!(manifest.contains(part), "{manifest}");
    }
    for (wrong, expected) in [
        ("", "has no `host`"),
        ("host = \"http://x\"", "names no host"),
        ("host = \"x\"\nscheme = \"htps\"", "unknown scheme `htps`"),
        ("host = \"x\"\npath = \"v1\"", "`v1` is not a path"),
        ("host = \"x\"\npath = \"/a/../b\"", "is not a path"),
        ("host = \"x\"\npath = \"/a%2f\"", "is not a path"),
        ("host = \"x\"\nprivate = 1", "`private`"),
        ("host = \"x\"\nports = 1", "`ports`"),
        ("host = \"x\"\nport = 80", "host = \"NAME:PORT\""),
        ("host = \"x\"\npath = \"/v 1\"", "is not a path"),
        ("host = \"x\"\npath = \"/\u{e9}\"", "is not a path"),
        ("host = \"x\"\n[[grants.host]]\nhost = \"x\"", "granted more than once"),
    ] {
        let lines = diagnostics(&format!("{LEAST}[[grants.host]]\n{wrong}\n"));
        assert!(lines.len() == 1 && lines[0].contains(expected), "{wrong:?}: {lines:?}");
    }
    let both = format!(
        "{LEAST}[grants]\nhosts = [\"x\"]\n[[grants.host]]\nhost = \"x\"\npath = \"/v1\"\n"
    );
    let lines = diagnostics(&both);
    assert!(lines.len() == 1 && lines[0].contains("grants it without bounds"), "{lines:?}");
}

#[test]
fn all_mistakes_are_reported_at_once_with_their_positions() {
    let bad = "name = \"\"\nmodule = \"m.wat\"\nabi = \"cores\"\nlimit = 1\n\
               [limits]\nmemroy = \"1MiB\"\nfuel = -1\n[grants]\nhosts = [\"a\", \"a\"]\n";
    assert_eq!(
        diagnostics(bad),
        [
            "1:8: error: `` is no valid name: it is empty",
            "3:7: error: no ABI is called `cores`\n  help: did you mean `core`?",
            "4:1: error: unknown key `limit` in the manifest\n  help: did you mean `limits`?",
            "6:1: error: unknown key `memroy` in [limits]\n  help: did you mean `memory`?",
            "7:8: error: `fuel` in [limits] must be a whole number from 1 on, and is `-1`",
            "9:15: error: `a` is in `hosts` twice\n  help: remove one of them",
        ]
    );
}

#[test]
fn each_kind_of_value_is_checked() {
    for (line, wanted) in [
        ("sha256 = \"abc\"", "`sha256` is no hash"),
        ("soft_deadline = 10", "`10` has no unit"),
        ("soft_deadline = \"0s\"", "leaves no time"),
        ("on_denied = \"ignore\"", "unknown `on_denied`: `ignore`"),
        ("on_denied = true", "`on_denied`"),
        ("limits = 3", "`limits` in the manifest must be a table"),
        ("limits.memory = \"5GiB\"", "4096 MiB at most"),
        ("limits.memory = 0", "a size is above zero"),
        ("limits.memory = \"64 miles\"", "no size in bytes"),
        ("limits.memory = 6.5", "must be a size, and is a float"),
        ("limits.response = \"1TiB\"", "256 MiB at most"),
        ("limits.module_size = \"65MiB\"", "64 MiB at most"),
        ("limits.max_in_flight = 0", "a whole number from 1 to 1000000"),
        (
            "limits.max_queued = \"many\"",
            "must be a whole number from 0 to 1000000, and is a string",
        ),
        ("limits.host_call_timeouts.\"\" = \"1s\"", "it is empty"),
        ("limits.host_call_timeouts.f = \"367d\"", "too long"),
        ("grants.hosts = [\"https://a\"]", "names no host"),
        ("grants.hosts = [1]", "a list of strings"),
        ("grants.host = [\"a\"]", "must be an array of tables, and is an array of strings"),
        ("grants.host = [1]", "must be an array of tables, and is an integer"),
        ("grants.secrets = [\"a\\u0007\"]", "control character"),
        ("grants.scratch = \"1GiB\"", "256 MiB at most"),
        ("grants.ask = [\"Ledger\"]", "TYPE.NAME"),
        ("grants.functions = [\"charge\"]", "INTERFACE.NAME"),
        ("grants.files = [\"/\"]", "unknown key `files`"),
        ("abi = \"component\"", "duplicate key"),
    ] {
        let said = diagnostics(&format!("{LEAST}{line}\n"));
        assert_eq!(said.len(), 1, "{line}: {said:?}");
        assert!(said[0].starts_with("4:") && said[0].contains(wanted), "{line}: {said:?}");
    }
    for line in ["limits.memory = \"64 miles\"", "soft_deadline = \"soon\""] {
        let said = diagnostics(&format!("{LEAST}{line}\n"));
        assert_eq!(said[0].matches("write ").count(), 1, "{line}: {said:?}");
    }
    assert_eq!(diagnostics(&format!("{LEAST}[grants]\nscratch = 0\n")), [""; 0]);
}

#[test]
fn missing_keys_are_reported() {
    let said = diagnostics("");
    for key in ["name", "module", "abi"] {
        assert!(said.iter().any(|one| one.contains(&format!("no `{key}`"))), "{key}: {said:?}");
    }
}

#[test]
fn a_module_outside_of_the_folder_is_refused() {
    for path in ["../m.wasm", "/m.wasm", "a/../../m.wasm", "c:\\\\m.wasm", "a\\\\b.wasm"] {
        let said = diagnostics(&format!("name = \"m\"\nmodule = \"{path}\"\nabi = \"core\"\n"));
        assert!(said[0].contains("outside of the manifest's folder"), "{path}: {said:?}");
    }
    assert_eq!(parsed("name = \"m\"\nmodule = \"./a/m.wasm\"\nabi = \"core\"").name(), "m");
}

#[test]
fn a_dispatch_sets_the_limits_that_its_manifest_leaves_open() {
    let own = DispatchLimits {
        memory_bytes: Some(100 << 20),
        response_bytes: Some(4 << 20),
        ..DispatchLimits::default()
    };
    let limits = |source: &str| {
        let limits = granted(source).limits_of(&own, 1 << 30);
        (limits.memory_bytes, limits.response_bytes)
    };
    assert_eq!(limits(LEAST), (100 << 20, 4 << 20));
    let stated = format!("{LEAST}[limits]\nmemory = \"80MiB\"\n");
    assert_eq!(limits(&stated), (80 << 20, 4 << 20));
    let stated = format!("{LEAST}[limits]\nresponse = \"2MiB\"\n");
    assert_eq!(limits(&stated), (100 << 20, 2 << 20));
}

#[test]
fn any_text_is_a_manifest_or_has_a_diagnostic() {
    let deep = format!("{}1", "a.".repeat(100));
    let long = "x".repeat(2 << 20);
    for source in ["\u{feff}", "= 1", "[", "a = [[[[", "\u{202e}=1", &deep, &long] {
        assert!(File::parse(source).file.is_none(), "{source:.20}");
    }
    assert!(File::parse_bytes(b"name = \"\xff\"").file.is_none());
    let many: Vec<String> = (0..2_000).map(|n| format!("\"h{n}\"")).collect();
    let said = diagnostics(&format!("{LEAST}[grants]\nhosts = [{}]\n", many.join(",")));
    assert!(said[0].contains("1000 entries at most"), "{said:?}");
}

#[tokio::test]
async fn only_named_secrets_are_looked_up() {
    let source = format!("{LEAST}[grants]\nsecrets = [\"MINE\"]\n");
    let all = [("MINE", "one"), ("YOURS", "two")];
    let all: FixedSecrets =
        all.map(|(name, value)| (name.to_owned(), Secret::new(value))).into_iter().collect();
    let file = parsed(&source);
    let manifest = file.manifest(Arc::new(all));
    let entity = "Session/1".parse().expect("valid");
    let origin = CallOrigin {
        tenant: "default",
        entity: &entity,
        action: "Begin",
        dispatch: DispatchId::from_bytes([1; 16]),
        attempt: 1,
        integration: "run_tools",
        module: ModuleHash::of(&[]),
    };
    let granted = &manifest.secrets;
    assert_eq!(granted.secret("MINE", origin).await, Some(Secret::new("one")));
    assert_eq!(granted.secret("YOURS", origin).await, None);
}

#[test]
fn modules_that_differ_from_their_manifest_are_rejected() {
    let host = Host::builder()
        .settings(Settings { max_runs: 1, guest_threads: 1, ..Settings::default() })
        .build()
        .expect("a host");
    let load = |bytes: &str, manifest| {
        let rejection = host.load(bytes.as_bytes(), manifest).err();
        rejection.map(|rejection| (rejection.kind, rejection.message))
    };
    let manifest = || Manifest::named("m");
    let hash = ModuleHash::of(MODULE.as_bytes());
    assert_eq!(load(MODULE, manifest().abi(Abi::Core).module_hash(hash)), None);

    let other = load(MODULE, manifest().module_hash(ModuleHash::of(b"")));
    let (kind, message) = other.expect("another hash");
    assert_eq!(kind, RejectionKind::ModuleHashMismatch);
    assert!(message.contains(&hash.to_string()), "{message}");

    let (kind, message) = load(MODULE, manifest().abi(Abi::Component)).expect("another ABI");
    assert_eq!(kind, RejectionKind::ModuleAbiMismatch);
    assert_eq!(message, "module is a core module, and its manifest says a component");
    let (kind, _) = load("(component)", manifest().abi(Abi::Core)).expect("another ABI");
    assert_eq!(kind, RejectionKind::ModuleAbiMismatch);

    let ungranted = r#"(module (import "acme" "charge" (func)) (memory (export "memory") 1 2)
        (func (export "run") (param i32 i32) (result i32) i32.const 0))"#;
    let (kind, message) = load(ungranted, manifest()).expect("it may not import that");
    assert_eq!(kind, RejectionKind::MissingImport);
    assert!(message.contains("acme.charge"), "{message}");
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::fs::write(path, text).expect("written");
}

fn named(name: &str) -> String {
    format!("name = \"{name}\"\nmodule = \"m.wat\"\nabi = \"core\"\n")
}

#[test]
fn manifests_are_found_in_a_folder_and_its_subfolders() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "integration.toml", &named("here"));
    write(folder.path(), "b.integration.toml", &named("beside"));
    write(folder.path(), "c/integration.toml", &named("below"));
    write(folder.path(), "c/d/integration.toml", &named("too deep"));
    write(folder.path(), "c/e.integration.toml", &named("not looked for"));
    write(folder.path(), "spec.ioa.toml", "");
    write(folder.path(), "bare.wat", MODULE);
    let found = Manifests::find(folder.path()).expect("they are right");
    let names: Vec<&str> = found.iter().map(|found| found.file().name()).collect();
    assert_eq!(names, ["below", "beside", "here"]);
    let below = found.named("below").expect("it is there");
    assert_eq!(below.module_path(), folder.path().join("c/m.wat"));
    assert_eq!(module_beside(folder.path(), "bare"), Some(folder.path().join("bare.wat")));
    assert_eq!(module_beside(folder.path(), "c/../bare"), None);
    assert_eq!(module_beside(folder.path(), "absent"), None);
}

#[test]
fn a_folder_with_one_invalid_manifest_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "integration.toml", &named("one"));
    write(folder.path(), "other/integration.toml", &named("one"));
    write(folder.path(), "third/integration.toml", "nmae = 1");
    let Err(Error::Wrong(findings)) = Manifests::find(folder.path()) else {
        panic!("two have one name, and one is wrong")
    };
    assert!(findings[0].diagnostic.message.contains("`one` is the name of the integration in"));
    assert!(findings.iter().any(|finding| finding.path.ends_with("third/integration.toml")));
    assert!(matches!(Manifests::find(&folder.path().join("absent")), Err(Error::File(_))));
}

#[test]
fn a_missing_or_too_large_module_is_reported_at_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("integration.toml");
    write(folder.path(), "integration.toml", &format!("{LEAST}limits.module_size = 9\n"));
    let found = Found::read(&path).expect("it is right");
    let absent = found.module().expect_err("there is none").diagnostic;
    assert_eq!((absent.line, absent.column), (2, 10));
    assert!(absent.message.contains("can't read"), "{absent}");
    write(folder.path(), "m.wat", MODULE);
    let large = found.module().expect_err("it is larger").diagnostic;
    assert!(large.message.contains("larger than the 9 bytes"), "{large}");
    let secrets = found.manifest(&|_| Err("nobody has it".to_owned()));
    assert!(secrets.is_ok(), "it names none");
}

#[test]
fn a_granted_secret_without_a_value_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "integration.toml", &format!("{LEAST}grants.secrets = [\"A\", \"B\"]\n"));
    let found = Found::read(&folder.path().join("integration.toml")).expect("it is right");
    let value =
        |name: &str| if name == "A" { Ok(Secret::new("a")) } else { Err("set B".to_owned()) };
    let findings = found.manifest(&value).expect_err("B has none");
    let said: Vec<String> = findings.iter().map(|one| one.diagnostic.to_string()).collect();
    assert_eq!(said, ["4:24: error: the secret `B` is granted and has no value\n  help: set B"]);
}
