//! Creates members for the host functions of an embedder: each function is called in every way in
//! which a core module can call it.

use std::fmt::Write as _;

use sandglass_host::{Signature, ValueType};

use crate::member::{Ending, Handler, Member, Must};

/// Memory of a guest that fills it to miss its deadline: large enough that a fill takes a while.
const LATE_MEMORY_BYTES: u64 = 128 << 20;

/// Size of a large argument, in bytes: half of the longest text that can be passed.
const LARGE_BYTES: u32 = 8 << 20;

/// Offset and length of a text in the guest's memory.
const TEXT: (u32, u32) = (16, 5);

/// Offset of a byte that is not valid at the start of a UTF-8 character.
const NO_UTF8: u32 = 24;

/// Offset and length of the guest's buffer for results.
const ANSWER: (u32, u32) = (4096, 4096);

/// Offset of a large argument; the guest fills its memory from there on.
const LARGE_AT: u32 = 65_536;

/// Pointers and lengths that lie outside a memory of one page: by one byte, at its end, by their
/// sum, by the largest values of 32 bits, and by values that are negative if they are signed.
const WILD: [(u32, u32); 6] = [
    (65_535, 2),
    (65_536, 1),
    (0, 65_537),
    (0x7fff_ffff, 0x7fff_ffff),
    (0xffff_ffff, 1),
    (0x10, 0xffff_ffff),
];

/// Creates members that call each of `functions`, which
/// [`Host::functions`](sandglass_host::Host::functions) lists: in a storm, inside a catch-all, with
/// large arguments, past the deadline, and with invalid pointers and texts.
///
/// The functions are called many thousand times with meaningless arguments. If they use external
/// services, give them ones that tolerate this.
#[must_use]
pub fn against(functions: &[Signature]) -> Vec<Member> {
    functions.iter().flat_map(members).collect()
}

fn members(function: &Signature) -> Vec<Member> {
    let name = function.full_name();
    let called_until_killed = || Ending::timed_out_in(["guest".to_owned(), name.clone()]);
    let mut members = vec![
        Member::new(
            format!("storm of {name}"),
            format!("calls `{name}` as fast as it can, forever"),
            [handler(function, &storm(function), called_until_killed().into())],
        ),
        Member::new(
            format!("catching exceptions around {name}"),
            format!("calls `{name}` inside a catch-all, again and again"),
            [handler(function, &catching(function), called_until_killed().into())],
        ),
        Member::new(
            format!("{name} past the deadline"),
            format!(
                "fills its memory with instructions that cannot be interrupted, and calls \
                 `{name}` after each"
            ),
            [handler(function, &late(function), called_until_killed().into())
                .memory_bytes(LATE_MEMORY_BYTES)],
        ),
    ];
    // A call that waits is killed where it waits, which is as good as a completion.
    let done_or_killed = || Must::End(vec![Ending::completed(), called_until_killed()]);
    if function.params.iter().any(|ty| is_place(*ty)) {
        members.push(Member::new(
            format!("large arguments of {name}"),
            format!("calls `{name}` with arguments of 8 MiB, forever"),
            [handler(function, &large(function), called_until_killed().into())],
        ));
        members.push(Member::new(
            format!("bad pointers to {name}"),
            format!(
                "calls `{name}` with arguments outside its memory and texts that are not UTF-8, \
                 and completes if each is refused"
            ),
            [handler(function, &wild_arguments(function), done_or_killed())],
        ));
    }
    if function.returned != ValueType::None {
        members.push(Member::new(
            format!("bad buffers for {name}"),
            format!("calls `{name}` with buffers outside its memory, and completes"),
            [handler(function, &wild_buffers(function), done_or_killed())],
        ));
    }
    members
}

fn handler(function: &Signature, module: &str, must: Must) -> Handler {
    Handler::of(module.as_bytes().to_vec(), must).function(function.full_name())
}

fn is_place(ty: ValueType) -> bool {
    matches!(ty, ValueType::Text | ValueType::Bytes)
}

/// A guest with `pages` of memory that executes `body` as its handler; `$f` is the function.
fn module(function: &Signature, pages: u64, body: &str) -> String {
    format!(
        r#"(module
  (import "{interface}" "{name}" (func $f (param {params}) (result i32)))
  ;; A guest that imports this gets its context nowhere else, and the host does not write its memory.
  (import "env" "host_get_context" (func (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") {pages})
  (data (i32.const {text}) "hello")
  (data (i32.const {NO_UTF8}) "\ff")
  (data (i32.const 64) "{{\"action\":\"Finish\",\"success\":true}}")
  (func $refused (param $answer i32)
    (if (i32.ne (local.get $answer) (i32.const -1)) (then (unreachable))))
  (func (export "run") (param i32 i32) (result i32)
    {body}
    (call $set_result (i32.const 64) (i32.const 34))
    (i32.const 0)))
"#,
        interface = function.interface,
        name = function.name,
        params = params(function),
        text = TEXT.0,
    )
}

/// The types that a core module uses for the parameters, and for the buffer of the result.
fn params(function: &Signature) -> String {
    let of = |ty: &ValueType| match ty {
        ValueType::None => "",
        ValueType::Bool | ValueType::S32 | ValueType::U32 => "i32 ",
        ValueType::S64 | ValueType::U64 => "i64 ",
        ValueType::F32 => "f32 ",
        ValueType::F64 => "f64 ",
        ValueType::Text | ValueType::Bytes => "i32 i32 ",
    };
    let mut params: String = function.params.iter().map(of).collect();
    if function.returned != ValueType::None {
        params.push_str("i32 i32");
    }
    params
}

/// A call whose texts and bytes are at `place`, by the number of the parameter, and whose result
/// goes to the buffer `answer`.
fn call(function: &Signature, place: impl Fn(usize) -> (u32, u32), answer: (u32, u32)) -> String {
    let mut call = "(call $f".to_owned();
    let push_place = |call: &mut String, (at, length): (u32, u32)| {
        let _ = write!(call, " (i32.const {at}) (i32.const {length})");
    };
    for (number, ty) in function.params.iter().enumerate() {
        match ty {
            ValueType::None => {}
            ValueType::Bool | ValueType::S32 | ValueType::U32 => call.push_str(" (i32.const 1)"),
            ValueType::S64 | ValueType::U64 => call.push_str(" (i64.const 1)"),
            ValueType::F32 => call.push_str(" (f32.const 1)"),
            ValueType::F64 => call.push_str(" (f64.const 1)"),
            ValueType::Text | ValueType::Bytes => push_place(&mut call, place(number)),
        }
    }
    if function.returned != ValueType::None {
        push_place(&mut call, answer);
    }
    call.push(')');
    call
}

/// A call with valid arguments.
fn plain(function: &Signature) -> String {
    call(function, |_| TEXT, ANSWER)
}

fn storm(function: &Signature) -> String {
    let body = format!("(loop $again (drop {}) (br $again))", plain(function));
    module(function, 1, &body)
}

fn catching(function: &Signature) -> String {
    let body = format!(
        "(loop $again (block $caught (try_table (catch_all $caught) (drop {}))) (br $again))",
        plain(function)
    );
    module(function, 1, &body)
}

fn late(function: &Signature) -> String {
    // The deadline almost always passes during a fill, and the call comes next.
    let body = format!(
        "(loop $again
      (memory.fill (i32.const 65536) (i32.const 90) (i32.const 0x7fe0000))
      (drop {})
      (br $again))",
        plain(function)
    );
    module(function, 2047, &body)
}

fn large(function: &Signature) -> String {
    let pages = u64::from((LARGE_AT + LARGE_BYTES) / 65_536);
    let body = format!(
        "(memory.fill (i32.const {LARGE_AT}) (i32.const 0x61) (i32.const {LARGE_BYTES}))
    (loop $again (drop {}) (br $again))",
        call(function, |_| (LARGE_AT, LARGE_BYTES), ANSWER)
    );
    module(function, pages, &body)
}

fn wild_arguments(function: &Signature) -> String {
    let mut body = String::new();
    let mut refused = |bad: usize, at: (u32, u32)| {
        let place = |number| if number == bad { at } else { TEXT };
        let _ = write!(body, "(call $refused {})\n    ", call(function, place, ANSWER));
    };
    for (bad, ty) in function.params.iter().enumerate() {
        if is_place(*ty) {
            WILD.into_iter().for_each(|at| refused(bad, at));
        }
        if *ty == ValueType::Text {
            refused(bad, (NO_UTF8, 1));
        }
    }
    module(function, 1, &body)
}

fn wild_buffers(function: &Signature) -> String {
    let mut body = String::new();
    for at in WILD.into_iter().chain([(0, 0)]) {
        let _ = write!(body, "(drop {})\n    ", call(function, |_| TEXT, at));
    }
    module(function, 1, &body)
}
