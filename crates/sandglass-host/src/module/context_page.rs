//! Adds the page for its context to the memory that a core module declares.

use std::ops::Range;

use wasmparser::{ConstExpr, DataKind, ExternalKind, Operator, Parser, Payload};

use super::core_module::{INITIALIZE, MEMORY};
use crate::abi;
use crate::abi::core_module::PAGE_BYTES;

/// The flags of a 32-bit memory that is not shared and has pages of the usual size; the lowest bit
/// is set if it has a maximum.
const PLAIN_MEMORY: [u8; 2] = [0, 1];

/// What a core module says about its memory and its context.
#[derive(Default)]
struct Found {
    /// Where each memory is declared, and its maximum, in pages.
    memories: Vec<(usize, Option<u64>)>,
    /// The index of the memory that it exports for the host.
    exported: Option<usize>,
    /// The index of the memory of each segment of data that instantiation copies, and where it ends there,
    /// in bytes; `None` if that is computed.
    data: Vec<(u32, Option<u64>)>,
    /// It fetches its context itself, or its code is executed before the host has its context.
    needs_none: bool,
}

/// Adds a page to the minimum of the exported memory of `binary`, a core module that gets its context
/// in memory, and returns whether it did. All offsets stay as they are.
///
/// Growing the memory of each instance instead, which is what the host does otherwise, changes the
/// protection of its slot twice. The guest sees no difference: until the host has written the context,
/// neither code nor data of it reaches beyond the memory that it declares. That is why a module with a start
/// function, an initializer, or data that do not fit stays as it is.
pub(super) fn add(binary: &mut [u8]) -> bool {
    let found = find(binary);
    if found.needs_none {
        return false;
    }
    let Some((at, maximum)) = found.exported.and_then(|index| found.memories.get(index)) else {
        return false;
    };
    let Some((minimum, place)) = minimum(binary, *at) else { return false };
    let declared_bytes = minimum * PAGE_BYTES;
    let fits = |(memory, end): &(u32, Option<u64>)| {
        Some(*memory as usize) != found.exported || end.is_some_and(|end| end <= declared_bytes)
    };
    if !found.data.iter().all(fits) {
        return false;
    }
    let pages = minimum + 1;
    let encoded = &mut binary[place];
    if maximum.is_some_and(|maximum| pages > maximum) || pages >> (7 * encoded.len()) != 0 {
        return false;
    }
    let last = encoded.len() - 1;
    for (index, byte) in encoded.iter_mut().enumerate() {
        let digits = (pages >> (7 * index)).to_le_bytes()[0] & 0x7f;
        *byte = if index == last { digits } else { digits | 0x80 };
    }
    true
}

fn find(binary: &[u8]) -> Found {
    let mut found = Found::default();
    for payload in Parser::new(0).parse_all(binary).map_while(Result::ok) {
        match payload {
            Payload::ImportSection(imports) => {
                let mut imports = imports.into_imports().map_while(Result::ok);
                found.needs_none |= imports.any(|import| import.name == abi::env::GET_CONTEXT);
            }
            Payload::MemorySection(section) => {
                let memories = section.into_iter_with_offsets().map_while(Result::ok);
                found.memories = memories.map(|(at, memory)| (at, memory.maximum)).collect();
            }
            Payload::ExportSection(section) => {
                for export in section.into_iter().map_while(Result::ok) {
                    found.needs_none |= export.name == INITIALIZE;
                    if export.name == MEMORY && export.kind == ExternalKind::Memory {
                        found.exported = usize::try_from(export.index).ok();
                    }
                }
            }
            Payload::StartSection { .. } => found.needs_none = true,
            Payload::DataSection(section) => {
                for segment in section.into_iter().map_while(Result::ok) {
                    if let DataKind::Active { memory_index, offset_expr } = segment.kind {
                        let end = constant(&offset_expr).map(|at| at + segment.data.len() as u64);
                        found.data.push((memory_index, end));
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// The value of an expression that is only a constant.
fn constant(expression: &ConstExpr<'_>) -> Option<u64> {
    let mut operators = expression.get_operators_reader();
    match (operators.read(), operators.read(), operators.eof()) {
        (Ok(Operator::I32Const { value }), Ok(Operator::End), true) => {
            Some(value.cast_unsigned().into())
        }
        _ => None,
    }
}

/// The minimum of the memory that is declared at this offset, in pages, and where it is encoded, in
/// LEB128. `None` if it is a memory of another kind.
fn minimum(binary: &[u8], at: usize) -> Option<(u64, Range<usize>)> {
    let (flags, rest) = binary.get(at..)?.split_first()?;
    if !PLAIN_MEMORY.contains(flags) {
        return None;
    }
    let len = rest.iter().position(|byte| byte & 0x80 == 0)? + 1;
    // Longer encodings than this are not valid.
    if len > 5 {
        return None;
    }
    let digits = rest[..len].iter().rev();
    let pages = digits.fold(0, |pages, byte| pages << 7 | u64::from(byte & 0x7f));
    Some((pages, at + 1..at + 1 + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The minimum of the last memory of `text` after [`add`]; `None` if that adds nothing.
    fn added(text: &str) -> Option<u64> {
        let mut binary = wat::parse_str(text).expect("it is valid");
        let before = binary.clone();
        let is_added = add(&mut binary);
        assert_eq!(binary != before, is_added, "it changes only what it says: {text}");
        wasmparser::validate(&binary).expect("it is still valid");
        let memories = Parser::new(0).parse_all(&binary).map_while(Result::ok);
        let mut memories = memories.filter_map(|payload| match payload {
            Payload::MemorySection(section) => section.into_iter().map_while(Result::ok).last(),
            _ => None,
        });
        let memory = memories.next().expect("it has one");
        is_added.then_some(memory.initial)
    }

    #[test]
    fn a_module_that_gets_its_context_in_memory_gets_a_page() {
        for (memory, pages) in [
            ("(memory (export \"memory\") 0)", Some(1)),
            ("(memory (export \"memory\") 1)", Some(2)),
            ("(memory (export \"memory\") 1 2)", Some(2)),
            ("(memory (export \"memory\") 126)", Some(127)),
            ("(memory (export \"memory\") 128)", Some(129)),
            ("(memory (export \"memory\") 16382)", Some(16383)),
            ("(memory 5) (memory (export \"memory\") 1)", Some(2)),
            ("(memory (export \"memory\") 1) (data (i32.const 65535) \"a\")", Some(2)),
            ("(memory (export \"memory\") 1) (data \"passive\")", Some(2)),
            (
                "(memory $m 5) (memory (export \"memory\") 1) (data (memory $m) (i32.const 99999) \"a\")",
                Some(2),
            ),
            // The encoding of the next number is longer.
            ("(memory (export \"memory\") 127)", None),
            ("(memory (export \"memory\") 16383)", None),
            ("(memory (export \"memory\") 1 1)", None),
            ("(memory (export \"memory\") i64 1)", None),
            ("(memory (export \"other\") 1)", None),
        ] {
            assert_eq!(added(&format!("(module {memory})")), pages, "{memory}");
        }
    }

    #[test]
    fn a_module_whose_code_or_data_reach_the_page_before_its_context_stays_as_it_is() {
        for part in [
            "(data (i32.const 65535) \"ab\")",
            "(data (i32.const -1) \"a\")",
            "(global $at i32 (i32.const 1)) (data (global.get $at) \"a\")",
            "(data (i32.const 8) \"a\") (data (i32.add (i32.const 1) (i32.const 2)) \"a\")",
            "(import \"env\" \"host_get_context\" (func (param i32 i32) (result i32)))",
            "(func $start) (start $start)",
            "(func (export \"_initialize\"))",
        ] {
            let text = format!("(module {part} (memory (export \"memory\") 1))");
            assert_eq!(added(&text), None, "{part}");
        }
    }

    #[test]
    fn any_bytes_are_accepted() {
        let mut random = fastrand::Rng::with_seed(27);
        let module = wat::parse_str("(module (memory (export \"memory\") 1))").expect("valid");
        for _ in 0..20_000 {
            let mut bytes = module.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(..=bytes.len()));
            add(&mut bytes);
        }
    }
}
