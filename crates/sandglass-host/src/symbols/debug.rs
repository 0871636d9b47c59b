//! Lines, functions and inlined functions from DWARF. Its author chooses every number in it, so
//! nothing here recurses, and each loop spends from the [`Budget`]. (addr2line does the same
//! without bounds: it recurses into inlined functions, and parses what units share once per unit.)

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use gimli::{
    AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebuggingInformationEntry, Dwarf, EndianSlice,
    LineInstruction, LineRow, LittleEndian, Unit, UnitHeader, UnitOffset,
};

use super::budget::{Budget, Exceeded};
use super::line_header;
use super::text::{self, Text};

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;

/// Longest table of abbreviations of one unit, in bytes. Compilers write some kilobytes.
const ABBREVIATIONS_MAX_BYTES: usize = 64 << 10;

/// Functions that may be inlined into one another, and entries that may nest.
const NESTED_MAX: usize = 64;

/// Entries that are followed from a function to the one that states its name.
const ORIGINS_MAX: usize = 8;

/// Units that are kept open because others refer to their functions.
const OPEN_UNITS_MAX: usize = 8;

/// Where one frame is in the source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Location<'a> {
    pub(super) function: Option<&'a str>,
    pub(super) file: Option<&'a str>,
    pub(super) line: Option<u32>,
}

/// What the debug information of one core module says. Addresses count from the beginning of its
/// code section.
#[derive(Debug, Default)]
pub(super) struct DebugTable {
    /// In ascending order of their beginnings.
    rows: Vec<Row>,
    /// In ascending order of their beginnings.
    functions: Vec<Function>,
    /// Those of each function together, by depth and then by beginning.
    inlined: Vec<Inlined>,
}

/// Addresses that belong to one line.
#[derive(Debug)]
struct Row {
    addresses: Range<u32>,
    file: Option<Text>,
    line: Option<u32>,
}

#[derive(Debug)]
struct Function {
    addresses: Range<u32>,
    name: Option<Text>,
    /// In [`DebugTable::inlined`].
    inlined: Range<u32>,
}

/// A function that was inlined, with the place of its call.
#[derive(Debug)]
struct Inlined {
    depth: u32,
    addresses: Range<u32>,
    name: Option<Text>,
    file: Option<Text>,
    line: Option<u32>,
}

/// Why one unit is left out.
enum Skip {
    /// It is malformed, or larger than a unit may be.
    Unit,
    /// The module's budget is spent.
    Rest,
}

impl From<gimli::Error> for Skip {
    fn from(_: gimli::Error) -> Self {
        Self::Unit
    }
}

impl From<Exceeded> for Skip {
    fn from(_: Exceeded) -> Self {
        Self::Rest
    }
}

impl DebugTable {
    /// Parses the DWARF sections of one core module. What exceeds the budget is left out.
    pub(super) fn parse(
        sections: &[(String, Vec<u8>)],
        budget: &mut Budget,
    ) -> (Self, Result<(), Exceeded>) {
        let bytes = |name: &str| {
            let section = sections.iter().find(|(known, _)| known == name);
            section.map_or(&[][..], |(_, bytes)| bytes)
        };
        let load = |id: gimli::SectionId| {
            Ok::<_, gimli::Error>(Slice::new(bytes(id.name()), LittleEndian))
        };
        let Ok(dwarf) = Dwarf::load(load) else { return (Self::default(), Ok(())) };
        let mut parser = Parser {
            dwarf: &dwarf,
            abbreviations: bytes(gimli::SectionId::DebugAbbrev.name()),
            lines: bytes(gimli::SectionId::DebugLine.name()),
            budget,
            table: Self::default(),
            programs: BTreeSet::new(),
            origins: BTreeMap::new(),
            open: BTreeMap::new(),
        };
        let parsed = parser.units();
        let mut table = parser.table;
        table.rows.sort_by_key(|row| row.addresses.start);
        table.functions.sort_by_key(|function| function.addresses.start);
        (table, parsed)
    }

    /// The functions at `address`, innermost first. Empty if nothing is known of it.
    pub(super) fn locations(&self, address: u32) -> Vec<Location<'_>> {
        let row = last_at(&self.rows, address, |row| &row.addresses);
        let function = last_at(&self.functions, address, |function| &function.addresses);
        let (mut file, mut line) = row.map_or((None, None), |row| (row.file.as_deref(), row.line));
        let Some(function) = function else {
            let found = row.map(|_| Location { function: None, file, line });
            return found.into_iter().collect();
        };
        let mut locations = Vec::new();
        for inlined in self.inlined_at(function, address).into_iter().rev() {
            locations.push(Location { function: inlined.name.as_deref(), file, line });
            (file, line) = (inlined.file.as_deref(), inlined.line);
        }
        locations.push(Location { function: function.name.as_deref(), file, line });
        locations
    }

    #[cfg(test)]
    pub(super) const fn rows_len(&self) -> usize {
        self.rows.len()
    }

    /// The functions that are inlined at `address` of `function`, outermost first.
    fn inlined_at(&self, function: &Function, address: u32) -> Vec<&Inlined> {
        let all = function.inlined.start as usize..function.inlined.end as usize;
        let mut rest = self.inlined.get(all).unwrap_or_default();
        let mut found = Vec::new();
        for depth in 0.. {
            let (here, deeper) = rest.split_at(rest.partition_point(|one| one.depth <= depth));
            let Some(inlined) = last_at(here, address, |one| &one.addresses) else { break };
            found.push(inlined);
            rest = deeper;
        }
        found
    }
}

/// The last of `ranges`, which ascend, that begins at or before `address`, if it contains it.
fn last_at<T>(ranges: &[T], address: u32, addresses: impl Fn(&T) -> &Range<u32>) -> Option<&T> {
    let behind = ranges.partition_point(|range| addresses(range).start <= address);
    let last = ranges.get(behind.checked_sub(1)?)?;
    addresses(last).contains(&address).then_some(last)
}

/// Parses the units of one module.
struct Parser<'a, 'b> {
    dwarf: &'a Dwarf<Slice<'a>>,
    abbreviations: &'a [u8],
    lines: &'a [u8],
    budget: &'b mut Budget,
    table: DebugTable,
    /// Offsets of line programs that were run: units may share them.
    programs: BTreeSet<usize>,
    /// Names by the offset of the entry that was asked for.
    origins: BTreeMap<usize, Option<Text>>,
    /// Units whose entries others refer to, by offset.
    open: BTreeMap<usize, Arc<Unit<Slice<'a>>>>,
}

impl<'a> Parser<'a, '_> {
    fn units(&mut self) -> Result<(), Exceeded> {
        let mut headers = self.dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            match self.unit(header) {
                Ok(()) | Err(Skip::Unit) => {}
                Err(Skip::Rest) => return Err(Exceeded),
            }
        }
        Ok(())
    }

    fn unit(&mut self, header: UnitHeader<Slice<'a>>) -> Result<(), Skip> {
        let unit = self.open_unit(header)?;
        let mut files = BTreeMap::new();
        self.rows(&unit, &mut files)?;
        self.functions(&unit, &mut files)
    }

    /// Parses what belongs to a whole unit, once its sizes were checked.
    fn open_unit(&mut self, header: UnitHeader<Slice<'a>>) -> Result<Unit<Slice<'a>>, Skip> {
        let at = header.debug_abbrev_offset().0;
        let all = self.abbreviations.get(at..).ok_or(Skip::Unit)?;
        let window = &all[..all.len().min(ABBREVIATIONS_MAX_BYTES)];
        self.budget.work(1 + window.len() / 8)?;
        let abbreviations = DebugAbbrev::new(window, LittleEndian);
        let abbreviations = Arc::new(abbreviations.abbreviations(DebugAbbrevOffset(0))?);
        let mut root = header.entries(&abbreviations);
        let root = root.next_dfs()?.ok_or(Skip::Unit)?;
        self.budget.work(1 + root.attrs().len())?;
        if let Some(AttributeValue::DebugLineRef(line)) = root.attr_value(gimli::DW_AT_stmt_list) {
            let len = line_header::checked_len(self.lines, line.0).ok_or(Skip::Unit)?;
            self.budget.work(len)?;
        }
        let unit = Unit::new_with_abbreviations(self.dwarf, header, abbreviations)?;
        self.budget.scan(unit.name.map_or(0, |name| name.len()))?;
        self.budget.scan(unit.comp_dir.map_or(0, |folder| folder.len()))?;
        Ok(unit)
    }

    /// Runs the unit's line program.
    fn rows(&mut self, unit: &Unit<Slice<'a>>, files: &mut Files) -> Result<(), Skip> {
        let Some(mut program) = unit.line_program.clone() else { return Ok(()) };
        if !self.programs.insert(program.header().offset().0) {
            return Ok(());
        }
        let mut row = LineRow::new(program.header());
        let mut instructions = program.header().instructions();
        // The last row of the sequence; those of functions that the linker removed begin at 0.
        let mut last: Option<(u32, u64, Option<u32>)> = None;
        let mut is_removed = false;
        while let Some(instruction) = instructions.next_instruction(program.header())? {
            self.budget.work(1)?;
            if matches!(instruction, LineInstruction::DefineFile(_)) {
                return Err(Skip::Unit);
            }
            if !row.execute(instruction, &mut program)? {
                continue;
            }
            let address = u32::try_from(row.address()).map_err(|_| Skip::Unit)?;
            is_removed |= last.is_none() && address == 0;
            if let Some((start, file, line)) = last.filter(|(start, ..)| *start < address)
                && !is_removed
            {
                let file = self.file(unit, file, files)?;
                self.budget.keep(size_of::<Row>())?;
                self.table.rows.push(Row { addresses: start..address, file, line });
            }
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
            last = Some((address, row.file_index(), line)).filter(|_| !row.end_sequence());
            is_removed &= last.is_some();
            row.reset(program.header());
        }
        Ok(())
    }

    /// The path of a file of the unit's line program.
    fn file(
        &mut self,
        unit: &Unit<Slice<'a>>,
        index: u64,
        files: &mut Files,
    ) -> Result<Option<Text>, Skip> {
        if let Some(known) = files.get(&index) {
            return Ok(known.clone());
        }
        let path = self.path(unit, index)?;
        let path = path.map(|path| text::keep(&path, self.budget)).transpose()?;
        self.budget.keep(size_of::<(u64, Option<Text>)>())?;
        files.insert(index, path.clone());
        Ok(path)
    }

    fn path(&mut self, unit: &Unit<Slice<'a>>, index: u64) -> Result<Option<String>, Skip> {
        let header = unit.line_program.as_ref().map(|program| program.header());
        let Some((header, file)) = header.and_then(|header| Some((header, header.file(index)?)))
        else {
            return Ok(None);
        };
        let mut path = String::new();
        if let Some(folder) = unit.comp_dir {
            push_path(&mut path, &folder.to_string_lossy());
        }
        // Directory 0 is the one that the unit was compiled in.
        let folder = file.directory(header).filter(|_| file.directory_index() != 0);
        for part in folder.into_iter().chain([file.path_name()]) {
            let part = self.string(unit, part)?;
            push_path(&mut path, &part);
        }
        Ok(Some(path))
    }

    fn string(
        &mut self,
        unit: &Unit<Slice<'a>>,
        value: AttributeValue<Slice<'a>>,
    ) -> Result<String, Skip> {
        let string = self.dwarf.attr_string(unit, value)?;
        self.budget.scan(string.len())?;
        Ok(string.to_string_lossy().into_owned())
    }

    /// Collects the unit's functions, and what is inlined into each.
    fn functions(&mut self, unit: &Unit<Slice<'a>>, files: &mut Files) -> Result<(), Skip> {
        let mut entries = unit.entries();
        let mut nest = Nest::default();
        while let Some(entry) = entries.next_dfs()? {
            self.budget.work(1 + entry.attrs().len())?;
            nest.close(entry.depth());
            match entry.tag() {
                gimli::DW_TAG_subprogram => {
                    self.finish(&mut nest)?;
                    let ranges = self.ranges(unit, entry)?;
                    if !ranges.is_empty() {
                        nest.function = Some((entry.depth(), ranges, self.name(unit, entry)?));
                    }
                }
                gimli::DW_TAG_inlined_subroutine if nest.is_open() => {
                    let depth = nest.open.len();
                    nest.open.push(entry.depth());
                    for addresses in self.ranges(unit, entry)? {
                        let inlined = self.inlined(unit, entry, addresses, depth, files)?;
                        nest.inlined.push(inlined);
                    }
                }
                _ => {}
            }
        }
        self.finish(&mut nest)
    }

    fn inlined(
        &mut self,
        unit: &Unit<Slice<'a>>,
        entry: &Entry<'a>,
        addresses: Range<u32>,
        depth: usize,
        files: &mut Files,
    ) -> Result<Inlined, Skip> {
        self.budget.keep(size_of::<Inlined>())?;
        let number = |name| entry.attr(name).and_then(|attribute| attribute.udata_value());
        let file = match entry.attr_value(gimli::DW_AT_call_file) {
            Some(AttributeValue::FileIndex(index)) => self.file(unit, index, files)?,
            _ => None,
        };
        let line = number(gimli::DW_AT_call_line).and_then(|line| u32::try_from(line).ok());
        Ok(Inlined {
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
            addresses,
            name: self.name(unit, entry)?,
            file,
            line: line.filter(|line| *line != 0),
        })
    }

    /// Adds the function that `nest` holds to the table.
    fn finish(&mut self, nest: &mut Nest) -> Result<(), Skip> {
        let mut inlined = std::mem::take(&mut nest.inlined);
        let Some((_, ranges, name)) = nest.function.take() else { return Ok(()) };
        inlined.sort_by_key(|one| (one.depth, one.addresses.start));
        let start = self.table.inlined.len();
        self.table.inlined.extend(inlined);
        let index = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let inlined = index(start)..index(self.table.inlined.len());
        for addresses in ranges {
            self.budget.keep(size_of::<Function>())?;
            let (name, inlined) = (name.clone(), inlined.clone());
            self.table.functions.push(Function { addresses, name, inlined });
        }
        Ok(())
    }

    /// The addresses of a function. Empty if the linker has removed it.
    fn ranges(
        &mut self,
        unit: &Unit<Slice<'a>>,
        entry: &Entry<'a>,
    ) -> Result<Vec<Range<u32>>, Skip> {
        let has_addresses = [gimli::DW_AT_low_pc, gimli::DW_AT_ranges];
        if !has_addresses.iter().any(|name| entry.has_attr(*name)) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let mut keep = |begin: u64, end: u64| {
            let addresses = u32::try_from(begin).ok().zip(u32::try_from(end).ok());
            let addresses = addresses.filter(|(begin, end)| *begin != 0 && begin < end);
            found.extend(addresses.map(|(begin, end)| begin..end));
        };
        if let Some(list) = entry.attr_value(gimli::DW_AT_ranges) {
            if let Some(mut ranges) = self.dwarf.attr_ranges(unit, list)? {
                while let Some(range) = ranges.next()? {
                    self.budget.work(1)?;
                    self.budget.keep(size_of::<Range<u32>>())?;
                    keep(range.begin, range.end);
                }
            }
            return Ok(found);
        }
        let address = |name| match entry.attr_value(name) {
            Some(value) => self.dwarf.attr_address(unit, value),
            None => Ok(None),
        };
        let Some(begin) = address(gimli::DW_AT_low_pc)? else { return Ok(found) };
        let end = match entry.attr_value(gimli::DW_AT_high_pc) {
            Some(AttributeValue::Udata(length)) => begin.checked_add(length),
            _ => address(gimli::DW_AT_high_pc)?,
        };
        end.into_iter().for_each(|end| keep(begin, end));
        Ok(found)
    }

    /// The name of a function, which may be stated by another entry.
    fn name(&mut self, unit: &Unit<Slice<'a>>, entry: &Entry<'a>) -> Result<Option<Text>, Skip> {
        match Stated::by(entry, unit) {
            Stated::Name(value) => self.text(unit, value),
            Stated::Elsewhere(at) => match self.origins.get(&at) {
                Some(known) => Ok(known.clone()),
                None => {
                    let name = self.name_at(unit, at)?;
                    self.budget.keep(size_of::<(usize, Option<Text>)>())?;
                    self.origins.insert(at, name.clone());
                    Ok(name)
                }
            },
            Stated::Nowhere => Ok(None),
        }
    }

    /// The name that the entry at an offset of the section states, or one that it refers to.
    fn name_at(&mut self, unit: &Unit<Slice<'a>>, mut at: usize) -> Result<Option<Text>, Skip> {
        for _ in 0..ORIGINS_MAX {
            let other;
            let unit = match unit_offset(unit, at) {
                Some(_) => unit,
                None => {
                    other = self.unit_of(at)?;
                    &*other
                }
            };
            let entry = unit.entry(unit_offset(unit, at).ok_or(Skip::Unit)?)?;
            self.budget.work(1 + entry.attrs().len())?;
            match Stated::by(&entry, unit) {
                Stated::Name(value) => return self.text(unit, value),
                Stated::Elsewhere(next) => at = next,
                Stated::Nowhere => return Ok(None),
            }
        }
        Ok(None)
    }

    fn text(
        &mut self,
        unit: &Unit<Slice<'a>>,
        value: AttributeValue<Slice<'a>>,
    ) -> Result<Option<Text>, Skip> {
        match self.string(unit, value) {
            Ok(name) => Ok(Some(text::keep(&name, self.budget)?)),
            Err(Skip::Unit) => Ok(None),
            Err(Skip::Rest) => Err(Skip::Rest),
        }
    }

    /// The unit that contains the entry at an offset of the section.
    fn unit_of(&mut self, at: usize) -> Result<Arc<Unit<Slice<'a>>>, Skip> {
        let known = self.open.range(..=at).next_back().map(|(_, unit)| Arc::clone(unit));
        if let Some(unit) = known.filter(|unit| unit_offset(unit, at).is_some()) {
            return Ok(unit);
        }
        let mut headers = self.dwarf.units();
        while let Some(header) = headers.next()? {
            self.budget.work(1)?;
            let Some(start) = header.debug_info_offset().map(|start| start.0) else { continue };
            if (start..start + header.length_including_self()).contains(&at) {
                let mut unit = self.open_unit(header)?;
                // Only its entries are wanted.
                unit.line_program = None;
                if self.open.len() >= OPEN_UNITS_MAX {
                    self.open.clear();
                }
                let unit = Arc::new(unit);
                self.open.insert(start, Arc::clone(&unit));
                return Ok(unit);
            }
        }
        Err(Skip::Unit)
    }
}

/// Paths of a unit's files, by index.
type Files = BTreeMap<u64, Option<Text>>;

/// The function that entries belong to, and the inlined functions around the present entry.
#[derive(Default)]
struct Nest {
    /// The depth of its entry, its addresses and its name.
    function: Option<(isize, Vec<Range<u32>>, Option<Text>)>,
    /// Depths of the entries of inlined functions that are open.
    open: Vec<isize>,
    inlined: Vec<Inlined>,
}

impl Nest {
    /// Leaves the functions whose entries are not above one at `depth`.
    fn close(&mut self, depth: isize) {
        while self.open.last().is_some_and(|open| *open >= depth) {
            self.open.pop();
        }
    }

    /// Whether one more function may be inlined here.
    fn is_open(&self) -> bool {
        self.function.is_some() && self.open.len() < NESTED_MAX
    }
}

/// Where the name of a function is stated.
enum Stated<'a> {
    Name(AttributeValue<Slice<'a>>),
    /// By the entry at this offset of the section.
    Elsewhere(usize),
    Nowhere,
}

impl<'a> Stated<'a> {
    /// By the function's own entry, or by the one that it refers to. A linkage name comes first.
    fn by(entry: &Entry<'a>, unit: &Unit<Slice<'a>>) -> Self {
        let names = [gimli::DW_AT_linkage_name, gimli::DW_AT_MIPS_linkage_name, gimli::DW_AT_name];
        if let Some(name) = names.into_iter().find_map(|name| entry.attr_value(name)) {
            return Self::Name(name);
        }
        let origins = [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification];
        let at =
            origins.into_iter().find_map(|name| entry.attr_value(name)).and_then(|at| match at {
                AttributeValue::UnitRef(offset) => {
                    Some(unit.header.debug_info_offset()?.0.checked_add(offset.0)?)
                }
                AttributeValue::DebugInfoRef(offset) => Some(offset.0),
                _ => None,
            });
        at.map_or(Self::Nowhere, Self::Elsewhere)
    }
}

/// An offset of the section, as one of `unit`; `None` if it is outside of its entries.
fn unit_offset(unit: &Unit<Slice<'_>>, at: usize) -> Option<UnitOffset> {
    let offset = UnitOffset(at.checked_sub(unit.header.debug_info_offset()?.0)?);
    offset.is_in_bounds(&unit.header).then_some(offset)
}

/// Appends `part` to `path`; an absolute one replaces it.
fn push_path(path: &mut String, part: &str) {
    let has_drive = part.get(1..3) == Some(":\\");
    if part.starts_with('/') || part.starts_with('\\') || has_drive {
        path.clear();
    } else if !path.is_empty() && !path.ends_with(['/', '\\']) {
        path.push('/');
    }
    path.push_str(part);
}
