//! Modules and components that wasm-smith generates from an input.
//!
//! The first byte selects the form: a module, a module inside a component with the handler's
//! export, or an arbitrary component; with or without custom sections, whose data comes next as in
//! [`symbols`](super::symbols); and with loops that are guaranteed to end or not. The remaining
//! bytes make wasm-smith's choices.

use std::fmt::Write as _;
use std::sync::LazyLock;

use arbitrary::Unstructured;
use wasm_encoder::Encode as _;
use wasm_smith::{Component, Config, Module};

use super::guest::{CALLS, OWN_OF_ENV, types};
use super::{hostile, symbols};

/// Most loop iterations and calls of a guest whose loops end.
const STEPS: u32 = 10_000;

/// What a guest may import: all functions that a host provides to every guest.
static IMPORTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut text = String::new();
    let is_own = |(module, name): (&str, &str)| module.starts_with("acme:") || name == OWN_OF_ENV;
    for (module, name, takes, gives) in CALLS.iter().filter(|call| !is_own((call.0, call.1))) {
        let (takes, gives) = (types(takes), types(gives));
        writeln!(text, "(import \"{module}\" \"{name}\" (func (param{takes}) (result{gives})))")
            .expect("a text takes it");
    }
    wat::parse_str(format!("(module {text})")).expect("valid")
});

/// What a guest exports.
static EXPORTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let exports = r#"(module (memory (export "memory") 1)
        (func (export "run") (param i32 i32) (result i32) unreachable))"#;
    wat::parse_str(exports).expect("valid")
});

/// What the module inside a component exports.
static INNER_EXPORTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let exports = r#"(module (memory (export "memory") 1)
        (func (export "handle") (param i32) (result i32) unreachable)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) unreachable))"#;
    wat::parse_str(exports).expect("valid")
});

/// The bytes of a component with a handler, before and after its module.
static COMPONENT: LazyLock<(Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    /// The section of an empty module without a name, including its length.
    const SECTION: &[u8] = b"\x01\x08\0asm\x01\0\0\0";
    let text = include_str!("../../../../guest-fixtures/wat/component_traps.wat");
    let (before, rest) = text.split_once("(core module $module").expect("it has a module");
    let (_, behind) = rest.split_once("(core instance").expect("it has an instance");
    let behind = behind.replace("(instantiate $module)", "(instantiate 0)");
    let text = format!("{before}(core module)(core instance{behind}");
    let bytes = wat::parse_str(text).expect("valid");
    let place = bytes.windows(SECTION.len()).position(|window| window == SECTION);
    let (before, rest) = bytes.split_at(place.expect("it has the module"));
    (before.to_vec(), rest[SECTION.len()..].to_vec())
});

/// Checks that the host withstands every generated guest.
pub(crate) fn run(input: &[u8]) {
    if let Some(guest) = generate(input) {
        hostile::endure(&guest);
    }
}

/// Generates the guest of `input`; `None` if `input` is too short.
fn generate(input: &[u8]) -> Option<Vec<u8>> {
    let (&form, rest) = input.split_first()?;
    let (sections, rest) = if form & 8 == 0 { (Vec::new(), rest) } else { symbols::sections(rest) };
    let choices = &mut Unstructured::new(rest);
    Some(match form % 8 {
        0..=3 => [module(form, &EXPORTS, Some(&IMPORTS), choices)?, sections].concat(),
        4..=6 => {
            let module = [module(form, &INNER_EXPORTS, None, choices)?, sections].concat();
            let (before, behind) = &*COMPONENT;
            // The section of a component with id 1 contains a core module.
            let mut component = [before.as_slice(), &[1]].concat();
            module.encode(&mut component);
            [component.as_slice(), behind].concat()
        }
        _ => [Component::new(config(), choices).ok()?.to_bytes(), sections].concat(),
    })
}

fn module(
    form: u8,
    exports: &[u8],
    imports: Option<&[u8]>,
    choices: &mut Unstructured<'_>,
) -> Option<Vec<u8>> {
    let (available_imports, max_imports) = (imports.map(<[u8]>::to_vec), imports.map_or(0, |_| 20));
    let config =
        Config { exports: Some(exports.to_vec()), available_imports, max_imports, ..config() };
    let mut module = Module::new(config, choices).ok()?;
    // Every eighth form may loop forever, so that kills are tested, too.
    if form < 0xe0 {
        module.ensure_termination(STEPS).expect("its functions are valid");
    }
    Some(module.to_bytes())
}

/// Only features that the host's engine accepts, with small sizes.
fn config() -> Config {
    Config {
        compact_imports_enabled: false,
        gc_enabled: false,
        memory64_enabled: false,
        relaxed_simd_enabled: false,
        threads_enabled: false,
        wide_arithmetic_enabled: false,
        max_funcs: 16,
        max_globals: 16,
        max_types: 32,
        max_data_segments: 8,
        max_element_segments: 8,
        max_memory32_bytes: 2 << 20,
        max_table_elements: 10_000,
        max_tables: 4,
        ..Config::default()
    }
}
