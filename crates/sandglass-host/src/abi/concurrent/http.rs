//! `wasi:http` 0.3: requests that a guest sends. Wasmtime keeps what requests and responses have besides
//! their bodies; this host's client sends them, and their bodies are streams as in `world`.
//!
//! Trailers of requests are not sent, and responses have none, because the client knows none.

mod bodies;

use std::sync::Arc;
use std::time::Duration as StdDuration;

use http_body_util::{BodyExt, Empty};
use sandglass_supervisor::capability::http::{self as requests, HttpError, Request as Sendable};
use sandglass_supervisor::capability::streams::IncomingResponse;
use sandglass_supervisor::functions::{Class, FunctionId, Import};
use wasmtime::component::{HasSelf, Linker, Resource, StreamReader};
use wasmtime::{Error, Result};
use wasmtime_wasi::TrappableError;
use wasmtime_wasi_http::p3::bindings::http::{client, types};
use wasmtime_wasi_http::p3::{Request, Response};
use wasmtime_wasi_http::{FieldMap, WasiBody};

use super::{Begun, Calling, call, world};
use crate::abi::passed::Passed;
use crate::abi::wasi::{code_of, delegate, header_map, header_texts};
use crate::boundary;
use crate::store::RunStore;
pub(crate) use bodies::Bodies;
use bodies::{Body, Ended, ReadableBody, StoreAccess, consume, drop_object, keep};
use types::{ErrorCode, Headers, RequestOptions, Trailers};

type Fallible<T, E> = Result<T, TrappableError<E>>;
type HeaderResult<T> = Fallible<T, types::HeaderError>;
type OptionsResult<T> = Fallible<T, types::RequestOptionsError>;
type HeaderFailure = TrappableError<types::HeaderError>;
type OptionsFailure = TrappableError<types::RequestOptionsError>;

delegate! { DELEGATED from world::END;
    "wasi:http/types@0.3" in types by http {
        HostFields {
            instant "[constructor]fields" fn new() -> Result<Resource<Fields>>;
            instant "[static]fields.from-list" fn from_list(entries: Vec<(FieldName, FieldValue)>) -> HeaderResult<Resource<Fields>>;
            instant "[method]fields.get" fn get(this: Resource<Fields>, name: FieldName) -> Result<Vec<FieldValue>>;
            instant "[method]fields.has" fn has(this: Resource<Fields>, name: FieldName) -> Result<bool>;
            instant "[method]fields.set" fn set(this: Resource<Fields>, name: FieldName, value: Vec<FieldValue>) -> HeaderResult<()>;
            instant "[method]fields.delete" fn delete(this: Resource<Fields>, name: FieldName) -> HeaderResult<()>;
            instant "[method]fields.get-and-delete" fn get_and_delete(this: Resource<Fields>, name: FieldName) -> HeaderResult<Vec<FieldValue>>;
            instant "[method]fields.append" fn append(this: Resource<Fields>, name: FieldName, value: FieldValue) -> HeaderResult<()>;
            instant "[method]fields.copy-all" fn copy_all(this: Resource<Fields>) -> Result<Vec<(FieldName, FieldValue)>>;
            instant "[method]fields.clone" fn clone(this: Resource<Fields>) -> Result<Resource<Fields>>;
            instant "[resource-drop]fields" fn drop(this: Resource<Fields>) -> Result<()>;
        }
        HostRequest {
            instant "[method]request.get-method" fn get_method(this: Resource<Request>) -> Result<Method>;
            instant "[method]request.set-method" fn set_method(this: Resource<Request>, method: Method) -> Result<Result<(), ()>>;
            instant "[method]request.get-path-with-query" fn get_path_with_query(this: Resource<Request>) -> Result<Option<String>>;
            instant "[method]request.set-path-with-query" fn set_path_with_query(this: Resource<Request>, path_with_query: Option<String>) -> Result<Result<(), ()>>;
            instant "[method]request.get-scheme" fn get_scheme(this: Resource<Request>) -> Result<Option<Scheme>>;
            instant "[method]request.set-scheme" fn set_scheme(this: Resource<Request>, scheme: Option<Scheme>) -> Result<Result<(), ()>>;
            instant "[method]request.get-authority" fn get_authority(this: Resource<Request>) -> Result<Option<String>>;
            instant "[method]request.set-authority" fn set_authority(this: Resource<Request>, authority: Option<String>) -> Result<Result<(), ()>>;
            instant "[method]request.get-options" fn get_options(this: Resource<Request>) -> Result<Option<Resource<RequestOptions>>>;
            instant "[method]request.get-headers" fn get_headers(this: Resource<Request>) -> Result<Resource<Headers>>;
        }
        HostRequestOptions {
            instant "[constructor]request-options" fn new() -> Result<Resource<RequestOptions>>;
            instant "[method]request-options.get-connect-timeout" fn get_connect_timeout(this: Resource<RequestOptions>) -> Result<Option<Duration>>;
            instant "[method]request-options.set-connect-timeout" fn set_connect_timeout(this: Resource<RequestOptions>, duration: Option<Duration>) -> OptionsResult<()>;
            instant "[method]request-options.get-first-byte-timeout" fn get_first_byte_timeout(this: Resource<RequestOptions>) -> Result<Option<Duration>>;
            instant "[method]request-options.set-first-byte-timeout" fn set_first_byte_timeout(this: Resource<RequestOptions>, duration: Option<Duration>) -> OptionsResult<()>;
            instant "[method]request-options.get-between-bytes-timeout" fn get_between_bytes_timeout(this: Resource<RequestOptions>) -> Result<Option<Duration>>;
            instant "[method]request-options.set-between-bytes-timeout" fn set_between_bytes_timeout(this: Resource<RequestOptions>, duration: Option<Duration>) -> OptionsResult<()>;
            instant "[method]request-options.clone" fn clone(this: Resource<RequestOptions>) -> Result<Resource<RequestOptions>>;
            instant "[resource-drop]request-options" fn drop(this: Resource<RequestOptions>) -> Result<()>;
        }
        HostResponse {
            instant "[method]response.get-status-code" fn get_status_code(this: Resource<Response>) -> Result<StatusCode>;
            instant "[method]response.set-status-code" fn set_status_code(this: Resource<Response>, status_code: StatusCode) -> Result<Result<(), ()>>;
            instant "[method]response.get-headers" fn get_headers(this: Resource<Response>) -> Result<Resource<Headers>>;
        }
        Host {
            => fn convert_header_error(HeaderFailure) -> Result<HeaderError>;
            => fn convert_request_options_error(OptionsFailure) -> Result<RequestOptionsError>;
            => fn convert_error_code(TrappableError<ErrorCode>) -> Result<ErrorCode>;
        }
    }
}

const TYPES: &str = "wasi:http/types@0.3";
const CLIENT: &str = "wasi:http/client@0.3";

/// Functions that only this host calls: they are steps of streams, which have no names of their own.
const READ_BODY: &str = "[read]response.body";
const WRITE_BODY: &str = "[write]request.body";

const fn own(interface: &'static str, function: &'static str, class: Class) -> Import {
    Import { interface, function, class }
}

/// Functions that make, consume or drop a body.
const OWN: &[Import] = &[
    own(TYPES, "[static]request.new", Class::Instant),
    own(TYPES, "[static]request.consume-body", Class::Instant),
    own(TYPES, "[resource-drop]request", Class::Instant),
    own(TYPES, "[static]response.new", Class::Instant),
    own(TYPES, "[static]response.consume-body", Class::Instant),
    own(TYPES, "[resource-drop]response", Class::Instant),
    own(CLIENT, "send", Class::Async),
    own(CLIENT, READ_BODY, Class::Async),
    own(CLIENT, WRITE_BODY, Class::Async),
];

/// The functions of this module, in two parts.
pub(super) const IMPORTS: [&[Import]; 2] = [DELEGATED, OWN];

/// A step of the body of a response.
const READ: FunctionId = id(CLIENT, READ_BODY);

const fn id(interface: &str, function: &str) -> FunctionId {
    FunctionId::of(world::END + DELEGATED.len(), OWN, interface, function)
}

pub(super) fn link(linker: &mut Linker<RunStore>) -> Result<()> {
    types::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)?;
    client::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)
}

impl client::Host for RunStore {}

fn fields(store: &mut RunStore, headers: Resource<Headers>) -> Result<FieldMap> {
    let mut fields = store.wasi().table().delete(headers)?;
    fields.set_immutable();
    Ok(fields)
}

/// An empty body, which Wasmtime's objects have instead of those that are in [`Bodies`].
fn no_body() -> WasiBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

fn response(store: &mut RunStore, status: u16, headers: FieldMap) -> Result<Resource<Response>> {
    let mut response = ::http::Response::new(no_body());
    *response.status_mut() = ::http::StatusCode::from_u16(status)?;
    let (mut response, _) = Response::from_http(store.wasi().http().hooks, response);
    response.headers = headers;
    Ok(store.wasi().table().push(response)?)
}

impl types::HostRequestWithStore<RunStore> for HasSelf<RunStore> {
    fn new(
        mut store: StoreAccess<'_>,
        headers: Resource<Headers>,
        contents: Option<StreamReader<u8>>,
        trailers: Ended<Option<Resource<Trailers>>>,
        options: Option<Resource<RequestOptions>>,
    ) -> Result<(Resource<Request>, Ended<()>)> {
        const FUNCTION: FunctionId = id(TYPES, "[static]request.new");
        let has_contents = contents.is_some();
        let entered = boundary::enter(store.get(), FUNCTION, |to| {
            headers.pass(to);
            has_contents.pass(to);
            options.pass(to);
        })?
        .takes(&headers)
        .takes(&options);
        let request = boundary::execute(store.get(), entered, |store| {
            let headers = fields(store, headers)?;
            let table = store.wasi().table();
            let options = options.map(|options| table.delete(options)).transpose()?;
            let (method, options) = (::http::Method::GET, options.map(Into::into));
            let (request, _) = Request::new(method, None, None, None, headers, options, no_body());
            Ok::<_, Error>(table.push(request)?)
        })?;
        let sent = keep(&mut store, request.rep(), contents, trailers)?;
        Ok((request, sent))
    }

    fn consume_body(
        store: StoreAccess<'_>,
        this: Resource<Request>,
        consumed: Ended<()>,
    ) -> Result<ReadableBody> {
        const FUNCTION: FunctionId = id(TYPES, "[static]request.consume-body");
        consume(store, (FUNCTION, READ), this, consumed)
    }

    fn drop(store: StoreAccess<'_>, this: Resource<Request>) -> Result<()> {
        const FUNCTION: FunctionId = id(TYPES, "[resource-drop]request");
        drop_object(store, FUNCTION, this)
    }
}

impl types::HostResponseWithStore<RunStore> for HasSelf<RunStore> {
    fn new(
        mut store: StoreAccess<'_>,
        headers: Resource<Headers>,
        contents: Option<StreamReader<u8>>,
        trailers: Ended<Option<Resource<Trailers>>>,
    ) -> Result<(Resource<Response>, Ended<()>)> {
        const FUNCTION: FunctionId = id(TYPES, "[static]response.new");
        let has_contents = contents.is_some();
        let entered = boundary::enter(store.get(), FUNCTION, |to| {
            headers.pass(to);
            has_contents.pass(to);
        })?
        .takes(&headers);
        let response = boundary::execute(store.get(), entered, |store| {
            let headers = fields(store, headers)?;
            response(store, 200, headers)
        })?;
        let sent = keep(&mut store, response.rep(), contents, trailers)?;
        Ok((response, sent))
    }

    fn consume_body(
        store: StoreAccess<'_>,
        this: Resource<Response>,
        consumed: Ended<()>,
    ) -> Result<ReadableBody> {
        const FUNCTION: FunctionId = id(TYPES, "[static]response.consume-body");
        consume(store, (FUNCTION, READ), this, consumed)
    }

    fn drop(store: StoreAccess<'_>, this: Resource<Response>) -> Result<()> {
        const FUNCTION: FunctionId = id(TYPES, "[resource-drop]response");
        drop_object(store, FUNCTION, this)
    }
}

impl client::HostWithStore<RunStore> for HasSelf<RunStore> {
    async fn send(
        calling: &Calling,
        request: Resource<Request>,
    ) -> Fallible<Resource<Response>, ErrorCode> {
        match send(calling, request).await {
            Ok(sent) => sent.map_err(Into::into),
            Err(error) => Err(TrappableError::trap(error)),
        }
    }
}

async fn send(
    calling: &Calling,
    request: Resource<Request>,
) -> Result<Result<Resource<Response>, ErrorCode>> {
    const FUNCTION: FunctionId = id(CLIENT, "send");
    const WRITE: FunctionId = id(CLIENT, WRITE_BODY);
    let number = request.rep();
    let (pieces, transmission) =
        calling.with(|access| bodies::begin_sending(access, WRITE, number))?;
    let has_contents = pieces.is_some();
    let mut received = None;
    // How long the guest wants to wait for each piece of the response.
    let mut patience = StdDuration::MAX;
    let sent = call(
        calling,
        FUNCTION,
        |to| {
            request.pass(to);
            has_contents.pass(to);
        },
        |store, race| {
            let resource = Resource::<Request>::new_own(number);
            let request = store.wasi().table().delete(resource)?;
            store.charge(&[number])?;
            let options = request.options.as_deref().copied().unwrap_or_default();
            patience = options.between_bytes_timeout.unwrap_or(patience);
            let first_byte = options.first_byte_timeout.unwrap_or(StdDuration::MAX);
            let sendable = sendable(&request, pieces);
            let outside = store.outside();
            // Noted as sent only if the race lets it begin.
            let wait = async move {
                let opening = outside.open(sendable.map_err(HttpError::InvalidRequest)?)?;
                requests::within(first_byte, opening).await
            };
            Ok(Begun::waits(async move { race.call(wait).await }))
        },
        |store, opened| {
            Ok(match opened {
                Ok(opened) => {
                    let incoming = IncomingResponse::new(opened);
                    let headers = header_map(&incoming.headers)?;
                    let headers = FieldMap::new_immutable(store.wasi().http().hooks, headers);
                    let response = response(store, incoming.status, headers)?;
                    received = Some(Arc::new(tokio::sync::Mutex::new(incoming)));
                    Ok(response)
                }
                Err(error) => {
                    store.guest_mut().note_error(&error);
                    Err(code_of(error))
                }
            })
        },
    )
    .await?;
    match &sent {
        Ok(response) => calling.with(|mut access| {
            bodies::bodies(access.get())
                .insert(response.rep(), Body::Received { received, patience });
        }),
        Err(code) => transmission.failed(bodies::uncharged(code.clone())),
    }
    Ok(sent)
}

/// The request as this host sends it.
fn sendable(
    request: &Request,
    pieces: Option<requests::Pieces>,
) -> std::result::Result<Sendable, String> {
    let Request { method, scheme, authority, path_with_query, headers, .. } = request;
    let scheme = scheme.as_ref().map_or("https", |scheme| scheme.as_str());
    let authority = authority.as_ref().ok_or("it has no authority")?;
    let path = path_with_query.as_ref().map_or("/", |path| path.as_str());
    let url = format!("{scheme}://{authority}{path}");
    let headers = header_texts(headers);
    match pieces {
        Some(pieces) => Sendable::streamed(method.as_str(), &url, headers, pieces),
        None => Sendable::without_redirects(method.as_str(), &url, headers),
    }
}
