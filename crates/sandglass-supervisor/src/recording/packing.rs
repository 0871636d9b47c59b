//! Arguments and results of host calls as CBOR (RFC 8949): arguments are compared, and results are
//! returned again. The types of an ABI are converted next to that ABI.

use std::collections::BTreeSet;

use minicbor::data::{Tag, Type};
use minicbor::{Decoder, Encoder};

use super::secrets::{Form, GivenSecrets, Piece, SeenSecrets};

/// Marks a text or bytes that contain secrets: an array of pieces, each of which is plain bytes, or the
/// name and the length of a secret, followed by null if the secret is in its JSON form. The number is
/// from the first-come range, and is used in recordings only.
pub(super) const WITH_SECRETS: Tag = Tag::new(1_397_639_495);

/// Why something cannot be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrecordable {
    /// It is larger than the recording may be.
    TooLarge,
    /// It is of a type that cannot be recreated.
    Type(&'static str),
    /// It contains a secret in another form than that of its value.
    SecretInDisguise,
}

/// The recording is not in the format that this host writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

impl From<minicbor::decode::Error> for Unreadable {
    fn from(error: minicbor::decode::Error) -> Self {
        Self(error.to_string())
    }
}

/// Packs what one host call passes. Not generic: there are hundreds of host functions, and what
/// follows would be compiled for each.
pub type Pack<'a> = &'a mut dyn FnMut(&mut Packer<'_>);

/// Writes CBOR within a bound, with the names of secrets in place of their values.
#[derive(Debug)]
pub struct Packer<'a> {
    out: Encoder<Vec<u8>>,
    secrets: &'a SeenSecrets,
    /// The bound on the whole result, or on each text of arguments.
    room: usize,
    /// The bound on the texts of all arguments together.
    room_for_all: usize,
    problem: Option<Unrecordable>,
    /// Whether longer texts are cut: enough to compare arguments, but not to return results.
    cuts: bool,
}

impl<'a> Packer<'a> {
    /// Creates a packer for a result, which is written as a whole or not at all.
    pub fn of_answer(secrets: &'a SeenSecrets, room: usize) -> Self {
        let out = Encoder::new(Vec::new());
        Self { out, secrets, room, room_for_all: usize::MAX, problem: None, cuts: false }
    }

    /// Creates a packer for arguments: of each text and byte string, `room` bytes are compared, and of
    /// all of them, `room_for_all`.
    pub fn of_arguments(secrets: &'a SeenSecrets, room: usize, room_for_all: usize) -> Self {
        let mut packer = Self { cuts: true, room_for_all, ..Self::of_answer(secrets, room) };
        // Their number is known only after the last one.
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

    fn write(&mut self, write: impl FnOnce(&mut Encoder<Vec<u8>>) -> EncodeResult<'_>) {
        if self.cuts || self.out.writer().len() <= self.room {
            write(&mut self.out).expect("writing to a Vec cannot fail");
        }
    }

    /// Writes null.
    pub fn null(&mut self) {
        self.write(Encoder::null);
    }

    /// Writes a boolean.
    pub fn bool(&mut self, value: bool) {
        self.write(|out| out.bool(value));
    }

    /// Writes an unsigned number.
    pub fn unsigned(&mut self, value: u64) {
        self.write(|out| out.u64(value));
    }

    /// Writes a signed number.
    pub fn signed(&mut self, value: i64) {
        self.write(|out| out.i64(value));
    }

    /// Begins a list of `len` items.
    pub fn list(&mut self, len: usize) {
        self.write(|out| out.array(len as u64));
    }

    /// Writes a text.
    pub fn text(&mut self, text: &str) {
        self.text_or_bytes(text.as_bytes());
    }

    /// Writes a text if the written part of `bytes` is UTF-8, and bytes otherwise. Only that part is
    /// checked, because the guest chooses the length.
    pub fn text_or_bytes(&mut self, bytes: &[u8]) {
        self.plain_or_pieces(bytes, |out, bytes| match str::from_utf8(bytes) {
            Ok(text) => out.str(text),
            Err(_) => out.bytes(bytes),
        });
    }

    /// Writes bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.plain_or_pieces(bytes, |out, bytes| out.bytes(bytes));
    }

    fn plain_or_pieces(
        &mut self,
        bytes: &[u8],
        plain: impl for<'e> Fn(&'e mut Encoder<Vec<u8>>, &[u8]) -> EncodeResult<'e>,
    ) {
        let room = self.room.min(self.room_for_all);
        if bytes.len() > room {
            if !self.cuts {
                self.problem = Some(Unrecordable::TooLarge);
                return;
            }
            // A difference in length is found even if it is beyond the compared part.
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
                    Piece::Secret { name, len, form: Form::Value } => {
                        self.write(|out| out.array(2)?.str(name)?.u64(len as u64));
                    }
                    Piece::Secret { name, len, form: Form::Json } => {
                        self.write(|out| out.array(3)?.str(name)?.u64(len as u64)?.null());
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

    /// Notes that values of this type cannot be recorded.
    pub fn unrecordable(&mut self, what: &'static str) {
        // An argument that is not compared does no harm.
        if !self.cuts {
            self.problem = Some(Unrecordable::Type(what));
        }
    }
}

type EncodeResult<'e> =
    Result<&'e mut Encoder<Vec<u8>>, minicbor::encode::Error<std::convert::Infallible>>;

/// Reads what a [`Packer`] wrote, with secrets in place of their names.
#[derive(Debug)]
pub struct Unpacker<'a> {
    from: Decoder<'a>,
    secrets: &'a GivenSecrets,
    /// The names of the secrets that were inserted.
    put: BTreeSet<String>,
}

impl<'a> Unpacker<'a> {
    pub(super) fn new(from: Decoder<'a>, secrets: &'a GivenSecrets) -> Self {
        Self { from, secrets, put: BTreeSet::new() }
    }

    /// The names of the secrets in what was read.
    pub(super) fn into_secrets(self) -> BTreeSet<String> {
        self.put
    }

    /// Reads null if it follows, and returns whether it did.
    ///
    /// # Errors
    /// The recording ends here.
    pub fn is_null(&mut self) -> Result<bool, Unreadable> {
        let null = self.from.datatype()? == Type::Null;
        if null {
            self.from.null()?;
        }
        Ok(null)
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// None follows.
    pub fn bool(&mut self) -> Result<bool, Unreadable> {
        Ok(self.from.bool()?)
    }

    /// Reads an unsigned number.
    ///
    /// # Errors
    /// None follows, or it is too large.
    pub fn unsigned<T: TryFrom<u64>>(&mut self) -> Result<T, Unreadable> {
        let number = self.from.u64()?;
        T::try_from(number).map_err(|_| Unreadable(format!("{number} is too large")))
    }

    /// Reads a signed number.
    ///
    /// # Errors
    /// None follows, or it is out of range.
    pub fn signed<T: TryFrom<i64>>(&mut self) -> Result<T, Unreadable> {
        let number = self.from.i64()?;
        T::try_from(number).map_err(|_| Unreadable(format!("{number} is out of range")))
    }

    /// Begins a list, and returns how many items it states.
    pub fn list(&mut self) -> Result<u64, Unreadable> {
        self.from.array()?.ok_or_else(|| Unreadable("a list has no length".to_owned()))
    }

    /// Begins a list that has `len` items.
    pub fn list_of(&mut self, len: u64) -> Result<(), Unreadable> {
        match self.list()? {
            found if found == len => Ok(()),
            found => Err(Unreadable(format!("a list has {found} items in place of {len}"))),
        }
    }

    /// Reads a text.
    ///
    /// # Errors
    /// None follows.
    pub fn text(&mut self) -> Result<String, Unreadable> {
        String::from_utf8(self.bytes()?).map_err(|_| Unreadable("a text is no UTF-8".to_owned()))
    }

    /// Reads bytes, with their secrets.
    ///
    /// # Errors
    /// None follow, or a secret is not given.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Unreadable> {
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
            let items = self.list()?;
            let (name, len) = (self.from.str()?, self.from.u64()?);
            let form = match items {
                2 => Form::Value,
                3 => {
                    self.from.null()?;
                    Form::Json
                }
                _ => return Err(Unreadable(format!("a secret has {items} items"))),
            };
            let secret = self.secrets.find(name, len).map_err(Unreadable)?;
            whole.extend_from_slice(form.of(secret).as_bytes());
            self.put.insert(name.to_owned());
        }
        Ok(whole)
    }
}
