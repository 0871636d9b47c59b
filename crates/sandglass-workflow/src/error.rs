//! Why a node or a run failed.

use std::fmt;

use sandglass_model::Failure;
use serde::de::IntoDeserializer as _;
use serde::de::value::Error as Never;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What failed, for programs. Packs add codes of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// No pack that this host has loaded provides nodes of the type.
    CapabilityNotProvided,
    /// Child runs would be nested too deeply.
    DispatchTooDeep,
    /// A failure that named no code.
    Error,
    /// The host could not do its work.
    HostError,
    /// The host was lost while it executed a node that may be executed again.
    HostLost,
    /// The host could not start the node.
    HostUnavailable,
    /// An input that the node needs is missing.
    InputMissing,
    /// The inputs of the node are too large.
    InputTooLarge,
    /// The interrupt was not answered in time.
    InterruptTimeout,
    /// The configuration of the node is invalid.
    InvalidConfig,
    /// The decision of the orchestrator is invalid.
    InvalidDecision,
    /// An input of the node is invalid.
    InvalidInput,
    /// The pack returned an invalid interrupt.
    InvalidInterrupt,
    /// The pack returned an invalid response.
    InvalidResponse,
    /// The orchestrator took all turns that the run may take.
    LoopLimitExceeded,
    /// A loop without an orchestrator was taken too often.
    LoopbackLimitExceeded,
    /// The run executed all nodes that it may execute.
    RecursionLimitExceeded,
    /// The host was lost while it executed a node whose effects may have landed.
    RunInterrupted,
    /// The run took all of its time.
    RunTimeout,
    /// The events of the run are too large.
    RunTooLarge,
    /// The events of the run that a fork copies cannot be read.
    SourceUnreadable,
    /// The node took all of its time.
    WasmExecutionTimeout,
    /// The node spent its fuel.
    WasmFuelExhausted,
    /// The node needed more memory than it may have.
    WasmMemoryExceeded,
    /// The guest trapped.
    WasmTrap,
    /// A code of a pack, or of a layer below this one.
    #[serde(untagged)]
    Other(String),
}

impl ErrorCode {
    /// Whether a node that failed with this code may be executed again by itself: not if it breached
    /// a limit, which it would breach again, and not if its effects may have landed.
    pub const fn is_retryable(&self) -> bool {
        !matches!(
            self,
            Self::CapabilityNotProvided
                | Self::InterruptTimeout
                | Self::RunInterrupted
                | Self::RunTooLarge
                | Self::WasmExecutionTimeout
                | Self::WasmFuelExhausted
                | Self::WasmMemoryExceeded
        )
    }
}

impl From<&str> for ErrorCode {
    fn from(code: &str) -> Self {
        // The protocol requires a code.
        let code = if code.is_empty() { "error" } else { code };
        Self::deserialize(code.into_deserializer())
            .unwrap_or_else(|_: Never| Self::Other(code.to_owned()))
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Why a node or a run failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunError {
    /// What failed, for programs.
    pub code: ErrorCode,
    /// What failed, for people.
    pub message: String,
    /// More about the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Map<String, Value>>,
}

impl RunError {
    /// An error without details.
    pub fn new(code: impl Into<ErrorCode>, message: impl Into<String>) -> Self {
        let message = Some(message.into()).filter(|message| !message.is_empty());
        // The protocol requires a message.
        let message = message.unwrap_or_else(|| "no message was given".to_owned());
        Self { code: code.into(), message, details: None }
    }

    /// Adds a detail.
    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.get_or_insert_default().insert(key.to_owned(), value.into());
        self
    }

    /// The error that a node returned; if it returned none, the failure of its handler.
    pub fn of_failure(failure: &Failure) -> Self {
        let returned = failure.result.as_ref().and_then(|result| result.get("error"));
        let text = |key: &str| returned?.get(key)?.as_str();
        match (text("code"), text("message")) {
            (Some(code), Some(message)) => Self {
                details: returned.and_then(|error| error.get("details")?.as_object().cloned()),
                ..Self::new(code, message)
            },
            _ => Self::new(failure.kind.as_str(), &*failure.message),
        }
    }
}
