//! Tests of parsing with DWARF and name sections that no compiler writes.

use super::*;

/// Writes DWARF by hand: compilers do not write what these tests are about.
#[derive(Default)]
struct Dwarf {
    abbreviations: Vec<u8>,
    info: Vec<u8>,
    lines: Vec<u8>,
}

const UNIT: u8 = 1;
const FUNCTION: u8 = 2;
const INLINED: u8 = 3;
const UNIT_WITH_LINES: u8 = 4;

impl Dwarf {
    /// With the abbreviations above.
    fn new() -> Self {
        let mut abbreviations = Vec::new();
        // DW_TAG_compile_unit, with children.
        abbreviations.extend([UNIT, 0x11, 1, 0, 0]);
        // DW_TAG_subprogram: DW_AT_name as a string, DW_AT_low_pc, DW_AT_high_pc as a length.
        abbreviations.extend([FUNCTION, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x06, 0, 0]);
        // DW_TAG_inlined_subroutine: the same, and DW_AT_call_line.
        abbreviations.extend([INLINED, 0x1d, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x06]);
        abbreviations.extend([0x59, 0x0b, 0, 0]);
        // DW_TAG_compile_unit with DW_AT_stmt_list, without children.
        abbreviations.extend([UNIT_WITH_LINES, 0x11, 0, 0x10, 0x17, 0, 0]);
        abbreviations.push(0);
        Self { abbreviations, ..Self::default() }
    }

    /// Appends a unit of DWARF 4 with these entries.
    fn unit(&mut self, abbreviations_at: u32, entries: &[u8]) {
        let mut unit = vec![4, 0];
        unit.extend(abbreviations_at.to_le_bytes());
        unit.push(4);
        unit.extend(entries);
        self.info.extend(u32::try_from(unit.len()).expect("short").to_le_bytes());
        self.info.extend(unit);
    }

    /// Appends a unit whose lines are those of the program at `at`.
    fn unit_with_lines(&mut self, at: u32) {
        let mut entry = vec![UNIT_WITH_LINES];
        entry.extend(at.to_le_bytes());
        self.unit(0, &entry);
    }

    /// Appends a line program with this header, behind its length, and these instructions.
    fn program(&mut self, version: u16, header: &[u8], instructions: &[u8]) {
        let mut program = version.to_le_bytes().to_vec();
        if version >= 5 {
            program.extend([4, 0]);
        }
        program.extend(u32::try_from(header.len()).expect("short").to_le_bytes());
        program.extend(header);
        program.extend(instructions);
        self.lines.extend(u32::try_from(program.len()).expect("short").to_le_bytes());
        self.lines.extend(program);
    }

    fn parse(&self, budget: &mut Budget) -> (DebugTable, Result<(), Exceeded>) {
        let section = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
        let sections = [
            section(".debug_abbrev", &self.abbreviations),
            section(".debug_info", &self.info),
            section(".debug_line", &self.lines),
        ];
        DebugTable::parse(&sections, budget)
    }
}

/// An entry of a function, whose children follow.
fn function(kind: u8, name: &str, start: u32, len: u32) -> Vec<u8> {
    let mut entry = vec![kind];
    entry.extend(name.bytes().chain([0]));
    entry.extend(start.to_le_bytes());
    entry.extend(len.to_le_bytes());
    entry.extend((kind == INLINED).then_some(7));
    entry
}

/// The header of a line program of DWARF 4 with one file.
const HEADER_4: &[u8] =
    b"\x01\x01\x01\xfb\x0e\x0d\x00\x01\x01\x01\x01\x00\x00\x00\x01\x00\x00\x01/src\x00\x00a.rs\x00\x01\x00\x00\x00";

/// Rows for the addresses from 16 to 24: line 1, then line 2.
const ROWS: &[u8] = b"\x00\x05\x02\x10\x00\x00\x00\x01\x03\x01\x02\x04\x01\x02\x04\x00\x01\x01";

fn names(table: &DebugTable, address: u32) -> Vec<Option<&str>> {
    table.locations(address).into_iter().map(|location| location.function).collect()
}

#[test]
fn inlined_functions_come_before_the_one_that_contains_them() {
    let mut dwarf = Dwarf::new();
    let entries = [
        vec![UNIT],
        function(FUNCTION, "outer", 10, 50),
        function(INLINED, "middle", 20, 20),
        function(INLINED, "inner", 25, 5),
        vec![0, 0],
        function(INLINED, "beside", 45, 5),
        vec![0, 0],
        function(FUNCTION, "next", 60, 10),
        vec![0, 0],
    ];
    dwarf.unit(0, &entries.concat());
    let (table, parsed) = dwarf.parse(&mut Budget::new());
    assert_eq!(parsed, Ok(()));
    assert_eq!(names(&table, 27), [Some("inner"), Some("middle"), Some("outer")]);
    assert_eq!(names(&table, 31), [Some("middle"), Some("outer")]);
    assert_eq!(names(&table, 46), [Some("beside"), Some("outer")]);
    assert_eq!(names(&table, 12), [Some("outer")]);
    assert_eq!(names(&table, 60), [Some("next")]);
    assert_eq!(table.locations(27)[1].line, Some(7), "the line of the call");
    assert!(names(&table, 9).is_empty() && names(&table, 70).is_empty());
}

#[test]
fn rows_give_files_and_lines() {
    let mut dwarf = Dwarf::new();
    dwarf.program(4, HEADER_4, ROWS);
    dwarf.unit_with_lines(0);
    let (table, parsed) = dwarf.parse(&mut Budget::new());
    assert_eq!(parsed, Ok(()));
    let line = |address| table.locations(address).first().and_then(|location| location.line);
    assert_eq!(
        [15, 16, 19, 20, 23, 24].map(line),
        [None, Some(1), Some(1), Some(2), Some(2), None]
    );
    assert_eq!(table.locations(16)[0].file, Some("/src/a.rs"));
}

#[test]
fn deeply_inlined_functions_neither_recurse_nor_take_much_work() {
    let mut dwarf = Dwarf::new();
    let mut entries = [vec![UNIT], function(FUNCTION, "outer", 10, 1000)].concat();
    for _ in 0..100_000 {
        entries.extend(function(INLINED, "i", 10, 1000));
    }
    dwarf.unit(0, &entries);
    let mut budget = Budget::new();
    let (table, _) = dwarf.parse(&mut budget);
    assert!(names(&table, 20).len() <= 66, "{}", names(&table, 20).len());
    assert!(budget.spent_percent() < 10);
}

#[test]
fn a_line_program_that_units_share_is_run_once() {
    let mut dwarf = Dwarf::new();
    let rows = ROWS.repeat(1000);
    dwarf.program(4, HEADER_4, &rows);
    (0..5000).for_each(|_| dwarf.unit_with_lines(0));
    let mut budget = Budget::new();
    let (table, parsed) = dwarf.parse(&mut budget);
    assert_eq!((parsed, table.rows_len()), (Ok(()), 2000));
    assert!(budget.spent_percent() < 10);
}

#[test]
fn abbreviations_that_overlap_cost_what_the_budget_allows() {
    let mut dwarf = Dwarf::new();
    dwarf.abbreviations = (0..40_000_u32)
        .flat_map(|code| {
            let code = code + 1;
            let low = |byte: u32| u8::try_from(byte & 0x7f).expect("seven bits");
            [low(code) | 0x80, low(code >> 7) | 0x80, low(code >> 14), 0x11, 0, 0, 0]
        })
        .collect();
    for unit in 0..20_000 {
        dwarf.unit(unit % 40_000 * 7, &[0]);
    }
    let mut budget = Budget::new();
    let (_, parsed) = dwarf.parse(&mut budget);
    assert_eq!(parsed, Err(Exceeded));
}

#[test]
fn headers_that_declare_entries_without_bytes_are_refused() {
    // One directory format and one file format: a path of DW_FORM_flag_present.
    let start = b"\x01\x01\x01\xfb\x0e\x0d\x00\x01\x01\x01\x01\x00\x00\x00\x01\x00\x00\x01";
    let count = b"\xff\xff\xff\xff\xff\xff\xff\x7f";
    let no_directories = [&start[..], b"\x01\x01\x08\x00"].concat();
    for header in [
        [&start[..], b"\x01\x01\x19", count].concat(),
        [&no_directories[..], b"\x01\x01\x19", count].concat(),
        [&no_directories[..], b"\x00", count].concat(),
    ] {
        let mut dwarf = Dwarf::new();
        dwarf.program(5, &header, ROWS);
        dwarf.unit_with_lines(0);
        let (table, _) = dwarf.parse(&mut Budget::new());
        assert_eq!(table.rows_len(), 0);
    }
    // The same header with paths that have bytes.
    let header = [&start[..], b"\x01\x01\x08\x01/src\x00\x01\x01\x08\x02b.rs\x00a.rs\x00"].concat();
    let mut dwarf = Dwarf::new();
    dwarf.program(5, &header, ROWS);
    dwarf.unit_with_lines(0);
    let (table, _) = dwarf.parse(&mut Budget::new());
    assert_eq!(table.locations(16)[0].file, Some("a.rs"));
}

#[test]
fn a_long_header_or_an_instruction_that_defines_a_file_is_refused() {
    let long = [HEADER_4, &[0; 200_000]].concat();
    let mut dwarf = Dwarf::new();
    dwarf.program(4, &long, ROWS);
    dwarf.unit_with_lines(0);
    assert_eq!(dwarf.parse(&mut Budget::new()).0.rows_len(), 0);
    // DW_LNE_define_file, which adds a file to the header each time.
    let defines = [&b"\x00\x06\x03b\x00\x00\x00\x00"[..], ROWS].concat();
    let mut dwarf = Dwarf::new();
    dwarf.program(4, HEADER_4, &defines);
    dwarf.unit_with_lines(0);
    assert_eq!(dwarf.parse(&mut Budget::new()).0.rows_len(), 0);
}

#[test]
fn a_table_keeps_what_the_budget_allows() {
    let mut dwarf = Dwarf::new();
    dwarf.program(4, HEADER_4, &ROWS.repeat(1000));
    dwarf.unit_with_lines(0);
    let (table, parsed) = dwarf.parse(&mut Budget::of(1_000_000, 10_000));
    assert_eq!(parsed, Err(Exceeded));
    assert!((1..1000).contains(&table.rows_len()), "{}", table.rows_len());
    assert_eq!(dwarf.parse(&mut Budget::of(100, 10_000)).1, Err(Exceeded));
}

/// A module with a body of two functions, and a name section.
fn named(name: &str) -> Vec<u8> {
    let text = format!(
        "(module $stuck (func $first) (func ${name} (nop) (unreachable)) (memory 1) \
         (@custom \"name2\" \"x\"))"
    );
    wat::parse_str(text).expect("valid")
}

#[test]
fn functions_have_the_names_of_the_module() {
    let binary = named("second");
    let sections = sections::of(&binary);
    let bodies = sections[0].bodies.clone();
    let (table, parsed) = Table::parse(sections);
    assert_eq!(parsed, Ok(()));
    let frame = |offset: u32| {
        let frames = table.resolve(&[Frame { offset: offset.into(), ..Frame::default() }]);
        frames.into_iter().map(|frame| (frame.function, frame.module)).collect::<Vec<_>>()
    };
    let named = |name: &str| vec![(Some(name.to_owned()), Some("stuck".to_owned()))];
    assert_eq!(frame(bodies[0]), named("first"));
    assert_eq!(frame(bodies[1] + 1), named("second"));
    assert_eq!(frame(0), [(None, None)]);
    assert_eq!(frame(u32::MAX), [(None, None)]);
}

#[test]
fn a_long_name_is_cut_and_a_resolved_frame_stays() {
    let binary = named(&"n".repeat(1 << 20));
    let sections = sections::of(&binary);
    let at = sections[0].bodies[1];
    let (table, _) = Table::parse(sections);
    let frames = table.resolve(&[Frame { offset: at.into(), ..Frame::default() }]);
    let name = frames[0].function.clone().expect("a name");
    assert!(name.len() <= 1024 && name.starts_with("nnn"), "{}", name.len());
    assert_eq!(table.resolve(&frames), frames);
}

#[test]
fn hiding_names_moves_no_offset_and_wasmtime_reads_no_name() {
    let binary = named("second");
    let mut hidden = binary.clone();
    hide_names(&mut hidden);
    assert_eq!(hidden.len(), binary.len());
    let differ = hidden.iter().zip(&binary).filter(|(hidden, own)| hidden != own).count();
    assert!((1..=4).contains(&differ), "{differ}");
    let engine = wasmtime::Engine::default();
    let name = |bytes: &[u8]| {
        let module = wasmtime::Module::new(&engine, bytes).expect("valid");
        module.name().map(str::to_owned)
    };
    assert_eq!((name(&binary), name(&hidden)), (Some("stuck".to_owned()), None));
}
