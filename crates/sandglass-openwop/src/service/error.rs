//! Why the service refuses a request, or cannot do what it asks for.

use sandglass_runtime::ActorError;
use sandglass_workflow::Problem;
use sandglass_workflow::interrupt::AnswerRefused;
use serde_json::Value;

use crate::code::Code;
use crate::log::ReadError;

/// Most characters of a foreign id that an error quotes.
const ID_MAX_CHARS: usize = 128;

/// Why a request is refused, or cannot be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("there is no such run; POST /v1/runs answers the ids of runs")]
    NoRun(String),
    #[error("this host has no workflow `{0}`")]
    NoWorkflow(String),
    #[error("the run has no such node")]
    NoNode(String),
    #[error("{message}")]
    Invalid { path: String, message: String },
    #[error("{message}: {}", .problems.first().map_or("", |first| &first.what))]
    Differs { message: &'static str, problems: Vec<Problem> },
    #[error("the inputs can't be taken: {}", .0.first().map(ToString::to_string).unwrap_or_default())]
    InvalidInputs(Vec<Problem>),
    #[error("`resumeSchema` of the interrupt can't be used: {0}")]
    UnusableSchema(String),
    #[error("`resumeValue.action` of an approval must be one of its actions")]
    UnknownAction(Vec<Value>),
    #[error("this idempotency key was used for another request; use a new one")]
    KeyUsed,
    #[error("the run has come to its end before")]
    RunEnded,
    #[error("the run is under way; replay it when it has ended, or branch from it")]
    RunActive,
    #[error("the node waits for no answer, or has it")]
    NotWaiting(String),
    #[error("the run's last event is number {last}; fork from there or before")]
    ForkPastEnd { last: u64 },
    #[error("{what} would be larger than the {max_bytes} bytes that are allowed")]
    TooLarge { what: &'static str, max_bytes: usize },
    #[error("{0} runs are under way, as many as there may be")]
    TooManyRuns(usize),
    #[error("the runs that are read have {0} bytes of events, as many as they may")]
    TooManyLogs(usize),
    #[error(
        "what the run does is ended, but the journal doesn't take that now, and a start before it \
         does goes on with the run; ask again later"
    )]
    StopNotRecorded,
    #[error("the run's records can't be read now; try again later")]
    RecordsUnavailable,
    #[error("the run's records can't be understood; the host's log says why")]
    RecordsUnreadable,
    #[error("the run could not be begun")]
    NotBegun,
    #[error("nothing was done: {0}")]
    Unavailable(String),
    #[error("nothing was done: {0}")]
    Overloaded(String),
    #[error("the host could not do this; its log says why")]
    Internal,
}

impl Error {
    /// That there is no run `id`.
    pub(crate) fn no_run(id: &str) -> Self {
        Self::NoRun(id.chars().take(ID_MAX_CHARS / 2).collect())
    }

    /// That there is no workflow `id`.
    pub(crate) fn no_workflow(id: &str) -> Self {
        Self::NoWorkflow(id.chars().take(ID_MAX_CHARS).collect())
    }

    /// That the value at `path` of the request is invalid.
    pub(crate) fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { path: path.into(), message: message.into() }
    }

    /// The code for clients.
    pub(crate) const fn code(&self) -> Code {
        match self {
            Self::NoRun(_) | Self::NoNode(_) => Code::NotFound,
            Self::NoWorkflow(_) => Code::WorkflowNotFound,
            Self::Invalid { .. }
            | Self::Differs { .. }
            | Self::InvalidInputs(_)
            | Self::UnusableSchema(_)
            | Self::UnknownAction(_) => Code::Validation,
            Self::KeyUsed => Code::IdempotencyKeyMismatch,
            Self::RunEnded => Code::RunTerminal,
            Self::RunActive => Code::RunActive,
            Self::NotWaiting(_) => Code::InterruptResolved,
            Self::ForkPastEnd { .. } => Code::ForkPastEnd,
            Self::TooLarge { .. } => Code::TooLarge,
            Self::TooManyRuns(_) | Self::TooManyLogs(_) | Self::Overloaded(_) => Code::RateLimited,
            Self::StopNotRecorded | Self::RecordsUnavailable | Self::Unavailable(_) => {
                Code::Unavailable
            }
            Self::RecordsUnreadable | Self::NotBegun | Self::Internal => Code::Internal,
        }
    }
}

impl From<ActorError> for Error {
    fn from(error: ActorError) -> Self {
        match error {
            ActorError::JournalUnavailable { .. } | ActorError::Closed => {
                Self::Unavailable(error.to_string())
            }
            ActorError::MailboxFull(_) | ActorError::Busy { .. } => {
                Self::Overloaded(error.to_string())
            }
            other => {
                tracing::error!(error = %other, "a request met an error of the host's own");
                Self::Internal
            }
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Journal(error) => {
                tracing::warn!(%error, "the records of a run cannot be read");
                Self::RecordsUnavailable
            }
            error => {
                tracing::error!(%error, "the records of a run cannot be understood");
                Self::RecordsUnreadable
            }
        }
    }
}

impl From<AnswerRefused> for Error {
    fn from(refused: AnswerRefused) -> Self {
        match refused {
            AnswerRefused::UnusableSchema(why) => Self::UnusableSchema(why),
            AnswerRefused::Differs(problems) => {
                Self::Differs { message: "`resumeValue` isn't as the interrupt wants it", problems }
            }
            AnswerRefused::UnknownAction(actions) => Self::UnknownAction(actions),
        }
    }
}
