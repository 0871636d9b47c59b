//! Plays a recording: compares each host call with the one that was recorded there,
//! and answers from the recording. Ends the run where the recorded one was ended.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minicbor::Decoder;
use minicbor::data::{Token, Type};
use sandglass_model::{CallPlace, Cause, EndPoint};

use super::packing::{Packer, Unpacker, Unreadable, WITH_SECRETS};
use super::secrets::{Given, Seen};
use super::tape::Source;
use super::{COMPARED_BYTES, COMPARED_BYTES_OF_CALL, GIVE_A_RESULT, Header, hash};
use crate::boundary::Stopped;
use crate::run::Phase;
use crate::secret::Redactor;

/// Most characters of arguments or of an answer that are shown.
const SHOWN_CHARS: usize = 2_000;

/// How the recorded run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By the guest's own doing, which it is to do again.
    ByItself,
    /// It was ended there, and is to be again.
    At {
        /// Where.
        point: EndPoint,
        /// How far it had come by then.
        phase: Phase,
        /// Why.
        cause: Cause,
    },
}

/// One host call as it was played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayedCall {
    /// Its number within the run, from 1.
    pub number: u64,
    /// The host function, as reports name it.
    pub function: String,
    /// The arguments that came, in CBOR's diagnostic notation, cut where they are long.
    pub arguments: String,
    /// The recorded answer, likewise; none where the run ended in this call, and where
    /// the function was carried out, because by it the guest gives its result.
    pub answer: Option<String>,
}

/// Who is told of each call as it is played.
pub type Watcher = Arc<dyn Fn(&PlayedCall) + Send + Sync>;

/// A host call that isn't the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub what: String,
    pub recorded: String,
    pub came: String,
}

/// What has come of playing so far.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// How many host calls were played.
    pub calls: u64,
    /// The first host call that differs.
    pub difference: Option<Difference>,
    /// The run was ended where the recorded one was.
    pub came_to_its_end: bool,
    /// The first recorded call that has not come.
    pub next: Option<String>,
}

/// A recording that is played.
pub struct Player {
    /// The context that the guest is given.
    pub context: Arc<[u8]>,
    /// What takes the run's secrets out of whatever it says.
    pub redactor: Redactor,
    recording: Arc<[u8]>,
    /// Where its next entry begins.
    next: usize,
    given: Given,
    seen: Seen,
    end: End,
    open: Option<Open>,
    /// The last call answered an error, which is to be asked for.
    failed: bool,
    about: Option<Arc<str>>,
    watcher: Option<Watcher>,
    found: Arc<Mutex<Found>>,
}

/// Where in the recording the call under way is answered.
#[derive(Clone, Copy, Debug)]
struct Open {
    answer: usize,
    writes: usize,
}

/// One entry of a recording.
struct Entry<'a> {
    function: &'a str,
    hash: u64,
    arguments: Option<&'a str>,
    about: Option<&'a str>,
    /// Where its answer is, if there is one.
    answer: Option<usize>,
    writes: usize,
    end: usize,
}

impl<'a> Entry<'a> {
    fn read(recording: &'a [u8], at: usize) -> Result<Self, Unreadable> {
        let mut from = Decoder::new(recording);
        from.set_position(at);
        if from.array()? != Some(6) {
            return Err(Unreadable(format!("no host call is recorded at byte {at}")));
        }
        let (function, hash) = (from.str()?, from.u64()?);
        let (arguments, about) = (optional(&mut from)?, optional(&mut from)?);
        let answer = (from.datatype()? != Type::Null).then(|| from.position());
        from.skip()?;
        let writes = from.position();
        from.skip()?;
        Ok(Self { function, hash, arguments, about, answer, writes, end: from.position() })
    }
}

fn optional<'a>(from: &mut Decoder<'a>) -> Result<Option<&'a str>, Unreadable> {
    if from.datatype()? == Type::Null {
        from.null()?;
        return Ok(None);
    }
    Ok(Some(from.str()?))
}

impl Player {
    /// # Errors
    /// It doesn't begin as a recording.
    pub fn new(
        recording: Arc<[u8]>,
        given: Given,
        end: End,
        watcher: Option<Watcher>,
    ) -> Result<Self, Unreadable> {
        let mut from = Decoder::new(&recording);
        let header = Header::read(&mut from)?;
        let redactor = Redactor::default();
        Ok(Self {
            context: header.context.into(),
            next: from.position(),
            recording,
            given,
            seen: Seen::new(redactor.clone()),
            redactor,
            end,
            open: None,
            failed: false,
            about: None,
            watcher,
            found: Arc::default(),
        })
    }

    /// Where it says what has come of it, also once the run is gone.
    pub fn found(&self) -> Arc<Mutex<Found>> {
        Arc::clone(&self.found)
    }

    fn note(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(
        &mut self,
        function: &str,
        arguments: impl FnOnce(&mut Packer<'_>),
    ) -> Result<Source, Stopped> {
        let mut packer = Packer::of_arguments(&self.seen, COMPARED_BYTES, COMPARED_BYTES_OF_CALL);
        arguments(&mut packer);
        let packed = packer.finish().unwrap_or_default();
        let number = {
            let mut found = self.note();
            found.calls += 1;
            found.calls
        };
        let recording = Arc::clone(&self.recording);
        let came = Came { function, arguments: self.seen.redacted(shown(&packed)) };
        if self.next >= recording.len() {
            return Err(self.differs("a host call too many", "no further host call", &came));
        }
        let entry = match Entry::read(&recording, self.next) {
            Ok(entry) => entry,
            Err(why) => return Err(self.unreadable(&why)),
        };
        let recorded = format!("`{}` {}", entry.function, entry.arguments.unwrap_or_default());
        if entry.function != function {
            return Err(self.differs("another host call", recorded, &came));
        }
        if entry.hash != hash(&packed) {
            let recorded = match entry.arguments {
                Some(_) => recorded,
                None => format!("`{function}`, arguments with the hash {:016x}", entry.hash),
            };
            return Err(self.differs("other arguments of a host call", recorded, &came));
        }
        self.next = entry.end;
        self.about = entry.about.map(Into::into);
        let performed = GIVE_A_RESULT.contains(&function);
        if let Some(watcher) = &self.watcher {
            let answer = entry.answer.filter(|_| !performed);
            watcher(&PlayedCall {
                number,
                function: entry.about.unwrap_or(function).to_owned(),
                arguments: came.arguments.clone(),
                answer: answer.map(|answer| shown(&recording[answer..entry.writes])),
            });
        }
        match (entry.answer, self.end) {
            (_, End::At { point: EndPoint { place: CallPlace::Inside, call }, cause, .. })
                if call == number =>
            {
                self.note().came_to_its_end = true;
                Err(Stopped(cause))
            }
            _ if performed => Ok(Source::Function),
            (Some(answer), _) => {
                self.open = Some(Open { answer, writes: entry.writes });
                Ok(Source::Tape)
            }
            (None, _) => Err(self.differs(
                "a host call that has no answer",
                "nothing: the run ended there",
                &came,
            )),
        }
    }

    /// What the last call turned out to be about, where it was known by more than its
    /// function's name.
    pub fn about(&mut self) -> Option<Arc<str>> {
        self.about.take()
    }

    /// The recorded answer of the call under way; none where it is an error.
    pub fn answer<R>(
        &mut self,
        unpack: impl FnOnce(&mut Unpacker<'_>) -> Result<R, Unreadable>,
    ) -> Result<Option<R>, Stopped> {
        let answer = self.read(
            |open| open.answer,
            |from| {
                from.list_of(2)?;
                if from.bool()? { unpack(from).map(Some) } else { Ok(None) }
            },
        )?;
        self.failed = answer.is_none();
        Ok(answer)
    }

    /// The recorded error of the call that answered none; nothing where it answered, or
    /// the run ended in it.
    pub fn error<E>(
        &mut self,
        unpack: impl FnOnce(&mut Unpacker<'_>) -> Result<E, Unreadable>,
    ) -> Option<Result<E, Stopped>> {
        std::mem::take(&mut self.failed).then(|| {
            self.read(
                |open| open.answer,
                |from| {
                    from.list_of(2)?;
                    from.bool()?;
                    unpack(from)
                },
            )
        })
    }

    /// What the call under way wrote to the guest's memory, and where.
    pub fn writes(&mut self) -> Result<Vec<(u32, Vec<u8>)>, Stopped> {
        self.read(
            |open| open.writes,
            |from| {
                let mut writes = Vec::new();
                for _ in 0..from.list()? {
                    from.list_of(2)?;
                    writes.push((from.unsigned()?, from.bytes()?));
                }
                Ok(writes)
            },
        )
    }

    fn read<T>(
        &mut self,
        at: impl FnOnce(Open) -> usize,
        read: impl FnOnce(&mut Unpacker<'_>) -> Result<T, Unreadable>,
    ) -> Result<T, Stopped> {
        let recording = Arc::clone(&self.recording);
        let answer = match self.open {
            None => Err(Unreadable("no host call is under way".to_owned())),
            Some(open) => {
                let mut from = Decoder::new(&recording);
                from.set_position(at(open));
                let mut unpacker = Unpacker::new(from, &self.given);
                let answer = read(&mut unpacker);
                for name in unpacker.into_secrets() {
                    if let Some(secret) = self.given.0.get(&name) {
                        self.seen.add(&name, secret);
                    }
                }
                answer
            }
        };
        answer.map_err(|why| self.unreadable(&why))
    }

    /// What the call under way wrote has no place in the guest's memory.
    pub fn no_room(&mut self, at: u32, len: usize) -> Stopped {
        self.differ(Difference {
            what: "a memory that is smaller".to_owned(),
            recorded: format!("{len} bytes written at {at}"),
            came: "no such place".to_owned(),
        })
    }

    /// Why the run is to end at `point`, if the recorded one was ended there.
    pub fn ends_at(&self, point: EndPoint, phase: Phase) -> Option<Cause> {
        let End::At { point: end, phase: in_phase, cause } = self.end else { return None };
        if phase < in_phase {
            return None;
        }
        // How far it had come behind its last call is a matter of time.
        let behind = EndPoint { place: CallPlace::Before, call: end.call.saturating_add(1) };
        let is_there = match end.place {
            CallPlace::Before => point == end,
            // It is ended by the call itself.
            CallPlace::Inside => false,
            CallPlace::After => point == end || point == behind,
        };
        is_there.then(|| {
            self.note().came_to_its_end = true;
            cause
        })
    }

    fn differs(&self, what: &str, recorded: impl Into<String>, came: &Came<'_>) -> Stopped {
        let came = format!("`{}` {}", came.function, came.arguments);
        self.differ(Difference { what: what.to_owned(), recorded: recorded.into(), came })
    }

    fn unreadable(&self, why: &Unreadable) -> Stopped {
        self.differ(Difference {
            what: "a recording that can't be read".to_owned(),
            recorded: why.to_string(),
            came: String::new(),
        })
    }

    fn differ(&self, difference: Difference) -> Stopped {
        self.note().difference.get_or_insert(difference);
        Stopped(Cause::Cancel)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let entry = (self.next < self.recording.len()).then(|| {
            let entry = Entry::read(&self.recording, self.next);
            entry.map_or_else(|why| why.to_string(), |entry| format!("`{}`", entry.function))
        });
        self.note().next = entry;
    }
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player").field("end", &self.end).finish_non_exhaustive()
    }
}

/// A call as it came.
struct Came<'a> {
    function: &'a str,
    arguments: String,
}

/// CBOR in its diagnostic notation, cut where it is long.
fn shown(cbor: &[u8]) -> String {
    use fmt::Write as _;
    struct Cut(String);
    impl fmt::Write for Cut {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            let room = SHOWN_CHARS.saturating_sub(self.0.len());
            self.0.extend(part.chars().take(room));
            if room <= part.len() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut cut = Cut(String::new());
    if write!(cut, "{}", minicbor::display(cbor)).is_err() {
        cut.0.push('…');
    }
    cut.0
}

/// The secrets that a recording needs, with their lengths in bytes.
pub fn secrets_in(recording: &[u8]) -> Result<BTreeMap<String, u64>, Unreadable> {
    let mut needed = BTreeMap::new();
    let mut decoder = Decoder::new(recording);
    let mut tokens = decoder.tokens();
    while let Some(token) = tokens.next() {
        if !matches!(token?, Token::Tag(WITH_SECRETS)) {
            continue;
        }
        let Some(Token::Array(pieces)) = tokens.next().transpose()? else { continue };
        for _ in 0..pieces {
            let Some(Token::Array(2)) = tokens.next().transpose()? else { continue };
            if let (Some(Token::String(name)), Some(len)) =
                (tokens.next().transpose()?, tokens.next().transpose()?)
            {
                needed.insert(name.to_owned(), number(&len));
            }
        }
    }
    Ok(needed)
}

fn number(token: &Token<'_>) -> u64 {
    match token {
        Token::U8(number) => (*number).into(),
        Token::U16(number) => (*number).into(),
        Token::U32(number) => (*number).into(),
        Token::U64(number) => *number,
        _ => 0,
    }
}
