//! Computes how deep the types of components refer to one another. The validator and the compiler
//! recurse that deep, and a few kilobytes can have thousands of levels without any nesting.

use wasmparser::{
    ComponentDefinedType, ComponentExternalKind, ComponentFuncType, ComponentTypeRef,
    ComponentValType, TypeBounds,
};

use super::Checked;
use super::bounds::{Bound, Counts};

/// The depth of a type that refers to no other.
const LEAF: u32 = 1;

/// The depths of what is defined so far in one component, component type or instance type. All
/// are upper bounds.
#[derive(Default)]
pub(super) struct TypeScope {
    types: Vec<u32>,
    instances: Vec<u32>,
    functions: Vec<u32>,
    components: Vec<u32>,
    /// The deepest import or export.
    deepest: u32,
}

impl TypeScope {
    /// The depth of the whole component, component type or instance type.
    pub(super) const fn depth(&self) -> u32 {
        self.deepest.saturating_add(LEAF)
    }

    pub(super) fn add_type(&mut self, depth: u32, counts: &mut Counts) -> Checked {
        self.types.push(depth);
        counts.reach(Bound::ReferenceDepth, depth.into())
    }

    // An index that is out of bounds is invalid; the validator says so.

    pub(super) fn type_at(&self, index: u32) -> u32 {
        self.types.get(index as usize).copied().unwrap_or(LEAF)
    }

    pub(super) fn item(&self, kind: ComponentExternalKind, index: u32) -> u32 {
        let depths = match kind {
            ComponentExternalKind::Func => &self.functions,
            ComponentExternalKind::Type => &self.types,
            ComponentExternalKind::Instance => &self.instances,
            ComponentExternalKind::Component => &self.components,
            ComponentExternalKind::Module | ComponentExternalKind::Value => return LEAF,
        };
        depths.get(index as usize).copied().unwrap_or(LEAF)
    }

    /// The depth of something that an instance exports: it has at least one level less.
    pub(super) fn exported(&self, instance: u32) -> u32 {
        self.item(ComponentExternalKind::Instance, instance).saturating_sub(1).max(LEAF)
    }

    /// Defines an item of this kind and depth.
    pub(super) fn add(
        &mut self,
        kind: ComponentExternalKind,
        depth: u32,
        counts: &mut Counts,
    ) -> Checked {
        match kind {
            ComponentExternalKind::Func => self.functions.push(depth),
            ComponentExternalKind::Type => return self.add_type(depth, counts),
            ComponentExternalKind::Instance => self.instances.push(depth),
            ComponentExternalKind::Component => self.components.push(depth),
            ComponentExternalKind::Module | ComponentExternalKind::Value => {}
        }
        Ok(())
    }

    /// Defines what an import or an export declares.
    pub(super) fn declare(&mut self, ty: ComponentTypeRef, counts: &mut Counts) -> Checked {
        let kind = ty.kind();
        let depth = match ty {
            ComponentTypeRef::Func(index)
            | ComponentTypeRef::Instance(index)
            | ComponentTypeRef::Component(index)
            | ComponentTypeRef::Type(TypeBounds::Eq(index)) => self.type_at(index),
            ComponentTypeRef::Type(TypeBounds::SubResource) | ComponentTypeRef::Module(_) => LEAF,
            ComponentTypeRef::Value(ty) => self.value(&ty),
        };
        self.deepest = self.deepest.max(depth);
        self.add(kind, depth, counts)
    }

    /// Exports an item under another name.
    pub(super) fn export(
        &mut self,
        kind: ComponentExternalKind,
        index: u32,
        counts: &mut Counts,
    ) -> Checked {
        let depth = self.item(kind, index);
        self.deepest = self.deepest.max(depth);
        self.add(kind, depth, counts)
    }

    fn value(&self, ty: &ComponentValType) -> u32 {
        match ty {
            ComponentValType::Primitive(_) => LEAF,
            ComponentValType::Type(index) => self.type_at(*index),
        }
    }

    fn around<'a>(&self, types: impl IntoIterator<Item = &'a ComponentValType>) -> u32 {
        let deepest = types.into_iter().map(|ty| self.value(ty)).max().unwrap_or(0);
        deepest.saturating_add(LEAF)
    }

    pub(super) fn function_type(&self, function: &ComponentFuncType<'_>) -> u32 {
        self.around(function.params.iter().map(|(_, ty)| ty).chain(&function.result))
    }

    pub(super) fn defined_type(&self, ty: &ComponentDefinedType<'_>) -> u32 {
        match ty {
            ComponentDefinedType::Record(fields) => self.around(fields.iter().map(|(_, ty)| ty)),
            ComponentDefinedType::Variant(cases) => {
                self.around(cases.iter().filter_map(|case| case.ty.as_ref()))
            }
            ComponentDefinedType::List(ty)
            | ComponentDefinedType::FixedLengthList(ty, _)
            | ComponentDefinedType::Option(ty) => self.around([ty]),
            ComponentDefinedType::Map(key, value) => self.around([key, value]),
            ComponentDefinedType::Tuple(types) => self.around(types),
            ComponentDefinedType::Result { ok, err } => self.around(ok.iter().chain(err)),
            ComponentDefinedType::Future(ty) | ComponentDefinedType::Stream(ty) => self.around(ty),
            ComponentDefinedType::Own(index) | ComponentDefinedType::Borrow(index) => {
                self.type_at(*index).saturating_add(LEAF)
            }
            ComponentDefinedType::Primitive(_)
            | ComponentDefinedType::Flags(_)
            | ComponentDefinedType::Enum(_) => LEAF,
        }
    }
}
