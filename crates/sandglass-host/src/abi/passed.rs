//! The types that pass between a guest and the host, and how a recording stores them: arguments, to be
//! compared, and results, to be replayed. Types of an ABI are in the module of that ABI.

pub(crate) use sandglass_supervisor::recording::{Packer, Unpacker, Unreadable};
use wasmtime::component::Resource;

use crate::boundary::Touched;

/// A value that a recording stores to be compared: an argument, or part of one.
pub(crate) trait Passed {
    fn pass(&self, to: &mut Packer<'_>);

    /// Adds the numbers that its resources have in the table, so that the host's memory for them is
    /// charged. It has no default, so that no type is forgotten.
    fn resources(&self, to: &mut Touched);

    /// Whether it is an error, as a result.
    #[inline]
    fn is_failure(&self) -> bool {
        false
    }

    /// Stores a list of such values.
    fn pass_list(items: &[Self], to: &mut Packer<'_>)
    where
        Self: Sized,
    {
        to.list(items.len());
        items.iter().for_each(|item| item.pass(to));
    }
}

/// A value that a recording stores to be returned again: a result, or part of one.
pub(crate) trait Recorded: Passed + Sized {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable>;

    /// Reads a list of such values.
    fn unpack_list(from: &mut Unpacker<'_>) -> Result<Vec<Self>, Unreadable> {
        // The length in the recording may be wrong, so nothing is allocated for it in advance.
        let mut items = Vec::new();
        for _ in 0..from.list()? {
            items.push(Self::unpack(from)?);
        }
        Ok(items)
    }
}

/// Types without resources, each with how it is packed and unpacked.
macro_rules! plain {
    ($($ty:ty: |$value:ident, $to:ident| $pass:expr, |$from:ident| $unpack:expr;)*) => {$(
        impl Passed for $ty {
            fn pass(&self, $to: &mut Packer<'_>) {
                let $value = self;
                $pass;
            }

            #[inline]
            fn resources(&self, _: &mut Touched) {}
        }
        impl Recorded for $ty {
            fn unpack($from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
                $unpack
            }
        }
    )*};
}

// Floating-point numbers are stored by their bits, so that a NaN is equal to itself.
plain! {
    u16: |value, to| to.unsigned((*value).into()), |from| from.unsigned();
    u32: |value, to| to.unsigned((*value).into()), |from| from.unsigned();
    u64: |value, to| to.unsigned(*value), |from| from.unsigned();
    i32: |value, to| to.signed((*value).into()), |from| from.signed();
    i64: |value, to| to.signed(*value), |from| from.signed();
    f32: |value, to| to.unsigned(value.to_bits().into()), |from| from.unsigned().map(Self::from_bits);
    f64: |value, to| to.unsigned(value.to_bits()), |from| from.unsigned().map(Self::from_bits);
    bool: |value, to| to.bool(*value), |from| from.bool();
    String: |value, to| to.text(value), |from| from.text();
    (): |_value, to| to.null(), |from| match from.is_null()? {
        true => Ok(()),
        false => Err(Unreadable("something where nothing is answered".to_owned())),
    };
}

/// A list of bytes is stored as one value.
impl Passed for u8 {
    fn pass(&self, to: &mut Packer<'_>) {
        to.unsigned((*self).into());
    }

    #[inline]
    fn resources(&self, _: &mut Touched) {}

    fn pass_list(items: &[Self], to: &mut Packer<'_>) {
        to.bytes(items);
    }
}

impl Recorded for u8 {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        from.unsigned()
    }

    fn unpack_list(from: &mut Unpacker<'_>) -> Result<Vec<Self>, Unreadable> {
        from.bytes()
    }
}

impl<T: Passed> Passed for Vec<T> {
    fn pass(&self, to: &mut Packer<'_>) {
        T::pass_list(self, to);
    }

    #[inline]
    fn resources(&self, to: &mut Touched) {
        self.iter().for_each(|item| item.resources(to));
    }
}

impl<T: Recorded> Recorded for Vec<T> {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        T::unpack_list(from)
    }
}

/// Stored by its number in the table, for which the guest has a handle.
impl<T: 'static> Passed for Resource<T> {
    fn pass(&self, to: &mut Packer<'_>) {
        to.unsigned(self.rep().into());
    }

    fn resources(&self, to: &mut Touched) {
        to.add(self.rep());
    }
}

impl<T: 'static> Recorded for Resource<T> {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        from.unsigned().map(Self::new_own)
    }
}

impl<T: Passed> Passed for Option<T> {
    fn pass(&self, to: &mut Packer<'_>) {
        match self {
            None => to.list(0),
            Some(value) => {
                to.list(1);
                value.pass(to);
            }
        }
    }

    fn resources(&self, to: &mut Touched) {
        self.iter().for_each(|value| value.resources(to));
    }
}

impl<T: Recorded> Recorded for Option<T> {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        match from.list()? {
            0 => Ok(None),
            1 => T::unpack(from).map(Some),
            _ => Err(Unreadable("more than one item of what may be absent".to_owned())),
        }
    }
}

impl<T: Passed, E: Passed> Passed for Result<T, E> {
    fn pass(&self, to: &mut Packer<'_>) {
        to.list(2);
        to.bool(self.is_ok());
        match self {
            Ok(value) => value.pass(to),
            Err(error) => error.pass(to),
        }
    }

    fn is_failure(&self) -> bool {
        self.is_err()
    }

    fn resources(&self, to: &mut Touched) {
        match self {
            Ok(value) => value.resources(to),
            Err(error) => error.resources(to),
        }
    }
}

impl<T: Recorded, E: Recorded> Recorded for Result<T, E> {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        from.list_of(2)?;
        Ok(if from.bool()? { Ok(T::unpack(from)?) } else { Err(E::unpack(from)?) })
    }
}

macro_rules! tuples {
    ($(($($part:ident),+) of $len:literal;)*) => {$(
        #[allow(non_snake_case, reason = "one name for each type and its value")]
        impl<$($part: Passed),+> Passed for ($($part,)+) {
            fn pass(&self, to: &mut Packer<'_>) {
                let ($($part,)+) = self;
                to.list($len);
                $($part.pass(to);)+
            }

            fn resources(&self, to: &mut Touched) {
                let ($($part,)+) = self;
                $($part.resources(to);)+
            }
        }
        impl<$($part: Recorded),+> Recorded for ($($part,)+) {
            fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
                from.list_of($len)?;
                Ok(($($part::unpack(from)?,)+))
            }
        }
    )*};
}

tuples! {
    (A, B) of 2;
    (A, B, C) of 3;
}

/// Records of an ABI, each stored as the list of its fields.
macro_rules! records {
    ($($name:ty { $($field:ident),+ } of $len:literal;)*) => {$(
        impl $crate::abi::passed::Passed for $name {
            fn pass(&self, to: &mut $crate::abi::passed::Packer<'_>) {
                to.list($len);
                $($crate::abi::passed::Passed::pass(&self.$field, to);)+
            }

            fn resources(&self, to: &mut $crate::boundary::Touched) {
                $($crate::abi::passed::Passed::resources(&self.$field, to);)+
            }
        }
        impl $crate::abi::passed::Recorded for $name {
            fn unpack(
                from: &mut $crate::abi::passed::Unpacker<'_>,
            ) -> Result<Self, $crate::abi::passed::Unreadable> {
                from.list_of($len)?;
                Ok(Self { $($field: $crate::abi::passed::Recorded::unpack(from)?),+ })
            }
        }
    )*};
}

/// Variants and enumerations of an ABI, each stored as the number of its case and the payload of that
/// case: `Type { 0: CaseWithout; 1: CaseWith(payload) }`. Recordings contain the numbers, so a number
/// is never given to another case.
macro_rules! variants {
    ($($name:ty { $($number:literal: $case:ident $(($payload:ident))?;)+ })*) => {$(
        impl $crate::abi::passed::Passed for $name {
            fn pass(&self, to: &mut $crate::abi::passed::Packer<'_>) {
                to.list(2);
                match self {
                    $(Self::$case $(($payload))? => {
                        to.unsigned($number);
                        $crate::abi::passed::Passed::pass(
                            $crate::abi::passed::payload!($($payload)?), to,
                        );
                    })+
                }
            }

            fn resources(&self, to: &mut $crate::boundary::Touched) {
                match self {
                    $(Self::$case $(($payload))? => $crate::abi::passed::Passed::resources(
                        $crate::abi::passed::payload!($($payload)?), to,
                    ),)+
                }
            }
        }
        impl $crate::abi::passed::Recorded for $name {
            fn unpack(
                from: &mut $crate::abi::passed::Unpacker<'_>,
            ) -> Result<Self, $crate::abi::passed::Unreadable> {
                from.list_of(2)?;
                let number: u32 = from.unsigned()?;
                match number {
                    $($number => Ok($crate::abi::passed::case!(
                        from, Self::$case $(, $payload)?
                    )),)+
                    _ => Err($crate::abi::passed::Unreadable(format!(
                        "`{}` has no case {number}", stringify!($name),
                    ))),
                }
            }
        }
    )*};
}

macro_rules! payload {
    () => {
        &()
    };
    ($payload:ident) => {
        $payload
    };
}

macro_rules! case {
    ($from:ident, $case:expr) => {{
        <() as $crate::abi::passed::Recorded>::unpack($from)?;
        $case
    }};
    ($from:ident, $case:expr, $payload:ident) => {
        $case($crate::abi::passed::Recorded::unpack($from)?)
    };
}

/// Types that this host never returns, because it grants nothing that has them. None has a resource.
macro_rules! never_returned {
    ($($ty:ty),* $(,)?) => {$(
        impl $crate::abi::passed::Passed for $ty {
            fn pass(&self, to: &mut $crate::abi::passed::Packer<'_>) {
                to.unrecordable(stringify!($ty));
            }

            fn resources(&self, _: &mut $crate::boundary::Touched) {}
        }
        impl $crate::abi::passed::Recorded for $ty {
            fn unpack(
                _: &mut $crate::abi::passed::Unpacker<'_>,
            ) -> Result<Self, $crate::abi::passed::Unreadable> {
                Err($crate::abi::passed::Unreadable(
                    concat!("`", stringify!($ty), "` is no part of a recording").to_owned(),
                ))
            }
        }
    )*};
}

pub(crate) use {case, never_returned, payload, records, variants};
