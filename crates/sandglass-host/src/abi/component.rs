//! Calls the handler of a component by the WIT world: its context, its export, and its result, which
//! becomes the same outcomes as that of a core module.

use sandglass_model::Outcome;
use sandglass_source::json;
use serde_json::{Map, Value, json};
use wasmtime::Store;

use crate::module::component::Component;
use crate::store::RunStore;

use super::concurrent::driver::drive;
use super::world::{Completion, DispatchContext, Failure, Raised, TypedFailure};
use super::{Called, check_return, result};

/// Instantiates `component` in `store` and calls its handler.
///
/// # Errors
/// The guest trapped, or its run had to end ([`Stopped`](super::Stopped)).
pub(super) async fn call(
    component: &Component,
    store: &mut Store<RunStore>,
) -> wasmtime::Result<Called> {
    // A budget of zero ends before the guest begins.
    store.data_mut().check_fast()?;
    let handler = component.pre.instantiate_async(&mut *store).await?;
    super::begin_running(store.data_mut())?;

    let context = DispatchContext::of(&store.data().guest().context)?;
    let handled = match store.data().in_flight().cloned() {
        None => handler.call_handle(&mut *store, &context).await,
        Some(in_flight) => {
            let call =
                async |store: &mut Store<RunStore>| handler.call_handle(store, &context).await;
            // Tokio's budget for a task would let a guest yield at points that no replay has.
            tokio::task::unconstrained(drive(store, &in_flight, call)).await
        }
    };
    let result = match handled {
        Ok(result) => result,
        Err(error) => Err(Failure::Typed(error.downcast::<Raised>()?.0)),
    };
    check_return(store)?;
    Ok(Called::Returned(outcome(result, store.data())))
}

fn outcome(returned: Result<Completion, Failure>, store: &RunStore) -> Outcome {
    let size = match &returned {
        Ok(completion) => {
            completion.params.len() + completion.action.as_ref().map_or(0, String::len)
        }
        Err(Failure::Plain(error)) => error.len(),
        Err(Failure::Typed(failure)) => failure.len(),
    };
    if let Err(failure) =
        result::check_size("the result", size, store.guest().grants.response_bytes)
    {
        return Outcome::Failed(failure);
    }
    match to_json(returned) {
        Ok(value) => result::outcome_of(value, &store.guest().redactor),
        Err(error) => Outcome::Failed(result::invalid_json("a part of the result", &error)),
    }
}

/// The JSON that a core module would return, so that the same rules apply to both.
fn to_json(result: Result<Completion, Failure>) -> Result<Value, json::Error> {
    Ok(match result {
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
        /// The version of this form, which tools read.
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
