//! Connects a handler with the export that the host calls. Only code that the macros generate uses it.

use serde::de::DeserializeOwned;

use crate::{Completion, Context, Failure};

/// The result of a handler, converted.
pub type HandlerResult = Result<Completion, Failure>;

/// Reads the input of a handler.
///
/// # Errors
/// Errors if the params are not a valid `T`.
pub fn input<T: DeserializeOwned>(context: &Context) -> Result<T, Failure> {
    context.params()
}

/// Converts what a handler returned; it completes with `action` if it names no action itself.
///
/// # Errors
/// Errors if the handler failed.
pub fn into_result(returned: impl crate::HandlerResult, action: Option<&str>) -> HandlerResult {
    returned.into_result().map(|completion| completion.or_action(action))
}

#[cfg(target_family = "wasm")]
pub use crate::backend::run;

#[cfg(all(target_family = "wasm", feature = "async"))]
pub use crate::backend::block_on;

/// Executes `future`. Each call of a host function has its result when it returns, so there is nothing to
/// wait for.
///
/// # Panics
/// Panics if it waits for something else.
#[cfg(not(all(target_family = "wasm", feature = "async")))]
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    #[derive(Default)]
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(
            woken.0.swap(false, Ordering::Relaxed),
            "the handler waits for something that is no host function"
        );
    }
}

/// Exports `$handler`, an asynchronous function, for the host to call.
#[cfg(not(all(target_family = "wasm", feature = "async")))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_async_handler {
    ($handler:path) => {
        fn __blocking(context: &$crate::Context) -> $crate::__private::HandlerResult {
            $crate::__private::block_on($handler(context))
        }
        $crate::__export_handler!(__blocking);
    };
}

/// In unit tests, takes the place of the export that a host calls.
#[cfg(not(target_family = "wasm"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_handler {
    ($handler:path) => {
        // Nothing calls it here; the type check is what matters.
        const _: fn(&$crate::Context) -> $crate::__private::HandlerResult = $handler;
    };
}

/// Logs the message and the location of a panic, because the trap that follows has neither.
#[cfg(target_family = "wasm")]
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("with a value that is not a string");
        let line = match panic.location() {
            Some(location) => format!("the handler panicked at {location}: {message}"),
            None => format!("the handler panicked: {message}"),
        };
        crate::backend::log(crate::log::Level::Error, &line);
    }));
}
