//! Calls a component's handler as the WIT world says: its context, its export, and
//! its answer, which becomes the same outcomes as a core module's.

use sandglass_model::{FailureKind, Outcome, json};
use serde_json::{Map, Value, json};
use wasmtime::Store;

use crate::module::component::Component;
use crate::store::RunStore;
use sandglass_supervisor::capability::result::violation;

use super::world::{Completion, DispatchContext, Failure, Raised, TypedFailure};
use super::{Called, Moments, result, returned_in_time};

/// Instantiates `component` in `store` and calls its handler.
///
/// # Errors
/// The guest trapped, or its run had to end ([`boundary::Stopped`]).
pub(super) async fn call(
    component: &Component,
    store: &mut Store<RunStore>,
    max_answer_bytes: u64,
    moments: &mut Moments,
) -> wasmtime::Result<Called> {
    // A budget of nothing ends before the guest begins.
    store.data_mut().glance()?;
    let handler = component.pre.instantiate_async(&mut *store).await?;
    super::instantiated(store.data_mut(), moments)?;

    let context = DispatchContext::of(store.data().guest().context())?;
    let answer = match handler.call_handle(&mut *store, &context).await {
        Ok(answer) => answer,
        Err(error) => Err(Failure::Typed(error.downcast::<Raised>()?.0)),
    };
    moments.returned = Some(returned_in_time(store)?);
    Ok(Called::Returned(outcome(answer, max_answer_bytes, store.data())))
}

fn outcome(answer: Result<Completion, Failure>, max_bytes: u64, store: &RunStore) -> Outcome {
    let size = match &answer {
        Ok(completion) => {
            completion.params.len() + completion.action.as_ref().map_or(0, String::len)
        }
        Err(Failure::Plain(error)) => error.len(),
        Err(Failure::Typed(failure)) => failure.len(),
    };
    if size as u64 > max_bytes {
        return Outcome::Failed(violation(
            FailureKind::ResultTooLarge,
            format!("the result has {size} bytes, and {max_bytes} are allowed"),
        ));
    }
    match as_core_modules_answer(answer) {
        Ok(value) => result::outcome_of(value, &store.guest().redactor),
        Err(error) => Outcome::Failed(result::unread("a part of the result", &error)),
    }
}

/// The JSON that a core module would have answered, so that one set of rules holds.
fn as_core_modules_answer(answer: Result<Completion, Failure>) -> Result<Value, json::Error> {
    Ok(match answer {
        Ok(Completion { action, params }) => {
            let params: Value = match params.trim() {
                "" => json!({}),
                params => json::read(params)?,
            };
            let mut value = json!({ "success": true, "params": params });
            insert(&mut value, "action", action.map(Value::from));
            value
        }
        Err(Failure::Plain(error)) => json!({ "success": false, "error": error }),
        Err(Failure::Typed(failure)) => {
            json!({ "success": false, "typed_failure": failure.into_json()? })
        }
    })
}

fn insert(into: &mut Value, name: &str, value: Option<Value>) {
    if let (Some(fields), Some(value)) = (into.as_object_mut(), value) {
        fields.insert(name.to_owned(), value);
    }
}

impl TypedFailure {
    /// Length of all its texts, in bytes.
    fn len(&self) -> usize {
        let optional = [&self.retryability, &self.outcome, &self.details, &self.diagnostic];
        let optional: usize = optional.into_iter().flatten().map(String::len).sum();
        self.category.len() + self.code.len() + optional
    }

    fn into_json(self) -> Result<Value, json::Error> {
        /// The version of the form that tools read.
        const VERSION: u32 = 1;
        let details = match self.details {
            Some(details) => json::read(&details)?,
            None => Value::Object(Map::new()),
        };
        let mut value = json!({
            "version": VERSION,
            "category": self.category,
            "code": self.code,
            "details": details,
        });
        insert(&mut value, "retryability", self.retryability.map(Value::from));
        insert(&mut value, "outcome", self.outcome.map(Value::from));
        insert(&mut value, "diagnostic", self.diagnostic.map(Value::from));
        Ok(value)
    }
}
