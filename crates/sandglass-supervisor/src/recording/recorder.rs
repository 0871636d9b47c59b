//! Writes a recording, call by call, within bounds. A run that exceeds them has no recording, because a
//! part of it could only replay a part of the run.

use std::sync::Arc;

use minicbor::Encoder;
use sandglass_model::{Recording, WholeRecording};

use super::diagnostic::to_diagnostic;
use super::packing::{Pack, Packer, Unrecordable};
use super::secrets::SeenSecrets;
use super::{
    COMPARED_BYTES, COMPARED_BYTES_OF_CALL, Header, KeepArguments, RecordingLimits, Share, hash,
};
use crate::in_flight::Completion;
use crate::secret::Secret;

/// Longest recorded text of one call's arguments, in bytes.
const KEPT_ARGUMENTS_BYTES: usize = 64 << 10;

/// The result of a completion whose guest did not learn of it: CBOR's `undefined`.
const TAKEN_BACK: [u8; 1] = [0xf7];

/// The recording of a running handler.
#[derive(Debug)]
pub struct Recorder {
    limits: RecordingLimits,
    /// The share of the host's memory for recordings that covers it.
    share: Share,
    out: Vec<u8>,
    calls: u64,
    open: Option<Open>,
    /// Completions that were taken back, as long as nothing follows.
    taken_back: Vec<Completion>,
    seen: SeenSecrets,
    /// Why the run will have no recording.
    given_up: Option<String>,
}

/// The present call.
#[derive(Debug)]
struct Open {
    function: String,
    /// Its completion, if it was suspended.
    completes: Option<Completion>,
    about: Option<Arc<str>>,
    answer: Option<Vec<u8>>,
    writes: Vec<Vec<u8>>,
    /// Bytes of all `writes`.
    written: usize,
}

impl Open {
    fn new(function: String, completes: Option<Completion>) -> Self {
        Self { function, completes, about: None, answer: None, writes: Vec::new(), written: 0 }
    }
}

impl Recorder {
    /// Begins a recording with the header of a run that has the context `context`, in which the
    /// secrets `seen` may be.
    pub fn new(
        limits: RecordingLimits,
        share: Share,
        (header, context): (Header, &[u8]),
        seen: SeenSecrets,
    ) -> Self {
        let mut packer = Packer::of_answer(&seen, usize::MAX);
        packer.bytes(context);
        let packed = packer.finish();
        let out = Vec::new();
        let mut recorder = Self {
            limits,
            share,
            out,
            calls: 0,
            open: None,
            taken_back: Vec::new(),
            seen,
            given_up: None,
        };
        match packed {
            Ok(context) => {
                recorder.out = Header { context, ..header }.write();
                recorder.check_size();
            }
            // It has no bound here and no other types.
            Err(_) => recorder.give_up("its context has a secret in another form".to_owned()),
        }
        recorder
    }

    pub(super) fn begin(&mut self, function: &str, arguments: Pack<'_>) {
        self.complete();
        self.complete_taken_back();
        self.calls += 1;
        if self.calls > self.limits.calls {
            self.give_up(format!("it made more than {} host calls", self.limits.calls));
        }
        if self.given_up.is_some() {
            return;
        }
        let mut packer = Packer::of_arguments(&self.seen, COMPARED_BYTES, COMPARED_BYTES_OF_CALL);
        arguments(&mut packer);
        let packed = packer.finish().unwrap_or_default();
        let kept = (self.limits.arguments == KeepArguments::Yes)
            .then(|| to_diagnostic(&packed, &self.seen, KEPT_ARGUMENTS_BYTES).0);
        let mut out = Encoder::new(std::mem::take(&mut self.out));
        out.array(6)
            .and_then(|out| out.str(function)?.u64(hash(&packed))?.encode(kept))
            .expect("writing to a Vec cannot fail");
        self.out = out.into_writer();
        let function = function.to_owned();
        self.open = Some(Open::new(function, None));
        self.check_size();
    }

    pub(super) fn name_call(&mut self, name: &Arc<str>) {
        if let Some(open) = &mut self.open {
            open.about = Some(Arc::clone(name));
        }
    }

    /// Notes that the present call is suspended: its completion is an item of its own.
    pub(super) fn suspend(&mut self) {
        let Some(open) = self.open.take() else { return };
        let mut out = Encoder::new(std::mem::take(&mut self.out));
        out.encode(open.about.as_deref())
            .and_then(|out| out.undefined()?.array(0))
            .expect("writing to a Vec cannot fail");
        self.out = out.into_writer();
        self.check_size();
    }

    /// Notes that the `completion` of a call of `function` was delivered.
    pub(super) fn resume(&mut self, function: &str, completion: Option<Completion>) {
        self.complete();
        self.complete_taken_back();
        if self.given_up.is_none() {
            self.open = Some(Open::new(function.to_owned(), completion));
        }
    }

    /// Notes that a call was cancelled after its `completion` was delivered, of which its guest had not
    /// learned yet. A replay has to deliver it only if something follows.
    pub(super) fn take_back(&mut self, completion: Completion) {
        self.complete();
        self.taken_back.push(completion);
    }

    fn complete_taken_back(&mut self) {
        for completion in std::mem::take(&mut self.taken_back) {
            self.complete_suspended(completion, &TAKEN_BACK);
        }
    }

    /// Notes that the call wrote `bytes` at `at` of the guest's memory.
    pub(super) fn wrote(&mut self, at: u32, bytes: &[u8]) {
        let packed = self.pack(&mut |packer| {
            packer.list(2);
            packer.unsigned(at.into());
            packer.bytes(bytes);
        });
        if let (Some(packed), Some(open)) = (packed, &mut self.open) {
            open.written = open.written.saturating_add(packed.len());
            open.writes.push(packed);
        }
    }

    /// Notes the result of the call.
    pub(super) fn record_result(&mut self, answer: Pack<'_>) {
        self.answer(true, answer);
    }

    /// Notes the error of the call.
    pub(super) fn record_error(&mut self, error: Pack<'_>) {
        self.answer(false, error);
    }

    fn answer(&mut self, is_ok: bool, answer: Pack<'_>) {
        let packed = self.pack(&mut |packer| {
            packer.list(2);
            packer.bool(is_ok);
            answer(packer);
        });
        if let Some(open) = &mut self.open {
            open.answer = packed;
        }
        self.complete();
    }

    fn pack(&mut self, pack: Pack<'_>) -> Option<Vec<u8>> {
        let open = self.open.as_ref()?;
        let room = usize::try_from(self.limits.bytes).unwrap_or(usize::MAX);
        let mut packer = Packer::of_answer(&self.seen, room.saturating_sub(self.written()));
        pack(&mut packer);
        let call = format_args!("`{}`, host call {},", open.function, self.calls);
        let why = match packer.finish() {
            Ok(packed) => match self.share.cover(self.in_memory().saturating_add(packed.len())) {
                Ok(()) => return Some(packed),
                Err(out_of_memory) => out_of_memory.to_string(),
            },
            Err(Unrecordable::TooLarge) => self.too_large(),
            Err(Unrecordable::Type(what)) => {
                format!("{call} answered a {what}, which can't be given again")
            }
            Err(Unrecordable::SecretInDisguise) => {
                format!("{call} answered a secret in another form than it was given in")
            }
        };
        self.give_up(why);
        None
    }

    /// Writes the rest of the present call, whether it has returned or not.
    fn complete(&mut self) {
        let Some(open) = self.open.take() else { return };
        if let Some(completion) = open.completes {
            // If the run ended before the guest learned of the completion, there was none.
            if let Some(answer) = open.answer {
                self.complete_suspended(completion, &answer);
            }
            return;
        }
        let mut out = Encoder::new(std::mem::take(&mut self.out));
        out.encode(open.about.as_deref()).expect("writing to a Vec cannot fail");
        match open.answer {
            Some(answer) => out.writer_mut().extend(answer),
            None => drop(out.null()),
        }
        out.array(open.writes.len() as u64).expect("writing to a Vec cannot fail");
        self.out = out.into_writer();
        self.out.extend(open.writes.into_iter().flatten());
        self.check_size();
    }

    /// Writes the completion of a call that was suspended.
    fn complete_suspended(&mut self, completion: Completion, answer: &[u8]) {
        if self.given_up.is_some() {
            return;
        }
        let Completion { call, point, begun } = completion;
        let mut out = Encoder::new(std::mem::take(&mut self.out));
        out.array(4)
            .and_then(|out| out.u64(call)?.u64(point)?.u64(begun))
            .expect("writing to a Vec cannot fail")
            .writer_mut()
            .extend(answer);
        self.out = out.into_writer();
        self.check_size();
    }

    fn check_size(&mut self) {
        if self.out.len() as u64 > self.limits.bytes {
            self.give_up(self.too_large());
        } else if let Err(out_of_memory) = self.share.cover(self.in_memory()) {
            self.give_up(out_of_memory.to_string());
        }
    }

    /// The memory of the recording, in bytes.
    fn in_memory(&self) -> usize {
        self.out.capacity().saturating_add(self.of_open())
    }

    /// The length of the recording including the present call, in bytes.
    fn written(&self) -> usize {
        self.out.len().saturating_add(self.of_open())
    }

    /// The length of the present call, in bytes.
    fn of_open(&self) -> usize {
        self.open
            .as_ref()
            .map_or(0, |open| open.answer.as_ref().map_or(0, Vec::len).saturating_add(open.written))
    }

    fn too_large(&self) -> String {
        format!("its host calls passed more than {} bytes", self.limits.bytes)
    }

    fn give_up(&mut self, why: String) {
        self.given_up.get_or_insert(why);
        self.out = Vec::new();
        self.open = None;
        self.share.shrink(0);
    }

    pub(super) fn see(&mut self, name: &str, secret: &Secret) {
        self.seen.add(name, secret);
    }

    pub(crate) fn finish(mut self) -> Recording {
        self.complete();
        match self.given_up {
            Some(reason) => Recording::DecisionOnly { reason },
            None => {
                self.share.shrink(self.out.len());
                Recording::Whole(WholeRecording::holding(self.out, Arc::new(self.share)))
            }
        }
    }
}
