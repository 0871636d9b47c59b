//! Counts what the sections of components declare: the definition of each instance, and what that costs.

use wasmparser::{
    CanonicalFunction, CanonicalOption, ComponentAlias, ComponentExport, ComponentExternalKind,
    ComponentImport, ComponentInstance, ComponentOuterAliasKind, FromReader, Instance, Payload,
    SectionLimited,
};

use super::bounds::{Bound, Counts};
use super::cost::{Cost, Formula};
use super::type_scope::TypeScope;
use super::{Checked, Scope, types};
use crate::module::component::is_current;

const COMPONENT: ComponentExternalKind = ComponentExternalKind::Component;
const INSTANCE: ComponentExternalKind = ComponentExternalKind::Instance;

/// Where a function of a component comes from. Of several origins, the last in this order decides
/// whether calls of it need an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The outermost component imports it.
    #[default]
    Host,
    /// The component's arguments decide.
    Argument,
    /// A component.
    Guest,
}

/// A component definition.
#[derive(Clone, Copy)]
struct Definition {
    /// What an instance costs.
    cost: Formula,
    /// The most expensive definition that an instance may export.
    largest: Formula,
}

impl Definition {
    fn argument() -> Self {
        Self { cost: Formula::argument(), largest: Formula::argument() }
    }
}

/// An instance of a component.
#[derive(Clone, Copy)]
struct ComponentInstanceOf {
    /// The most expensive definition that it may export.
    largest: Formula,
    origin: Origin,
}

/// Something with an index in a component.
#[derive(Clone, Copy)]
enum Item {
    Module(Formula),
    Component(Definition),
    Instance(ComponentInstanceOf),
    Function(Origin),
    /// A value or a type, which costs nothing.
    Other,
}

impl Item {
    /// An item of this kind in or from an instance of which only this is known.
    fn of_instance(kind: ComponentExternalKind, instance: ComponentInstanceOf) -> Self {
        let ComponentInstanceOf { largest, origin } = instance;
        match kind {
            ComponentExternalKind::Module => Self::Module(largest),
            ComponentExternalKind::Component => {
                Self::Component(Definition { cost: largest, largest })
            }
            ComponentExternalKind::Instance => Self::Instance(instance),
            ComponentExternalKind::Func => Self::Function(origin),
            ComponentExternalKind::Value | ComponentExternalKind::Type => Self::Other,
        }
    }

    /// What an argument or an export brings with it: the most expensive definition, and the origin of
    /// functions.
    fn brings(self) -> (Formula, Origin) {
        match self {
            Self::Module(module) => (module, Origin::Host),
            Self::Component(component) => (component.cost.max(component.largest), Origin::Guest),
            Self::Instance(instance) => (instance.largest, instance.origin),
            Self::Function(origin) => (Formula::default(), origin),
            Self::Other => (Formula::default(), Origin::Host),
        }
    }
}

/// What is known of a component while its sections are read. Definitions precede their uses.
#[derive(Default)]
pub(super) struct ComponentScope {
    /// Where its imports come from.
    imports: Origin,
    cost: Formula,
    largest: Formula,
    modules: Vec<Formula>,
    components: Vec<Definition>,
    instances: Vec<ComponentInstanceOf>,
    functions: Vec<Origin>,
    pub(super) types: TypeScope,
}

impl ComponentScope {
    /// At this depth, from 1.
    pub(super) fn of_depth(depth: u64) -> Self {
        let imports = if depth == 1 { Origin::Host } else { Origin::Argument };
        Self { imports, ..Self::default() }
    }

    /// What an instance costs. A host passes no definitions to the outermost component.
    pub(super) const fn cost(&self) -> Cost {
        self.cost.fixed
    }

    pub(super) fn define_module(&mut self, cost: Cost) {
        self.define(Item::Module(cost.into()));
    }

    pub(super) fn define_component(&mut self, component: &Self, counts: &mut Counts) -> Checked {
        self.types.add(COMPONENT, component.types.depth(), counts)?;
        let Self { cost, largest, .. } = *component;
        self.define(Item::Component(Definition { cost, largest }));
        Ok(())
    }

    /// Gives an item the next index of its kind.
    fn define(&mut self, item: Item) {
        match item {
            Item::Module(module) => {
                self.largest = self.largest.max(module);
                self.modules.push(module);
            }
            Item::Component(component) => {
                self.largest = self.largest.max(component.cost).max(component.largest);
                self.components.push(component);
            }
            Item::Instance(instance) => self.instances.push(instance),
            Item::Function(origin) => self.functions.push(origin),
            Item::Other => {}
        }
    }

    fn spend(&mut self, cost: impl Into<Formula>) {
        self.cost = self.cost.plus(cost.into());
    }

    // An index that is out of bounds is invalid, and the validator rejects it.

    fn module(&self, index: u32) -> Formula {
        self.modules.get(index as usize).copied().unwrap_or_else(Formula::argument)
    }

    fn component(&self, index: u32) -> Definition {
        self.components.get(index as usize).copied().unwrap_or_else(Definition::argument)
    }

    fn instance(&self, index: u32) -> ComponentInstanceOf {
        let unknown = ComponentInstanceOf { largest: Formula::argument(), origin: Origin::Guest };
        self.instances.get(index as usize).copied().unwrap_or(unknown)
    }

    fn function(&self, index: u32) -> Origin {
        self.functions.get(index as usize).copied().unwrap_or(Origin::Guest)
    }

    fn item(&self, kind: ComponentExternalKind, index: u32) -> Item {
        match kind {
            ComponentExternalKind::Module => Item::Module(self.module(index)),
            ComponentExternalKind::Component => Item::Component(self.component(index)),
            ComponentExternalKind::Instance => Item::Instance(self.instance(index)),
            ComponentExternalKind::Func => Item::Function(self.function(index)),
            ComponentExternalKind::Value | ComponentExternalKind::Type => Item::Other,
        }
    }

    fn items(
        &self,
        items: impl Iterator<Item = (ComponentExternalKind, u32)>,
    ) -> (Formula, Origin) {
        items
            .map(|(kind, index)| self.item(kind, index).brings())
            .fold((Formula::default(), Origin::Host), |(largest, origin), (item, from)| {
                (largest.max(item), origin.max(from))
            })
    }

    fn instantiate(&mut self, component: u32, argument: Formula, origin: Origin) {
        let Definition { cost, largest } = self.component(component);
        let mut cost = cost.with(argument);
        let lowered = std::mem::take(&mut cost.fixed.lowered_arguments);
        match origin {
            Origin::Host => {}
            Origin::Argument => cost.fixed.lowered_arguments = lowered,
            Origin::Guest => cost.fixed.adapters = cost.fixed.adapters.saturating_add(lowered),
        }
        self.spend(cost);
        let largest = largest.with(argument).max(argument);
        self.define(Item::Instance(ComponentInstanceOf { largest, origin: Origin::Guest }));
    }

    fn lower(&mut self, function: u32) {
        let cost = match self.function(function) {
            Origin::Host => Cost::default(),
            Origin::Argument => Cost { lowered_arguments: 1, ..Cost::default() },
            Origin::Guest => Cost { adapters: 1, ..Cost::default() },
        };
        self.spend(cost);
    }
}

/// Takes a section of the innermost component in `open`.
pub(super) fn take(open: &mut [Scope], payload: Payload<'_>, counts: &mut Counts) -> Checked {
    let Some((Scope::Component(scope), outer)) = open.split_last_mut() else { return Ok(()) };
    match payload {
        Payload::CoreTypeSection(section) => each(section, counts, |ty, counts| {
            counts.add(Bound::ComponentItems, 1)?;
            types::take_core_type(&ty, counts)
        }),
        Payload::InstanceSection(section) => {
            each(section, counts, |instance, counts| scope.take_core_instance(&instance, counts))
        }
        Payload::ComponentInstanceSection(section) => {
            each(section, counts, |instance, counts| scope.take_instance(&instance, counts))
        }
        Payload::ComponentAliasSection(section) => {
            each(section, counts, |alias, counts| scope.take_alias(outer, &alias, counts))
        }
        Payload::ComponentCanonicalSection(section) => {
            each(section, counts, |function, counts| scope.take_canonical(&function, counts))
        }
        Payload::ComponentImportSection(section) => {
            each(section, counts, |import, counts| scope.take_import(&import, counts))
        }
        Payload::ComponentExportSection(section) => {
            each(section, counts, |export, counts| scope.take_export(&export, counts))
        }
        _ => Ok(()),
    }
}

/// Takes each item of a section. Messages contain the offset of the section.
fn each<'a, T: FromReader<'a>>(
    section: SectionLimited<'a, T>,
    counts: &mut Counts,
    mut take: impl FnMut(T, &mut Counts) -> Checked,
) -> Checked {
    counts.offset = section.range().start;
    section.into_iter().try_for_each(|item| take(item?, counts))
}

impl ComponentScope {
    /// Counts items that each instance has.
    fn count(&mut self, items: u64, counts: &mut Counts) -> Checked {
        self.spend(Cost::of_items(items));
        counts.add(Bound::ComponentItems, items)
    }

    fn take_canonical(&mut self, function: &CanonicalFunction, counts: &mut Counts) -> Checked {
        self.count(1, counts)?;
        counts.is_concurrent |= is_concurrent(function);
        match *function {
            CanonicalFunction::Lift { type_index, .. } => {
                self.define(Item::Function(Origin::Guest));
                let depth = self.types.type_at(type_index);
                self.types.add(ComponentExternalKind::Func, depth, counts)?;
            }
            CanonicalFunction::Lower { func_index, .. } => self.lower(func_index),
            _ => {}
        }
        Ok(())
    }

    fn take_import(&mut self, import: &ComponentImport<'_>, counts: &mut Counts) -> Checked {
        self.count(1, counts)?;
        types::take_name(&import.name, counts)?;
        counts.is_concurrent |= is_current(import.name.name);
        // Nothing is known of what is imported, except where it comes from.
        let unknown = ComponentInstanceOf { largest: Formula::argument(), origin: self.imports };
        self.define(Item::of_instance(import.ty.kind(), unknown));
        self.types.declare(import.ty, counts)
    }

    fn take_export(&mut self, export: &ComponentExport<'_>, counts: &mut Counts) -> Checked {
        self.count(1, counts)?;
        types::take_name(&export.name, counts)?;
        // An export is a new name for an item, with an index of its own.
        self.define(self.item(export.kind, export.index));
        self.types.export(export.kind, export.index, counts)
    }

    fn take_core_instance(&mut self, instance: &Instance<'_>, counts: &mut Counts) -> Checked {
        let items = match instance {
            Instance::Instantiate { module_index, args } => {
                // One that is an argument costs what the component's argument costs.
                self.spend(self.module(*module_index));
                args.len()
            }
            Instance::FromExports(exports) => exports.len(),
        };
        self.count(items as u64 + 1, counts)
    }

    fn take_instance(&mut self, instance: &ComponentInstance<'_>, counts: &mut Counts) -> Checked {
        let items = match instance {
            ComponentInstance::Instantiate { component_index, args } => {
                let (argument, origin) = self.items(args.iter().map(|arg| (arg.kind, arg.index)));
                self.instantiate(*component_index, argument, origin);
                let depth = self.types.item(COMPONENT, *component_index);
                self.types.add(INSTANCE, depth, counts)?;
                args.len()
            }
            ComponentInstance::FromExports(exports) => {
                let (largest, origin) = self.items(exports.iter().map(|one| (one.kind, one.index)));
                self.define(Item::Instance(ComponentInstanceOf { largest, origin }));
                let depths = exports.iter().map(|one| self.types.item(one.kind, one.index));
                let depth = depths.max().unwrap_or(0).saturating_add(1);
                self.types.add(INSTANCE, depth, counts)?;
                counts.reach(Bound::ReferenceDepth, depth.into())?;
                exports.len()
            }
        };
        self.count(items as u64 + 1, counts)
    }

    fn take_alias(
        &mut self,
        outer: &[Scope],
        alias: &ComponentAlias<'_>,
        counts: &mut Counts,
    ) -> Checked {
        self.count(1, counts)?;
        types::take_alias(alias, counts)?;
        match alias {
            ComponentAlias::InstanceExport { kind, instance_index, .. } => {
                self.define(Item::of_instance(*kind, self.instance(*instance_index)));
                let depth = self.types.exported(*instance_index);
                self.types.add(*kind, depth, counts)
            }
            ComponentAlias::Outer { kind, count, index } => {
                self.take_outer(*kind, outer_scope(outer, *count), *index, counts)
            }
            ComponentAlias::CoreInstanceExport { .. } => Ok(()),
        }
    }

    /// Takes an alias of an item of `outer`.
    fn take_outer(
        &mut self,
        kind: ComponentOuterAliasKind,
        outer: Outer<'_>,
        index: u32,
        counts: &mut Counts,
    ) -> Checked {
        let from = match outer {
            Outer::This => Some(&*self),
            Outer::Component(component) => Some(component),
            Outer::Unknown => None,
        };
        match kind {
            ComponentOuterAliasKind::CoreModule => {
                let module = from.map_or_else(Formula::argument, |from| from.module(index));
                self.define(Item::Module(module));
            }
            ComponentOuterAliasKind::Component => {
                let component =
                    from.map_or_else(Definition::argument, |from| from.component(index));
                let depth = from.map_or(1, |from| from.types.item(COMPONENT, index));
                self.define(Item::Component(component));
                self.types.add(COMPONENT, depth, counts)?;
            }
            ComponentOuterAliasKind::Type => {
                let depth = from.map_or(1, |from| from.types.type_at(index));
                self.types.add_type(depth, counts)?;
            }
            ComponentOuterAliasKind::CoreType => {}
        }
        Ok(())
    }
}

/// Whether a canonical function works with tasks, streams or futures.
fn is_concurrent(function: &CanonicalFunction) -> bool {
    match function {
        CanonicalFunction::Lift { options, .. } | CanonicalFunction::Lower { options, .. } => {
            options.contains(&CanonicalOption::Async)
        }
        CanonicalFunction::ResourceNew { .. }
        | CanonicalFunction::ResourceDrop { .. }
        | CanonicalFunction::ResourceRep { .. } => false,
        _ => true,
    }
}

/// The component that an outer alias refers to.
enum Outer<'a> {
    This,
    Component(&'a ComponentScope),
    /// It does not exist, so that the validator rejects the alias.
    Unknown,
}

/// The component `count` levels further out.
fn outer_scope(outer: &[Scope], count: u32) -> Outer<'_> {
    let Some(levels) = count.checked_sub(1) else { return Outer::This };
    match outer.iter().rev().nth(levels as usize) {
        Some(Scope::Component(component)) => Outer::Component(component),
        Some(Scope::Module(_)) | None => Outer::Unknown,
    }
}
