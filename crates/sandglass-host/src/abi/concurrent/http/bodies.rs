//! The bodies of requests and responses of `wasi:http` 0.3, from the function that makes the object to
//! the one that sends it or returns its body to the guest.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use sandglass_supervisor::capability::http::{HttpError, Pieces};
use sandglass_supervisor::capability::streams::{self, BodyWriter};
use sandglass_supervisor::covered;
use sandglass_supervisor::functions::FunctionId;
use sandglass_supervisor::host_memory::Charge;
use tokio::sync::oneshot;
use wasmtime::component::{
    Access, FutureConsumer, FutureReader, HasSelf, Lift, Resource, Source, StreamReader,
};
use wasmtime::{Error, Result, StoreContextMut};
use wasmtime_wasi_http::p3::bindings::http::types::{ErrorCode, Trailers};

use crate::abi::concurrent::body::{BodyEnd, BodyError, Received, RequestBody, ResponseBody};
use crate::abi::concurrent::stdio::Empty;
use crate::abi::passed::Passed;
use crate::abi::wasi::code_of;
use crate::boundary;
use crate::measured::Measured;
use crate::store::RunStore;

/// The store, in functions that make streams and futures.
pub(super) type StoreAccess<'a> = Access<'a, RunStore, HasSelf<RunStore>>;

pub(super) fn bodies(store: &mut RunStore) -> &mut BTreeMap<u32, Body> {
    &mut store.wasi().bodies().of
}

/// The end of a body: its trailers, or why there is none.
pub(super) type Ended<T> = FutureReader<Result<T, ErrorCode>>;

/// The bodies of requests and responses that have not been sent or read, by the number of the request or
/// response in the table.
#[derive(Default)]
pub(crate) struct Bodies {
    of: BTreeMap<u32, Body>,
}

// The table bounds how many there are, and its entries are charged.
covered!(in Measured; Bodies: of);

pub(super) enum Body {
    /// The guest writes it.
    Written {
        contents: Option<StreamReader<u8>>,
        trailers: Ended<Option<Resource<Trailers>>>,
        transmission: Transmission,
    },
    /// A server has sent it.
    Received {
        /// `None` in a replay.
        received: Option<Received>,
        patience: Duration,
    },
}

/// An error, with the charge for its texts, until the guest reads it.
pub(super) struct HeldError {
    code: ErrorCode,
    _charge: Option<Charge>,
}

/// An error of this host, whose texts are short.
pub(super) const fn uncharged(code: ErrorCode) -> HeldError {
    HeldError { code, _charge: None }
}

/// Charges the texts of a guest's error.
fn hold(store: &RunStore, code: ErrorCode) -> Result<HeldError> {
    let charge = store.guest().memory.charge(text_bytes(&code))?;
    Ok(HeldError { code, _charge: Some(charge) })
}

/// The length of all texts in an error.
fn text_bytes(code: &ErrorCode) -> u64 {
    let text = match code {
        ErrorCode::DnsError(payload) => &payload.rcode,
        ErrorCode::TlsAlertReceived(payload) => &payload.alert_message,
        ErrorCode::HttpRequestHeaderSize(Some(field))
        | ErrorCode::HttpRequestTrailerSize(field)
        | ErrorCode::HttpResponseHeaderSize(field)
        | ErrorCode::HttpResponseTrailerSize(field) => &field.field_name,
        ErrorCode::HttpResponseTransferCoding(text)
        | ErrorCode::HttpResponseContentCoding(text)
        | ErrorCode::InternalError(text) => text,
        _ => return 0,
    };
    text.as_ref().map_or(0, |text| text.capacity() as u64)
}

/// The error of sending a request, which its guest may wait for. There is none if all clones are dropped.
#[derive(Clone)]
pub(super) struct Transmission(Arc<Mutex<Option<oneshot::Sender<HeldError>>>>);

impl Transmission {
    fn new() -> (Self, oneshot::Receiver<HeldError>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    pub(super) fn failed(&self, code: HeldError) {
        if let Some(sender) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The guest may have dropped the future.
            let _ = sender.send(code);
        }
    }
}

/// Which parts of the body of a request have ended: it is complete after its contents and its trailers.
#[derive(Default)]
enum Progress {
    #[default]
    Contents,
    Trailers(BodyWriter),
    /// The trailers came first.
    OnlyContents,
}

/// The end of the body of a request.
#[derive(Clone)]
struct End {
    progress: Arc<Mutex<Progress>>,
    transmission: Transmission,
}

impl End {
    fn step(&self, step: impl FnOnce(Progress) -> Progress) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        *progress = step(std::mem::take(&mut progress));
    }
}

impl BodyEnd for End {
    type Error = ErrorCode;

    fn ended(&mut self, writer: BodyWriter) {
        self.step(|progress| match progress {
            Progress::OnlyContents => {
                writer.finish();
                Progress::Contents
            }
            _ => Progress::Trailers(writer),
        });
    }

    fn failed(&mut self, error: ErrorCode) {
        self.transmission.failed(uncharged(error));
    }
}

impl End {
    /// The guest has written the trailers, or why there are none.
    fn trailers(&self, store: &mut RunStore, outcome: Outcome) -> Result<()> {
        match outcome {
            Ok(trailers) => {
                if let Some(trailers) = trailers {
                    let number = trailers.rep();
                    // In a replay, nothing is in the table.
                    let _ = store.wasi().table().delete(trailers);
                    store.charge(&[number])?;
                }
                self.step(|progress| match progress {
                    Progress::Trailers(writer) => {
                        writer.finish();
                        Progress::Contents
                    }
                    _ => Progress::OnlyContents,
                });
            }
            // Without its end, the body makes the request fail.
            Err(code) => self.transmission.failed(hold(store, code)?),
        }
        Ok(())
    }
}

/// A body as its guest reads it: its contents, and then its trailers.
pub(super) type ReadableBody = (StreamReader<u8>, Ended<Option<Resource<Trailers>>>);

type Outcome = Result<Option<Resource<Trailers>>, ErrorCode>;

/// As [`Outcome`], with what is charged for an error.
type HeldOutcome = Result<Option<Resource<Trailers>>, HeldError>;

/// Passes what a guest writes to a future to a function.
struct OnValue<T, F> {
    pass: Option<F>,
    value: PhantomData<fn(T)>,
}

impl<T, F: FnOnce(&mut RunStore, T) -> Result<()>> OnValue<T, F> {
    fn new(pass: F) -> Self {
        Self { pass: Some(pass), value: PhantomData }
    }
}

impl<T, F> FutureConsumer<RunStore> for OnValue<T, F>
where
    T: Lift + Send + 'static,
    F: FnOnce(&mut RunStore, T) -> Result<()> + Send + Unpin + 'static,
{
    type Item = T;

    fn poll_consume(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut store: StoreContextMut<'_, RunStore>,
        mut source: Source<'_, T>,
        _finish: bool,
    ) -> Poll<Result<()>> {
        let mut value = None;
        source.read(&mut store, &mut value)?;
        if let (Some(value), Some(pass)) = (value, self.pass.take()) {
            pass(store.data_mut(), value)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl BodyError for ErrorCode {
    fn of(error: HttpError) -> Self {
        code_of(error)
    }
}

/// Keeps the body of object `number`, and returns the future of whether it was sent.
pub(super) fn keep(
    store: &mut StoreAccess<'_>,
    number: u32,
    contents: Option<StreamReader<u8>>,
    trailers: Ended<Option<Resource<Trailers>>>,
) -> Result<Ended<()>> {
    let (transmission, failed) = Transmission::new();
    bodies(store.get()).insert(number, Body::Written { contents, trailers, transmission });
    FutureReader::new(store, async {
        Ok::<_, Error>(failed.await.map_or(Ok(()), |held| Err(held.code)))
    })
}

/// Executes a function that takes an object with its body.
fn take<T: 'static>(
    store: &mut StoreAccess<'_>,
    function: FunctionId,
    object: Resource<T>,
) -> Result<Option<Body>> {
    let number = object.rep();
    let store = store.get();
    let entered = boundary::enter(store, function, |to| object.pass(to))?.takes(&object);
    boundary::execute(store, entered, |store| {
        store.wasi().table().delete(object)?;
        Ok::<_, Error>(())
    })?;
    Ok(bodies(store).remove(&number))
}

/// Executes a function that returns the body of an object to the guest.
pub(super) fn consume<T: 'static>(
    mut store: StoreAccess<'_>,
    (function, read): (FunctionId, FunctionId),
    object: Resource<T>,
    mut consumed: Ended<()>,
) -> Result<ReadableBody> {
    let body = take(&mut store, function, object)?;
    match body {
        Some(Body::Written { contents, trailers, transmission }) => {
            // The maker of the body learns whether it could be used.
            let used = OnValue::new(move |store: &mut RunStore, used: Result<(), ErrorCode>| {
                if let Err(code) = used {
                    transmission.failed(hold(store, code)?);
                }
                Ok(())
            });
            consumed.pipe(&mut store, used)?;
            let contents = match contents {
                Some(contents) => contents,
                None => StreamReader::new(&mut store, Empty)?,
            };
            // Wasm does not let a guest read what it writes of this type itself.
            let (forward, forwarded) = oneshot::channel::<HeldOutcome>();
            let written = OnValue::new(move |store: &mut RunStore, outcome: Outcome| {
                let outcome = match outcome {
                    Ok(trailers) => Ok(trailers),
                    Err(code) => Err(hold(store, code)?),
                };
                // The guest may have dropped its end.
                let _ = forward.send(outcome);
                Ok(())
            });
            trailers.pipe(&mut store, written)?;
            let trailers = FutureReader::new(&mut store, async {
                Ok::<_, Error>(forwarded.await.unwrap_or(Ok(None)).map_err(|held| held.code))
            })?;
            Ok((contents, trailers))
        }
        Some(Body::Received { received, patience }) => {
            // The server does not learn whether the guest could use it.
            consumed.close(&mut store)?;
            let (failed, ended) = oneshot::channel();
            let body = ResponseBody::new(read, received, patience, failed);
            let body = StreamReader::new(&mut store, body)?;
            let ended = FutureReader::new(&mut store, async {
                Ok::<_, Error>(ended.await.map_or(Ok(None), Err))
            })?;
            Ok((body, ended))
        }
        None => Err(Error::msg("the object has no body")),
    }
}

/// Executes the drop of an object, with its body.
pub(super) fn drop_object<T: 'static>(
    mut store: StoreAccess<'_>,
    function: FunctionId,
    object: Resource<T>,
) -> Result<()> {
    if let Some(Body::Written { contents, mut trailers, .. }) = take(&mut store, function, object)?
    {
        if let Some(mut contents) = contents {
            contents.close(&mut store)?;
        }
        trailers.close(&mut store)?;
    }
    Ok(())
}

/// Connects the body of request `number` to what sends it: the pieces, if it has any, and whether it was
/// sent.
pub(super) fn begin_sending(
    mut store: StoreAccess<'_>,
    write: FunctionId,
    number: u32,
) -> Result<(Option<Pieces>, Transmission)> {
    let Some(Body::Written { contents, trailers, transmission }) =
        bodies(store.get()).remove(&number)
    else {
        return Err(Error::msg("the request has no body"));
    };
    let (writer, pieces) = streams::unfinished_body();
    let writer = Some(writer).filter(|_| !store.get().is_replay());
    let end = End { progress: Arc::default(), transmission: transmission.clone() };
    let has_contents = contents.is_some();
    if let Some(contents) = contents {
        let consumer = RequestBody::new(write, writer, end.clone(), store.get());
        contents.pipe(&mut store, consumer)?;
    }
    trailers.pipe(
        &mut store,
        OnValue::new(move |store: &mut RunStore, outcome| end.trailers(store, outcome)),
    )?;
    Ok((has_contents.then_some(pieces), transmission))
}
