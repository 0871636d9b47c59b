//! Decides actions of specs that guests pass as text. What decides is the embedder's, because the host
//! knows no states; it is executed on a thread of its own, so that a large spec delays no deadline.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::host_function::BlockingCalls;
use crate::store::RunStore;
use sandglass_supervisor::secret::Answer;

/// Largest spec that is evaluated, in bytes: many times what people write. It bounds the time for which
/// a thread continues after the handler has ended.
pub(crate) const SPEC_BYTES: u32 = 256 << 10;

/// Most specs that are evaluated at the same time, so that they leave the cores to guests. Further ones wait
/// within the deadlines of their handlers.
pub(crate) const EVALUATIONS_MAX: u32 = 4;

/// What an evaluation needs in memory for each byte of its texts, as measured: tokens, a parsed spec, an
/// entity, and the result.
const BYTES_PER_BYTE: u64 = 60;
/// What it needs for each character that may begin a table of TOML, as measured.
const BYTES_PER_TABLE: u64 = 1_400;

/// An action, and the spec and state in which it is to be decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecQuery {
    /// The text of the spec.
    pub spec: String,
    /// The state of the entity.
    pub state: String,
    /// The action.
    pub action: String,
    /// The parameters of the action, as JSON; may be empty.
    pub params: String,
}

/// Decides actions of specs that guests pass to `host_evaluate_spec`
/// ([`Builder::spec_evaluator`](crate::Builder::spec_evaluator)). It must be a pure function of the
/// query.
pub trait SpecEvaluator: Send + Sync + fmt::Debug {
    /// Returns the JSON that the guest gets: by convention an object with `success`, `new_state` and
    /// `error`.
    fn evaluate(&self, query: &SpecQuery) -> Value;
}

/// The evaluations of one host.
#[derive(Debug)]
pub(crate) struct Evaluation {
    pub(crate) evaluator: Option<Arc<dyn SpecEvaluator>>,
    pub(crate) calls: Arc<BlockingCalls>,
}

impl RunStore {
    /// Evaluates `query` on a thread. The future returns the text that the guest gets.
    pub(crate) fn evaluate(&self, query: SpecQuery) -> Answer<'static, Result<String, String>> {
        let begun = self.begin_evaluation(query);
        Box::pin(async move {
            let text = begun?.await;
            text.ok_or_else(|| "the evaluation of the spec failed inside the host".to_owned())
        })
    }

    fn begin_evaluation(
        &self,
        query: SpecQuery,
    ) -> Result<Answer<'static, Option<String>>, String> {
        let evaluation = self.evaluation.as_ref();
        let found = evaluation.and_then(|one| Some((one.evaluator.clone()?, &one.calls)));
        let (evaluator, calls) = found.ok_or_else(|| {
            "this host evaluates no specs, because its embedder provides no evaluator".to_owned()
        })?;
        let SpecQuery { spec, state, action, params } = &query;
        let bytes = spec.len() + state.len() + action.len() + params.len();
        let tables = spec.bytes().filter(|byte| matches!(byte, b'[' | b'{' | b'.')).count();
        let needed = bytes as u64 * BYTES_PER_BYTE + tables as u64 * BYTES_PER_TABLE;
        let charge = self.guest().memory.charge(needed).map_err(|error| error.to_string())?;
        Ok(calls.run_in_turn(move || {
            let _charge = charge;
            evaluator.evaluate(&query).to_string()
        }))
    }
}
