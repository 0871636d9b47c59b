//! Checks the types of components. They can nest without limit, so this walk keeps its own stack.

use std::ops::Range;

use wasmparser::{
    BinaryReader, ComponentAlias, ComponentDefinedType, ComponentExternName, ComponentImport,
    ComponentOuterAliasKind, ComponentType, ComponentTypeRef, CoreType, ModuleTypeDeclaration,
};

use super::bounds::{Bound, Counts};
use super::type_scope::TypeScope;
use super::{Checked, Fault, Scope};

/// The first byte of a component type.
const COMPONENT_TYPE: u8 = 0x41;
/// The first byte of an instance type.
const INSTANCE_TYPE: u8 = 0x42;

/// A component type or instance type whose declarations are being read.
struct OpenType {
    /// Declarations that are left.
    left: u32,
    scope: TypeScope,
}

/// Checks the section of component types at `range` of `binary`, in the innermost of `components`.
pub(super) fn check(
    components: &mut [Scope],
    binary: &[u8],
    range: Range<usize>,
    counts: &mut Counts,
) -> Checked {
    let start = range.start;
    let section = binary.get(range).unwrap_or_default();
    let mut reader = BinaryReader::new(section, start);
    let mut walk = Walk { components, open: Vec::new(), counts };
    for _ in 0..reader.read_var_u32()? {
        walk.take_type(&mut reader)?;
        while let Some(innermost) = walk.open.last_mut() {
            match innermost.left.checked_sub(1) {
                Some(fewer) => {
                    innermost.left = fewer;
                    walk.take_declaration(&mut reader)?;
                }
                None => {
                    walk.counts.offset = reader.original_position();
                    walk.close()?;
                }
            }
        }
    }
    Ok(())
}

struct Walk<'a> {
    components: &'a mut [Scope],
    /// The innermost last. [`Bound::TypeDepth`] bounds its length.
    open: Vec<OpenType>,
    counts: &'a mut Counts,
}

/// The scope of the next type.
fn innermost<'a>(
    open: &'a mut [OpenType],
    components: &'a mut [Scope],
) -> Option<&'a mut TypeScope> {
    match open.last_mut() {
        Some(open) => Some(&mut open.scope),
        None => components.last_mut().and_then(Scope::types),
    }
}

impl Walk<'_> {
    fn add_type(&mut self, depth: u32) -> Checked {
        let scope = innermost(&mut self.open, self.components);
        scope.map_or(Ok(()), |scope| scope.add_type(depth, self.counts))
    }

    /// The depth of a type `levels` further out.
    fn outer_type(&mut self, levels: u32, index: u32) -> u32 {
        let levels = levels as usize;
        let scope = match self.open.len().checked_sub(levels + 1) {
            Some(at) => Some(&self.open[at].scope),
            None => {
                let levels = levels - self.open.len();
                self.components.iter_mut().rev().nth(levels).and_then(Scope::types).map(|ty| &*ty)
            }
        };
        scope.map_or(1, |scope| scope.type_at(index))
    }

    /// Ends the innermost type.
    fn close(&mut self) -> Checked {
        match self.open.pop() {
            Some(open) => self.add_type(open.scope.depth()),
            None => Ok(()),
        }
    }

    /// Reads a type, or only the beginning of one that has declarations.
    fn take_type(&mut self, reader: &mut BinaryReader<'_>) -> Checked {
        self.counts.offset = reader.original_position();
        self.counts.add(Bound::ComponentItems, 1)?;
        let mut ahead = reader.clone();
        if matches!(ahead.read_u8()?, COMPONENT_TYPE | INSTANCE_TYPE) {
            let left = ahead.read_var_u32()?;
            *reader = ahead;
            self.open.push(OpenType { left, scope: TypeScope::default() });
            return self.counts.reach(Bound::TypeDepth, self.open.len() as u64);
        }
        let ty = reader.read::<ComponentType<'_>>()?;
        let Some(scope) = innermost(&mut self.open, self.components) else { return Ok(()) };
        let (parts, depth) = match &ty {
            ComponentType::Defined(ty) => {
                self.counts.is_concurrent |=
                    matches!(ty, ComponentDefinedType::Stream(_) | ComponentDefinedType::Future(_));
                (parts(ty), scope.defined_type(ty))
            }
            ComponentType::Func(function) => {
                self.counts.is_concurrent |= function.async_;
                let names = function.params.iter().map(|(name, _)| name.len()).sum();
                let parts = Parts { items: function.params.len(), names };
                (parts, scope.function_type(function))
            }
            _ => (Parts::default(), 1),
        };
        self.counts.add(Bound::ComponentItems, parts.items as u64)?;
        self.counts.add(Bound::NameBytes, parts.names as u64)?;
        self.add_type(depth)
    }

    /// Reads one declaration in a component type or instance type.
    fn take_declaration(&mut self, reader: &mut BinaryReader<'_>) -> Checked {
        let at = reader.original_position();
        self.counts.offset = at;
        self.counts.add(Bound::ComponentItems, 1)?;
        match reader.read_u8()? {
            0x00 => take_core_type(&reader.read()?, self.counts),
            0x01 => self.take_type(reader),
            0x02 => {
                let alias = reader.read()?;
                take_alias(&alias, self.counts)?;
                self.alias(&alias)
            }
            0x03 => {
                let import = reader.read::<ComponentImport<'_>>()?;
                take_name(&import.name, self.counts)?;
                self.declare(import.ty)
            }
            0x04 => {
                take_name(&reader.read()?, self.counts)?;
                self.declare(reader.read()?)
            }
            byte => Err(Fault::Malformed(format!(
                "invalid leading byte (0x{byte:x}) for component or instance type declaration \
                 (at offset 0x{at:x})"
            ))),
        }
    }

    fn declare(&mut self, ty: ComponentTypeRef) -> Checked {
        match self.open.last_mut() {
            Some(open) => open.scope.declare(ty, self.counts),
            None => Ok(()),
        }
    }

    fn alias(&mut self, alias: &ComponentAlias<'_>) -> Checked {
        match *alias {
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::Type, count, index } => {
                let depth = self.outer_type(count, index);
                self.add_type(depth)
            }
            ComponentAlias::InstanceExport { kind, instance_index, .. } => {
                let Some(open) = self.open.last_mut() else { return Ok(()) };
                let depth = open.scope.exported(instance_index);
                open.scope.add(kind, depth, self.counts)
            }
            ComponentAlias::Outer { .. } | ComponentAlias::CoreInstanceExport { .. } => Ok(()),
        }
    }
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
pub(super) fn take_core_type(ty: &CoreType<'_>, counts: &mut Counts) -> Checked {
    match ty {
        CoreType::Rec(group) => counts.add(Bound::Types, group.types().len() as u64),
        CoreType::Module(declarations) => {
            counts.add(Bound::ComponentItems, declarations.len() as u64)?;
            for declaration in declarations {
                match declaration {
                    ModuleTypeDeclaration::Type(group) => {
                        counts.add(Bound::Types, group.types().len() as u64)?;
                    }
                    ModuleTypeDeclaration::Export { name, .. } => {
                        counts.add(Bound::NameBytes, name.len() as u64)?;
                    }
                    ModuleTypeDeclaration::Import(import) => {
                        let names = import.module.len().saturating_add(import.name.len());
                        counts.add(Bound::NameBytes, names as u64)?;
                    }
                    ModuleTypeDeclaration::OuterAlias { .. } => {}
                }
            }
            Ok(())
        }
    }
}

/// Counts the name of something that is imported or exported.
pub(super) fn take_name(name: &ComponentExternName<'_>, counts: &mut Counts) -> Checked {
    let more = [name.implements, name.version_suffix, name.external_id];
    let bytes: usize = more.into_iter().flatten().chain([name.name]).map(str::len).sum();
    counts.add(Bound::NameBytes, bytes as u64)
}

/// Counts the name in an alias.
pub(super) fn take_alias(alias: &ComponentAlias<'_>, counts: &mut Counts) -> Checked {
    match alias {
        ComponentAlias::InstanceExport { name, .. }
        | ComponentAlias::CoreInstanceExport { name, .. } => {
            counts.add(Bound::NameBytes, name.len() as u64)
        }
        ComponentAlias::Outer { .. } => Ok(()),
    }
}
