//! How an invocation ends, and what that is as a response.

use serde_json::{Value, json};

/// How an invocation ends.
#[derive(Debug)]
pub enum Outcome {
    /// The node is done, with this output.
    Completed(Value),
    /// The node waits for what this payload of an interrupt asks.
    Suspended(Value),
    /// The node failed.
    Failed {
        /// What kind of failure it is, for programs.
        code: String,
        /// The same in words.
        message: String,
        /// More about it, or null.
        details: Value,
    },
}

impl Outcome {
    pub(crate) fn response(self) -> Value {
        match self {
            Self::Completed(output) => json!({ "outcome": "completed", "output": output }),
            Self::Suspended(interrupt) => json!({ "outcome": "suspended", "interrupt": interrupt }),
            Self::Failed { code, message, details } => {
                let mut error = json!({ "code": code, "message": message });
                if !details.is_null() {
                    error["details"] = details;
                }
                json!({ "outcome": "failed", "error": error })
            }
        }
    }
}
