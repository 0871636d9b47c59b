//! Writes the types of a component as WIT does, with everything that they are made of.

use std::fmt::Display;

use wasmparser::component_types::{
    ComponentDefinedType, ComponentEntityType, ComponentFuncTypeId, ComponentValType,
};
use wasmparser::types::TypesRef;

/// Most bytes that a type takes as text: several times a handler's, which is the largest
/// of those that a person reads. A type may hold another often, and that one others.
const TEXT_MAX_BYTES: usize = 4 << 10;

/// A function's type.
pub(super) fn function(types: TypesRef<'_>, id: ComponentFuncTypeId) -> String {
    let function = &types[id];
    let mut text = Text { types, text: String::new() };
    text.add(if function.async_ { "async func(" } else { "func(" });
    text.list(function.params.iter(), |text, (name, ty)| {
        text.add(name);
        text.add(": ");
        text.value(ty);
    });
    text.add(")");
    if let Some(result) = &function.result {
        text.add(" -> ");
        text.value(result);
    }
    text.finish()
}

/// The type of something that a component imports or exports.
pub(super) fn entity(types: TypesRef<'_>, ty: ComponentEntityType) -> String {
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

    fn list<T>(&mut self, items: impl Iterator<Item = T>, one: impl Fn(&mut Self, T)) {
        for (number, item) in items.enumerate() {
            if self.is_full() {
                return;
            }
            if number > 0 {
                self.add(", ");
            }
            one(self, item);
        }
    }

    /// `name<ty>`, where there may be no type.
    fn around(&mut self, name: &str, ty: Option<&ComponentValType>) {
        self.add(name);
        if let Some(ty) = ty {
            self.add("<");
            self.value(ty);
            self.add(">");
        }
    }

    fn or_nothing(&mut self, ty: Option<&ComponentValType>) {
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
        match ty {
            ComponentDefinedType::Primitive(primitive) => self.add(primitive),
            ComponentDefinedType::Record(record) => {
                self.add("record { ");
                self.list(record.fields.iter(), |text, (name, ty)| {
                    text.add(name);
                    text.add(": ");
                    text.value(ty);
                });
                self.add(" }");
            }
            ComponentDefinedType::Variant(variant) => {
                self.add("variant { ");
                self.list(variant.cases.iter(), |text, (name, case)| {
                    text.add(name);
                    if let Some(ty) = &case.ty {
                        text.add("(");
                        text.value(ty);
                        text.add(")");
                    }
                });
                self.add(" }");
            }
            ComponentDefinedType::List { element, .. } => self.around("list", Some(element)),
            ComponentDefinedType::FixedLengthList { element, length, .. } => {
                self.add("list<");
                self.value(element);
                self.add(format_args!(", {length}>"));
            }
            ComponentDefinedType::Map { key, value, .. } => {
                self.add("map<");
                self.value(key);
                self.add(", ");
                self.value(value);
                self.add(">");
            }
            ComponentDefinedType::Tuple(tuple) => {
                self.add("tuple<");
                self.list(tuple.types.iter(), Self::value);
                self.add(">");
            }
            ComponentDefinedType::Flags(names) => {
                self.add("flags { ");
                self.list(names.iter(), Self::add);
                self.add(" }");
            }
            ComponentDefinedType::Enum(names) => {
                self.add("enum { ");
                self.list(names.iter(), Self::add);
                self.add(" }");
            }
            ComponentDefinedType::Option { ty, .. } => self.around("option", Some(ty)),
            ComponentDefinedType::Result { ok, err, .. } => {
                self.add("result<");
                self.or_nothing(ok.as_ref());
                self.add(", ");
                self.or_nothing(err.as_ref());
                self.add(">");
            }
            ComponentDefinedType::Own(_) | ComponentDefinedType::Borrow(_) => {
                self.add("a resource");
            }
            ComponentDefinedType::Future { ty, .. } => self.around("future", ty.as_ref()),
            ComponentDefinedType::Stream { ty, .. } => self.around("stream", ty.as_ref()),
        }
    }
}
