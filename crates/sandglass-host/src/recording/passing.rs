//! What passes between a guest and the host, as CBOR (RFC 8949): arguments, to be
//! compared, and answers, to be given again. Types of an ABI stand with that ABI.

use std::collections::BTreeSet;

use minicbor::data::{Tag, Type};
use minicbor::{Decoder, Encoder};
use wasmtime::component::Resource;

use super::secrets::{Given, Piece, Seen};
use crate::boundary::Touched;

/// Marks a text or bytes with secrets in them: an array of pieces, each of them plain,
/// or the name and the length of a secret. From the range that is first come, first
/// served; it has a meaning in recordings alone.
pub(super) const WITH_SECRETS: Tag = Tag::new(1_397_639_495);

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

/// Why something can't be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unrecordable {
    TooLarge,
    /// It can't be given again, being of a type for which nobody has said how.
    Type(&'static str),
    /// It holds a secret, though not as that was given.
    SecretInDisguise,
}

/// That a recording isn't as this host writes them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unreadable(pub(crate) String);

impl From<minicbor::decode::Error> for Unreadable {
    fn from(error: minicbor::decode::Error) -> Self {
        Self(error.to_string())
    }
}

/// Writes CBOR, at most a number of bytes, with names where secrets stood.
pub(crate) struct Packer<'a> {
    out: Encoder<Vec<u8>>,
    secrets: &'a Seen,
    /// For the whole answer, or for each text of arguments.
    room: usize,
    /// For the texts of all arguments together.
    room_for_all: usize,
    problem: Option<Unrecordable>,
    /// Whether a text beyond the room is cut: enough to be compared, and no answer.
    cuts: bool,
}

impl<'a> Packer<'a> {
    /// For an answer: whole, or not at all.
    pub(crate) fn of_answer(secrets: &'a Seen, room: usize) -> Self {
        let out = Encoder::new(Vec::new());
        Self { out, secrets, room, room_for_all: usize::MAX, problem: None, cuts: false }
    }

    /// For arguments, of which each text and each list of bytes is compared up to `room`, and all
    /// of them up to `room_for_all`.
    pub(crate) fn of_arguments(secrets: &'a Seen, room: usize, room_for_all: usize) -> Self {
        let mut packer = Self { cuts: true, room_for_all, ..Self::of_answer(secrets, room) };
        // How many there are is known only behind the last.
        packer.write(Encoder::begin_array);
        packer
    }

    pub(crate) fn finish(mut self) -> Result<Vec<u8>, Unrecordable> {
        if self.cuts {
            self.write(Encoder::end);
        }
        match self.problem {
            Some(problem) => Err(problem),
            None if !self.cuts && self.out.writer().len() > self.room => {
                Err(Unrecordable::TooLarge)
            }
            None => Ok(self.out.into_writer()),
        }
    }

    fn write(&mut self, write: impl FnOnce(&mut Encoder<Vec<u8>>) -> Written<'_>) {
        if self.cuts || self.out.writer().len() <= self.room {
            write(&mut self.out).expect("memory takes what is written");
        }
    }

    pub(crate) fn null(&mut self) {
        self.write(Encoder::null);
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.write(|out| out.bool(value));
    }

    pub(crate) fn unsigned(&mut self, value: u64) {
        self.write(|out| out.u64(value));
    }

    pub(crate) fn signed(&mut self, value: i64) {
        self.write(|out| out.i64(value));
    }

    /// Begins a list of `len` items.
    pub(crate) fn list(&mut self, len: usize) {
        self.write(|out| out.array(len as u64));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.text_or_bytes(text.as_bytes());
    }

    /// Writes a text if what is written of `bytes` is UTF-8, and bytes otherwise. Only that part is
    /// checked: its length is the guest's choice.
    pub(crate) fn text_or_bytes(&mut self, bytes: &[u8]) {
        self.plain_or_pieces(bytes, |out, bytes| match str::from_utf8(bytes) {
            Ok(text) => out.str(text),
            Err(_) => out.bytes(bytes),
        });
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.plain_or_pieces(bytes, |out, bytes| out.bytes(bytes));
    }

    fn plain_or_pieces(
        &mut self,
        bytes: &[u8],
        plain: impl for<'e> Fn(&'e mut Encoder<Vec<u8>>, &[u8]) -> Written<'e>,
    ) {
        let room = self.room.min(self.room_for_all);
        if bytes.len() > room {
            if !self.cuts {
                self.problem = Some(Unrecordable::TooLarge);
                return;
            }
            // What is left out counts by its length.
            self.unsigned(bytes.len() as u64);
        }
        let bytes = &bytes[..bytes.len().min(room)];
        self.room_for_all -= bytes.len();
        let pieces = self.secrets.split(bytes);
        let [Piece::Plain(only)] = &*pieces else {
            self.write(|out| out.tag(WITH_SECRETS)?.array(pieces.len() as u64));
            for piece in pieces {
                match piece {
                    Piece::Plain(bytes) => {
                        self.check(bytes);
                        self.write(|out| out.bytes(bytes));
                    }
                    Piece::Secret { name, len } => {
                        self.write(|out| out.array(2)?.str(name)?.u64(len as u64));
                    }
                }
            }
            return;
        };
        self.check(only);
        self.write(|out| plain(out, only));
    }

    fn check(&mut self, plain: &[u8]) {
        if !self.cuts && self.secrets.shows_in(plain) {
            self.problem = Some(Unrecordable::SecretInDisguise);
        }
    }

    /// Says that something of this type is no part of a recording.
    pub(crate) fn unrecordable(&mut self, what: &'static str) {
        // An argument that isn't compared does no harm.
        if !self.cuts {
            self.problem = Some(Unrecordable::Type(what));
        }
    }
}

type Written<'e> =
    Result<&'e mut Encoder<Vec<u8>>, minicbor::encode::Error<std::convert::Infallible>>;

/// Reads what a [`Packer`] wrote, with secrets where their names stand.
pub(crate) struct Unpacker<'a> {
    from: Decoder<'a>,
    secrets: &'a Given,
    /// The names of those that were put where they stood.
    put: BTreeSet<String>,
}

impl<'a> Unpacker<'a> {
    pub(super) fn new(from: Decoder<'a>, secrets: &'a Given) -> Self {
        Self { from, secrets, put: BTreeSet::new() }
    }

    /// The secrets that stood in what was read.
    pub(super) fn into_secrets(self) -> BTreeSet<String> {
        self.put
    }

    pub(crate) fn is_null(&mut self) -> Result<bool, Unreadable> {
        let null = self.from.datatype()? == Type::Null;
        if null {
            self.from.null()?;
        }
        Ok(null)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Unreadable> {
        Ok(self.from.bool()?)
    }

    pub(crate) fn unsigned<T: TryFrom<u64>>(&mut self) -> Result<T, Unreadable> {
        let number = self.from.u64()?;
        T::try_from(number).map_err(|_| Unreadable(format!("{number} is too large")))
    }

    pub(crate) fn signed<T: TryFrom<i64>>(&mut self) -> Result<T, Unreadable> {
        let number = self.from.i64()?;
        T::try_from(number).map_err(|_| Unreadable(format!("{number} is out of range")))
    }

    /// Begins a list; answers how many items it says that it has.
    pub(crate) fn list(&mut self) -> Result<u64, Unreadable> {
        self.from.array()?.ok_or_else(|| Unreadable("a list has no length".to_owned()))
    }

    /// Begins a list that has `len` items.
    pub(crate) fn list_of(&mut self, len: u64) -> Result<(), Unreadable> {
        match self.list()? {
            found if found == len => Ok(()),
            found => Err(Unreadable(format!("a list has {found} items in place of {len}"))),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, Unreadable> {
        String::from_utf8(self.bytes()?).map_err(|_| Unreadable("a text is no UTF-8".to_owned()))
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, Unreadable> {
        match self.from.datatype()? {
            Type::Bytes => Ok(self.from.bytes()?.to_vec()),
            Type::String => Ok(self.from.str()?.as_bytes().to_vec()),
            _ => self.pieces(),
        }
    }

    fn pieces(&mut self) -> Result<Vec<u8>, Unreadable> {
        if self.from.tag()? != WITH_SECRETS {
            return Err(Unreadable("neither a text nor bytes".to_owned()));
        }
        let mut whole = Vec::new();
        for _ in 0..self.list()? {
            if self.from.datatype()? == Type::Bytes {
                whole.extend_from_slice(self.from.bytes()?);
                continue;
            }
            self.list_of(2)?;
            let (name, len) = (self.from.str()?, self.from.u64()?);
            whole.extend_from_slice(self.secrets.find(name, len).map_err(Unreadable)?);
            self.put.insert(name.to_owned());
        }
        Ok(whole)
    }
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
        impl $crate::recording::passing::Passed for $name {
            fn pass(&self, to: &mut $crate::recording::passing::Packer<'_>) {
                to.list($len);
                $($crate::recording::passing::Passed::pass(&self.$field, to);)+
            }

            fn resources(&self, to: &mut $crate::boundary::Touched) {
                $($crate::recording::passing::Passed::resources(&self.$field, to);)+
            }
        }
        impl $crate::recording::passing::Recorded for $name {
            fn unpack(
                from: &mut $crate::recording::passing::Unpacker<'_>,
            ) -> Result<Self, $crate::recording::passing::Unreadable> {
                from.list_of($len)?;
                Ok(Self { $($field: $crate::recording::passing::Recorded::unpack(from)?),+ })
            }
        }
    )*};
}

/// Variants and enumerations of an ABI, each as the number of its case, and what that
/// case holds: `Type { 0: CaseOfNothing; 1: CaseOf(held) }`. A number is never given
/// to another case.
macro_rules! variants {
    ($($name:ty { $($number:literal: $case:ident $(($held:ident))?;)+ })*) => {$(
        impl $crate::recording::passing::Passed for $name {
            fn pass(&self, to: &mut $crate::recording::passing::Packer<'_>) {
                to.list(2);
                match self {
                    $(Self::$case $(($held))? => {
                        to.unsigned($number);
                        $crate::recording::passing::Passed::pass(
                            $crate::recording::passing::held!($($held)?), to,
                        );
                    })+
                }
            }

            fn resources(&self, to: &mut $crate::boundary::Touched) {
                match self {
                    $(Self::$case $(($held))? => $crate::recording::passing::Passed::resources(
                        $crate::recording::passing::held!($($held)?), to,
                    ),)+
                }
            }
        }
        impl $crate::recording::passing::Recorded for $name {
            fn unpack(
                from: &mut $crate::recording::passing::Unpacker<'_>,
            ) -> Result<Self, $crate::recording::passing::Unreadable> {
                from.list_of(2)?;
                let number: u32 = from.unsigned()?;
                match number {
                    $($number => Ok($crate::recording::passing::case!(
                        from, Self::$case $(, $held)?
                    )),)+
                    _ => Err($crate::recording::passing::Unreadable(format!(
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
        <() as $crate::recording::passing::Recorded>::unpack($from)?;
        $case
    }};
    ($from:ident, $case:expr, $held:ident) => {
        $case($crate::recording::passing::Recorded::unpack($from)?)
    };
}

/// Types that this host never answers, since it grants nothing that has them. None holds a
/// resource.
macro_rules! never_answered {
    ($($ty:ty),* $(,)?) => {$(
        impl $crate::recording::passing::Passed for $ty {
            fn pass(&self, to: &mut $crate::recording::passing::Packer<'_>) {
                to.unrecordable(stringify!($ty));
            }

            fn resources(&self, _: &mut $crate::boundary::Touched) {}
        }
        impl $crate::recording::passing::Recorded for $ty {
            fn unpack(
                _: &mut $crate::recording::passing::Unpacker<'_>,
            ) -> Result<Self, $crate::recording::passing::Unreadable> {
                Err($crate::recording::passing::Unreadable(
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
