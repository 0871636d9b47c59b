//! What stands between a handler and what the host calls. Only what the macros make uses it.

use serde::de::DeserializeOwned;

use crate::{Answer, Completion, Context, Failure};

/// What a handler came to.
pub type Answered = Result<Completion, Failure>;

/// The input of a handler.
///
/// # Errors
/// The params are not as it has them.
pub fn input<T: DeserializeOwned>(context: &Context) -> Result<T, Failure> {
    context.params()
}

/// What `answer` comes to, by `action` where it names none itself.
///
/// # Errors
/// It is a failure.
pub fn answer(answer: impl Answer, action: Option<&str>) -> Answered {
    answer.into_result().map(|completion| completion.or_action(action))
}

#[cfg(target_family = "wasm")]
pub use crate::backend::run;

/// What is on a host of integrations the export that it calls.
#[cfg(not(target_family = "wasm"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_handler {
    ($handler:path) => {
        // Nobody calls it here, and it must fit all the same.
        const _: fn(&$crate::Context) -> $crate::__private::Answered = $handler;
    };
}

/// The message and the place of a panic go to the log; the trap that follows has neither.
#[cfg(target_family = "wasm")]
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("with a value that is no text");
        let line = match panic.location() {
            Some(place) => format!("the handler panicked at {place}: {message}"),
            None => format!("the handler panicked: {message}"),
        };
        crate::backend::log(crate::log::Level::Error, &line);
    }));
}
