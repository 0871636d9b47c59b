//! The sections of a binary that name its functions and lines, copied when it is loaded.

use std::ops::Range;

use wasmparser::{Parser, Payload, TypeRef};

/// The custom section that names functions.
const NAME: &str = "name";

/// What one core module of a binary has.
#[derive(Debug, Default)]
pub(super) struct CoreSections {
    /// Where the contents of the code section begin in the file: DWARF counts from there.
    pub(super) code_start: u32,
    /// Where each function's body begins in the file.
    pub(super) bodies: Vec<u32>,
    /// Where the last body ends.
    pub(super) bodies_end: u32,
    /// Functions that the module imports; those come first in the index space.
    pub(super) imported: u32,
    /// The data of the name section.
    pub(super) names: Vec<u8>,
    /// DWARF sections by name, such as `.debug_info`.
    pub(super) debug: Vec<(String, Vec<u8>)>,
}

impl CoreSections {
    fn has_symbols(&self) -> bool {
        !self.names.is_empty() || !self.debug.is_empty()
    }

    /// The index of the function whose body contains the offset `at` of the file.
    pub(super) fn function_at(&self, at: u32) -> Option<u32> {
        let behind = self.bodies.partition_point(|start| *start <= at);
        self.imported.checked_add(u32::try_from(behind).ok()?.checked_sub(1)?)
    }
}

/// The sections of each core module in `binary`, a core module or a component. Modules that
/// name nothing are left out. What cannot be parsed ends the list: the compiler rejects it.
pub(super) fn of(binary: &[u8]) -> Vec<CoreSections> {
    // Modules and components can nest.
    let mut open: Vec<CoreSections> = Vec::new();
    let mut found = Vec::new();
    for payload in Parser::new(0).parse_all(binary).map_while(Result::ok) {
        if let Payload::Version { .. } = &payload {
            open.push(CoreSections::default());
            continue;
        }
        let Some(module) = open.last_mut() else { continue };
        match payload {
            Payload::ImportSection(imports) => {
                let is_function =
                    |ty: &TypeRef| matches!(ty, TypeRef::Func(_) | TypeRef::FuncExact(_));
                let imported = imports.into_imports().map_while(Result::ok);
                let count = imported.filter(|import| is_function(&import.ty)).count();
                module.imported = u32::try_from(count).unwrap_or(u32::MAX);
            }
            Payload::CodeSectionStart { range, .. } => module.code_start = position(range.start),
            Payload::CodeSectionEntry(body) => {
                module.bodies.push(position(body.range().start));
                module.bodies_end = position(body.range().end);
            }
            Payload::CustomSection(section) if section.name() == NAME => {
                module.names = section.data().to_vec();
            }
            Payload::CustomSection(section) if section.name().starts_with(".debug_") => {
                module.debug.push((section.name().to_owned(), section.data().to_vec()));
            }
            Payload::End(_) => found.extend(open.pop().filter(CoreSections::has_symbols)),
            _ => {}
        }
    }
    found
}

/// Renames each name section of `binary` in place, so that Wasmtime reads no names: it would
/// copy them once per frame, on the guest's thread. All offsets stay as they are.
pub(crate) fn hide_names(binary: &mut [u8]) {
    let sections = Parser::new(0).parse_all(binary).map_while(Result::ok);
    let starts: Vec<Range<usize>> = sections
        .filter_map(|payload| match payload {
            Payload::CustomSection(section) if section.name() == NAME => {
                let end = section.data_offset();
                Some(end - NAME.len()..end)
            }
            _ => None,
        })
        .collect();
    for start in starts {
        binary[start].copy_from_slice(b"eman");
    }
}

/// An offset in a file; modules are far smaller than 4 GiB.
fn position(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}
