//! Counts what the sections of core modules declare.

use std::collections::BTreeMap;

use wasmparser::{
    CompositeInnerType, ConstExpr, Data, DataKind, Element, ElementItems, ElementKind, Export,
    ExternalKind, FromReader, Global, ImportSectionReader, MemoryType, Operator, Payload, RecGroup,
    SectionLimited, Table, TableInit, TypeRef,
};

use super::bounds::{Bound, Counts};
use super::cost::{Cost, InstanceState};
use super::{Checked, Fault, body};
use crate::abi::core_module::PAGE_BYTES;

// What an instance occupies for each item, in bytes: Wasmtime's layout of its context, rounded up.
const IMPORT_BYTES: u64 = 40;
const GLOBAL_BYTES: u64 = 16;
const TAG_BYTES: u64 = 16;
/// A function that can be referred to from outside of its module or through a table.
const FUNCTION_REFERENCE_BYTES: u64 = 32;
/// A memory's or table's own record, without its contents.
const MEMORY_BYTES: u64 = 512;
const SEGMENT_BYTES: u64 = 16;
/// A passive element, which the instance keeps in evaluated form, and an active one, which is
/// copied into a table.
const SEGMENT_ITEM_BYTES: u64 = 16;

/// The largest image of one memory that Wasmtime makes even if its segments are far apart.
const IMAGE_ALWAYS_MADE_BYTES: u64 = 16 << 20;

/// What is known of a core module while its sections are read.
#[derive(Default)]
pub(super) struct ModuleScope {
    /// How many parameters and results each type has, if it is a function type.
    types: Vec<Arity>,
    /// The type of each function, those that are imported first.
    functions: Vec<u32>,
    bodies: u32,
    imported_functions: u32,
    imported_memories: u32,
    imported_tables: u32,
    imports: u64,
    globals: u64,
    tags: u64,
    /// Initial elements of each table, those that are imported first; 0 for these.
    tables: Vec<u64>,
    memories: u64,
    memory_bytes: u64,
    /// References to functions that exports, elements and globals make.
    references: u64,
    segments: u64,
    segment_items: u64,
    /// An active element segment was seen that Wasmtime initializes by code.
    places_by_code: bool,
    /// For each memory, where its segments begin and end, and how long they are together.
    images: BTreeMap<u32, Image>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Arity {
    pub(super) params: u64,
    pub(super) results: u64,
}

impl Arity {
    pub(super) const fn values(self) -> u64 {
        self.params.saturating_add(self.results)
    }
}

#[derive(Clone, Copy)]
struct Image {
    start: u64,
    end: u64,
    data: u64,
}

impl Image {
    /// Size of the image that Wasmtime makes; 0 if the segments are too far apart.
    fn bytes(self) -> u64 {
        let span = self.end.saturating_sub(self.start);
        let is_dense = span < self.data.saturating_mul(2) || span < IMAGE_ALWAYS_MADE_BYTES;
        if is_dense { span } else { 0 }
    }
}

impl ModuleScope {
    /// What one instance costs.
    pub(super) fn cost(&self) -> Cost {
        let defined_functions = self.functions.len() as u64;
        let references = self.references.min(defined_functions);
        let defined_tables = self.tables.len() as u64 - u64::from(self.imported_tables);
        let other_bytes = [
            (self.imports, IMPORT_BYTES),
            (self.globals, GLOBAL_BYTES),
            (self.tags, TAG_BYTES),
            (references, FUNCTION_REFERENCE_BYTES),
            (self.memories, MEMORY_BYTES),
            (defined_tables, MEMORY_BYTES),
            (self.segments, SEGMENT_BYTES),
            (self.segment_items, SEGMENT_ITEM_BYTES),
        ];
        let other_bytes = other_bytes
            .into_iter()
            .fold(0_u64, |sum, (count, bytes)| sum.saturating_add(count.saturating_mul(bytes)));
        Cost::of_core_instance(InstanceState {
            memory_bytes: self.memory_bytes,
            table_elements: self.tables.iter().fold(0, |sum, table| sum.saturating_add(*table)),
            other_bytes,
        })
    }

    pub(super) fn take(&mut self, payload: Payload<'_>, counts: &mut Counts) -> Checked {
        match payload {
            Payload::TypeSection(section) => {
                take_each(section, Bound::Types, counts, |group, counts| {
                    self.take_types(&group, counts)
                })
            }
            Payload::ImportSection(section) => self.take_imports(section, counts),
            Payload::FunctionSection(section) => {
                take_each(section, Bound::Functions, counts, |ty, counts| {
                    self.add_function(ty, counts)
                })
            }
            Payload::TableSection(section) => {
                take_each(section, Bound::Tables, counts, |table, counts| {
                    self.take_table(&table, counts)
                })
            }
            Payload::MemorySection(section) => {
                take_each(section, Bound::Memories, counts, |memory, _| {
                    self.take_memory(&memory);
                    Ok(())
                })
            }
            Payload::TagSection(section) => {
                counts.offset = section.range().start;
                let count = section.count().into();
                self.tags = self.tags.saturating_add(count);
                counts.add(Bound::Tags, count)
            }
            Payload::GlobalSection(section) => {
                take_each(section, Bound::Globals, counts, |global, counts| {
                    self.take_global(&global, counts)
                })
            }
            Payload::ExportSection(section) => {
                take_each(section, Bound::Exports, counts, |export, counts| {
                    self.take_export(&export, counts)
                })
            }
            Payload::ElementSection(section) => {
                take_each(section, Bound::ElementSegments, counts, |element, counts| {
                    self.take_element(&element, counts)
                })
            }
            Payload::DataSection(section) => {
                take_each(section, Bound::DataSegments, counts, |data, counts| {
                    self.take_data(&data, counts)
                })?;
                let mut images = std::mem::take(&mut self.images).into_values();
                images.try_for_each(|image| counts.add(Bound::DataImageBytes, image.bytes()))
            }
            Payload::CodeSectionEntry(body) => {
                let index = self.imported_functions.saturating_add(self.bodies);
                self.bodies = self.bodies.saturating_add(1);
                body::check(&body, self.arity_of_function(index), self, counts)
            }
            _ => Ok(()),
        }
    }

    /// The arity of the type at `index`. Zero for one that is not a function, which the validator
    /// rejects.
    pub(super) fn arity(&self, index: u32) -> Arity {
        self.types.get(index as usize).copied().unwrap_or_default()
    }

    pub(super) fn arity_of_function(&self, index: u32) -> Arity {
        self.functions.get(index as usize).map_or_else(Arity::default, |ty| self.arity(*ty))
    }

    fn add_function(&mut self, ty: u32, counts: &mut Counts) -> Checked {
        self.functions.push(ty);
        counts.add(Bound::Values, self.arity(ty).values())
    }

    fn take_types(&mut self, group: &RecGroup, counts: &mut Counts) -> Checked {
        // A group was counted as one type.
        let more = group.types().len().saturating_sub(1) as u64;
        counts.add(Bound::Types, more)?;
        for ty in group.types() {
            self.types.push(match &ty.composite_type.inner {
                CompositeInnerType::Func(function) => Arity {
                    params: function.params().len() as u64,
                    results: function.results().len() as u64,
                },
                _ => Arity::default(),
            });
        }
        Ok(())
    }

    fn take_imports(&mut self, section: ImportSectionReader<'_>, counts: &mut Counts) -> Checked {
        counts.offset = section.range().start;
        for import in section.into_imports() {
            let import = import?;
            self.imports = self.imports.saturating_add(1);
            counts.add(Bound::Imports, 1)?;
            let names = import.module.len().saturating_add(import.name.len());
            counts.add(Bound::NameBytes, names as u64)?;
            match import.ty {
                TypeRef::Func(ty) | TypeRef::FuncExact(ty) => {
                    self.imported_functions = self.imported_functions.saturating_add(1);
                    self.add_function(ty, counts)?;
                }
                TypeRef::Table(_) => {
                    self.imported_tables = self.imported_tables.saturating_add(1);
                    self.tables.push(0);
                }
                TypeRef::Memory(_) => {
                    self.imported_memories = self.imported_memories.saturating_add(1);
                }
                TypeRef::Global(_) | TypeRef::Tag(_) => {}
            }
        }
        Ok(())
    }

    fn take_table(&mut self, table: &Table<'_>, counts: &mut Counts) -> Checked {
        counts.add(Bound::TableElements, table.ty.initial)?;
        self.tables.push(table.ty.initial);
        if let TableInit::Expr(expression) = &table.init {
            take_initializer(expression, counts)?;
            counts.add(Bound::StartupItems, 1)?;
            self.references = self.references.saturating_add(1);
        }
        Ok(())
    }

    fn take_memory(&mut self, memory: &MemoryType) {
        self.memories = self.memories.saturating_add(1);
        let bytes = memory.initial.saturating_mul(page_bytes(memory));
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
    }

    fn take_global(&mut self, global: &Global<'_>, counts: &mut Counts) -> Checked {
        self.globals = self.globals.saturating_add(1);
        take_initializer(&global.init_expr, counts)?;
        if !is_constant(&global.init_expr)? {
            counts.add(Bound::StartupItems, 1)?;
            self.references = self.references.saturating_add(1);
        }
        Ok(())
    }

    fn take_export(&mut self, export: &Export<'_>, counts: &mut Counts) -> Checked {
        if matches!(export.kind, ExternalKind::Func | ExternalKind::FuncExact) {
            self.references = self.references.saturating_add(1);
        }
        counts.add(Bound::NameBytes, export.name.len() as u64)
    }

    fn take_element(&mut self, element: &Element<'_>, counts: &mut Counts) -> Checked {
        counts.offset = element.range.start;
        let (items, is_plain) = match &element.items {
            ElementItems::Functions(functions) => (u64::from(functions.count()), true),
            ElementItems::Expressions(_, expressions) => {
                let count = expressions.count().into();
                for expression in expressions.clone() {
                    take_initializer(&expression?, counts)?;
                }
                (count, false)
            }
        };
        counts.add(Bound::ElementItems, items)?;
        self.references = self.references.saturating_add(items);
        let by_code = match &element.kind {
            ElementKind::Declared => return Ok(()),
            ElementKind::Passive => true,
            ElementKind::Active { table_index, offset_expr } => {
                take_initializer(offset_expr, counts)?;
                let place = constant(offset_expr)?;
                let table = table_index.unwrap_or(0);
                let size = self.tables.get(table as usize).copied().unwrap_or(0);
                let fits = place.is_some_and(|place| place.saturating_add(items) <= size);
                let is_own = table >= self.imported_tables;
                // Segments after one that code initializes are initialized by code, too.
                self.places_by_code |= !(is_plain && fits && is_own);
                self.places_by_code
            }
        };
        self.segments = self.segments.saturating_add(1);
        self.segment_items = self.segment_items.saturating_add(items);
        let values = if by_code { items.saturating_add(1) } else { 0 };
        counts.add(Bound::StartupItems, values)
    }

    fn take_data(&mut self, data: &Data<'_>, counts: &mut Counts) -> Checked {
        self.segments = self.segments.saturating_add(1);
        let DataKind::Active { memory_index, offset_expr } = &data.kind else { return Ok(()) };
        take_initializer(offset_expr, counts)?;
        let place = constant(offset_expr)?;
        let Some(start) = place.filter(|_| *memory_index >= self.imported_memories) else {
            return counts.add(Bound::StartupItems, 1);
        };
        let bytes = data.data.len() as u64;
        let end = start.saturating_add(bytes);
        let image = self.images.entry(*memory_index);
        let image = image.or_insert(Image { start, end, data: 0 });
        image.start = image.start.min(start);
        image.end = image.end.max(end);
        image.data = image.data.saturating_add(bytes);
        Ok(())
    }
}

/// Counts the items of a section against `bound`, and takes each.
fn take_each<'a, T: FromReader<'a>>(
    section: SectionLimited<'a, T>,
    bound: Bound,
    counts: &mut Counts,
    mut take: impl FnMut(T, &mut Counts) -> Checked,
) -> Checked {
    counts.offset = section.range().start;
    counts.add(bound, section.count().into())?;
    section.into_iter().try_for_each(|item| take(item?, counts))
}

/// The size of a page of `memory`.
pub(crate) fn page_bytes(memory: &MemoryType) -> u64 {
    let own = memory.page_size_log2.and_then(|log2| 1_u64.checked_shl(log2));
    own.unwrap_or(PAGE_BYTES)
}

fn take_initializer(expression: &ConstExpr<'_>, counts: &mut Counts) -> Checked {
    let range = expression.get_binary_reader().range();
    let section = std::mem::replace(&mut counts.offset, range.start);
    counts.add(Bound::InitializerBytes, range.len() as u64)?;
    counts.offset = section;
    Ok(())
}

/// Whether the compiler knows the value of `expression`.
fn is_constant(expression: &ConstExpr<'_>) -> Result<bool, Fault> {
    let mut operators = expression.get_operators_reader();
    let is_constant = matches!(
        operators.read()?,
        Operator::I32Const { .. }
            | Operator::I64Const { .. }
            | Operator::F32Const { .. }
            | Operator::F64Const { .. }
            | Operator::V128Const { .. }
            | Operator::RefNull { .. }
    );
    Ok(is_constant && matches!(operators.read()?, Operator::End))
}

/// The place that `expression` names, if it is a constant.
fn constant(expression: &ConstExpr<'_>) -> Result<Option<u64>, Fault> {
    let mut operators = expression.get_operators_reader();
    let place = match operators.read()? {
        Operator::I32Const { value } => u64::from(value.cast_unsigned()),
        Operator::I64Const { value } => value.cast_unsigned(),
        _ => return Ok(None),
    };
    Ok(matches!(operators.read()?, Operator::End).then_some(place))
}
