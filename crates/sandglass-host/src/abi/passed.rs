//! The types that pass between a guest and the host, and how a recording keeps them: arguments, to
//! be compared, and results, to be replayed. Types of an ABI are in the module of that ABI.

pub(crate) use sandglass_supervisor::recording::{Packer, Unpacker, Unreadable};
use wasmtime::component::Resource;

use crate::boundary::Touched;

/// What can be compared: an argument, or part of one.
pub(crate) trait Passed {
    fn pass(&self, to: &mut Packer<'_>);

    /// Adds the resources that it holds, by their numbers in the table, so that the host's memory
    /// for them is charged. Required, so that no type is forgotten.
    fn resources(&self, to: &mut Touched);

    /// Whether it is an error, as an answer.
    #[inline]
    fn is_failure(&self) -> bool {
        false
    }
}

/// What can be given again: an answer, or part of one.
pub(crate) trait Recorded: Passed + Sized {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable>;
}

macro_rules! numbers {
    ($($ty:ty as $how:ident),*) => {$(
        impl Passed for $ty {
            fn pass(&self, to: &mut Packer<'_>) {
                to.$how((*self).into());
            }

            #[inline]
            fn resources(&self, _: &mut Touched) {}
        }
        impl Recorded for $ty {
            fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
                from.$how()
            }
        }
    )*};
}

numbers!(
    u8 as unsigned,
    u16 as unsigned,
    u32 as unsigned,
    u64 as unsigned,
    i32 as signed,
    i64 as signed
);

impl Passed for bool {
    fn pass(&self, to: &mut Packer<'_>) {
        to.bool(*self);
    }

    #[inline]
    fn resources(&self, _: &mut Touched) {}
}

impl Recorded for bool {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        from.bool()
    }
}

/// By its bits: a NaN is the same as itself here.
impl Passed for f64 {
    fn pass(&self, to: &mut Packer<'_>) {
        to.unsigned(self.to_bits());
    }

    #[inline]
    fn resources(&self, _: &mut Touched) {}
}

impl Recorded for f64 {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        from.unsigned().map(Self::from_bits)
    }
}

impl Passed for f32 {
    fn pass(&self, to: &mut Packer<'_>) {
        to.unsigned(self.to_bits().into());
    }

    #[inline]
    fn resources(&self, _: &mut Touched) {}
}

impl Recorded for f32 {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        from.unsigned().map(Self::from_bits)
    }
}

impl Passed for () {
    fn pass(&self, to: &mut Packer<'_>) {
        to.null();
    }

    #[inline]
    fn resources(&self, _: &mut Touched) {}
}

impl Recorded for () {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        match from.is_null()? {
            true => Ok(()),
            false => Err(Unreadable("something where nothing is answered".to_owned())),
        }
    }
}

impl Passed for String {
    fn pass(&self, to: &mut Packer<'_>) {
        to.text(self);
    }

    #[inline]
    fn resources(&self, _: &mut Touched) {}
}

impl Recorded for String {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        from.text()
    }
}

impl Passed for Vec<u8> {
    fn pass(&self, to: &mut Packer<'_>) {
        to.bytes(self);
    }

    #[inline]
    fn resources(&self, _: &mut Touched) {}
}

impl Recorded for Vec<u8> {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        from.bytes()
    }
}

/// By its number, which the guest's own handle stands for.
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

fn pass_list(items: &[impl Passed], to: &mut Packer<'_>) {
    to.list(items.len());
    items.iter().for_each(|item| item.pass(to));
}

fn unpack_list<T: Recorded>(from: &mut Unpacker<'_>) -> Result<Vec<T>, Unreadable> {
    // Its length is the file's word, so room is made as items come.
    let mut items = Vec::new();
    for _ in 0..from.list()? {
        items.push(T::unpack(from)?);
    }
    Ok(items)
}

/// Lists of what is no byte (those are written as one) and holds no resource.
macro_rules! lists {
    ($($ty:ty),* $(,)?) => {$(
        impl Passed for Vec<$ty> {
            fn pass(&self, to: &mut Packer<'_>) {
                pass_list(self, to);
            }

            #[inline]
            fn resources(&self, _: &mut Touched) {}
        }
        impl Recorded for Vec<$ty> {
            fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
                unpack_list(from)
            }
        }
    )*};
}

/// Records of an ABI, each as the list of its fields.
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

/// Variants and enumerations of an ABI, each as the number of its case, and what that
/// case holds: `Type { 0: CaseOfNothing; 1: CaseOf(held) }`. A number is never given
/// to another case.
macro_rules! variants {
    ($($name:ty { $($number:literal: $case:ident $(($held:ident))?;)+ })*) => {$(
        impl $crate::abi::passed::Passed for $name {
            fn pass(&self, to: &mut $crate::abi::passed::Packer<'_>) {
                to.list(2);
                match self {
                    $(Self::$case $(($held))? => {
                        to.unsigned($number);
                        $crate::abi::passed::Passed::pass(
                            $crate::abi::passed::held!($($held)?), to,
                        );
                    })+
                }
            }

            fn resources(&self, to: &mut $crate::boundary::Touched) {
                match self {
                    $(Self::$case $(($held))? => $crate::abi::passed::Passed::resources(
                        $crate::abi::passed::held!($($held)?), to,
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
                        from, Self::$case $(, $held)?
                    )),)+
                    _ => Err($crate::abi::passed::Unreadable(format!(
                        "`{}` has no case {number}", stringify!($name),
                    ))),
                }
            }
        }
    )*};
}

macro_rules! held {
    () => {
        &()
    };
    ($held:ident) => {
        $held
    };
}

macro_rules! case {
    ($from:ident, $case:expr) => {{
        <() as $crate::abi::passed::Recorded>::unpack($from)?;
        $case
    }};
    ($from:ident, $case:expr, $held:ident) => {
        $case($crate::abi::passed::Recorded::unpack($from)?)
    };
}

/// Types that this host never answers, since it grants nothing that has them. None holds a
/// resource.
macro_rules! never_answered {
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

pub(crate) use {case, held, never_answered, records, variants};

lists!(u32, String, Vec<u8>, (String, String), (String, Vec<u8>));

impl<T: 'static> Passed for Vec<(Resource<T>, String)> {
    fn pass(&self, to: &mut Packer<'_>) {
        pass_list(self, to);
    }

    fn resources(&self, to: &mut Touched) {
        self.iter().for_each(|item| item.resources(to));
    }
}

impl<T: 'static> Recorded for Vec<(Resource<T>, String)> {
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self, Unreadable> {
        unpack_list(from)
    }
}

impl<T: 'static> Passed for Vec<Resource<T>> {
    fn pass(&self, to: &mut Packer<'_>) {
        pass_list(self, to);
    }

    fn resources(&self, to: &mut Touched) {
        self.iter().for_each(|item| item.resources(to));
    }
}
