//! What differs in the world 0.1: a call of a host function returns when it has its result.

use super::{bindings, host};
use crate::glue::{self, HandlerResult};
use crate::{Context, HostError, ask, http, signal};

/// Exports `$handler` for the host to call.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_handler {
    ($handler:path) => {
        struct __Guest;

        impl $crate::bindings::Guest for __Guest {
            fn handle(
                context: $crate::bindings::DispatchContext,
            ) -> ::core::result::Result<$crate::bindings::Completion, $crate::bindings::Failure>
            {
                $crate::__private::run(context, $handler)
            }
        }

        $crate::bindings::export!(__Guest with_types_in $crate::bindings);
    };
}

/// Runs `handler`. The export calls this.
///
/// # Errors
/// Errors if the handler fails.
pub fn run(
    context: bindings::DispatchContext,
    handler: fn(&Context) -> HandlerResult,
) -> Result<bindings::Completion, bindings::Failure> {
    glue::log_panics();
    super::write(handler(&super::read(context)))
}

pub(crate) fn progress(progress: &str) -> Result<(), HostError> {
    host::progress::emit(progress).map_err(HostError::new)
}

pub(crate) fn status(line: &str) {
    host::progress::set_status(line);
}

pub(crate) async fn secret(name: &str) -> Result<String, HostError> {
    host::secrets::get(name).map_err(HostError::new)
}

pub(crate) async fn send(request: http::Request) -> Result<http::Response, http::Error> {
    let head = host::http::RequestHead {
        method: request.method,
        url: request.url,
        headers: request.headers,
    };
    let response = host::http::send(&host::http::Request { head, body: request.body })?;
    let host::http::Response { status, headers, body } = response;
    Ok(http::Response { status, headers, body })
}

pub(crate) fn send_batch(
    requests: Vec<http::Request>,
) -> Result<Vec<Result<http::Response, http::Error>>, http::Error> {
    Ok(requests.into_iter().map(http::Request::send).collect())
}

pub(crate) async fn ask(request: &ask::Request) -> Result<ask::Answer, ask::Error> {
    Ok(host::ask::ask(&super::ask_request(request))?.into())
}

pub(crate) async fn signal(notice: &signal::Notice) -> Result<(), signal::Error> {
    Ok(host::signal::send(&super::notice(notice))?)
}
