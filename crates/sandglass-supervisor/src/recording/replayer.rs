//! Replays a recording: compares each host call with the recorded one, returns the recorded result, and
//! ends the run where the recorded one was ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use minicbor::Decoder;
use minicbor::data::{Token, Type};
use sandglass_model::{CallPlace, Cause, EndPoint};

use super::diagnostic::to_diagnostic;
use super::packing::{Pack, Packer, Unpacker, Unreadable, WITH_SECRETS};
use super::run_recording::Source;
use super::secrets::{GivenSecrets, SeenSecrets};
use super::{COMPARED_BYTES, COMPARED_BYTES_OF_CALL, Header, RESULT_SETTERS, hash};
use crate::boundary::Stopped;
use crate::in_flight::{Completion, Schedule};
use crate::opaque::opaque;
use crate::run::Phase;
use crate::secret::Redactor;
use crate::sync::lock;

/// Most bytes of arguments or of a result that are shown.
const SHOWN_BYTES: usize = 2_000;

/// How the recorded run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By the guest itself, as its replay must.
    ByItself,
    /// The host ended it here, and ends its replay here.
    At {
        /// Where.
        point: EndPoint,
        /// The phase of the run.
        phase: Phase,
        /// Why.
        cause: Cause,
        /// Whether the guest waited for calls in flight.
        is_waiting: bool,
    },
    /// The replay ends after this call, which the recorded run did not.
    Until(u64),
}

/// One replayed host call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedCall {
    /// Its number within the run, from 1.
    pub number: u64,
    /// The host function in reports.
    pub function: String,
    /// The arguments of the replayed call, in CBOR's diagnostic notation, shortened.
    pub arguments: String,
    /// The recorded result, in the same form; `None` if the run ended inside this call, if the guest
    /// went on while it was in flight (then the call is reported again when it completes), or if the
    /// replay has executed the function, because it sets the guest's result.
    pub answer: Option<String>,
}

/// Receives each call as it is replayed.
pub type Watcher = Arc<dyn Fn(&ReplayedCall) + Send + Sync>;

/// A difference between a host call and the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub what: String,
    pub recorded: String,
    pub came: String,
}

/// The state of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayProgress {
    /// How many host calls were replayed.
    pub calls: u64,
    /// The first host call that differs.
    pub difference: Option<Difference>,
    /// Whether the run was ended where the recorded one was.
    pub reached_end: bool,
    /// The first recorded call that was not replayed.
    pub next: Option<String>,
}

/// A recording that is replayed.
pub struct Replayer {
    /// The recorded context.
    pub context: Arc<[u8]>,
    /// Removes the secrets of the run from text for people.
    pub redactor: Redactor,
    recording: Arc<[u8]>,
    /// The positions of the first and the next entry.
    first: usize,
    next: usize,
    given: GivenSecrets,
    seen: SeenSecrets,
    end: End,
    open: Option<Open>,
    /// Whether the guest went on while the last call was in flight.
    is_suspended: bool,
    /// Whether the last call failed, and its error was not read yet.
    failed: bool,
    about: Option<Arc<str>>,
    watcher: Option<Watcher>,
    progress: Arc<Mutex<ReplayProgress>>,
}

/// The positions of the present call's result and writes in the recording.
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
    /// The position of its result, if it has one.
    answer: Option<usize>,
    /// Whether the guest went on while the call was in flight.
    is_suspended: bool,
    writes: usize,
    end: usize,
}

/// The completion of a call in flight, in a recording.
struct CompletionEntry {
    completion: Completion,
    /// The position of its result.
    answer: usize,
    /// Whether the guest cancelled the call before it learned of the completion.
    is_taken_back: bool,
    end: usize,
}

impl CompletionEntry {
    /// Reads the item at `at`; `None` if it is a call.
    fn read(recording: &[u8], at: usize) -> Result<Option<Self>, Unreadable> {
        let mut from = Decoder::new(recording);
        from.set_position(at);
        if from.array()? != Some(4) {
            return Ok(None);
        }
        let completion = Completion { call: from.u64()?, point: from.u64()?, begun: from.u64()? };
        let answer = from.position();
        let is_taken_back = from.datatype()? == Type::Undefined;
        from.skip()?;
        Ok(Some(Self { completion, answer, is_taken_back, end: from.position() }))
    }
}

impl<'a> Entry<'a> {
    fn read(recording: &'a [u8], at: usize) -> Result<Self, Unreadable> {
        let mut from = Decoder::new(recording);
        from.set_position(at);
        if from.array()? != Some(6) {
            return Err(Unreadable(format!("no host call is recorded at byte {at}")));
        }
        let (function, hash) = (from.str()?, from.u64()?);
        let (arguments, about) = (from.decode()?, from.decode()?);
        let is_suspended = from.datatype()? == Type::Undefined;
        let has_answer = !is_suspended && from.datatype()? != Type::Null;
        let answer = has_answer.then(|| from.position());
        from.skip()?;
        let writes = from.position();
        from.skip()?;
        let end = from.position();
        Ok(Self { function, hash, arguments, about, answer, is_suspended, writes, end })
    }
}

impl Replayer {
    /// Creates the replay of a recording.
    ///
    /// # Errors
    /// It does not begin with the header of a recording.
    pub fn new(
        recording: Arc<[u8]>,
        given: GivenSecrets,
        end: End,
        watcher: Option<Watcher>,
    ) -> Result<Self, Unreadable> {
        let mut from = Decoder::new(&recording);
        let header = Header::read(&mut from)?;
        let redactor = Redactor::default();
        let mut seen = SeenSecrets::new(redactor.clone());
        let mut unpacker = Unpacker::new(Decoder::new(&header.context), &given);
        let context = unpacker.bytes()?;
        for name in unpacker.into_secrets() {
            if let Some(secret) = given.0.get(&name) {
                seen.add(&name, secret);
            }
        }
        Ok(Self {
            context: context.into(),
            next: from.position(),
            first: from.position(),
            recording,
            given,
            seen,
            redactor,
            end,
            open: None,
            is_suspended: false,
            failed: false,
            about: None,
            watcher,
            progress: Arc::default(),
        })
    }

    /// The completions of calls in flight, for a guest with tasks.
    ///
    /// # Errors
    /// An item cannot be read.
    pub fn schedule(&self) -> Result<Schedule, Unreadable> {
        let is_cut = !matches!(self.end, End::ByItself);
        let ends_at_yield = match self.end {
            End::ByItself => false,
            End::Until(_) => true,
            End::At { point, is_waiting, .. } => point.place == CallPlace::After && !is_waiting,
        };
        let mut schedule = Schedule { is_cut, ends_at_yield, ..Schedule::default() };
        let mut at = self.next;
        while at < self.recording.len() {
            at = match CompletionEntry::read(&self.recording, at)? {
                Some(CompletionEntry { completion, end, .. }) => {
                    schedule.completions.push_back(completion);
                    end
                }
                None => {
                    schedule.calls += 1;
                    Entry::read(&self.recording, at)?.end
                }
            };
        }
        Ok(schedule)
    }

    /// The state of the replay, which outlives the run.
    pub fn progress(&self) -> Arc<Mutex<ReplayProgress>> {
        Arc::clone(&self.progress)
    }

    pub(super) fn begin(&mut self, function: &str, arguments: Pack<'_>) -> Result<Source, Stopped> {
        let mut packer = Packer::of_arguments(&self.seen, COMPARED_BYTES, COMPARED_BYTES_OF_CALL);
        arguments(&mut packer);
        let packed = packer.finish().unwrap_or_default();
        let number = {
            let mut found = lock(&self.progress);
            found.calls += 1;
            found.calls
        };
        let recording = Arc::clone(&self.recording);
        let came = ActualCall { function, arguments: shown(&packed, &self.seen) };
        if self.next >= recording.len() {
            return Err(self.differs("a host call too many", "no further host call", &came));
        }
        if let Some(recorded) = self.next_completion()? {
            return Err(self.differs(
                "a host call while the recorded guest waited",
                recorded,
                &came,
            ));
        }
        let entry = Entry::read(&recording, self.next).map_err(|why| self.unreadable(&why))?;
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
        self.is_suspended = entry.is_suspended;
        self.about = entry.about.map(Into::into);
        let is_executed = RESULT_SETTERS.contains(&function);
        if let Some(watcher) = &self.watcher {
            let answer = entry.answer.filter(|_| !is_executed);
            watcher(&ReplayedCall {
                number,
                function: entry.about.unwrap_or(function).to_owned(),
                arguments: came.arguments.clone(),
                answer: answer.map(|answer| shown(&recording[answer..entry.writes], &self.seen)),
            });
        }
        self.source_of_result(&entry, number, is_executed, &came)
    }

    /// Returns where the result of the call comes from, which matches `entry`.
    fn source_of_result(
        &mut self,
        entry: &Entry<'_>,
        number: u64,
        is_executed: bool,
        came: &ActualCall<'_>,
    ) -> Result<Source, Stopped> {
        match (entry.answer, self.end) {
            (_, End::At { point: EndPoint { place: CallPlace::Inside, call }, cause, .. })
                if call == number =>
            {
                lock(&self.progress).reached_end = true;
                Err(Stopped(cause))
            }
            _ if is_executed => Ok(Source::Function),
            _ if entry.is_suspended => Ok(Source::Recording),
            (Some(answer), _) => {
                self.open = Some(Open { answer, writes: entry.writes });
                Ok(Source::Recording)
            }
            (None, _) => Err(self.differs(
                "a host call that has no answer",
                "nothing: the run ended there",
                came,
            )),
        }
    }

    /// Describes the completion that comes next in the recording; `None` if something else does.
    fn next_completion(&self) -> Result<Option<String>, Stopped> {
        let next = CompletionEntry::read(&self.recording, self.next);
        let next = next.map_err(|why| self.unreadable(&why))?;
        Ok(next.map(|next| {
            let call = next.completion.call;
            let function = self.function_of(call).unwrap_or("?");
            format!("the completion of call {call}, `{function}`")
        }))
    }

    /// The function of a recorded call.
    fn function_of(&self, call: u64) -> Option<&str> {
        let mut at = self.first;
        let mut before = call.checked_sub(1)?;
        loop {
            at = match CompletionEntry::read(&self.recording, at).ok()? {
                Some(completion) => completion.end,
                None => {
                    let entry = Entry::read(&self.recording, at).ok()?;
                    if before == 0 {
                        return Some(entry.function);
                    }
                    before -= 1;
                    entry.end
                }
            };
        }
    }

    /// Whether the last call, which matches the recording, was suspended then.
    #[must_use]
    pub const fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// Passes over the completion of call `number`, which the guest cancelled before it learned of it.
    pub(super) fn take_back(&mut self, number: u64) {
        let next = CompletionEntry::read(&self.recording, self.next).ok().flatten();
        if let Some(next) = next.filter(|next| next.completion.call == number && next.is_taken_back)
        {
            self.next = next.end;
        }
    }

    /// Compares that the completion of call `number`, of `function`, is delivered now, and opens its
    /// result.
    pub(super) fn resume(&mut self, number: u64, function: &str) -> Result<(), Stopped> {
        let recording = Arc::clone(&self.recording);
        let next = CompletionEntry::read(&recording, self.next);
        match next.map_err(|why| self.unreadable(&why))? {
            Some(CompletionEntry { completion, answer, is_taken_back: false, end })
                if completion.call == number =>
            {
                self.next = end;
                self.open = Some(Open { answer, writes: end });
                if let Some(watcher) = &self.watcher {
                    watcher(&ReplayedCall {
                        number,
                        function: function.to_owned(),
                        arguments: String::new(),
                        answer: Some(shown(&recording[answer..end], &self.seen)),
                    });
                }
                Ok(())
            }
            _ => {
                let came = format!("the completion of call {number}, `{function}`");
                Err(self.differ("another completion", self.describe_next(), came))
            }
        }
    }

    /// Returns the error for a guest that waits where the recorded one did not, or for something else.
    /// It waits for a call, with its number and function, and for so many more.
    pub(crate) fn stalled(&self, waits_for: Option<(u64, String, usize)>) -> Stopped {
        let came = match waits_for {
            None => "the guest waits for no host call".to_owned(),
            Some((call, function, 0)) => format!("the guest waits for call {call}, `{function}`"),
            Some((call, function, more)) => {
                format!("the guest waits for call {call}, `{function}`, and {more} more")
            }
        };
        self.differ("a guest that waits", self.describe_next(), came)
    }

    /// Whether the recorded run was ended while its guest waited for calls in flight.
    pub(crate) const fn ends_waiting(&self) -> bool {
        matches!(self.end, End::At { is_waiting: true, .. })
    }

    /// Describes the next item of the recording.
    fn describe_next(&self) -> String {
        if self.next >= self.recording.len() {
            return "nothing further".to_owned();
        }
        match self.next_completion() {
            Ok(Some(completion)) => completion,
            _ => match Entry::read(&self.recording, self.next) {
                Ok(entry) => format!("`{}`", entry.function),
                Err(why) => why.to_string(),
            },
        }
    }

    /// Takes the recorded name of the last call, if it had another than its function's.
    pub fn about(&mut self) -> Option<Arc<str>> {
        self.about.take()
    }

    /// Reads the recorded result of the present call; `None` if it failed.
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

    /// Reads the recorded error of the last call; `None` if it did not fail.
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

    /// Reads what the present call wrote to the guest's memory, and where.
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

    /// Returns the error for a recorded write that does not fit the guest's memory.
    pub fn no_room(&mut self, at: u32, len: usize) -> Stopped {
        let recorded = format!("{len} bytes written at {at}");
        self.differ("a memory that is smaller", recorded, "no such place")
    }

    /// Returns why the run must end at `point`; `None` if the recorded one was not ended there.
    /// A guest that `is_waiting` waits for calls in flight.
    pub fn ends_at(&self, point: EndPoint, phase: Phase, is_waiting: bool) -> Option<Cause> {
        let (end, cause) = match self.end {
            End::ByItself => return None,
            End::Until(call) => (EndPoint { place: CallPlace::After, call }, Cause::Cancel),
            // Completions may follow the last call.
            End::At { phase: in_phase, is_waiting: waited, .. }
                if phase < in_phase
                    || self.next < self.recording.len()
                    || waited && !is_waiting =>
            {
                return None;
            }
            End::At { point, cause, .. } => (point, cause),
        };
        // How far the guest gets after its last call depends on time, so the entry of the next call
        // counts as well.
        let behind = EndPoint { place: CallPlace::Before, call: end.call.saturating_add(1) };
        let is_there = match end.place {
            CallPlace::Before => point == end,
            // The call itself ends the run.
            CallPlace::Inside => false,
            CallPlace::After => point == end || point == behind,
        };
        is_there.then(|| {
            lock(&self.progress).reached_end = true;
            cause
        })
    }

    fn differs(&self, what: &str, recorded: impl Into<String>, came: &ActualCall<'_>) -> Stopped {
        let came = format!("`{}` {}", came.function, came.arguments);
        self.differ(what, recorded, came)
    }

    fn unreadable(&self, why: &Unreadable) -> Stopped {
        self.differ("a recording that can't be read", why.to_string(), "")
    }

    fn differ(&self, what: &str, recorded: impl Into<String>, came: impl Into<String>) -> Stopped {
        let what = what.to_owned();
        let difference = Difference { what, recorded: recorded.into(), came: came.into() };
        lock(&self.progress).difference.get_or_insert(difference);
        Stopped(Cause::Cancel)
    }
}

impl Drop for Replayer {
    fn drop(&mut self) {
        let is_whole = self.next >= self.recording.len();
        lock(&self.progress).next = (!is_whole).then(|| self.describe_next());
    }
}

opaque!(Replayer as "Replayer" { end });

/// A replayed call.
struct ActualCall<'a> {
    function: &'a str,
    arguments: String,
}

/// Formats CBOR for people, shortened.
fn shown(cbor: &[u8], seen: &SeenSecrets) -> String {
    let (mut text, is_cut) = to_diagnostic(cbor, seen, SHOWN_BYTES);
    if is_cut {
        text.push('…');
    }
    text
}

/// Returns the names of the secrets that a recording needs, with their lengths in bytes.
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
            let Some(Token::Array(items @ 2..=3)) = tokens.next().transpose()? else { continue };
            if let (Some(Token::String(name)), Some(len)) =
                (tokens.next().transpose()?, tokens.next().transpose()?)
            {
                needed.insert(name.to_owned(), number(&len));
            }
            if items == 3 {
                tokens.next().transpose()?;
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
