//! Computes what instances cost: the cost of each definition, times its instantiations.

use super::Checked;
use super::bounds::{Bound, Counts};

/// Bytes that a core instance occupies in addition to what is counted below: Wasmtime's record of it,
/// its context, and the store's entries for it.
const INSTANCE_BYTES: u64 = 1 << 10;

/// Bytes of each item of a component's instance: trampolines, lowerings and options.
const COMPONENT_ITEM_BYTES: u64 = 64;

/// Bytes of an element of a table.
const ELEMENT_BYTES: u64 = 8;

/// What a module or component occupies before its code runs, with all instances in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstanceState {
    /// Initial size of all linear memories, in bytes.
    pub(crate) memory_bytes: u64,
    /// Initial elements of all tables.
    pub(crate) table_elements: u64,
    /// Everything else, in bytes: instances, globals, imports, functions that can be referred
    /// to, and segments.
    pub(crate) other_bytes: u64,
}

/// Bytes of state other than linear memories that the memory limit does not count, so that it is a limit
/// on memories for modules of toolchains: even the largest of these have less.
const UNCHARGED_BYTES: u64 = 1 << 20;

impl InstanceState {
    /// What the memory limit counts of it, in bytes.
    pub(crate) const fn charged_bytes(&self) -> u64 {
        let tables = self.table_elements.saturating_mul(ELEMENT_BYTES);
        let other = self.other_bytes.saturating_add(tables);
        self.memory_bytes.saturating_add(other.saturating_sub(UNCHARGED_BYTES))
    }
}

/// What one instantiation costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) state: InstanceState,
    /// Core instances.
    pub(super) instances: u64,
    /// Items of components.
    pub(super) items: u64,
    /// Adapters between components.
    pub(super) adapters: u64,
    /// Lowered functions that come from the arguments: adapters, if those are components'.
    pub(super) lowered_arguments: u64,
}

impl Cost {
    /// One core instance with `state`.
    pub(super) fn of_core_instance(mut state: InstanceState) -> Self {
        state.other_bytes = state.other_bytes.saturating_add(INSTANCE_BYTES);
        Self { state, instances: 1, ..Self::default() }
    }

    /// `count` items of a component.
    pub(super) fn of_items(count: u64) -> Self {
        let other_bytes = count.saturating_mul(COMPONENT_ITEM_BYTES);
        let state = InstanceState { other_bytes, ..InstanceState::default() };
        Self { state, items: count, ..Self::default() }
    }

    fn combine(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            state: InstanceState {
                memory_bytes: with(self.state.memory_bytes, other.state.memory_bytes),
                table_elements: with(self.state.table_elements, other.state.table_elements),
                other_bytes: with(self.state.other_bytes, other.state.other_bytes),
            },
            instances: with(self.instances, other.instances),
            items: with(self.items, other.items),
            adapters: with(self.adapters, other.adapters),
            lowered_arguments: with(self.lowered_arguments, other.lowered_arguments),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    fn times(self, count: u64) -> Self {
        self.combine(Self::default(), |figure, _| figure.saturating_mul(count))
    }

    fn max(self, other: Self) -> Self {
        self.combine(other, u64::max)
    }

    /// Checks what the outermost module costs.
    pub(super) fn check(&self, counts: &mut Counts) -> Checked {
        counts.reach(Bound::Instances, self.instances)?;
        counts.reach(Bound::InstantiatedItems, self.items)?;
        counts.reach(Bound::Adapters, self.adapters)
    }
}

/// The cost of instantiating a definition, as an upper bound: `fixed`, and `uses` times the
/// largest definition among its arguments.
///
/// A component may instantiate modules and components that it imports. Their cost is known when they
/// are passed. One unknown is enough for all imports of all levels, because only the largest counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Formula {
    pub(super) fixed: Cost,
    pub(super) uses: u64,
}

impl From<Cost> for Formula {
    fn from(fixed: Cost) -> Self {
        Self { fixed, uses: 0 }
    }
}

impl Formula {
    /// A definition that is an argument.
    pub(super) fn argument() -> Self {
        Self { uses: 1, ..Self::default() }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let uses = self.uses.saturating_add(other.uses);
        Self { fixed: self.fixed.plus(other.fixed), uses }
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self { fixed: self.fixed.max(other.fixed), uses: self.uses.max(other.uses) }
    }

    /// The cost if the largest argument costs `argument`.
    pub(super) fn with(self, argument: Self) -> Self {
        if self.uses == 0 {
            return self;
        }
        // What it captures of the component around it may be an argument of that one.
        let argument = argument.max(Self::argument());
        Self {
            fixed: self.fixed.plus(argument.fixed.times(self.uses)),
            uses: self.uses.saturating_mul(argument.uses),
        }
    }
}
