//! The success value that a handler returns.

use serde::Serialize;

use crate::Failure;

/// The handler did its work: the action that its entity takes next, and the params of that action.
#[derive(Clone, Debug)]
pub struct Completion {
    action: Option<String>,
    /// The text of a JSON value, or why the value could not be written.
    params: Result<String, String>,
}

/// The text of empty params.
const NO_PARAMS: &str = "{}";

impl Completion {
    /// Completes with `action`, without params: for an integration that declares no `on_success`, or
    /// a handler with more than one successful ending.
    #[must_use]
    pub fn action(action: impl Into<String>) -> Self {
        Self { action: Some(action.into()), params: Ok(NO_PARAMS.to_owned()) }
    }

    /// Completes with the action that the integration declares as `on_success`, without params.
    #[must_use]
    pub fn on_success() -> Self {
        Self { action: None, params: Ok(NO_PARAMS.to_owned()) }
    }

    /// Sets the params. They serialize to an object, or to nothing, such as `()`. The whole result has
    /// at most 1 MiB, unless the integration was granted more.
    ///
    /// If they serialize to anything else, the handler fails with the category `output`.
    #[must_use]
    pub fn with(mut self, params: impl Serialize) -> Self {
        self.params = serde_json::to_string(&params).map_err(|error| error.to_string());
        self
    }

    /// Completes with `action` if it names no action itself.
    pub(crate) fn or_action(mut self, action: Option<&str>) -> Self {
        self.action = self.action.or_else(|| action.map(str::to_owned));
        self
    }

    /// Returns the action, if it names one, and the text of the params, a JSON object: for tests of a
    /// handler.
    ///
    /// # Errors
    /// If the params are not an object: a failure with the category `output`.
    pub fn into_parts(self) -> Result<(Option<String>, String), Failure> {
        let refused = |why: String| Failure::typed("output", "invalid").because(why);
        let params = self.params.map_err(|error| {
            refused(format!("the handler's output cannot be written as JSON: {error}"))
        })?;
        match params.as_bytes().first() {
            Some(b'{') => Ok((self.action, params)),
            _ if params == "null" => Ok((self.action, NO_PARAMS.to_owned())),
            _ => {
                Err(refused("the handler's output is not an object, so it cannot be params".into()))
            }
        }
    }
}

/// The success value of a handler: a value that serializes to an object, `()`, or a [`Completion`].
pub trait IntoCompletion {
    /// Converts it to a completion.
    fn into_completion(self) -> Completion;
}

impl IntoCompletion for Completion {
    fn into_completion(self) -> Completion {
        self
    }
}

impl<T: Serialize> IntoCompletion for T {
    fn into_completion(self) -> Completion {
        Completion::on_success().with(self)
    }
}

/// The return type of a handler: a `Result` with a success value and with a [`Failure`] or an error
/// that converts into one.
#[diagnostic::on_unimplemented(
    message = "a handler returns a `Result`, and `{Self}` is not a result that it can return",
    note = "its error must convert into a `sandglass_guest::Failure`, as every `std::error::Error` does"
)]
pub trait HandlerResult {
    /// Converts it to a completion or a failure.
    ///
    /// # Errors
    /// Errors if the handler failed.
    fn into_result(self) -> Result<Completion, Failure>;
}

impl<T: IntoCompletion, E: Into<Failure>> HandlerResult for Result<T, E> {
    fn into_result(self) -> Result<Completion, Failure> {
        self.map(T::into_completion).map_err(E::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn params_are_an_object_or_nothing() {
        let parts = |completion: Completion| completion.into_parts().expect("an object");
        let finished = parts(Completion::action("Finish").with(json!({ "n": 1 })));
        assert_eq!(finished, (Some("Finish".to_owned()), r#"{"n":1}"#.to_owned()));
        assert_eq!(parts(().into_completion()), (None, "{}".to_owned()));
        assert_eq!(parts(Completion::on_success()), (None, "{}".to_owned()));
        for no_params in [json!([1]), json!("text"), json!(7), json!(true)] {
            let failure = no_params.into_completion().into_parts().expect_err("not an object");
            assert_eq!(failure.category(), Some("output"));
        }
        let not_json = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(not_json.into_completion().into_parts().is_err(), "its keys are not strings");
    }

    #[test]
    fn the_action_of_a_completion_precedes_that_of_the_attribute() {
        let of = |completion: Completion| completion.or_action(Some("Finish")).action;
        assert_eq!(of(Completion::action("Skip")).as_deref(), Some("Skip"));
        assert_eq!(of(Completion::on_success()).as_deref(), Some("Finish"));
    }
}
