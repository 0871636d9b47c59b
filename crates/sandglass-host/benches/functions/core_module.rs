//! Core modules that call one function each, with every content and at every bound.

use std::collections::BTreeMap;
use std::error::Error;

use sandglass_host::Host;
use wasm_encoder::{
    CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection, Function,
    FunctionSection, ImportSection, MemorySection, MemoryType, Module, TypeSection, ValType,
};

use super::Input;
use super::content::{AT, Content};

const EVERYTHING: &str = include_str!("../../../../guest-fixtures/wat/imports_everything.wat");
const BOUNDS: &str = include_str!("../../../../docs/host-functions.md");
const PREVIEW1: &str = "wasi_snapshot_preview1";

/// Short texts that are valid somewhere: a name, a method.
const SHORT: &[u8] = b"GET";
const SHORT_AT: u32 = 16;

/// A function that a core module can import.
#[derive(Clone)]
struct Imported {
    module: String,
    name: String,
    params: Vec<ValType>,
    results: Vec<ValType>,
    /// How much one call of it reads.
    reads: u32,
}

/// All inputs of all functions. They are made one at a time, because each may have 16 MiB.
pub(crate) fn inputs(host: &Host) -> Result<impl Iterator<Item = Input>, Box<dyn Error>> {
    let bounds = bounds();
    let everything = host.inspect(EVERYTHING.as_bytes())?;
    let mut functions = Vec::new();
    for import in everything.imports {
        let (module, name) = (import.module, import.name);
        if name == "proc_exit" {
            continue;
        }
        let shown = if module == PREVIEW1 { format!("{module}.{name}") } else { name.clone() };
        let reads = *bounds.get(&shown).ok_or_else(|| format!("{shown} has no bound"))?;
        let (params, results) = import.signature.split_once(" -> ").ok_or("a function's type")?;
        let (params, results) = (types(params), types(results));
        functions.push(Imported { module, name, params, results, reads });
    }
    Ok(functions.into_iter().flat_map(of_function))
}

/// The bounds of the page, in bytes, by function.
fn bounds() -> BTreeMap<String, u32> {
    let rows = BOUNDS.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (name, _, bound) = (cells.next()?, cells.next()?, cells.next()?);
        let bound = bound.trim_end_matches(" |");
        let mebibyte = 1 << 20;
        let bytes = match bound.split_once(' ') {
            Some((count, "KiB")) => count.parse::<u32>().ok()? << 10,
            Some((count, "MiB")) => count.parse::<u32>().ok()? << 20,
            _ if bound.contains("`host_memory`") => 16 * mebibyte,
            // The granted response or scratch, and a name.
            _ if bound.contains("granted") => mebibyte + 1024,
            _ => 0,
        };
        Some((name.trim_end_matches('`').to_owned(), bytes))
    });
    rows.collect()
}

fn types(list: &str) -> Vec<ValType> {
    let names = list.trim_matches(['(', ')']).split(", ").filter(|name| !name.is_empty());
    names.map(|name| if name == "i64" { ValType::I64 } else { ValType::I32 }).collect()
}

fn of_function(function: Imported) -> impl Iterator<Item = Input> {
    let of_wasi = function.module == PREVIEW1;
    let mut contents = Content::OF_TEXTS.to_vec();
    if of_wasi {
        let counts = [1, 16, 128, 1024];
        contents = vec![Content::Letters, Content::Zeros];
        contents.extend(counts.map(Content::Buffers));
    }
    let numbers = function.params.iter().filter(|ty| **ty == ValType::I32).count();
    // The text is passed in one place, or in all.
    let places = (0..numbers / 2).map(Some).chain([None]);
    places.flat_map(move |place| {
        let function = function.clone();
        contents.clone().into_iter().flat_map(move |content| {
            let function = function.clone();
            lengths(function.reads, of_wasi, content).into_iter().map(move |length| {
                let shares = if place.is_some() { 1 } else { (numbers / 2).max(1) };
                input(&function, place, content, length / u32::try_from(shares).expect("few"))
            })
        })
    })
}

/// A length at the bound, or just below it if a name is passed in addition to the text.
fn lengths(reads: u32, of_wasi: bool, content: Content) -> Vec<u32> {
    if of_wasi {
        // Lists are passed by their count.
        return match content {
            Content::Buffers(_) => vec![16 << 20],
            _ => vec![1 << 10, 64 << 10, 16 << 20],
        };
    }
    match reads {
        0 => vec![1 << 10],
        _ => vec![reads / 4, reads.saturating_sub(1024).max(64), reads],
    }
}

fn input(function: &Imported, place: Option<usize>, content: Content, length: u32) -> Input {
    let of_wasi = function.module == PREVIEW1;
    let mut count = match content {
        Content::Buffers(count) => count,
        _ => length,
    };
    count = count.max(1);
    let mut arguments = Vec::new();
    let mut numbers = 0;
    for ty in &function.params {
        arguments.push(if *ty == ValType::I64 {
            Argument::Long(0)
        } else if of_wasi && numbers == 0 && is_of_descriptor(&function.name) {
            // The number of the standard output.
            numbers += 1;
            Argument::Number(1)
        } else {
            let offset = usize::from(of_wasi && is_of_descriptor(&function.name));
            let (pair, is_length) = ((numbers - offset) / 2, (numbers - offset) % 2 == 1);
            numbers += 1;
            let is_long = place.is_none_or(|place| place == pair);
            let short = u32::try_from(SHORT.len()).expect("few");
            Argument::Number(match (is_long, is_length) {
                (true, false) => AT,
                (true, true) => count,
                (false, false) => SHORT_AT,
                (false, true) => short,
            })
        });
    }
    let name = match of_wasi {
        true => format!("{}.{}", function.module, function.name),
        false => function.name.clone(),
    };
    let guest = guest(function, &arguments, &content.bytes(length as usize));
    Input { guest, function: name, about: format!("{} KiB of {}", length >> 10, content.about()) }
}

fn is_of_descriptor(name: &str) -> bool {
    ["fd_", "path_", "sock_"].iter().any(|prefix| name.starts_with(prefix))
}

enum Argument {
    Number(u32),
    Long(i64),
}

fn guest(function: &Imported, arguments: &[Argument], content: &[u8]) -> Vec<u8> {
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    types.ty().function(function.params.iter().copied(), function.results.iter().copied());
    types.ty().function([ValType::I32; 2], [ValType::I32]);
    imports.import(&function.module, &function.name, EntityType::Function(0));
    let (mut functions, mut memories) = (FunctionSection::new(), MemorySection::new());
    functions.function(1);
    memories.memory(MemoryType {
        minimum: 600,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0).export("run", ExportKind::Func, 1);
    let mut run = Function::new([]);
    let mut body = run.instructions();
    for argument in arguments {
        match argument {
            Argument::Number(number) => body.i32_const(number.cast_signed()),
            Argument::Long(number) => body.i64_const(*number),
        };
    }
    body.call(0);
    for _ in &function.results {
        body.drop();
    }
    body.i32_const(0).end();
    let (mut code, mut data) = (CodeSection::new(), DataSection::new());
    code.function(&run);
    data.active(0, &ConstExpr::i32_const(SHORT_AT.cast_signed()), SHORT.iter().copied());
    data.active(0, &ConstExpr::i32_const(AT.cast_signed()), content.iter().copied());
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&functions).section(&memories);
    module.section(&exports).section(&code).section(&data);
    module.finish()
}
