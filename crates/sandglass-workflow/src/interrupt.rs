//! Interrupts: what a node asks of a person or a system outside, and which answers it accepts.

use sandglass_model::limit::MAX_BUDGET_MS;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::names::names;
use crate::problem::Problem;
use crate::schema::Schema;

/// Longest key of an interrupt, in bytes.
const KEY_MAX_BYTES: usize = 256;

names! {
    /// What an interrupt asks for.
    InterruptKind {
        /// One of several actions.
        Approval = "approval",
        /// Answers to questions.
        Clarification = "clarification",
        /// An event of another system.
        ExternalEvent = "external-event",
        /// Anything else.
        Custom = "custom",
        /// The start of a conversation.
        ConversationStart = "conversation.start",
        /// A turn of a conversation.
        ConversationExchange = "conversation.exchange",
        /// The end of a conversation.
        ConversationClose = "conversation.close",
        /// A check of something uncertain.
        LowConfidence = "low-confidence",
    }
}

/// What a suspended node waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupt {
    /// What it asks for.
    pub kind: InterruptKind,
    /// Its name within the node: the answer to it is reused if the node asks again.
    pub key: String,
    /// What it asks, depending on its kind.
    pub data: Map<String, Value>,
    /// What an answer must look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_schema: Option<Value>,
    /// How long it waits, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Why an answer to an interrupt is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerRefused {
    /// The schema of the interrupt cannot be used, for this reason: another version accepted it.
    UnusableSchema(String),
    /// It differs from the schema of the interrupt.
    Differs(Vec<Problem>),
    /// It does not choose one of the actions of an approval, which are these.
    UnknownAction(Vec<Value>),
}

impl Interrupt {
    /// Reads the interrupt that a pack returned.
    ///
    /// # Errors
    /// It is not one of the protocol: what is wrong with it, for the author of the pack.
    pub fn parse(given: &Value) -> Result<Self, String> {
        let present = |key: &str| given.get(key).filter(|value| !value.is_null());
        let text = |key: &str| given.get(key).and_then(Value::as_str);
        let kind = text("kind").and_then(InterruptKind::parse).ok_or_else(|| {
            let kinds: Vec<&str> = InterruptKind::ALL.iter().map(|kind| kind.as_str()).collect();
            format!("`kind` of an interrupt must be one of {}", kinds.join(", "))
        })?;
        let key = text("key").filter(|key| (1..=KEY_MAX_BYTES).contains(&key.len()));
        let key = key.ok_or("`key` of an interrupt must be a text of 1 to 256 bytes")?.to_owned();
        let data = given.get("data").and_then(Value::as_object).cloned();
        let data = data.ok_or("`data` of an interrupt must be an object")?;
        let resume_schema = present("resumeSchema").cloned();
        if let Some(schema) = &resume_schema {
            if !schema.is_object() {
                return Err("`resumeSchema` of an interrupt must be an object".to_owned());
            }
            // No answer would be accepted.
            Schema::compile(schema)
                .map_err(|why| format!("`resumeSchema` of an interrupt can't be used: {why}"))?;
        }
        let timeout_ms = match present("timeoutMs").map(Value::as_u64) {
            None => None,
            Some(Some(millis)) if millis <= MAX_BUDGET_MS => Some(millis),
            Some(_) => {
                return Err("`timeoutMs` of an interrupt must be whole milliseconds".to_owned());
            }
        };
        Ok(Self { kind, key, data, resume_schema, timeout_ms })
    }

    /// Checks whether it accepts `answer`.
    ///
    /// # Errors
    /// It does not.
    pub fn check_answer(&self, answer: &Value) -> Result<(), AnswerRefused> {
        if let Some(schema) = &self.resume_schema {
            let schema = Schema::compile(schema).map_err(AnswerRefused::UnusableSchema)?;
            let problems = schema.differences("/resumeValue", answer);
            if !problems.is_empty() {
                return Err(AnswerRefused::Differs(problems));
            }
        }
        let actions = self.data.get("actions").and_then(Value::as_array);
        match (self.kind, actions) {
            (InterruptKind::Approval, Some(actions)) => {
                let action = answer.get("action").filter(|action| action.is_string());
                match action.is_some_and(|action| actions.contains(action)) {
                    true => Ok(()),
                    false => Err(AnswerRefused::UnknownAction(actions.clone())),
                }
            }
            _ => Ok(()),
        }
    }
}
