//! Types of components: nested without limit in the format, so this walk keeps its own stack.

use std::ops::Range;

use wasmparser::{
    BinaryReader, ComponentAlias, ComponentDefinedType, ComponentExternName, ComponentImport,
    ComponentType, ComponentTypeRef, CoreType, ModuleTypeDeclaration,
};

use super::Fault;
use super::bounds::{Bound, Counts};

/// The first byte of a component type.
const COMPONENT_TYPE: u8 = 0x41;
/// The first byte of an instance type.
const INSTANCE_TYPE: u8 = 0x42;

/// Checks the section of component types at `range` of `binary`.
pub(super) fn check(binary: &[u8], range: Range<usize>, counts: &mut Counts) -> Result<(), Fault> {
    let start = range.start;
    let section = binary.get(range).unwrap_or_default();
    let mut reader = BinaryReader::new(section, start);
    // How many types or declarations are left of each type that is open, the innermost last.
    let mut open = vec![reader.read_var_u32()?];
    while let Some(left) = open.last_mut() {
        let Some(fewer) = left.checked_sub(1) else {
            open.pop();
            continue;
        };
        *left = fewer;
        let at = reader.original_position();
        counts.add(Bound::ComponentItems, 1, at)?;
        let is_type = open.len() == 1 || declares_type(&mut reader, counts)?;
        if is_type && let Some(declarations) = enter_type(&mut reader, counts)? {
            open.push(declarations);
            counts.reach(Bound::TypeDepth, open.len() as u64 - 1, at)?;
        }
    }
    Ok(())
}

/// Reads one declaration in a component type or instance type. True if it is a component-level
/// type, which follows.
fn declares_type(reader: &mut BinaryReader<'_>, counts: &mut Counts) -> Result<bool, Fault> {
    let at = reader.original_position();
    match reader.read_u8()? {
        0x00 => take_core_type(&reader.read()?, at, counts)?,
        0x01 => return Ok(true),
        0x02 => take_alias(&reader.read()?, at, counts)?,
        0x03 => take_name(&reader.read::<ComponentImport<'_>>()?.name, at, counts)?,
        0x04 => {
            take_name(&reader.read()?, at, counts)?;
            reader.read::<ComponentTypeRef>()?;
        }
        byte => {
            return Err(Fault::Malformed(format!(
                "invalid leading byte (0x{byte:x}) for component or instance type declaration \
                 (at offset 0x{at:x})"
            )));
        }
    }
    Ok(false)
}

/// Reads a type, or only the beginning of one that has declarations: their count.
fn enter_type(reader: &mut BinaryReader<'_>, counts: &mut Counts) -> Result<Option<u32>, Fault> {
    let at = reader.original_position();
    let mut ahead = reader.clone();
    if matches!(ahead.read_u8()?, COMPONENT_TYPE | INSTANCE_TYPE) {
        let declarations = ahead.read_var_u32()?;
        *reader = ahead;
        return Ok(Some(declarations));
    }
    let parts = match reader.read::<ComponentType<'_>>()? {
        ComponentType::Defined(ty) => parts(&ty),
        ComponentType::Func(function) => {
            let names = function.params.iter().map(|(name, _)| name.len()).sum();
            Parts { items: function.params.len(), names }
        }
        _ => Parts::default(),
    };
    counts.add(Bound::ComponentItems, parts.items as u64, at)?;
    counts.add(Bound::NameBytes, parts.names as u64, at)?;
    Ok(None)
}

/// What a type consists of.
#[derive(Default)]
struct Parts {
    items: usize,
    /// Bytes of names.
    names: usize,
}

fn parts(ty: &ComponentDefinedType<'_>) -> Parts {
    let named = |items: usize, names: usize| Parts { items, names };
    match ty {
        ComponentDefinedType::Record(fields) => {
            named(fields.len(), fields.iter().map(|(name, _)| name.len()).sum())
        }
        ComponentDefinedType::Variant(cases) => {
            named(cases.len(), cases.iter().map(|case| case.name.len()).sum())
        }
        ComponentDefinedType::Flags(names) | ComponentDefinedType::Enum(names) => {
            named(names.len(), names.iter().map(|name| name.len()).sum())
        }
        ComponentDefinedType::Tuple(types) => named(types.len(), 0),
        _ => Parts::default(),
    }
}

/// Counts the parts of a core type in a component.
pub(super) fn take_core_type(
    ty: &CoreType<'_>,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    match ty {
        CoreType::Rec(group) => counts.add(Bound::Types, group.types().len() as u64, at),
        CoreType::Module(declarations) => {
            counts.add(Bound::ComponentItems, declarations.len() as u64, at)?;
            for declaration in declarations {
                match declaration {
                    ModuleTypeDeclaration::Type(group) => {
                        counts.add(Bound::Types, group.types().len() as u64, at)?;
                    }
                    ModuleTypeDeclaration::Export { name, .. } => {
                        counts.add(Bound::NameBytes, name.len() as u64, at)?;
                    }
                    ModuleTypeDeclaration::Import(import) => {
                        let names = import.module.len().saturating_add(import.name.len());
                        counts.add(Bound::NameBytes, names as u64, at)?;
                    }
                    ModuleTypeDeclaration::OuterAlias { .. } => {}
                }
            }
            Ok(())
        }
    }
}

/// Counts the name of something that is imported or exported.
pub(super) fn take_name(
    name: &ComponentExternName<'_>,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    let more = [name.implements, name.version_suffix, name.external_id];
    let bytes: usize = more.into_iter().flatten().chain([name.name]).map(str::len).sum();
    counts.add(Bound::NameBytes, bytes as u64, at)
}

/// Counts the name in an alias.
pub(super) fn take_alias(
    alias: &ComponentAlias<'_>,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    match alias {
        ComponentAlias::InstanceExport { name, .. }
        | ComponentAlias::CoreInstanceExport { name, .. } => {
            counts.add(Bound::NameBytes, name.len() as u64, at)
        }
        ComponentAlias::Outer { .. } => Ok(()),
    }
}
