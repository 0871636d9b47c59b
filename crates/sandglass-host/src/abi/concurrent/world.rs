//! `sandglass:integration@0.2.0`, the world of asynchronous handlers: what has changed since 0.1. The
//! rest is `abi::world`.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::AskError;
use sandglass_supervisor::capability::http::{HttpError, Request as Sendable};
use sandglass_supervisor::capability::streams::{self, BodyWriter, IncomingResponse};
use sandglass_supervisor::capability::{ask, entity_signal};
use sandglass_supervisor::functions::{Class, FunctionId, Import};
use sandglass_supervisor::host_memory::Charge;
use tokio::sync::{Mutex, oneshot};
use wasmtime::Result;
use wasmtime::component::{FutureReader, HasSelf, Linker, StreamReader};

use super::body::{BodyEnd, BodyError, RequestBody, ResponseBody};
use super::{Begun, Calling, call, wasi};
use crate::abi::passed::Passed;
use crate::abi::world;
use crate::abi::world::wit_http::{Error, RequestHead};
use crate::store::RunStore;

#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated, and described in the WIT package"
)]
mod bindings {
    wasmtime::component::bindgen!({
        path: ["../sandglass-guest/wit", "../sandglass-guest/wit-0.2"],
        world: "sandglass:integration/integration@0.2.0",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "sandglass:integration/types@0.1.1": crate::abi::world::interface::types,
            "sandglass:integration/http@0.1.1": crate::abi::world::interface::http,
            "sandglass:integration/ask@0.1.1": crate::abi::world::interface::ask,
            "sandglass:integration/signal@0.1.1": crate::abi::world::interface::signal,
            "sandglass:integration/log@0.1.1": crate::abi::world::interface::log,
            "sandglass:integration/context@0.1.1": crate::abi::world::interface::context,
            "sandglass:integration/clock@0.1.1": crate::abi::world::interface::clock,
            "sandglass:integration/spans@0.1.1": crate::abi::world::interface::spans,
            "sandglass:integration/metrics@0.1.1": crate::abi::world::interface::metrics,
            "sandglass:integration/scratch@0.1.1": crate::abi::world::interface::scratch,
            "sandglass:integration/fail@0.1.1": crate::abi::world::interface::fail,
        },
        require_store_data_send: true,
    });
}

use bindings::sandglass::integration0_2_0 as interface;
use interface::http::{Request, Response};

/// Functions that only this host calls: they are steps of streams, which have no names of their own.
const READ_BODY: &str = "[read]response.body";
const WRITE_BODY: &str = "[write]request.body";

const HTTP: &str = "sandglass:integration/http@0.2";
const SECRETS: &str = "sandglass:integration/secrets@0.2";
const TIMER: &str = "sandglass:integration/timer@0.2";
const PROGRESS: &str = "sandglass:integration/progress@0.2";
const ASK: &str = "sandglass:integration/ask@0.2";
const SIGNAL: &str = "sandglass:integration/signal@0.2";

const fn waiting(interface: &'static str, function: &'static str) -> Import {
    Import { interface, function, class: Class::Async }
}

const fn instant(interface: &'static str, function: &'static str) -> Import {
    Import { interface, function, class: Class::Instant }
}

pub(super) const IMPORTS: &[Import] = &[
    waiting(HTTP, "send"),
    waiting(HTTP, READ_BODY),
    waiting(HTTP, WRITE_BODY),
    waiting(SECRETS, "get"),
    waiting(TIMER, "sleep"),
    instant(PROGRESS, "emit"),
    instant(PROGRESS, "heartbeat"),
    instant(PROGRESS, "set-status"),
    waiting(ASK, "ask"),
    waiting(SIGNAL, "send"),
];

/// The index of the first function behind this module.
pub(super) const END: usize = wasi::END + IMPORTS.len();

/// The id of a function of this world.
const fn id(interface: &str, function: &str) -> FunctionId {
    FunctionId::of(wasi::END, IMPORTS, interface, function)
}

/// Links every function of this world that `abi::world` does not have.
pub(super) fn link(linker: &mut Linker<RunStore>) -> Result<()> {
    interface::http::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)?;
    interface::secrets::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)?;
    interface::timer::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)?;
    interface::progress::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)?;
    interface::ask::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)?;
    interface::signal::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)
}

impl interface::http::Host for RunStore {}
impl interface::secrets::Host for RunStore {}
impl interface::timer::Host for RunStore {}
impl interface::progress::Host for RunStore {}
impl interface::ask::Host for RunStore {}
impl interface::signal::Host for RunStore {}

impl BodyError for Error {
    fn of(error: HttpError) -> Self {
        error.into()
    }
}

/// A body that is complete when the guest ends it.
struct ByItself;

impl BodyEnd for ByItself {
    type Error = Error;

    fn ended(&mut self, writer: BodyWriter) {
        writer.finish();
    }
}

impl interface::http::HostWithStore<RunStore> for HasSelf<RunStore> {
    async fn send(calling: &Calling, request: Request) -> Result<Result<Response, Error>> {
        const FUNCTION: FunctionId = id(HTTP, "send");
        const WRITE: FunctionId = id(HTTP, WRITE_BODY);
        const READ: FunctionId = id(HTTP, READ_BODY);
        let Request { head, body } = request;
        let has_body = body.is_some();
        let pieces = calling.with(|mut access| {
            let is_replay = access.get().is_replay();
            let (writer, pieces) = streams::unfinished_body();
            if let Some(body) = body {
                let writer = Some(writer).filter(|_| !is_replay);
                let consumer = RequestBody::new(WRITE, writer, ByItself, access.get());
                body.pipe(&mut access, consumer)?;
            }
            Ok::<_, wasmtime::Error>(pieces)
        })?;
        let mut received = None;
        let sent = call(
            calling,
            FUNCTION,
            |to| {
                head.pass(to);
                has_body.pass(to);
            },
            |store, race| {
                let RequestHead { method, url, headers } = head.clone();
                let request = match has_body {
                    true => Sendable::streamed(&method, &url, headers, pieces),
                    false => Sendable::new(&method, &url, headers, Vec::new()),
                };
                let outside = store.outside();
                // Noted as sent only if the race lets it begin.
                let wait =
                    async move { outside.open(request.map_err(HttpError::InvalidRequest)?)?.await };
                Ok(Begun::waits(async move { race.call(wait).await }))
            },
            |store, opened| {
                Ok(match opened {
                    Ok(opened) => {
                        let response = IncomingResponse::new(opened);
                        let head = (response.status, response.headers.clone());
                        received = Some(Arc::new(Mutex::new(response)));
                        Ok(head)
                    }
                    Err(error) => Err(store.failed::<_, Error>(error)),
                })
            },
        )
        .await?;
        let (status, headers) = match sent {
            Ok(head) => head,
            Err(error) => return Ok(Err(error)),
        };
        let (failed, ended) = oneshot::channel();
        calling.with(|mut access| {
            let body = ResponseBody::new(READ, received, Duration::MAX, failed);
            let body = StreamReader::new(&mut access, body)?;
            let ended = FutureReader::new(&mut access, async {
                // Dropped without an error, the body is complete, or the guest does not want it.
                Ok::<_, wasmtime::Error>(ended.await.map_or(Ok(()), Err))
            })?;
            Ok(Ok(Response { status, headers, body, ended }))
        })
    }
}

impl interface::secrets::HostWithStore<RunStore> for HasSelf<RunStore> {
    async fn get(calling: &Calling, name: String) -> Result<Result<String, String>> {
        const FUNCTION: FunctionId = id(SECRETS, "get");
        let asked = name.clone();
        call(
            calling,
            FUNCTION,
            |to| name.pass(to),
            |store, race| {
                // As long as this future, and what the source of secrets has, exist.
                let charge = store.guest().memory.charge(2 * name.len() as u64)?;
                let wait = store.guest().secret(asked);
                Ok(Begun::waits(async move {
                    let _charge = charge;
                    race.call(wait).await
                }))
            },
            |store, secret| {
                Ok(match secret {
                    Ok(secret) => {
                        store.give_secret(&name, &secret);
                        Ok(secret.expose().to_owned())
                    }
                    Err(why) => Err(store.failed(why)),
                })
            },
        )
        .await
    }
}

impl interface::timer::HostWithStore<RunStore> for HasSelf<RunStore> {
    async fn sleep(calling: &Calling, ms: u64) -> Result<()> {
        const FUNCTION: FunctionId = id(TIMER, "sleep");
        super::sleep(calling, FUNCTION, &ms, |_| Duration::from_millis(ms)).await
    }
}

impl interface::progress::HostWithStore<RunStore> for HasSelf<RunStore> {
    async fn emit(calling: &Calling, progress: String) -> Result<Result<(), String>> {
        const FUNCTION: FunctionId = id(PROGRESS, "emit");
        super::at_once(calling, FUNCTION, &progress, |store| world::emit(store, &progress))
    }

    async fn heartbeat(calling: &Calling) -> Result<()> {
        const FUNCTION: FunctionId = id(PROGRESS, "heartbeat");
        super::at_once(calling, FUNCTION, &(), |store| store.guest_mut().heartbeat())
    }

    async fn set_status(calling: &Calling, status: String) -> Result<()> {
        const FUNCTION: FunctionId = id(PROGRESS, "set-status");
        super::at_once(calling, FUNCTION, &status, |store| {
            store.guest_mut().status(status.clone());
        })
    }
}

impl interface::ask::HostWithStore<RunStore> for HasSelf<RunStore> {
    async fn ask(
        calling: &Calling,
        request: world::wit_ask::Request,
    ) -> Result<Result<world::wit_ask::Answer, world::wit_ask::Error>> {
        const FUNCTION: FunctionId = id(ASK, "ask");
        let asked = request.clone();
        call(
            calling,
            FUNCTION,
            move |to| request.pass(to),
            |store, race| {
                let memory = store.guest().memory.clone();
                let asked_bytes = asked.params.len() + asked.action.len() + asked.entity_id.len();
                let charge = memory.charge(asked_bytes as u64)?;
                let wait = world::to_ask(asked).and_then(|asked| ask::begin(store, asked));
                Ok(match wait {
                    Ok(wait) => Begun::waits(async move {
                        let _asked = charge;
                        let answer = race.run(wait).await?.map(world::answer);
                        // Until the guest gets it, which may be after other answers.
                        Some(answer.and_then(|answer| {
                            let bytes = (answer.fields.len() + answer.state.len()) as u64;
                            let charge = memory.charge(bytes);
                            let charge =
                                charge.map_err(|error| AskError::Unavailable(error.to_string()))?;
                            Ok((answer, charge))
                        }))
                    }),
                    Err(error) => Begun::Has(Err(store.failed(error))),
                })
            },
            |store, answered| {
                Ok(answered
                    .map(|(answer, _charge): (_, Charge)| answer)
                    .map_err(|error| store.failed(error)))
            },
        )
        .await
    }
}

impl interface::signal::HostWithStore<RunStore> for HasSelf<RunStore> {
    async fn send(
        calling: &Calling,
        notice: world::wit_signal::Notice,
    ) -> Result<Result<(), world::wit_signal::Error>> {
        const FUNCTION: FunctionId = id(SIGNAL, "send");
        let sent = notice.clone();
        call(
            calling,
            FUNCTION,
            move |to| notice.pass(to),
            |store, race| {
                let charge = store.guest().memory.charge(sent.payload.len() as u64)?;
                let wait =
                    world::to_signal(sent).and_then(|signal| entity_signal::begin(store, signal));
                Ok(match wait {
                    Ok(wait) => Begun::waits(async move {
                        let _sent = charge;
                        race.run(wait).await
                    }),
                    Err(error) => Begun::Has(Err(store.failed(error))),
                })
            },
            |store, sent| Ok(sent.map_err(|error| store.failed(error))),
        )
        .await
    }
}
