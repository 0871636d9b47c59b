//! Components that call one function each.
//!
//! The arguments of a component are checked against one call's bound before the function gets them, so
//! these are only functions that process texts, lists or bytes.

use std::fmt::Write as _;

use super::Input;
use super::content::{AT, Content};

const TYPES: &str = include_str!("../../tests/all/component_types.wat");

/// What one call of a component may pass.
const CALL_BYTES: u32 = 4 << 20;

/// A function and how it is called.
struct Called {
    interface: &'static str,
    /// The exports of the instance: the types of the function, and the function.
    exports: &'static str,
    function: &'static str,
    /// The core types of its parameters.
    lowered: &'static str,
    /// Its arguments. The text is `AT` and `LENGTH`; results go to `RESULT`.
    arguments: &'static str,
    /// Size of an element of the list that is passed, if it is not a text.
    element_bytes: u32,
}

const fn text(
    interface: &'static str,
    exports: &'static str,
    function: &'static str,
    lowered: &'static str,
    arguments: &'static str,
) -> Called {
    Called { interface, exports, function, lowered, arguments, element_bytes: 1 }
}

const LEVEL: &str = r#"(type $l (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $l)))"#;
const KIND: &str = r#"(type $k (enum "counter" "gauge" "histogram"))
    (export "kind" (type $kind (eq $k)))"#;
const SCRATCH: &str = r#"(type $e (variant (case "denied") (case "full" u64) (case "invalid-key" string)))
    (export "error" (type $error (eq $e)))"#;
const FIELDS: &str = r#"(export "fields" (type $fields (sub resource)))
    (type $e (variant (case "invalid-syntax") (case "forbidden") (case "immutable")))
    (export "header-error" (type $error (eq $e)))"#;

const CALLED: &[Called] = &[
    text(
        "sandglass:integration/log@0.1.0",
        LEVEL,
        r#""write" (func (param "level" $level) (param "message" string))"#,
        "i32 i32 i32",
        "(i32.const 2) AT LENGTH",
    ),
    text(
        "sandglass:integration/log@0.1.0",
        LEVEL,
        r#""write-fields" (func (param "level" $level) (param "message" string)
            (param "fields" string) (result (result (error string))))"#,
        "i32 i32 i32 i32 i32 i32",
        "(i32.const 2) AT (i32.const 1) AT LENGTH RESULT",
    ),
    text(
        "sandglass:integration/log@0.1.0",
        "",
        r#""wide-event" (func (param "event" string) (result (result (error string))))"#,
        "i32 i32 i32",
        "AT LENGTH RESULT",
    ),
    text(
        "sandglass:integration/context@0.1.0",
        "",
        r#""read-field" (func (param "name" string) (result (option string)))"#,
        "i32 i32 i32",
        "AT LENGTH RESULT",
    ),
    text(
        "sandglass:integration/secrets@0.1.0",
        "",
        r#""get" (func (param "name" string) (result (result string (error string))))"#,
        "i32 i32 i32",
        "AT LENGTH RESULT",
    ),
    text(
        "sandglass:integration/progress@0.1.0",
        "",
        r#""emit" (func (param "progress" string) (result (result (error string))))"#,
        "i32 i32 i32",
        "AT LENGTH RESULT",
    ),
    text(
        "sandglass:integration/progress@0.1.0",
        "",
        r#""set-status" (func (param "status" string))"#,
        "i32 i32",
        "AT LENGTH",
    ),
    Called {
        interface: "sandglass:integration/metrics@0.1.0",
        exports: KIND,
        function: r#""emit" (func (param "name" string) (param "kind" $kind) (param "value" f64)
            (param "labels" (list (tuple string string))) (result (result (error string))))"#,
        lowered: "i32 i32 i32 f64 i32 i32 i32",
        arguments: "AT (i32.const 1) (i32.const 0) (f64.const 1) AT LENGTH RESULT",
        element_bytes: 16,
    },
    text(
        "sandglass:integration/scratch@0.1.0",
        SCRATCH,
        r#""get" (func (param "key" string) (result (result (option (list u8)) (error $error))))"#,
        "i32 i32 i32",
        "AT LENGTH RESULT",
    ),
    text(
        "sandglass:integration/scratch@0.1.0",
        SCRATCH,
        r#""set" (func (param "key" string) (param "value" (list u8))
            (result (result (error $error))))"#,
        "i32 i32 i32 i32 i32",
        "AT (i32.const 3) AT LENGTH RESULT",
    ),
    Called {
        interface: "wasi:http/types@0.2.0",
        exports: FIELDS,
        function: r#""[static]fields.from-list" (func
            (param "entries" (list (tuple string (list u8))))
            (result (result (own $fields) (error $error))))"#,
        lowered: "i32 i32 i32",
        arguments: "AT LENGTH RESULT",
        element_bytes: 16,
    },
    text(
        "wasi:random/random@0.2.0",
        "",
        r#""get-random-bytes" (func (param "len" u64) (result (list u8)))"#,
        "i64 i32",
        "(i64.extend_i32_u LENGTH) RESULT",
    ),
    text(
        "wasi:random/insecure@0.2.0",
        "",
        r#""get-insecure-random-bytes" (func (param "len" u64) (result (list u8)))"#,
        "i64 i32",
        "(i64.extend_i32_u LENGTH) RESULT",
    ),
];

pub(crate) fn inputs() -> impl Iterator<Item = Input> {
    CALLED.iter().flat_map(|called| {
        let contents: &[Content] = match called.element_bytes {
            1 => &Content::OF_TEXTS,
            // Of each pair, both texts are empty, or of 16 bytes.
            _ => &[Content::Zeros, Content::Buffers(0)],
        };
        contents.iter().flat_map(move |content| {
            let lengths = [16 << 10, 64 << 10, 256 << 10, 1 << 20, CALL_BYTES - 4096];
            lengths.map(|length| input(called, *content, length))
        })
    })
}

fn input(called: &Called, content: Content, length: u32) -> Input {
    let name = called.function.split('"').nth(1).expect("it begins with a name");
    let interface = called.interface.split('@').next().expect("it has a version");
    let count = length / called.element_bytes / if content == Content::Buffers(0) { 3 } else { 1 };
    let (bytes, about) = match content {
        Content::Buffers(_) => {
            let text = [AT, 16].map(u32::to_le_bytes);
            let pairs = text.iter().cycle().take(4 * count as usize).flatten().copied().collect();
            (pairs, "pairs of 16 letters".to_owned())
        }
        _ => (content.bytes(length as usize), content.about()),
    };
    let guest = wat::parse_str(component(called, name, count, &bytes)).expect("it is text");
    Input {
        guest,
        function: format!("{interface}.{name}"),
        about: format!("{} KiB of {about}", length >> 10),
    }
}

fn component(called: &Called, name: &str, count: u32, content: &[u8]) -> String {
    let Called { interface, exports, function, lowered, arguments, .. } = called;
    let arguments = arguments
        .replace("AT", &format!("(i32.const {AT})"))
        .replace("LENGTH", &format!("(i32.const {count})"))
        .replace("RESULT", "(i32.const 512)");
    let mut data = String::with_capacity(content.len() * 3);
    for byte in content {
        write!(data, "\\{byte:02x}").expect("writing to a String cannot fail");
    }
    format!(
        r#"(component
  {TYPES}
  (import "{interface}" (instance $imported
    {exports}
    (export {function})))
  (core module $libc
    (memory (export "memory") 200)
    (global $next (mut i32) (i32.const 5242880))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $next)
      (global.set $next (i32.add (global.get $next)
        (i32.and (i32.add (local.get 3) (i32.const 15)) (i32.const -16)))))
    (data (i32.const {AT}) "{data}"))
  (core instance $libc (instantiate $libc))
  (core func $f (canon lower (func $imported "{name}")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core module $main
    (import "libc" "memory" (memory 1))
    (import "host" "f" (func $f (param {lowered})))
    (func (export "handle") (param i32) (result i32)
      (call $f {arguments})
      (i32.const 8)))
  (core instance $main (instantiate $main (with "libc" (instance $libc))
    (with "host" (instance (export "f" (func $f))))))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $main "handle")
      (memory (core memory $libc "memory"))
      (realloc (core func $libc "realloc"))))
  (export "handle" (func $handle)))"#
    )
}
