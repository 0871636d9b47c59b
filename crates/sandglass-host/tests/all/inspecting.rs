//! Inspection of any bytes.

use std::fmt::Write as _;
use std::sync::LazyLock;

use proptest::prelude::*;
use sandglass_host::inspection::{Grant, Inspection};
use sandglass_host::manifest::File;
use sandglass_host::{Host, HostCall, HostError, HostFunction, Manifest, OnDenied, Settings};
use sandglass_model::RejectionKind;
use wasm_encoder::{NameMap, NameSection};

const COMPONENT: &[u8] = include_bytes!("../../../../guest-fixtures/built/component.wasm");
const CORE: &[u8] = include_bytes!("../../../../guest-fixtures/built/panics.wasm");

fn host() -> &'static Host {
    static HOST: LazyLock<Host> = LazyLock::new(|| {
        let settings = Settings { max_runs: 1, guest_threads: 1, ..Settings::default() };
        let older = |_: HostCall, age: i32| -> Result<i32, HostError> { Ok(age + 1) };
        let older = HostFunction::instant("acme:crm/contacts", "older", older);
        Host::builder().settings(settings).function(older).build().expect("a host")
    });
    &HOST
}

fn inspected(bytes: &[u8]) -> Inspection {
    host().inspect(bytes).expect("it is WebAssembly")
}

fn manifest(text: &str) -> File {
    let parsed = File::parse(text);
    parsed.file.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
}

/// The inspection reads types itself, and loading gets them from the compiler.
#[test]
fn inspections_of_accepted_modules_have_no_unknown_or_mistyped_items() {
    for bytes in [COMPONENT, CORE] {
        let guest = inspected(bytes);
        for import in &guest.imports {
            assert!(import.is_known && import.expected_signature.is_none(), "{import:?}");
        }
        assert!(guest.missing_exports.is_empty(), "{:?}", guest.missing_exports);
        for export in guest.exports.iter().filter(|export| export.is_used) {
            assert_eq!(export.expected_signature, None, "{export:?}");
        }
        assert!(guest.exports.iter().any(|export| export.is_used));
    }
    assert!(inspected(CORE).debug.lines && inspected(COMPONENT).modules > 1);
}

#[test]
fn mismatches_are_shown_with_the_expected_type_or_name() {
    let guest = inspected(
        br#"(module
            (import "env" "host_logg" (func (param i32 i32 i32 i32)))
            (import "host" "host_log" (func (param i32 i32 i32 i32)))
            (import "env" "host_get_time" (func (param i64)))
            (memory (export "memory") 1 2)
            (func (export "Run") (param i32 i32) (result i32) i32.const 0))"#,
    );
    let [misspelled, elsewhere, other] = &guest.imports[..] else { panic!("{guest:?}") };
    assert_eq!(misspelled.nearest.as_deref(), Some("env.host_log"));
    assert_eq!(elsewhere.nearest.as_deref(), Some("env.host_log"));
    assert_eq!(other.expected_signature.as_deref(), Some("(i32, i32) -> (i32)"));
    assert_eq!(other.signature, "(i64) -> ()");
    let missing = &guest.missing_exports[0];
    assert_eq!((missing.name, missing.nearest.as_deref()), ("run", Some("Run")));
    assert_eq!(guest.memories[0].maximum_bytes, Some(2 << 16));
}

/// A module of one function, with a name section in which each of `names` names that function.
fn named_as<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let module = b"(module (memory (export \"memory\") 1)
        (func (export \"run\") (param i32 i32) (result i32) i32.const 0))";
    let mut binary = wat::parse_bytes(module).expect("it is text").into_owned();
    let (mut map, mut section) = (NameMap::new(), NameSection::new());
    names.into_iter().for_each(|name| map.append(0, name));
    section.functions(&map);
    wasm_encoder::Section::append_to(&section, &mut binary);
    binary
}

/// A mangled name of about `pairs` bytes that stands for a name of about two to the power of `pairs`.
fn doubling(pairs: usize) -> String {
    // Each tuple contains the one before twice, by its position.
    let (mut name, mut last) = ("INvC1a1f".to_owned(), None::<usize>);
    let base_62 = |mut number: usize| {
        let mut digits = Vec::new();
        if number == 0 {
            return "_".to_owned();
        }
        number -= 1;
        loop {
            let digit = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
            digits.push(char::from(digit[number % 62]));
            number /= 62;
            if number == 0 {
                return digits.iter().rev().chain(&['_']).collect();
            }
        }
    };
    for _ in 0..pairs {
        let at = name.len();
        name.push('T');
        for _ in 0..2 {
            name.push_str(&last.map_or("h".to_owned(), |last| format!("B{}", base_62(last))));
        }
        name.push('E');
        last = Some(at);
    }
    format!("_R{name}E")
}

/// A section may name a function a million times, each time with a name that is costly to read.
#[test]
fn a_function_with_several_names_is_shown_by_the_first() {
    let costly = doubling(40);
    let names = std::iter::once("first").chain(std::iter::repeat_n(costly.as_str(), 20_000));
    let guest = inspected(&named_as(names));
    assert_eq!(guest.largest_functions[0].name.as_deref(), Some("first"));

    let guest = inspected(&named_as([costly.as_str(), "second"]));
    let name = guest.largest_functions[0].name.as_deref().expect("it has a name");
    assert!(name.starts_with("a::f::<(u8, u8), ((u8, u8), (u8, u8))"), "{name}");
    assert_eq!(name.chars().count(), 256, "a long name is cut");
}

#[test]
fn names_in_rejections_have_no_control_characters() {
    let mut component = COMPONENT.to_vec();
    let name = b"sandglass:integration/clock";
    let at = component.windows(name.len()).position(|window| window == name).expect("imported");
    component[at + 5] = 0x1b;
    let rejection = host().load(&component, Manifest::named("guest")).expect_err("it is no name");
    assert_eq!(rejection.kind, RejectionKind::InvalidModule);
    assert!(rejection.message.contains(r"sandg\u{1b}ass"), "{rejection}");
    assert!(!rejection.message.contains(char::is_control), "{rejection}");
}

#[test]
fn inspection_and_loading_both_report_another_version_of_the_world() {
    let of = |version: &str| {
        format!(
            r#"(component (import "sandglass:integration/clock@{version}"
                (instance (export "now-ms" (func (result s64))))))"#
        )
    };
    let later = of("0.3.0");
    let guest = inspected(later.as_bytes());
    assert_eq!(guest.imports[0].other_version, Some("sandglass:integration 0.1 and 0.2"));
    let rejection = host().load(later.as_bytes(), Default::default()).expect_err("another one");
    assert_eq!(rejection.kind, RejectionKind::MissingImport);
    assert!(
        rejection.message.contains("this host has sandglass:integration 0.1 and 0.2"),
        "{rejection}"
    );
    let compatible = of("0.1.7");
    assert!(inspected(compatible.as_bytes()).imports[0].is_known);
}

const WANTS: &str = r#"(module
    (import "env" "host_get_secret" (func (param i32 i32 i32 i32) (result i32)))
    (import "acme:crm/contacts" "older" (func (param i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) i32.const 0))"#;

#[test]
fn a_manifest_is_compared_with_the_imports() {
    let guest = inspected(WANTS.as_bytes());
    let own = Grant::Function("acme:crm/contacts.older".to_owned());
    let needs: Vec<_> = guest.imports.iter().filter_map(|import| import.needs.clone()).collect();
    assert_eq!(needs, [Grant::Secrets, own.clone()]);
    let head =
        "name = \"a\"\nmodule = \"a.wasm\"\nabi = \"core\"\nsoft_deadline = \"1s\"\n[grants]\n";
    let bare = guest.under(&manifest(&format!("{head}hosts = [\"a.example:8443\"]")));
    let lacks: Vec<_> = bare.not_granted.iter().map(|one| one.grant.clone()).collect();
    assert_eq!(lacks, [Grant::Secrets, own]);
    assert_eq!((bare.unused[0].key, bare.unused[0].what.as_str()), ("hosts", "a.example:8443"));
    assert_eq!(bare.granted.hosts, ["a.example:8443"]);
    assert_eq!(bare.granted.on_denied, OnDenied::Fail, "the default of its ABI");
    let rest = "secrets = [\"KEY\"]\nfunctions = [\"acme:crm/contacts.older\"]";
    let whole = guest.under(&manifest(&format!("{head}{rest}")));
    assert!(whole.not_granted.is_empty() && whole.unused.is_empty(), "{whole:?}");
}

/// Each type contains the one before it twice.
#[test]
fn a_type_that_doubles_at_each_level_is_shown_within_a_bound() {
    let mut types = "(type $t0 (tuple u8 u8))".to_owned();
    for of in 1..18 {
        let before = of - 1;
        let _ = write!(types, "(type $t{of} (tuple $t{before} $t{before}))");
    }
    let text = format!(
        r#"(component {types} (import "a:b/c" (instance (export "f" (func (param "x" $t17))))))"#
    );
    // An instance has types of its own; an alias imports those of the component.
    let text = text.replace(
        r#"(instance (export "f""#,
        r#"(instance (alias outer 1 $t17 (type $t17)) (export "f""#,
    );
    let guest = inspected(text.as_bytes());
    let signature = &guest.imports[0].signature;
    assert!(signature.ends_with("...") && signature.len() < 5_000, "{}", signature.len());
}

#[test]
fn bytes_that_are_not_webassembly_are_rejected_by_kind() {
    for bytes in [&b""[..], b"#!/bin/sh", b"\0asm", b"\0asm\x01\0\0\0\x01", b"\xff\xfe\0"] {
        let rejection = host().inspect(bytes).err();
        let kind = rejection.as_ref().map(|one| one.kind);
        assert_eq!(kind, Some(RejectionKind::InvalidModule), "{bytes:?}: {rejection:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Damage to real guests, whose sections are then of wrong sizes, counts and kinds.
    #[test]
    fn damaged_guests_are_inspected_or_rejected(
        of_component in any::<bool>(),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = if of_component { COMPONENT } else { CORE }.to_vec();
        let whole = bytes.len();
        for (at, value) in damages {
            // The first bytes determine how the rest is read.
            let at = if value % 2 == 0 { at.index(whole) } else { at.index(2_000) };
            bytes[at] = value;
        }
        if end.index(4) == 0 {
            bytes.truncate(end.index(whole));
        }
        if let Ok(guest) = host().inspect(&bytes) {
            prop_assert!(guest.size.code + guest.size.data <= guest.size.total);
        }
    }
}

#[test]
fn the_version_of_wasi_that_a_guest_needs_is_shown() {
    const TASKS: &[u8] = include_bytes!("../../../../guest-fixtures/built/tasks.wasm");
    const PREVIEW_1: &[u8] = include_bytes!("../../../../guest-fixtures/built/hang.wasm");
    let both = r#"(component
        (import "wasi:clocks/wall-clock@0.2.6" (instance
            (export "resolution" (func (result u64)))))
        (import "wasi:clocks/monotonic-clock@0.3.0" (instance
            (export "now" (func (result u64))))))"#;
    for (guest, versions, is_asynchronous) in [
        (TASKS, &["0.3"][..], true),
        (both.as_bytes(), &["0.2", "0.3"], true),
        (COMPONENT, &["0.2"], false),
        (PREVIEW_1, &["preview 1"], false),
    ] {
        let guest = inspected(guest);
        assert_eq!(guest.wasi_versions, versions);
        assert_eq!(guest.is_asynchronous, is_asynchronous);
    }
    let tasks = inspected(TASKS);
    assert!(tasks.imports.iter().all(|import| import.is_known), "{:?}", tasks.imports);
    assert!(tasks.exports.iter().any(|export| export.name == "handle" && export.is_used));
    assert_eq!(tasks.contract, "sandglass:integration@0.2.0");
}
