//! The recording of a run at the boundary: one that is written, one that is replayed, or none.

use std::mem;
use std::sync::Arc;

use super::packing::Pack;
use super::{Recorder, Replayer};
use crate::boundary::Stopped;
use crate::in_flight::Completion;
use crate::secret::Secret;

/// The recording of one run.
#[derive(Debug, Default)]
pub enum RunRecording {
    /// Nothing is recorded or replayed.
    #[default]
    Off,
    /// The run is recorded.
    Recording(Box<Recorder>),
    /// The run is a replay.
    Replaying(Box<Replayer>),
}

/// Where the result of a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The host function, which must be called.
    Function,
    /// The recording.
    Recording,
}

impl RunRecording {
    /// Whether the run is neither recorded nor replayed.
    pub const fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }

    /// The recording that is replayed; `None` if the run is not a replay.
    pub fn replayer(&mut self) -> Option<&mut Replayer> {
        match self {
            Self::Replaying(replayer) => Some(replayer),
            Self::Off | Self::Recording(_) => None,
        }
    }

    /// Notes or compares a call of `function` that begins.
    ///
    /// # Errors
    /// The recording has another call here, or the recorded run ended inside this one.
    pub fn begin(&mut self, function: &str, arguments: Pack<'_>) -> Result<Source, Stopped> {
        match self {
            Self::Off => Ok(Source::Function),
            Self::Recording(recorder) => {
                recorder.begin(function, arguments);
                Ok(Source::Function)
            }
            Self::Replaying(replayer) => replayer.begin(function, arguments),
        }
    }

    /// Notes the name of the present call.
    pub fn name_call(&mut self, name: &Arc<str>) {
        if let Self::Recording(recorder) = self {
            recorder.name_call(name);
        }
    }

    /// The present call is suspended.
    pub fn suspend(&mut self) {
        if let Self::Recording(recorder) = self {
            recorder.suspend();
        }
    }

    /// Notes or compares that the `completion` of call `number`, of `function`, was delivered.
    ///
    /// # Errors
    /// The recording has something else here.
    pub fn resume(
        &mut self,
        number: u64,
        function: &str,
        completion: Option<Completion>,
    ) -> Result<Source, Stopped> {
        match self {
            Self::Off => Ok(Source::Function),
            Self::Recording(recorder) => {
                recorder.resume(function, completion);
                Ok(Source::Function)
            }
            Self::Replaying(replayer) => {
                replayer.resume(number, function).map(|()| Source::Recording)
            }
        }
    }

    /// Notes or passes over that call `number` was cancelled after its completion was `delivered`, which
    /// its guest had not learned of yet.
    pub fn withdraw(&mut self, number: u64, delivered: Option<Completion>) {
        match (self, delivered) {
            (Self::Recording(recorder), Some(completion)) => recorder.take_back(completion),
            (Self::Replaying(replayer), Some(_)) => replayer.take_back(number),
            _ => {}
        }
    }

    /// Notes what the present call wrote to the guest's memory.
    pub fn wrote(&mut self, at: u32, bytes: &[u8]) {
        if let Self::Recording(recorder) = self {
            recorder.wrote(at, bytes);
        }
    }

    /// Notes the result of the present call.
    pub fn record_result(&mut self, answer: Pack<'_>) {
        if let Self::Recording(recorder) = self {
            recorder.record_result(answer);
        }
    }

    /// Notes the error that the guest gets from the present call.
    pub fn record_error(&mut self, error: Pack<'_>) {
        if let Self::Recording(recorder) = self {
            recorder.record_error(error);
        }
    }

    /// Notes that the run was given a secret.
    pub fn see(&mut self, name: &str, secret: &Secret) {
        if let Self::Recording(recorder) = self {
            recorder.see(name, secret);
        }
    }

    /// Returns the recording, if one was written.
    pub fn finish(&mut self) -> Option<sandglass_model::Recording> {
        match mem::take(self) {
            Self::Recording(recorder) => Some(recorder.finish()),
            Self::Off | Self::Replaying(_) => None,
        }
    }
}
