//! The values that pass between guests and embedders' functions, and their types in both ABIs.

use wasmtime::component::{ComponentType, Lift, Lower};

use crate::abi::passed::variants;

/// The type of a value. Core modules pass texts and bytes as (pointer, length), and get results in a
/// buffer, numbers in little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Nothing at all.
    None,
    /// `bool`; an `i32` other than 0.
    Bool,
    /// `s32`.
    S32,
    /// `u32`.
    U32,
    /// `s64`.
    S64,
    /// `u64`.
    U64,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `string`.
    Text,
    /// `list<u8>`.
    Bytes,
}

/// A value of a [`Type`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "as the types are")]
pub enum Value {
    None,
    Bool(bool),
    S32(i32),
    U32(u32),
    S64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Value {
    /// Memory that it occupies on the heap, in bytes.
    pub(crate) fn heap_bytes(&self) -> u64 {
        match self {
            Self::Text(text) => text.capacity() as u64,
            Self::Bytes(bytes) => bytes.capacity() as u64,
            _ => 0,
        }
    }

    /// Its type.
    #[must_use]
    pub const fn ty(&self) -> Type {
        match self {
            Self::None => Type::None,
            Self::Bool(_) => Type::Bool,
            Self::S32(_) => Type::S32,
            Self::U32(_) => Type::U32,
            Self::S64(_) => Type::S64,
            Self::U64(_) => Type::U64,
            Self::F32(_) => Type::F32,
            Self::F64(_) => Type::F64,
            Self::Text(_) => Type::Text,
            Self::Bytes(_) => Type::Bytes,
        }
    }

    /// The bytes that are written to a core module's buffer.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::None => Vec::new(),
            Self::Bool(value) => vec![u8::from(value)],
            Self::S32(value) => value.to_le_bytes().to_vec(),
            Self::U32(value) => value.to_le_bytes().to_vec(),
            Self::S64(value) => value.to_le_bytes().to_vec(),
            Self::U64(value) => value.to_le_bytes().to_vec(),
            Self::F32(value) => value.to_le_bytes().to_vec(),
            Self::F64(value) => value.to_le_bytes().to_vec(),
            Self::Text(value) => value.into_bytes(),
            Self::Bytes(value) => value,
        }
    }
}

variants! {
    Value {
        0: None; 1: Bool(value); 2: S32(value); 3: U32(value); 4: S64(value); 5: U64(value);
        6: F32(value); 7: F64(value); 8: Text(value); 9: Bytes(value);
    }
}

/// A Rust type that corresponds to a [`Type`].
pub trait Wire: ComponentType + Lift + Lower + Send + Sync + 'static {
    /// The type of its values.
    const TYPE: Type;

    /// Converts it to a value.
    fn into_value(self) -> Value;

    /// Converts a value; `None` if it is of another type.
    fn from_value(value: Value) -> Option<Self>;
}

macro_rules! wires {
    ($($rust:ty, $variant:ident;)*) => {$(
        impl Wire for $rust {
            const TYPE: Type = Type::$variant;

            fn into_value(self) -> Value {
                Value::$variant(self)
            }

            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::$variant(value) => Some(value),
                    _ => None,
                }
            }
        }
    )*};
}

wires! {
    bool, Bool;
    i32, S32;
    u32, U32;
    i64, S64;
    u64, U64;
    f32, F32;
    f64, F64;
    String, Text;
    Vec<u8>, Bytes;
}

impl Wire for () {
    const TYPE: Type = Type::None;

    fn into_value(self) -> Value {
        Value::None
    }

    fn from_value(value: Value) -> Option<Self> {
        (value == Value::None).then_some(())
    }
}
