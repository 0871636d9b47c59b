//! The sections of components: which definition each instance has, and what that costs.

use wasmparser::{
    CanonicalFunction, ComponentAlias, ComponentExport, ComponentExternalKind, ComponentImport,
    ComponentInstance, ComponentOuterAliasKind, ComponentTypeRef, Instance, Payload,
};

use super::bounds::{Bound, Counts};
use super::cost::{Cost, Formula};
use super::type_scope::TypeScope;
use super::{Fault, Scope, types};

const COMPONENT: ComponentExternalKind = ComponentExternalKind::Component;

/// Where a function of a component comes from. Of several, the last one decides whether calls
/// of it need an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The outermost component imports it.
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
    const ARGUMENT: Self = Self { cost: Formula::ARGUMENT, largest: Formula::ARGUMENT };
}

/// An instance of a component.
#[derive(Clone, Copy)]
struct ComponentInstanceOf {
    /// The most expensive definition that it may export.
    largest: Formula,
    origin: Origin,
}

/// What is known of a component while its sections are read. Definitions precede their uses.
pub(super) struct ComponentScope {
    /// Where its imports come from.
    imports: Origin,
    cost: Formula,
    largest: Formula,
    modules: Vec<Formula>,
    components: Vec<Definition>,
    instances: Vec<ComponentInstanceOf>,
    functions: Vec<Origin>,
    types: TypeScope,
}

impl ComponentScope {
    /// At this depth, from 1.
    pub(super) fn of_depth(depth: u64) -> Self {
        Self {
            imports: if depth == 1 { Origin::Host } else { Origin::Argument },
            cost: Formula::default(),
            largest: Formula::default(),
            modules: Vec::new(),
            components: Vec::new(),
            instances: Vec::new(),
            functions: Vec::new(),
            types: TypeScope::default(),
        }
    }

    /// What an instance costs. A host passes no definitions to the outermost component.
    pub(super) const fn cost(&self) -> Cost {
        self.cost.fixed
    }

    pub(super) const fn types(&mut self) -> &mut TypeScope {
        &mut self.types
    }

    pub(super) fn define_module(&mut self, cost: Cost) {
        self.add_module(cost.into());
    }

    pub(super) fn define_component(&mut self, component: Self) {
        self.types.add_component(component.types.depth());
        self.add_component(Definition { cost: component.cost, largest: component.largest });
    }

    fn add_module(&mut self, module: Formula) {
        self.largest = self.largest.max(module);
        self.modules.push(module);
    }

    fn add_component(&mut self, component: Definition) {
        self.largest = self.largest.max(component.cost).max(component.largest);
        self.components.push(component);
    }

    fn spend(&mut self, cost: impl Into<Formula>) {
        self.cost = self.cost.plus(cost.into());
    }

    // An index that is out of bounds is invalid; the validator says so.

    fn module(&self, index: u32) -> Formula {
        self.modules.get(index as usize).copied().unwrap_or(Formula::ARGUMENT)
    }

    fn component(&self, index: u32) -> Definition {
        self.components.get(index as usize).copied().unwrap_or(Definition::ARGUMENT)
    }

    fn instance(&self, index: u32) -> ComponentInstanceOf {
        let unknown = ComponentInstanceOf { largest: Formula::ARGUMENT, origin: Origin::Guest };
        self.instances.get(index as usize).copied().unwrap_or(unknown)
    }

    fn function(&self, index: u32) -> Origin {
        self.functions.get(index as usize).copied().unwrap_or(Origin::Guest)
    }

    /// Counts an import of this type.
    fn import(&mut self, ty: ComponentTypeRef) {
        match ty {
            ComponentTypeRef::Module(_) => self.add_module(Formula::ARGUMENT),
            ComponentTypeRef::Component(_) => self.add_component(Definition::ARGUMENT),
            ComponentTypeRef::Instance(_) => {
                let instance =
                    ComponentInstanceOf { largest: Formula::ARGUMENT, origin: self.imports };
                self.instances.push(instance);
            }
            ComponentTypeRef::Func(_) => self.functions.push(self.imports),
            ComponentTypeRef::Value(_) | ComponentTypeRef::Type(_) => {}
        }
    }

    /// An export is a new name for an item, with an index of its own.
    fn export(&mut self, kind: ComponentExternalKind, index: u32) {
        match kind {
            ComponentExternalKind::Module => self.add_module(self.module(index)),
            ComponentExternalKind::Component => self.add_component(self.component(index)),
            ComponentExternalKind::Instance => self.instances.push(self.instance(index)),
            ComponentExternalKind::Func => self.functions.push(self.function(index)),
            ComponentExternalKind::Value | ComponentExternalKind::Type => {}
        }
    }

    /// An item that `instance` exports.
    fn alias(&mut self, kind: ComponentExternalKind, instance: u32) {
        let ComponentInstanceOf { largest, origin } = self.instance(instance);
        match kind {
            ComponentExternalKind::Module => self.add_module(largest),
            ComponentExternalKind::Component => {
                self.add_component(Definition { cost: largest, largest });
            }
            ComponentExternalKind::Instance => {
                self.instances.push(ComponentInstanceOf { largest, origin });
            }
            ComponentExternalKind::Func => self.functions.push(origin),
            ComponentExternalKind::Value | ComponentExternalKind::Type => {}
        }
    }

    /// What an item brings with it: the most expensive definition, and where functions are from.
    fn item(&self, kind: ComponentExternalKind, index: u32) -> (Formula, Origin) {
        match kind {
            ComponentExternalKind::Module => (self.module(index), Origin::Host),
            ComponentExternalKind::Component => {
                let component = self.component(index);
                (component.cost.max(component.largest), Origin::Guest)
            }
            ComponentExternalKind::Instance => {
                let instance = self.instance(index);
                (instance.largest, instance.origin)
            }
            ComponentExternalKind::Func => (Formula::default(), self.function(index)),
            ComponentExternalKind::Value | ComponentExternalKind::Type => {
                (Formula::default(), Origin::Host)
            }
        }
    }

    fn items(
        &self,
        items: impl Iterator<Item = (ComponentExternalKind, u32)>,
    ) -> (Formula, Origin) {
        items
            .map(|(kind, index)| self.item(kind, index))
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
        self.instances.push(ComponentInstanceOf { largest, origin: Origin::Guest });
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
pub(super) fn take(
    open: &mut [Scope],
    payload: Payload<'_>,
    counts: &mut Counts,
) -> Result<(), Fault> {
    let Some((Scope::Component(scope), outer)) = open.split_last_mut() else { return Ok(()) };
    match payload {
        Payload::CoreTypeSection(section) => {
            let at = section.range().start;
            for ty in section {
                counts.add(Bound::ComponentItems, 1, at)?;
                types::take_core_type(&ty?, at, counts)?;
            }
        }
        Payload::InstanceSection(section) => {
            let at = section.range().start;
            for instance in section {
                take_core_instance(scope, &instance?, at, counts)?;
            }
        }
        Payload::ComponentInstanceSection(section) => {
            let at = section.range().start;
            for instance in section {
                take_instance(scope, &instance?, at, counts)?;
            }
        }
        Payload::ComponentAliasSection(section) => {
            let at = section.range().start;
            for alias in section {
                take_alias(scope, outer, &alias?, at, counts)?;
            }
        }
        Payload::ComponentCanonicalSection(section) => {
            let at = section.range().start;
            for function in section {
                take_canonical(scope, &function?, at, counts)?;
            }
        }
        Payload::ComponentImportSection(section) => {
            let at = section.range().start;
            for import in section {
                take_import(scope, &import?, at, counts)?;
            }
        }
        Payload::ComponentExportSection(section) => {
            let at = section.range().start;
            for export in section {
                take_export(scope, &export?, at, counts)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn take_canonical(
    scope: &mut ComponentScope,
    function: &CanonicalFunction,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    count(scope, 1, at, counts)?;
    match *function {
        CanonicalFunction::Lift { type_index, .. } => {
            scope.functions.push(Origin::Guest);
            let depth = scope.types.type_at(type_index);
            scope.types.add_function(depth);
        }
        CanonicalFunction::Lower { func_index, .. } => scope.lower(func_index),
        _ => {}
    }
    Ok(())
}

fn take_import(
    scope: &mut ComponentScope,
    import: &ComponentImport<'_>,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    count(scope, 1, at, counts)?;
    types::take_name(&import.name, at, counts)?;
    scope.import(import.ty);
    scope.types.declare(import.ty, at, counts)
}

fn take_export(
    scope: &mut ComponentScope,
    export: &ComponentExport<'_>,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    count(scope, 1, at, counts)?;
    types::take_name(&export.name, at, counts)?;
    scope.export(export.kind, export.index);
    scope.types.export(export.kind, export.index, at, counts)
}

/// Counts items that each instance of `scope` has.
fn count(
    scope: &mut ComponentScope,
    items: u64,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    scope.spend(Cost::of_items(items));
    counts.add(Bound::ComponentItems, items, at)
}

fn take_core_instance(
    scope: &mut ComponentScope,
    instance: &Instance<'_>,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    let items = match instance {
        Instance::Instantiate { module_index, args } => {
            // One that is an argument costs what the component's argument costs.
            scope.spend(scope.module(*module_index));
            args.len()
        }
        Instance::FromExports(exports) => exports.len(),
    };
    count(scope, items as u64 + 1, at, counts)
}

fn take_instance(
    scope: &mut ComponentScope,
    instance: &ComponentInstance<'_>,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    let items = match instance {
        ComponentInstance::Instantiate { component_index, args } => {
            let (argument, origin) = scope.items(args.iter().map(|arg| (arg.kind, arg.index)));
            scope.instantiate(*component_index, argument, origin);
            let depth = scope.types.item(COMPONENT, *component_index);
            scope.types.add_instance(depth);
            args.len()
        }
        ComponentInstance::FromExports(exports) => {
            let (largest, origin) = scope.items(exports.iter().map(|one| (one.kind, one.index)));
            scope.instances.push(ComponentInstanceOf { largest, origin });
            let depths = exports.iter().map(|one| scope.types.item(one.kind, one.index));
            let depth = depths.max().unwrap_or(0).saturating_add(1);
            scope.types.add_instance(depth);
            counts.reach(Bound::ReferenceDepth, depth.into(), at)?;
            exports.len()
        }
    };
    count(scope, items as u64 + 1, at, counts)
}

fn take_alias(
    scope: &mut ComponentScope,
    outer: &[Scope],
    alias: &ComponentAlias<'_>,
    at: usize,
    counts: &mut Counts,
) -> Result<(), Fault> {
    count(scope, 1, at, counts)?;
    types::take_alias(alias, at, counts)?;
    match alias {
        ComponentAlias::InstanceExport { kind, instance_index, .. } => {
            scope.alias(*kind, *instance_index);
            let depth = scope.types.exported(*instance_index);
            scope.types.add(*kind, depth, at, counts)?;
        }
        ComponentAlias::Outer { kind, count, index } => {
            let from = match count.checked_sub(1) {
                None => Some(&*scope),
                Some(levels) => {
                    outer.iter().rev().nth(levels as usize).and_then(|outer| match outer {
                        Scope::Component(component) => Some(component),
                        Scope::Module(_) => None,
                    })
                }
            };
            match kind {
                ComponentOuterAliasKind::CoreModule => {
                    let module = from.map_or(Formula::ARGUMENT, |from| from.module(*index));
                    scope.add_module(module);
                }
                ComponentOuterAliasKind::Component => {
                    let component =
                        from.map_or(Definition::ARGUMENT, |from| from.component(*index));
                    let item = |from: &ComponentScope| from.types.item(COMPONENT, *index);
                    let depth = from.map_or(1, item);
                    scope.add_component(component);
                    scope.types.add_component(depth);
                }
                ComponentOuterAliasKind::Type => {
                    let depth = from.map_or(1, |from| from.types.type_at(*index));
                    scope.types.add_type(depth, at, counts)?;
                }
                ComponentOuterAliasKind::CoreType => {}
            }
        }
        ComponentAlias::CoreInstanceExport { .. } => {}
    }
    Ok(())
}
