//! WASI's outgoing HTTP. Each function passes the boundary under its WIT name. Wasmtime keeps requests,
//! fields and bodies; this host's client sends them.

use wasmtime::Result;
use wasmtime::StoreContextMut;
use wasmtime::component::{HasSelf, Linker, Resource};
use wasmtime_wasi_http::p2::bindings::http;
use wasmtime_wasi_http::p2::bindings::http::types::{
    ErrorCode, FutureIncomingResponse, Host as _, OutgoingRequest, RequestOptions,
};
use wasmtime_wasi_http::p2::{HeaderError as HeaderFailure, HeaderResult, HttpError, HttpResult};

use super::{command, delegate};
use crate::boundary::imports;
use crate::store::RunStore;
use sandglass_supervisor::race::CallEnded;

/// The interface that sends requests, with the version of `wasi:http` that Wasmtime implements.
const HANDLER_INTERFACE: &str = "wasi:http/outgoing-handler@0.2.12";

/// Links both interfaces.
pub(super) fn link(linker: &mut Linker<RunStore>) -> Result<()> {
    let options = http::types::LinkOptions::default();
    http::types::add_to_linker::<_, HasSelf<RunStore>>(linker, &options, |store| store)?;
    link_handler(linker)
}

/// Links the function that sends a request by hand: Wasmtime's own code links it as one that never
/// waits, but the call may have to wait for the lease of the host.
#[allow(clippy::disallowed_methods, reason = "it enters through the boundary")]
fn link_handler(linker: &mut Linker<RunStore>) -> Result<()> {
    type Arguments = (Resource<OutgoingRequest>, Option<Resource<RequestOptions>>);
    linker.instance(HANDLER_INTERFACE)?.func_wrap_async(
        "handle",
        |mut store: StoreContextMut<'_, RunStore>, (request, options): Arguments| {
            Box::new(async move {
                let store = store.data_mut();
                let handled = match handler::Host::handle(store, request, options).await {
                    Ok(response) => Ok(response),
                    Err(error) => Err(store.convert_error_code(error)?),
                };
                Ok((handled,))
            })
        },
    )
}

/// The trait of the interface.
mod handler {
    use super::{FutureIncomingResponse, HttpResult, OutgoingRequest, RequestOptions, Resource};

    pub(super) trait Host {
        /// Sends a request. Its response arrives later.
        async fn handle(
            &mut self,
            request: Resource<OutgoingRequest>,
            options: Option<Resource<RequestOptions>>,
        ) -> HttpResult<Resource<FutureIncomingResponse>>;
    }
}

delegate! { IMPORTS from command::IMPORTS.len();
    "wasi:http/types" in http::types by http {
        HostFields {
            instant "[constructor]fields" fn new() -> Result<Resource<Fields>>;
            instant "[static]fields.from-list" fn from_list(entries: Vec<(FieldName, FieldValue)>) -> HeaderResult<Resource<Fields>>;
            instant "[method]fields.get" fn get(this: Resource<Fields>, name: FieldName) -> Result<Vec<FieldValue>>;
            instant "[method]fields.has" fn has(this: Resource<Fields>, name: FieldName) -> Result<bool>;
            instant "[method]fields.set" fn set(this: Resource<Fields>, name: FieldName, value: Vec<FieldValue>) -> HeaderResult<()>;
            instant "[method]fields.delete" fn delete(this: Resource<Fields>, name: FieldName) -> HeaderResult<()>;
            instant "[method]fields.append" fn append(this: Resource<Fields>, name: FieldName, value: FieldValue) -> HeaderResult<()>;
            instant "[method]fields.entries" fn entries(this: Resource<Fields>) -> Result<Vec<(FieldName, FieldValue)>>;
            instant "[method]fields.clone" fn clone(this: Resource<Fields>) -> Result<Resource<Fields>>;
            instant "[resource-drop]fields" fn drop(this: Resource<Fields>) -> Result<()>;
        }
        HostIncomingRequest {
            instant "[method]incoming-request.method" fn method(this: Resource<IncomingRequest>) -> Result<Method>;
            instant "[method]incoming-request.path-with-query" fn path_with_query(this: Resource<IncomingRequest>) -> Result<Option<String>>;
            instant "[method]incoming-request.scheme" fn scheme(this: Resource<IncomingRequest>) -> Result<Option<Scheme>>;
            instant "[method]incoming-request.authority" fn authority(this: Resource<IncomingRequest>) -> Result<Option<String>>;
            instant "[method]incoming-request.headers" fn headers(this: Resource<IncomingRequest>) -> Result<Resource<Headers>>;
            instant "[method]incoming-request.consume" fn consume(this: Resource<IncomingRequest>) -> Result<Result<Resource<IncomingBody>, ()>>;
            instant "[resource-drop]incoming-request" fn drop(this: Resource<IncomingRequest>) -> Result<()>;
        }
        HostOutgoingRequest {
            instant "[constructor]outgoing-request" fn new(headers: Resource<Headers>) -> Result<Resource<OutgoingRequest>>;
            instant "[method]outgoing-request.body" fn body(this: Resource<OutgoingRequest>) -> Result<Result<Resource<OutgoingBody>, ()>>;
            instant "[method]outgoing-request.method" fn method(this: Resource<OutgoingRequest>) -> Result<Method>;
            instant "[method]outgoing-request.set-method" fn set_method(this: Resource<OutgoingRequest>, method: Method) -> Result<Result<(), ()>>;
            instant "[method]outgoing-request.path-with-query" fn path_with_query(this: Resource<OutgoingRequest>) -> Result<Option<String>>;
            instant "[method]outgoing-request.set-path-with-query" fn set_path_with_query(this: Resource<OutgoingRequest>, path_with_query: Option<String>) -> Result<Result<(), ()>>;
            instant "[method]outgoing-request.scheme" fn scheme(this: Resource<OutgoingRequest>) -> Result<Option<Scheme>>;
            instant "[method]outgoing-request.set-scheme" fn set_scheme(this: Resource<OutgoingRequest>, scheme: Option<Scheme>) -> Result<Result<(), ()>>;
            instant "[method]outgoing-request.authority" fn authority(this: Resource<OutgoingRequest>) -> Result<Option<String>>;
            instant "[method]outgoing-request.set-authority" fn set_authority(this: Resource<OutgoingRequest>, authority: Option<String>) -> Result<Result<(), ()>>;
            instant "[method]outgoing-request.headers" fn headers(this: Resource<OutgoingRequest>) -> Result<Resource<Headers>>;
            instant "[resource-drop]outgoing-request" fn drop(this: Resource<OutgoingRequest>) -> Result<()>;
        }
        HostRequestOptions {
            instant "[constructor]request-options" fn new() -> Result<Resource<RequestOptions>>;
            instant "[method]request-options.connect-timeout" fn connect_timeout(this: Resource<RequestOptions>) -> Result<Option<Duration>>;
            instant "[method]request-options.set-connect-timeout" fn set_connect_timeout(this: Resource<RequestOptions>, duration: Option<Duration>) -> Result<Result<(), ()>>;
            instant "[method]request-options.first-byte-timeout" fn first_byte_timeout(this: Resource<RequestOptions>) -> Result<Option<Duration>>;
            instant "[method]request-options.set-first-byte-timeout" fn set_first_byte_timeout(this: Resource<RequestOptions>, duration: Option<Duration>) -> Result<Result<(), ()>>;
            instant "[method]request-options.between-bytes-timeout" fn between_bytes_timeout(this: Resource<RequestOptions>) -> Result<Option<Duration>>;
            instant "[method]request-options.set-between-bytes-timeout" fn set_between_bytes_timeout(this: Resource<RequestOptions>, duration: Option<Duration>) -> Result<Result<(), ()>>;
            instant "[resource-drop]request-options" fn drop(this: Resource<RequestOptions>) -> Result<()>;
        }
        HostResponseOutparam {
            instant "[method]response-outparam.send-informational" fn send_informational(this: Resource<ResponseOutparam>, status: u16, headers: Resource<Headers>) -> HttpResult<()>;
            instant "[static]response-outparam.set" fn set(param: Resource<ResponseOutparam>, response: Result<Resource<OutgoingResponse>, ErrorCode>) -> Result<()>;
            instant "[resource-drop]response-outparam" fn drop(this: Resource<ResponseOutparam>) -> Result<()>;
        }
        HostIncomingResponse {
            instant "[method]incoming-response.status" fn status(this: Resource<IncomingResponse>) -> Result<StatusCode>;
            instant "[method]incoming-response.headers" fn headers(this: Resource<IncomingResponse>) -> Result<Resource<Headers>>;
            instant "[method]incoming-response.consume" fn consume(this: Resource<IncomingResponse>) -> Result<Result<Resource<IncomingBody>, ()>>;
            instant "[resource-drop]incoming-response" fn drop(this: Resource<IncomingResponse>) -> Result<()>;
        }
        HostIncomingBody {
            instant "[method]incoming-body.stream" fn stream(this: Resource<IncomingBody>) -> Result<Result<Resource<InputStream>, ()>>;
            instant "[static]incoming-body.finish" fn finish(this: Resource<IncomingBody>) -> Result<Resource<FutureTrailers>>;
            instant "[resource-drop]incoming-body" fn drop(this: Resource<IncomingBody>) -> Result<()>;
        }
        HostFutureTrailers {
            instant "[method]future-trailers.subscribe" fn subscribe(this: Resource<FutureTrailers>) -> Result<Resource<Pollable>>;
            instant "[method]future-trailers.get" fn get(this: Resource<FutureTrailers>) -> Result<Option<Result<Result<Option<Resource<Trailers>>, ErrorCode>, ()>>>;
            instant "[resource-drop]future-trailers" fn drop(this: Resource<FutureTrailers>) -> Result<()>;
        }
        HostOutgoingResponse {
            instant "[constructor]outgoing-response" fn new(headers: Resource<Headers>) -> Result<Resource<OutgoingResponse>>;
            instant "[method]outgoing-response.status-code" fn status_code(this: Resource<OutgoingResponse>) -> Result<StatusCode>;
            instant "[method]outgoing-response.set-status-code" fn set_status_code(this: Resource<OutgoingResponse>, status_code: StatusCode) -> Result<Result<(), ()>>;
            instant "[method]outgoing-response.headers" fn headers(this: Resource<OutgoingResponse>) -> Result<Resource<Headers>>;
            instant "[method]outgoing-response.body" fn body(this: Resource<OutgoingResponse>) -> Result<Result<Resource<OutgoingBody>, ()>>;
            instant "[resource-drop]outgoing-response" fn drop(this: Resource<OutgoingResponse>) -> Result<()>;
        }
        HostOutgoingBody {
            instant "[method]outgoing-body.write" fn write(this: Resource<OutgoingBody>) -> Result<Result<Resource<OutputStream>, ()>>;
            instant "[static]outgoing-body.finish" fn finish(this: Resource<OutgoingBody>, trailers: Option<Resource<Trailers>>) -> HttpResult<()>;
            instant "[resource-drop]outgoing-body" fn drop(this: Resource<OutgoingBody>) -> Result<()>;
        }
        HostFutureIncomingResponse {
            instant "[method]future-incoming-response.subscribe" fn subscribe(this: Resource<FutureIncomingResponse>) -> Result<Resource<Pollable>>;
            instant "[method]future-incoming-response.get" fn get(this: Resource<FutureIncomingResponse>) -> Result<Option<Result<Result<Resource<IncomingResponse>, ErrorCode>, ()>>>;
            instant "[resource-drop]future-incoming-response" fn drop(this: Resource<FutureIncomingResponse>) -> Result<()>;
        }
        Host {
            instant "http-error-code" fn http_error_code(err: Resource<IoError>) -> Result<Option<ErrorCode>>;
            => fn convert_error_code(HttpError) -> Result<ErrorCode>;
            => fn convert_header_error(HeaderFailure) -> Result<HeaderError>;
        }
    }
}

imports! { HANDLER from command::IMPORTS.len() + IMPORTS.len();
    "wasi:http/outgoing-handler" in handler {
        Host {
            polled "handle" fn handle(store, race, request: Resource<OutgoingRequest>, options: Option<Resource<RequestOptions>>) -> HttpResult<Resource<FutureIncomingResponse>> {
                // A call that waited for the lease for too long sends nothing.
                let may_begin = race.call(async { Ok::<_, CallEnded>(()) }).await;
                if let Some(Err(ended)) = may_begin {
                    let why = ErrorCode::InternalError(Some(ended.to_string()));
                    return Err(HttpError::from(why));
                }
                let options_number = options.as_ref().map(Resource::rep);
                let mut view = store.wasi().http();
                let handled = http::outgoing_handler::Host::handle(&mut view, request, options);
                if let Some(number) = options_number {
                    // The guest has given up its handle, but Wasmtime only reads the options.
                    let given = Resource::<RequestOptions>::new_own(number);
                    store.wasi().table().delete(given)?;
                }
                handled.map(Some)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wasmtime_wasi_http::p2::bindings::http::types::{
        HostFields, HostFutureIncomingResponse, HostOutgoingRequest, HostRequestOptions, Scheme,
    };

    use super::handler::Host as _;
    use super::*;

    #[tokio::test]
    async fn the_options_of_a_request_are_dropped_when_it_is_sent() {
        let mut store = RunStore::idle();
        let fields = HostFields::new(&mut store).expect("fields");
        let request = HostOutgoingRequest::new(&mut store, fields).expect("a request");
        let this = || Resource::new_borrow(request.rep());
        let (scheme, host) = (Some(Scheme::Http), Some("api.example".to_owned()));
        HostOutgoingRequest::set_scheme(&mut store, this(), scheme).expect("set").expect("valid");
        HostOutgoingRequest::set_authority(&mut store, this(), host).expect("set").expect("valid");
        let path = Some("/".to_owned());
        HostOutgoingRequest::set_path_with_query(&mut store, this(), path)
            .expect("set")
            .expect("valid");
        let options = HostRequestOptions::new(&mut store).expect("options");
        let future = store.handle(request, Some(options)).await.expect("it is sent");
        assert_eq!(store.wasi().table().iter_mut().count(), 1, "the future alone");
        HostFutureIncomingResponse::drop(&mut store, future).expect("it is there");
        assert_eq!(store.wasi().table().iter_mut().count(), 0);
    }
}
