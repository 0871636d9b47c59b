//! What passes between a guest and the host, as CBOR (RFC 8949): arguments, to be
//! compared, and answers, to be given again. Types of an ABI stand with that ABI.

use std::collections::BTreeSet;

use minicbor::data::{Tag, Type};
use minicbor::{Decoder, Encoder};

use super::secrets::{Given, Piece, Seen};

/// Marks a text or bytes with secrets in them: an array of pieces, each of them plain,
/// or the name and the length of a secret. From the range that is first come, first
/// served; it has a meaning in recordings alone.
pub(super) const WITH_SECRETS: Tag = Tag::new(1_397_639_495);

/// Why something can't be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrecordable {
    /// It is larger than the recording may be.
    TooLarge,
    /// It can't be given again, being of a type for which nobody has said how.
    Type(&'static str),
    /// It holds a secret, though not as that was given.
    SecretInDisguise,
}

/// That a recording isn't as this host writes them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

impl From<minicbor::decode::Error> for Unreadable {
    fn from(error: minicbor::decode::Error) -> Self {
        Self(error.to_string())
    }
}

/// Writes CBOR, at most a number of bytes, with names where secrets stood.
#[derive(Debug)]
pub struct Packer<'a> {
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
    pub fn of_answer(secrets: &'a Seen, room: usize) -> Self {
        let out = Encoder::new(Vec::new());
        Self { out, secrets, room, room_for_all: usize::MAX, problem: None, cuts: false }
    }

    /// For arguments, of which each text and each list of bytes is compared up to `room`, and all
    /// of them up to `room_for_all`.
    pub fn of_arguments(secrets: &'a Seen, room: usize, room_for_all: usize) -> Self {
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

    /// Writes a text if what is written of `bytes` is UTF-8, and bytes otherwise. Only that part is
    /// checked: its length is the guest's choice.
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
    pub fn unrecordable(&mut self, what: &'static str) {
        // An argument that isn't compared does no harm.
        if !self.cuts {
            self.problem = Some(Unrecordable::Type(what));
        }
    }
}

type Written<'e> =
    Result<&'e mut Encoder<Vec<u8>>, minicbor::encode::Error<std::convert::Infallible>>;

/// Reads what a [`Packer`] wrote, with secrets where their names stand.
#[derive(Debug)]
pub struct Unpacker<'a> {
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

    /// Whether null follows, which is read then.
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

    /// Begins a list; answers how many items it says that it has.
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

    /// Reads bytes, with the secrets that stood in them.
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
            self.list_of(2)?;
            let (name, len) = (self.from.str()?, self.from.u64()?);
            whole.extend_from_slice(self.secrets.find(name, len).map_err(Unreadable)?);
            self.put.insert(name.to_owned());
        }
        Ok(whole)
    }
}
