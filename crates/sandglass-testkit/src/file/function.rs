//! Reads `[[function]]`: the signature of a host function of the embedder.

use sandglass_host::{Signature, ValueType};
use sandglass_source::{Diagnostics, Name, Table, did_you_mean};

/// The types, by their WIT names.
const TYPES: [(&str, ValueType); 9] = [
    ("bool", ValueType::Bool),
    ("s32", ValueType::S32),
    ("u32", ValueType::U32),
    ("s64", ValueType::S64),
    ("u64", ValueType::U64),
    ("f32", ValueType::F32),
    ("f64", ValueType::F64),
    ("string", ValueType::Text),
    ("list<u8>", ValueType::Bytes),
];

pub(super) fn read(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Signature> {
    table.only(&["interface", "name", "params", "returns"], out);
    let interface = table.required_text("interface", out);
    let name = table.required_text("name", out);
    let params = table.texts("params", out);
    let params: Vec<ValueType> = params.iter().filter_map(|name| read_type(name, out)).collect();
    let returned = match table.text("returns", out) {
        Some(name) => read_type(&name, out)?,
        None => ValueType::None,
    };
    Some(Signature { interface: interface?.to_string(), name: name?.to_string(), params, returned })
}

fn read_type(written: &Name, out: &mut Diagnostics<'_>) -> Option<ValueType> {
    let found = TYPES.iter().find(|(name, _)| *name == written.as_str());
    if found.is_none() {
        let help = did_you_mean(written, TYPES.iter().map(|(name, _)| *name));
        let message = format!("`{written}` is not a type of a host function");
        out.error_with_help(written.span(), message, help);
    }
    found.map(|(_, ty)| *ty)
}
