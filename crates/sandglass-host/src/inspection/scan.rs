//! Reads a guest's bytes once, without regard to what a host has. Bodies of functions are measured, but
//! not read.

use std::collections::{BTreeMap, BTreeSet};

use wasmparser::component_types::ComponentEntityType;
use wasmparser::types::{EntityType, TypesRef};
use wasmparser::{
    CustomSectionReader, Encoding, KnownCustom, MemoryType, Name, NameSectionReader, Payload,
    ProducersSectionReader, Result, TableType, TypeRef, ValType,
};

use super::{
    CustomSection, DebugInformation, Export, Import, LISTED_MAX, LargeFunction, Memory, Producer,
    Size, Table,
};
use crate::module::wit;
use crate::store::demangle;
use crate::structure;
use crate::symbols::text;
use sandglass_supervisor::text::printable;

/// How many of the largest functions are listed.
const LARGEST_MAX: usize = 10;

/// Most memories, tables, and producers that are listed.
const FEW_MAX: usize = 100;

/// The contents of a guest.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) size: Size,
    pub(super) modules: u32,
    pub(super) functions: u64,
    pub(super) largest: Vec<LargeFunction>,
    pub(super) imports: Vec<Import>,
    pub(super) imports_omitted: u64,
    pub(super) exports: Vec<Export>,
    pub(super) exports_omitted: u64,
    pub(super) memories: Vec<Memory>,
    pub(super) tables: Vec<Table>,
    pub(super) starts: bool,
    pub(super) debug: DebugInformation,
    pub(super) producers: BTreeSet<Producer>,
    /// Sizes of custom sections by name.
    custom: BTreeMap<String, u64>,
    /// The modules and components that are being read, the innermost last.
    within: Vec<Within>,
    /// Names of the imports and exports of a component.
    component_imports: Vec<String>,
    component_exports: Vec<String>,
}

/// A module or component that is being read.
struct Within {
    encoding: Encoding,
    /// Which core module of the file it is.
    module: u32,
    /// The index of its next function.
    next_function: u32,
}

impl Scan {
    /// Reads `binary`.
    ///
    /// # Errors
    /// It is not valid, apart from the bodies of its functions.
    pub(super) fn of(binary: &[u8]) -> Result<Self> {
        let mut scan = Self::default();
        scan.size.total = binary.len() as u64;
        let types = wit::read_types(binary, |payload| scan.take(payload))?;
        // A file that ends before its module does is an error above.
        if let Some(types) = types {
            scan.take_types(types.as_ref());
        }
        scan.sort();
        Ok(scan)
    }

    fn take(&mut self, payload: Payload<'_>) -> Result<()> {
        match payload {
            Payload::Version { encoding, .. } => {
                let module = self.modules;
                self.modules += u32::from(encoding == Encoding::Module);
                self.within.push(Within { encoding, module, next_function: 0 });
            }
            Payload::End(_) => drop(self.within.pop()),
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    self.take_import(import?.ty);
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    self.take_memory(&memory?, false);
                }
            }
            Payload::TableSection(section) => {
                for table in section {
                    self.take_table(&table?.ty);
                }
            }
            Payload::StartSection { .. } => self.starts = true,
            Payload::DataSection(section) => self.size.data += section.range().len() as u64,
            Payload::CodeSectionEntry(body) => self.take_function(body.range().len() as u64),
            Payload::ComponentImportSection(section) if self.is_outermost() => {
                for import in section {
                    self.component_imports.push(import?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if self.is_outermost() => {
                for export in section {
                    self.component_exports.push(export?.name.name.to_owned());
                }
            }
            Payload::CustomSection(section) => self.take_custom(&section),
            _ => {}
        }
        Ok(())
    }

    fn take_import(&mut self, ty: TypeRef) {
        match ty {
            TypeRef::Func(_) | TypeRef::FuncExact(_) => {
                if let Some(within) = self.within.last_mut() {
                    within.next_function += 1;
                }
            }
            // Only of a core module itself: a component's modules import those of one another.
            TypeRef::Memory(memory) if self.is_outermost() => self.take_memory(&memory, true),
            _ => {}
        }
    }

    fn is_outermost(&self) -> bool {
        self.within.len() == 1
    }

    fn take_memory(&mut self, memory: &MemoryType, is_imported: bool) {
        if self.memories.len() == FEW_MAX {
            return;
        }
        let page = structure::page_bytes(memory);
        self.memories.push(Memory {
            initial_bytes: memory.initial.saturating_mul(page),
            maximum_bytes: memory.maximum.map(|most| most.saturating_mul(page)),
            is_shared: memory.shared,
            is_64_bit: memory.memory64,
            is_imported,
        });
    }

    fn take_table(&mut self, table: &TableType) {
        if self.tables.len() < FEW_MAX {
            let (initial_elements, maximum_elements) = (table.initial, table.maximum);
            self.tables.push(Table { initial_elements, maximum_elements });
        }
    }

    fn take_function(&mut self, bytes: u64) {
        let Some(within) = self.within.last_mut() else { return };
        let (module, index) = (within.module, within.next_function);
        within.next_function += 1;
        self.functions += 1;
        self.size.code += bytes;
        self.largest.push(LargeFunction { name: None, module, index, bytes });
        if self.largest.len() > LARGEST_MAX {
            self.largest.sort_by_key(|one| std::cmp::Reverse(one.bytes));
            self.largest.truncate(LARGEST_MAX);
        }
    }

    /// A custom section that cannot be read has no effect, so it is not an error.
    fn take_custom(&mut self, section: &CustomSectionReader<'_>) {
        let bytes = section.range().len() as u64;
        self.size.custom += bytes;
        let name = printable(section.name());
        if self.custom.len() < LISTED_MAX || self.custom.contains_key(&name) {
            *self.custom.entry(name).or_default() += bytes;
        }
        match section.name() {
            ".debug_line" => self.debug.lines = true,
            "sourceMappingURL" => self.debug.source_map = true,
            _ => {}
        }
        match section.as_known() {
            KnownCustom::Name(names) => self.take_names(names),
            KnownCustom::Producers(producers) => self.take_producers(producers),
            _ => {}
        }
    }

    fn take_names(&mut self, names: NameSectionReader<'_>) {
        let Some(Within { encoding: Encoding::Module, module, .. }) = self.within.last() else {
            return;
        };
        let module = *module;
        for name in names.into_iter().map_while(Result::ok) {
            let Name::Function(functions) = name else { continue };
            for naming in functions.into_iter().map_while(Result::ok) {
                self.debug.function_names = true;
                let large = self.largest.iter_mut();
                let mut large = large.filter(|one| one.module == module);
                if let Some(large) = large.find(|one| one.index == naming.index) {
                    // A section may name one function several times; the first name counts.
                    let name = || printable(&demangle(text::shortened(naming.name)));
                    large.name.get_or_insert_with(name);
                }
            }
        }
    }

    fn take_producers(&mut self, producers: ProducersSectionReader<'_>) {
        for field in producers.into_iter().map_while(Result::ok) {
            for value in field.values.into_iter().map_while(Result::ok) {
                if self.producers.len() < FEW_MAX {
                    self.producers.insert(Producer {
                        field: printable(field.name),
                        name: printable(value.name),
                        version: printable(value.version),
                    });
                }
            }
        }
    }

    fn take_types(&mut self, types: TypesRef<'_>) {
        match (types.core_imports(), types.core_exports()) {
            (Some(imports), Some(exports)) => {
                for (module, name, ty) in imports {
                    self.add_import(module, name, || describe_type(types, ty));
                }
                for (name, ty) in exports {
                    self.add_export(name, || describe_type(types, ty));
                }
            }
            _ => self.take_component_types(types),
        }
    }

    fn take_component_types(&mut self, types: TypesRef<'_>) {
        for name in std::mem::take(&mut self.component_imports) {
            match types.component_item_for_import(&name).map(|item| item.ty) {
                Some(ComponentEntityType::Instance(instance)) => {
                    for (function, item) in &types[instance].exports {
                        if let ComponentEntityType::Func(id) = item.ty {
                            self.add_import(&name, function, || wit::function(types, id));
                        }
                    }
                }
                // An alias of a type of an interface.
                Some(ComponentEntityType::Type { .. }) | None => {}
                Some(ty) => self.add_import("", &name, || wit::entity(types, ty)),
            }
        }
        for name in std::mem::take(&mut self.component_exports) {
            match types.component_item_for_export(&name).map(|item| item.ty) {
                Some(ComponentEntityType::Type { .. }) | None => {}
                Some(ty) => self.add_export(&name, || wit::entity(types, ty)),
            }
        }
    }

    fn add_import(&mut self, module: &str, name: &str, signature: impl FnOnce() -> String) {
        if self.imports.len() == LISTED_MAX {
            self.imports_omitted += 1;
            return;
        }
        let (module, name) = (printable(module), printable(name));
        self.imports.push(Import { module, name, signature: signature(), ..Import::default() });
    }

    fn add_export(&mut self, name: &str, signature: impl FnOnce() -> String) {
        if self.exports.len() == LISTED_MAX {
            self.exports_omitted += 1;
            return;
        }
        let (name, signature) = (printable(name), signature());
        self.exports.push(Export { name, signature, ..Export::default() });
    }

    fn sort(&mut self) {
        self.largest.sort_by_key(|one| (std::cmp::Reverse(one.bytes), one.module, one.index));
        let sections = std::mem::take(&mut self.custom).into_iter();
        let mut sections: Vec<_> =
            sections.map(|(name, bytes)| CustomSection { name, bytes }).collect();
        sections.sort_by_key(|section| std::cmp::Reverse(section.bytes));
        self.size.custom_sections = sections;
    }
}

/// A core type in the notation of messages, as in rejections of modules.
fn describe_type(types: TypesRef<'_>, ty: EntityType) -> String {
    let list = |types: &[ValType]| {
        let mut list = types.iter().take(FEW_MAX).map(ToString::to_string).collect::<Vec<_>>();
        if types.len() > FEW_MAX {
            list.push("...".to_owned());
        }
        format!("({})", list.join(", "))
    };
    match ty {
        EntityType::Func(id) | EntityType::FuncExact(id) => {
            let function = types[id].unwrap_func();
            format!("{} -> {}", list(function.params()), list(function.results()))
        }
        EntityType::Memory(memory) if memory.memory64 => "a 64-bit memory".to_owned(),
        EntityType::Memory(memory) if memory.shared => "a shared memory".to_owned(),
        EntityType::Memory(_) => "a memory".to_owned(),
        EntityType::Global(_) => "a global".to_owned(),
        EntityType::Table(_) => "a table".to_owned(),
        EntityType::Tag(_) => "a tag".to_owned(),
    }
}
