//! How deep the types of components refer to one another. The validator and the compiler recurse
//! that deep, and it can be thousands of levels in a few kilobytes without any nesting.

use wasmparser::{
    ComponentDefinedType, ComponentExternalKind, ComponentFuncType, ComponentTypeRef,
    ComponentValType, TypeBounds,
};

use super::Fault;
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

    pub(super) fn add_type(
        &mut self,
        depth: u32,
        at: usize,
        counts: &mut Counts,
    ) -> Result<(), Fault> {
        self.types.push(depth);
        counts.reach(Bound::ReferenceDepth, depth.into(), at)
    }

    pub(super) fn add_component(&mut self, depth: u32) {
        self.components.push(depth);
    }

    pub(super) fn add_instance(&mut self, depth: u32) {
        self.instances.push(depth);
    }

    pub(super) fn add_function(&mut self, depth: u32) {
        self.functions.push(depth);
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
        at: usize,
        counts: &mut Counts,
    ) -> Result<(), Fault> {
        match kind {
            ComponentExternalKind::Func => self.add_function(depth),
            ComponentExternalKind::Type => return self.add_type(depth, at, counts),
            ComponentExternalKind::Instance => self.add_instance(depth),
            ComponentExternalKind::Component => self.add_component(depth),
            ComponentExternalKind::Module | ComponentExternalKind::Value => {}
        }
        Ok(())
    }

    /// Defines what an import or an export declares.
    pub(super) fn declare(
        &mut self,
        ty: ComponentTypeRef,
        at: usize,
        counts: &mut Counts,
    ) -> Result<(), Fault> {
        let (kind, depth) = match ty {
            ComponentTypeRef::Func(index) => (ComponentExternalKind::Func, self.type_at(index)),
            ComponentTypeRef::Instance(index) => {
                (ComponentExternalKind::Instance, self.type_at(index))
            }
            ComponentTypeRef::Component(index) => {
                (ComponentExternalKind::Component, self.type_at(index))
            }
            ComponentTypeRef::Type(TypeBounds::Eq(index)) => {
                (ComponentExternalKind::Type, self.type_at(index))
            }
            ComponentTypeRef::Type(TypeBounds::SubResource) => (ComponentExternalKind::Type, LEAF),
            ComponentTypeRef::Value(ty) => (ComponentExternalKind::Value, self.value(&ty)),
            ComponentTypeRef::Module(_) => (ComponentExternalKind::Module, LEAF),
        };
        self.deepest = self.deepest.max(depth);
        self.add(kind, depth, at, counts)
    }

    /// Exports an item under another name.
    pub(super) fn export(
        &mut self,
        kind: ComponentExternalKind,
        index: u32,
        at: usize,
        counts: &mut Counts,
    ) -> Result<(), Fault> {
        let depth = self.item(kind, index);
        self.deepest = self.deepest.max(depth);
        self.add(kind, depth, at, counts)
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
