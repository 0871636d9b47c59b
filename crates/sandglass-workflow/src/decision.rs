//! What an orchestrator decides in one turn (`orchestrator-decision.schema.json`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// Most workers that one decision may name.
const WORKERS_MAX: usize = 256;
/// Longest id of a worker, in bytes; the protocol's limit.
pub(crate) const ID_MAX_BYTES: usize = 256;

/// The decision of one turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Decision {
    /// Workers are executed next.
    NextWorker {
        /// Nodes of the workflow, or workflows.
        next_worker_ids: Vec<String>,
        /// From 0 to 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confidence: Option<Number>,
    },
    /// A person has to answer a question.
    AskUser {
        /// The question.
        prompt: String,
    },
    /// The run is complete.
    Terminate {
        /// Why, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// From 0 to 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confidence: Option<Number>,
        /// What the run had to achieve.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        success_criteria: Option<Vec<Criterion>>,
    },
}

/// Something that a run had to achieve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Criterion {
    /// Its name.
    pub key: String,
    /// Whether the run achieved it.
    pub met: bool,
}

impl Decision {
    /// Ends the run for `reason`.
    pub(crate) fn terminate(reason: &str) -> Self {
        let reason = Some(reason.to_owned());
        Self::Terminate { reason, confidence: None, success_criteria: None }
    }

    /// The workers that are executed next.
    pub fn workers(&self) -> &[String] {
        match self {
            Self::NextWorker { next_worker_ids, .. } => next_worker_ids,
            Self::AskUser { .. } | Self::Terminate { .. } => &[],
        }
    }

    /// How sure the orchestrator is, from 0 to 1, if it states that.
    pub fn confidence(&self) -> Option<&Number> {
        match self {
            Self::NextWorker { confidence, .. } | Self::Terminate { confidence, .. } => {
                confidence.as_ref()
            }
            Self::AskUser { .. } => None,
        }
    }

    /// Reads a decision.
    ///
    /// # Errors
    /// It is not one of the protocol: what is wrong with it, for its author.
    pub fn parse(decision: &Value) -> Result<Self, String> {
        let fields = decision.as_object().ok_or("it must be an object")?;
        check(fields)?;
        Self::deserialize(decision).map_err(|error| error.to_string())
    }
}

/// Checks that these are exactly the fields of one kind of decision.
fn check(fields: &Map<String, Value>) -> Result<(), String> {
    let only = |known: &[&str]| match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("it has `{key}`, which this kind doesn't have")),
        None => Ok(()),
    };
    let text = |key: &str, is_required: bool| match fields.get(key) {
        Some(Value::String(text)) if !text.is_empty() => Ok(()),
        None if !is_required => Ok(()),
        _ => Err(format!("`{key}` must be a text that isn't empty")),
    };
    if let Some(confidence) = fields.get("confidence")
        && !confidence.as_f64().is_some_and(|confidence| (0.0..=1.0).contains(&confidence))
    {
        return Err("`confidence` must be a number from 0 to 1".to_owned());
    }
    match fields.get("kind").and_then(Value::as_str) {
        Some("next-worker") => {
            only(&["kind", "nextWorkerIds", "confidence"])?;
            let workers = fields.get("nextWorkerIds").and_then(Value::as_array);
            let is_id =
                |id: &Value| id.as_str().is_some_and(|id| (1..=ID_MAX_BYTES).contains(&id.len()));
            match workers {
                Some(ids) if (1..=WORKERS_MAX).contains(&ids.len()) && ids.iter().all(is_id) => {
                    Ok(())
                }
                _ => Err(format!(
                    "`nextWorkerIds` must be a list of 1 to {WORKERS_MAX} ids of up to \
                     {ID_MAX_BYTES} bytes"
                )),
            }
        }
        Some("ask-user") => {
            only(&["kind", "prompt"])?;
            text("prompt", true)
        }
        Some("terminate") => {
            only(&["kind", "reason", "confidence", "successCriteria"])?;
            text("reason", false)?;
            let is_criterion = |one: &Value| {
                let fields = one.as_object().filter(|fields| fields.len() == 2);
                fields.is_some_and(|fields| {
                    let key = fields.get("key").and_then(Value::as_str);
                    key.is_some_and(|key| !key.is_empty())
                        && fields.get("met").is_some_and(Value::is_boolean)
                })
            };
            match fields.get("successCriteria") {
                None => Ok(()),
                Some(Value::Array(all)) if all.iter().all(is_criterion) => Ok(()),
                Some(_) => Err("`successCriteria` must be a list of {key, met}".to_owned()),
            }
        }
        _ => Err("`kind` must be `next-worker`, `ask-user` or `terminate`".to_owned()),
    }
}
