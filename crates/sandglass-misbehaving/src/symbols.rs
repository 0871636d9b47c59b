//! Guests that loop forever, with names and debug information that would take seconds or gigabytes
//! to read. A host must nevertheless capture a stack of such a guest immediately.

use std::borrow::Cow;

use wasm_encoder::{CustomSection, NameMap, NameSection, Section as _};

/// A guest with a deep stack that never returns.
const SPINS: &[u8] = include_bytes!("../../../guest-fixtures/wat/spins_by_recursion.wat");

/// Length of the long name, in bytes.
const LONG_NAME_BYTES: usize = 9 << 20;

/// Codes of the abbreviations of [`Dwarf::new`].
const UNIT: u8 = 1;
const FUNCTION: u8 = 2;
const INLINED: u8 = 3;

/// Debug information that is being built.
#[derive(Default)]
struct Dwarf {
    abbreviations: Vec<u8>,
    info: Vec<u8>,
    lines: Vec<u8>,
}

impl Dwarf {
    /// Starts with three abbreviations: a unit, which states its addresses and its line program; a
    /// function; and an inlined function.
    fn new() -> Self {
        let addresses: &[u8] = &[0x11, 0x01, 0x12, 0x06];
        let unit = [&[UNIT, 0x11, 1][..], addresses, &[0x10, 0x17, 0, 0]].concat();
        let function = |code, tag| [&[code, tag, 1][..], addresses, &[0, 0]].concat();
        let abbreviations =
            [unit, function(FUNCTION, 0x2e), function(INLINED, 0x1d), vec![0]].concat();
        Self { abbreviations, ..Self::default() }
    }

    /// The addresses of an entry that covers all possible code.
    fn everywhere() -> Vec<u8> {
        [1_u32.to_le_bytes(), 0x7fff_fff0_u32.to_le_bytes()].concat()
    }

    /// Appends a unit of DWARF 4, with the line program at offset 0, and with `entries` below it.
    fn unit(&mut self, abbreviations_at: u32, entries: &[u8]) {
        let mut unit = vec![4, 0];
        unit.extend(abbreviations_at.to_le_bytes());
        unit.push(4);
        unit.push(UNIT);
        unit.extend(Self::everywhere());
        unit.extend(0_u32.to_le_bytes());
        unit.extend(entries);
        self.info.extend(len(unit.len()).to_le_bytes());
        self.info.extend(unit);
    }

    /// Appends a line program with `rows` rows.
    fn program(&mut self, rows: usize) {
        let header = b"\x01\x01\x01\xfb\x0e\x0d\x00\x01\x01\x01\x01\x00\x00\x00\x01\x00\x00\x01\x00a.rs\x00\x00\x00\x00\x00";
        let mut program = vec![4, 0];
        program.extend(len(header.len()).to_le_bytes());
        program.extend(header);
        // Set the address to 1, then append a row after each byte, then end the sequence.
        program.extend(b"\x00\x05\x02\x01\x00\x00\x00");
        program.extend(b"\x02\x01\x01".repeat(rows));
        program.extend(b"\x00\x01\x01");
        self.lines.extend(len(program.len()).to_le_bytes());
        self.lines.extend(program);
    }

    /// The guest [`SPINS`] with this debug information.
    fn module(&self) -> Vec<u8> {
        let mut module = spins();
        section(&mut module, ".debug_abbrev", &self.abbreviations);
        section(&mut module, ".debug_info", &self.info);
        section(&mut module, ".debug_line", &self.lines);
        module
    }
}

/// A guest with functions that are inlined into one another thousands of times.
pub(crate) fn nested_inlining() -> Cow<'static, [u8]> {
    let mut dwarf = Dwarf::new();
    dwarf.program(1);
    let mut entries = vec![FUNCTION];
    entries.extend(Dwarf::everywhere());
    for _ in 0..9_000 {
        entries.push(INLINED);
        entries.extend(Dwarf::everywhere());
    }
    dwarf.unit(0, &entries);
    dwarf.module().into()
}

/// A guest with thousands of units that share one long line program.
pub(crate) fn shared_line_program() -> Cow<'static, [u8]> {
    let mut dwarf = Dwarf::new();
    dwarf.program(20_000);
    (0..4_000).for_each(|_| dwarf.unit(0, &[0]));
    dwarf.module().into()
}

/// A guest with thousands of units, each with a long table of abbreviations that overlaps the other
/// tables.
pub(crate) fn overlapping_abbreviations() -> Cow<'static, [u8]> {
    const UNITS: u32 = 4_000;
    let mut dwarf = Dwarf::new();
    dwarf.program(1);
    let table = std::mem::take(&mut dwarf.abbreviations);
    for unit in 0..UNITS {
        // One more abbreviation. The tables of all units before this one include it, too.
        let code = 10 + unit;
        let low = |bits: u32| u8::try_from(bits & 0x7f).unwrap_or_default();
        dwarf.abbreviations.extend([low(code) | 0x80, low(code >> 7) | 0x80, low(code >> 14)]);
        dwarf.abbreviations.extend([0x11, 0, 0, 0]);
        dwarf.unit(unit * 7, &[0]);
    }
    dwarf.abbreviations.extend(table);
    dwarf.module().into()
}

/// A guest with a function whose name is several megabytes long.
pub(crate) fn long_name() -> Cow<'static, [u8]> {
    let mut module = spins();
    let mut functions = NameMap::new();
    functions.append(0, &"n".repeat(LONG_NAME_BYTES));
    let mut names = NameSection::new();
    names.functions(&functions);
    names.append_to(&mut module);
    module.into()
}

fn spins() -> Vec<u8> {
    wat::parse_bytes(SPINS).map(Cow::into_owned).unwrap_or_default()
}

fn section(module: &mut Vec<u8>, name: &str, data: &[u8]) {
    CustomSection { name: name.into(), data: data.into() }.append_to(module);
}

/// A length in the 32-bit format of DWARF.
fn len(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
