//! Why the service refuses a request, or cannot do what it asks for.

use sandglass_journal as journal;
use sandglass_runtime::ActorError;
use sandglass_workflow::Problem;
use sandglass_workflow::interrupt::AnswerRefused;
use serde_json::Value;

use crate::code::Code;
use crate::log::ReadError;

/// Most characters of a foreign id that an error quotes.
const ID_MAX_CHARS: usize = 64;

/// Why a request is refused, or cannot be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("there is no such run; POST /v1/runs returns the ids of runs")]
    NoRun(String),
    #[error("this host has no such workflow; `fixtures` of its discovery document lists them")]
    NoWorkflow,
    #[error(
        "node `{node}` of the workflow is of type `{type_id}`, which needs the capability \
         `{capability}`; this host does not have it"
    )]
    CapabilityRequired { capability: &'static str, type_id: &'static str, node: String },
    #[error("the run has no such node")]
    NoNode(String),
    #[error("{message}")]
    Invalid { path: String, message: String },
    #[error("the events before `fromSeq` have used {used} of {all}; fork earlier, or allow more")]
    LimitUsedUp { path: String, used: u64, all: u64 },
    #[error("{message}: {}", .problems.first().map_or("", |first| &first.what))]
    Differs { message: &'static str, problems: Vec<Problem> },
    #[error("the inputs are invalid: {}", .0.first().map(ToString::to_string).unwrap_or_default())]
    InvalidInputs(Vec<Problem>),
    #[error("`resumeSchema` of the interrupt can't be used: {0}")]
    UnusableSchema(String),
    #[error("`resumeValue.action` of an approval must be one of its actions")]
    UnknownAction(Vec<Value>),
    #[error("this idempotency key was used for another request; use a new one")]
    KeyUsed,
    #[error("the run is not over; replay it once it is over, or branch from it")]
    RunActive,
    #[error("the node does not wait for an answer, or has it already")]
    NotWaiting(String),
    #[error("the run's last event is number {last}; fork from there or before")]
    ForkPastEnd { last: u64 },
    #[error("{what} would be larger than the {max_bytes} bytes that are allowed")]
    TooLarge { what: &'static str, max_bytes: usize },
    #[error("{0} runs are active, which is the limit")]
    TooManyRuns(usize),
    #[error("the logs of the runs that are read have {0} bytes, which is the limit")]
    TooManyLogs(usize),
    #[error(
        "the handler of the run was stopped, but the journal cannot record the stop now; if the host \
         restarts before it does, the run continues; cancel it again later"
    )]
    StopNotRecorded,
    #[error("the run's records can't be read now; try again later")]
    RecordsUnavailable,
    #[error("the run's records can't be understood; the host's log says why")]
    RecordsUnreadable,
    #[error("the run could not be begun")]
    NotBegun,
    #[error("{0}")]
    Elsewhere(String),
    #[error("the request had no effect: {0}")]
    Unavailable(String),
    #[error("the request had no effect: {0}")]
    Overloaded(String),
    #[error("the host failed to process the request; its log says why")]
    Internal,
}

impl Error {
    /// There is no run `id`.
    pub(crate) fn no_run(id: &str) -> Self {
        Self::NoRun(id.chars().take(ID_MAX_CHARS).collect())
    }

    /// The value at `path` of the request is invalid.
    pub(crate) fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { path: path.into(), message: message.into() }
    }

    /// The code for clients.
    pub(crate) const fn code(&self) -> Code {
        match self {
            Self::NoRun(_) | Self::NoNode(_) => Code::NotFound,
            Self::NoWorkflow => Code::WorkflowNotFound,
            Self::CapabilityRequired { .. } => Code::CapabilityRequired,
            Self::Invalid { .. }
            | Self::LimitUsedUp { .. }
            | Self::Differs { .. }
            | Self::InvalidInputs(_)
            | Self::UnusableSchema(_)
            | Self::UnknownAction(_) => Code::Validation,
            Self::KeyUsed => Code::IdempotencyKeyMismatch,
            Self::RunActive => Code::RunActive,
            Self::NotWaiting(_) => Code::InterruptResolved,
            Self::ForkPastEnd { .. } => Code::ForkPastEnd,
            Self::TooLarge { .. } => Code::TooLarge,
            Self::TooManyRuns(_) | Self::TooManyLogs(_) | Self::Overloaded(_) => Code::RateLimited,
            Self::StopNotRecorded | Self::RecordsUnavailable | Self::Unavailable(_) => {
                Code::Unavailable
            }
            Self::Elsewhere(_) => Code::NotOwner,
            Self::RecordsUnreadable | Self::NotBegun | Self::Internal => Code::Internal,
        }
    }
}

impl From<ActorError> for Error {
    fn from(error: ActorError) -> Self {
        match error {
            ActorError::Elsewhere(_) => Self::Elsewhere(error.to_string()),
            ActorError::JournalUnavailable { .. }
            | ActorError::Journal(journal::Error::Disowned { .. })
            | ActorError::Fenced { .. }
            | ActorError::Closed => Self::Unavailable(error.to_string()),
            ActorError::MailboxFull(_) | ActorError::Busy { .. } => {
                Self::Overloaded(error.to_string())
            }
            other => {
                tracing::error!(error = %other, "a request failed because of an internal error");
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
            AnswerRefused::Differs(problems) => Self::Differs {
                message: "`resumeValue` does not match `resumeSchema` of the interrupt",
                problems,
            },
            AnswerRefused::UnknownAction(actions) => Self::UnknownAction(actions),
        }
    }
}
