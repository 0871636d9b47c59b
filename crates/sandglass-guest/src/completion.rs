//! What a handler answers when it has done its work.

use serde::Serialize;

use crate::Failure;

/// That the handler did its work: the action that its entity takes, and that action's params.
#[derive(Clone, Debug)]
pub struct Completion {
    action: Option<String>,
    /// The text of a JSON value, or why there is none.
    params: Result<String, String>,
}

/// What stands for no params.
const NO_PARAMS: &str = "{}";

impl Completion {
    /// Completes by `action`, without params: for an integration that declares no
    /// `on_success`, or a handler with more than one good ending.
    #[must_use]
    pub fn action(action: impl Into<String>) -> Self {
        Self { action: Some(action.into()), params: Ok(NO_PARAMS.to_owned()) }
    }

    /// Completes by the action that the integration declares as `on_success`.
    #[must_use]
    pub fn on_success() -> Self {
        Self { action: None, params: Ok(NO_PARAMS.to_owned()) }
    }

    /// With `params`: what serializes to an object, or to nothing, such as `()`. The whole
    /// answer has at most 1 MiB, unless the integration was granted more.
    ///
    /// What serializes to anything else makes the handler fail, with the category `output`.
    #[must_use]
    pub fn with(mut self, params: impl Serialize) -> Self {
        self.params = serde_json::to_string(&params).map_err(|error| error.to_string());
        self
    }

    /// The same, by `action` where it names none.
    pub(crate) fn or_action(mut self, action: Option<&str>) -> Self {
        self.action = self.action.or_else(|| action.map(str::to_owned));
        self
    }

    /// The action, if it names one, and the text of the params, a JSON object: for tests of
    /// a handler.
    ///
    /// # Errors
    /// What it was given isn't one: a failure of the category `output`.
    pub fn into_parts(self) -> Result<(Option<String>, String), Failure> {
        let refused = |why: String| Failure::typed("output", "invalid").because(why);
        let params = self.params.map_err(|error| {
            refused(format!("the handler's output can't be written as JSON: {error}"))
        })?;
        match params.as_bytes().first() {
            Some(b'{') => Ok((self.action, params)),
            _ if params == "null" => Ok((self.action, NO_PARAMS.to_owned())),
            _ => Err(refused("the handler's output is no object, so it can't be params".into())),
        }
    }
}

/// What a handler can answer when it did its work: whatever serializes to an object, `()`,
/// or a [`Completion`].
pub trait IntoCompletion {
    /// The completion that it stands for.
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

/// What a handler answers: a `Result` of what it made, and of a [`Failure`] or what
/// converts into one.
#[diagnostic::on_unimplemented(
    message = "a handler answers a `Result`, and `{Self}` is none that can be answered",
    note = "its error must convert into a `sandglass_guest::Failure`, as every `std::error::Error` does"
)]
pub trait Answer {
    /// The completion or the failure that it stands for.
    ///
    /// # Errors
    /// It is a failure.
    fn into_result(self) -> Result<Completion, Failure>;
}

impl<T: IntoCompletion, E: Into<Failure>> Answer for Result<T, E> {
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
            let failure = no_params.into_completion().into_parts().expect_err("no object");
            assert_eq!(failure.category(), Some("output"));
        }
        let no_json = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(no_json.into_completion().into_parts().is_err(), "its keys are no texts");
    }

    #[test]
    fn an_action_of_its_own_comes_before_that_of_the_attribute() {
        let of = |completion: Completion| completion.or_action(Some("Finish")).action;
        assert_eq!(of(Completion::action("Skip")).as_deref(), Some("Skip"));
        assert_eq!(of(Completion::on_success()).as_deref(), Some("Finish"));
    }
}
