//! Makes modules of text, and says whether a module has the exports of a node pack with the
//! types that the ABI gives them. It runs on the machine that builds the packs, and is in none
//! of them.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use wasmparser::ValType::{I32, I64};
use wasmparser::{ExternalKind, FuncType, Parser, Payload, ValType, Validator, types::EntityType};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The exported functions of the ABI: name, parameters, results; where the results are a
/// pointer and a length, one packed number does as well.
const FUNCTIONS: &[(&str, &[ValType], &[ValType])] = &[
    ("openwop_abi_version", &[], &[I32]),
    ("openwop_pack_name", &[], &[I32, I32]),
    ("openwop_node_count", &[], &[I32]),
    ("openwop_node_id_at", &[I32], &[I32, I32]),
    ("openwop_alloc", &[I32], &[I32]),
    ("openwop_free", &[I32, I32], &[]),
    ("openwop_node_invoke", &[I32, I32, I32], &[I32, I32]),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["text", source, module] => {
            fs::write(module, wat::parse_file(source)?)?;
            Ok(())
        }
        ["check", modules @ ..] => modules.iter().try_for_each(|module| {
            check(module.as_ref()).map_err(|error| format!("{module}: {error}").into())
        }),
        _ => Err("usage: assemble text SOURCE MODULE, or assemble check MODULE...".into()),
    }
}

fn check(module: &Path) -> Result<()> {
    let bytes = fs::read(module)?;
    let types = Validator::new().validate_all(&bytes)?;
    let types = types.as_ref();
    let (mut functions, mut has_memory) = (Vec::new(), false);
    for payload in Parser::new(0).parse_all(&bytes) {
        let Payload::ExportSection(exports) = payload? else { continue };
        for export in exports {
            let export = export?;
            has_memory |= export.kind == ExternalKind::Memory && export.name == "memory";
            if let Some(EntityType::Func(id)) = types.entity_type_from_export(&export) {
                functions.push((export.name, types[id].unwrap_func().clone()));
            }
        }
    }
    if !has_memory {
        return Err("exports no memory `memory`".into());
    }
    for (name, parameters, results) in FUNCTIONS {
        let Some((_, function)) = functions.iter().find(|(exported, _)| exported == name) else {
            return Err(format!("exports no function `{name}`").into());
        };
        if !fits(function, parameters, results) {
            return Err(format!("exports `{name}` with another type, {function:?}").into());
        }
    }
    Ok(())
}

fn fits(function: &FuncType, parameters: &[ValType], results: &[ValType]) -> bool {
    let packed = results == [I32, I32] && function.results() == [I64];
    function.params() == parameters && (packed || function.results() == results)
}
