//! Writes the types of a component in the notation of WIT, with all types that they refer to.

use std::fmt::Display;

use wasmparser::component_types::{
    ComponentDefinedType, ComponentEntityType, ComponentFuncTypeId, ComponentValType,
};
use wasmparser::types::{Types, TypesRef};
use wasmparser::{Parser, Payload, Result, ValidPayload, Validator, WasmFeatures};

/// Longest text of a type, in bytes: several times that of a handler, which is the largest type that
/// people read. Without a limit, types that refer to others several times would grow exponentially.
const TEXT_MAX_BYTES: usize = 4 << 10;

/// Reads the types of the outermost module or component in `binary`, and calls `take` for each part.
/// Bodies of functions are not validated.
///
/// # Errors
/// It is not valid.
pub(crate) fn read_types<'a>(
    binary: &'a [u8],
    mut take: impl FnMut(Payload<'a>) -> Result<()>,
) -> Result<Option<Types>> {
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    let mut types = None;
    for payload in Parser::new(0).parse_all(binary) {
        let payload = payload?;
        if let ValidPayload::End(ended) = validator.payload(&payload)? {
            types = Some(ended);
        }
        take(payload)?;
    }
    Ok(types)
}

/// The type of the function that the component in `binary` exports as `name`; `None` if that is not a
/// function.
pub(super) fn exported_function(binary: &[u8], name: &str) -> Option<String> {
    let types = read_types(binary, |_| Ok(())).ok()??;
    match types.as_ref().component_item_for_export(name)?.ty {
        ComponentEntityType::Func(id) => Some(function(types.as_ref(), id)),
        _ => None,
    }
}

/// A function's type.
pub(crate) fn function(types: TypesRef<'_>, id: ComponentFuncTypeId) -> String {
    let function = &types[id];
    let mut text = Text { types, text: String::new() };
    let open = if function.async_ { "async func(" } else { "func(" };
    text.list(open, function.params.iter(), ")", |text, (name, ty)| text.field(name, ty));
    if let Some(result) = &function.result {
        text.add(" -> ");
        text.value(result);
    }
    text.finish()
}

/// The type of something that a component imports or exports.
pub(crate) fn entity(types: TypesRef<'_>, ty: ComponentEntityType) -> String {
    match ty {
        ComponentEntityType::Func(id) => function(types, id),
        ComponentEntityType::Instance(id) => {
            format!("an instance of {} items", types[id].exports.len())
        }
        ComponentEntityType::Module(_) => "a core module".to_owned(),
        ComponentEntityType::Component(_) => "a component".to_owned(),
        ComponentEntityType::Value(_) => "a value".to_owned(),
        ComponentEntityType::Type { .. } => "a type".to_owned(),
    }
}

struct Text<'a> {
    types: TypesRef<'a>,
    text: String,
}

impl Text<'_> {
    fn is_full(&self) -> bool {
        self.text.len() >= TEXT_MAX_BYTES
    }

    fn add(&mut self, piece: impl Display) {
        if !self.is_full() {
            self.text += &piece.to_string();
        }
    }

    fn finish(self) -> String {
        if self.is_full() { self.text + " ..." } else { self.text }
    }

    /// Items with commas between them.
    fn list<T>(
        &mut self,
        open: &str,
        items: impl Iterator<Item = T>,
        close: &str,
        one: impl Fn(&mut Self, T),
    ) {
        self.add(open);
        for (number, item) in items.enumerate() {
            if self.is_full() {
                return;
            }
            if number > 0 {
                self.add(", ");
            }
            one(self, item);
        }
        self.add(close);
    }

    fn field(&mut self, name: impl Display, ty: &ComponentValType) {
        self.add(name);
        self.add(": ");
        self.value(ty);
    }

    /// `name<ty>`, or `name` if there is no type.
    fn generic(&mut self, name: &str, ty: Option<&ComponentValType>) {
        self.add(name);
        if let Some(ty) = ty {
            self.list("<", std::iter::once(ty), ">", Self::value);
        }
    }

    fn value_or_nothing(&mut self, ty: Option<&ComponentValType>) {
        match ty {
            Some(ty) => self.value(ty),
            None => self.add("_"),
        }
    }

    fn value(&mut self, ty: &ComponentValType) {
        if self.is_full() {
            return;
        }
        match ty {
            ComponentValType::Primitive(primitive) => self.add(primitive),
            ComponentValType::Type(id) => {
                let types = self.types;
                self.defined(&types[*id]);
            }
        }
    }

    fn defined(&mut self, ty: &ComponentDefinedType) {
        use ComponentDefinedType as Ty;
        match ty {
            Ty::Primitive(primitive) => self.add(primitive),
            Ty::Record(record) => {
                let fields = record.fields.iter();
                self.list("record { ", fields, " }", |text, (name, ty)| text.field(name, ty));
            }
            Ty::Variant(variant) => {
                self.list("variant { ", variant.cases.iter(), " }", |text, (name, case)| {
                    text.add(name);
                    if let Some(ty) = &case.ty {
                        text.list("(", std::iter::once(ty), ")", Self::value);
                    }
                });
            }
            Ty::List { element, .. } => self.generic("list", Some(element)),
            Ty::FixedLengthList { element, length, .. } => {
                self.add("list<");
                self.value(element);
                self.add(format_args!(", {length}>"));
            }
            Ty::Map { key, value, .. } => {
                self.list("map<", [key, value].into_iter(), ">", Self::value);
            }
            Ty::Tuple(tuple) => self.list("tuple<", tuple.types.iter(), ">", Self::value),
            Ty::Flags(names) => self.list("flags { ", names.iter(), " }", Self::add),
            Ty::Enum(names) => self.list("enum { ", names.iter(), " }", Self::add),
            Ty::Option { ty, .. } => self.generic("option", Some(ty)),
            Ty::Result { ok, err, .. } => {
                let results = [ok.as_ref(), err.as_ref()].into_iter();
                self.list("result<", results, ">", Self::value_or_nothing);
            }
            Ty::Own(_) | Ty::Borrow(_) => self.add("a resource"),
            Ty::Future { ty, .. } => self.generic("future", ty.as_ref()),
            Ty::Stream { ty, .. } => self.generic("stream", ty.as_ref()),
        }
    }
}
