//! Charges a component's resources for the memory that they take in the host, by their numbers in the
//! resource table.

use std::any::Any;
use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use wasmtime::component::ResourceTable;
use wasmtime_wasi::p2::bindings::io::poll::Pollable as DynPollable;
use wasmtime_wasi::p2::bindings::io::streams::{
    InputStream as DynInputStream, OutputStream as DynOutputStream,
};
use wasmtime_wasi::p2::bindings::sockets::network::Network;
use wasmtime_wasi_http::FieldMap;
use wasmtime_wasi_http::p2::bindings::http::types::{Method, Scheme};
use wasmtime_wasi_http::p2::body::{
    HostFutureTrailers, HostIncomingBody, HostOutgoingBody, HyperOutgoingBody,
};
use wasmtime_wasi_http::p2::types::{
    HostFutureIncomingResponse, HostIncomingResponse, HostOutgoingRequest, HostOutgoingResponse,
};
use wasmtime_wasi_http::{RequestOptions, WasiHttpHooks, p3};

use super::sending::{BODY_BYTES, HEADERS_MAX_BYTES};
use crate::measured::Measured;
use sandglass_supervisor::capability::{spans, streams};
use sandglass_supervisor::covered;
use sandglass_supervisor::host_memory::{Charge, HostMemory};

/// What a resource takes in addition to its texts, in bytes: its entry in the table, the object itself,
/// and its charge. Streams, pollables and other objects of a fixed size take no more.
const OBJECT_BYTES: u64 = 1024;

/// With at most this many further values, a map of headers is not copied to save memory, because
/// [`OBJECT_BYTES`] covers them.
const LEAST_SPARE: usize = 4;

/// The charges for the resources of one handler run.
#[derive(Debug)]
pub(super) struct Charges {
    memory: HostMemory,
    of: BTreeMap<u32, Charged>,
}

// Resources are charged one by one, and as many as the table holds.
covered!(in Measured; Charges: memory, of);

/// The charge for one resource.
#[derive(Debug)]
struct Charged {
    charge: Charge,
    /// If it is a map of headers: the most further values that it has had since its last copy.
    further_values: usize,
}

impl Charges {
    pub(super) fn new(memory: HostMemory) -> Self {
        Self { memory, of: BTreeMap::new() }
    }

    /// Measures the resources with these numbers in `table`, and charges each for what it takes now.
    /// Removes the charges for those that are gone.
    ///
    /// # Errors
    /// The account has no room for one of them, or one has a type that cannot be measured.
    pub(super) fn settle(
        &mut self,
        table: &mut ResourceTable,
        hooks: &mut dyn WasiHttpHooks,
        numbers: &[u32],
    ) -> wasmtime::Result<()> {
        for number in numbers {
            match table.get_any_mut(*number) {
                Ok(object) => {
                    let charged = self.of.entry(*number).or_insert_with(|| Charged {
                        charge: self.memory.nothing(),
                        further_values: 0,
                    });
                    if let Some(fields) = object.downcast_mut() {
                        charged.further_values =
                            without_spare_room(fields, hooks, charged.further_values);
                    }
                    let bytes = measure(object).ok_or(UnknownResource(*number))?;
                    charged.charge.resize(bytes)?;
                }
                Err(_) => {
                    self.of.remove(number);
                }
            }
        }
        Ok(())
    }
}

/// A resource of a type that [`measure`] does not know: a fault of the host, not of the guest.
#[derive(Debug, thiserror::Error)]
#[error("the host cannot measure resource {0}, because its type is missing in `measure`")]
struct UnknownResource(u32);

/// Memory that `object` takes, in bytes; `None` if its type is not listed here.
fn measure(object: &dyn Any) -> Option<u64> {
    macro_rules! one_of {
        ($($type:ty),+ $(,)?) => {
            None$(.or_else(|| object.downcast_ref::<$type>().map(Measured::uncharged_bytes)))+
        };
    }
    let bytes: Option<u64> = one_of!(
        DynPollable,
        DynInputStream,
        DynOutputStream,
        FieldMap,
        HostOutgoingRequest,
        HostOutgoingBody,
        RequestOptions,
        p3::MaybeMutable<RequestOptions>,
        p3::Request,
        p3::Response,
        HostFutureIncomingResponse,
        HostIncomingResponse,
        HostIncomingBody,
        HostFutureTrailers,
        HostOutgoingResponse,
        streams::OutgoingRequest,
        streams::IncomingResponse,
        spans::Handle,
        wasmtime::Error,
        Network,
    );
    bytes.map(|bytes| OBJECT_BYTES + bytes)
}

impl Measured for FieldMap {
    fn uncharged_bytes(&self) -> u64 {
        fields_bytes(self)
    }
}

impl Measured for HostOutgoingRequest {
    fn uncharged_bytes(&self) -> u64 {
        let Self { method, scheme, authority, path_with_query, headers, body } = self;
        fields_bytes(headers)
            + authority.uncharged_bytes()
            + path_with_query.uncharged_bytes()
            + method_bytes(method)
            + scheme.as_ref().map_or(0, scheme_bytes)
            + body_bytes(body.as_ref())
    }
}

impl Measured for p3::Request {
    fn uncharged_bytes(&self) -> u64 {
        let Self { method, scheme, authority, path_with_query, headers, options, .. } = self;
        let text = |length: Option<usize>| length.unwrap_or_default() as u64;
        fields_bytes(headers)
            + method.as_str().len() as u64
            + text(scheme.as_ref().map(|scheme| scheme.as_str().len()))
            + text(authority.as_ref().map(|authority| authority.as_str().len()))
            + text(path_with_query.as_ref().map(|path| path.as_str().len()))
            + text(options.as_deref().map(size_of_val))
    }
}

impl Measured for p3::Response {
    fn uncharged_bytes(&self) -> u64 {
        let Self { status: _, headers, .. } = self;
        fields_bytes(headers)
    }
}

impl Measured for p3::MaybeMutable<RequestOptions> {
    fn uncharged_bytes(&self) -> u64 {
        size_of::<RequestOptions>() as u64
    }
}

impl Measured for HostOutgoingResponse {
    fn uncharged_bytes(&self) -> u64 {
        let Self { status: _, headers, body } = self;
        fields_bytes(headers) + body_bytes(body.as_ref())
    }
}

impl Measured for HostIncomingResponse {
    fn uncharged_bytes(&self) -> u64 {
        let Self { status: _, headers, body: _ } = self;
        fields_bytes(headers)
    }
}

fn method_bytes(method: &Method) -> u64 {
    if let Method::Other(name) = method { name.uncharged_bytes() } else { 0 }
}

fn scheme_bytes(scheme: &Scheme) -> u64 {
    if let Scheme::Other(name) = scheme { name.uncharged_bytes() } else { 0 }
}

fn body_bytes(body: Option<&HyperOutgoingBody>) -> u64 {
    if body.is_some() { BODY_BYTES } else { 0 }
}

/// Values of `fields` besides the first of each name.
fn further_values(fields: &HeaderMap) -> usize {
    fields.len().saturating_sub(fields.keys_len())
}

/// Copies `fields` if it has had more than twice as many further values as now, because the map neither
/// shrinks nor states how much memory it keeps for them. Returns the most that it has had since the
/// copy.
fn without_spare_room(fields: &mut FieldMap, hooks: &mut dyn WasiHttpHooks, most: usize) -> usize {
    let now = further_values(fields);
    if most <= 2 * now.max(LEAST_SPARE) {
        return most.max(now);
    }
    // While there are two handles, taking the map out of one of them copies the values in use.
    let copy = HeaderMap::from(fields.clone());
    *fields = FieldMap::new_immutable(hooks, copy);
    // The map has fewer values than before, so it is one that the guest may change.
    fields.set_mutable(HEADERS_MAX_BYTES);
    now
}

/// Memory that a map of headers takes: an upper bound from the layout of `http::HeaderMap` (two vectors
/// that double, and an index with a third more slots than entries) and an allocation for each name and
/// value. [`without_spare_room`] allows twice as many further values, and the vector may have room for
/// twice as many as that.
fn fields_bytes(fields: &HeaderMap) -> u64 {
    const ALLOCATION_BYTES: usize = 32;
    const ENTRY_BYTES: usize = size_of::<HeaderName>() + size_of::<HeaderValue>() + 48;
    let names = fields.keys().map(|name| name.as_str().len() + ALLOCATION_BYTES);
    let values = fields.values().map(|value| value.len() + ALLOCATION_BYTES);
    let slots = (fields.capacity() + 4 * further_values(fields)) * ENTRY_BYTES;
    (names.sum::<usize>() + values.sum::<usize>() + slots) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RunStore;
    use proptest::prelude::*;
    use wasmtime::component::Resource;
    use wasmtime_wasi_http::p2::bindings::http::types::{
        HostFields, HostOutgoingBody as BodyFunctions, HostOutgoingRequest as RequestFunctions,
        HostOutgoingResponse as ResponseFunctions,
    };

    /// The resources of `wasi:http` that a guest has.
    #[derive(Default)]
    struct Hoard {
        fields: Vec<Resource<FieldMap>>,
        requests: Vec<Resource<HostOutgoingRequest>>,
        responses: Vec<Resource<HostOutgoingResponse>>,
        bodies: Vec<Resource<HostOutgoingBody>>,
    }

    /// A second handle of the same resource.
    fn borrowed<T: 'static>(resource: &Resource<T>) -> Resource<T> {
        Resource::new_borrow(resource.rep())
    }

    impl Hoard {
        fn step(&mut self, store: &mut RunStore, step: u8, size: usize) -> wasmtime::Result<()> {
            let text = || "x".repeat(size);
            match step {
                0 => self.fields.push(HostFields::new(store)?),
                1 => {
                    let list = vec![(text(), vec![b'v'; size]), ("b".to_owned(), Vec::new())];
                    self.fields.extend(HostFields::from_list(store, list).ok());
                }
                2 if let Some(fields) = self.fields.last().map(borrowed) => {
                    let _ = HostFields::append(store, fields, text(), vec![b'v'; size]);
                }
                3 if let Some(fields) = self.fields.first().map(borrowed) => {
                    self.fields.push(HostFields::clone(store, fields)?);
                }
                4 if let Some(fields) = self.fields.pop() => {
                    self.requests.push(RequestFunctions::new(store, fields)?);
                }
                5 if let Some(request) = self.requests.last().map(borrowed) => {
                    let _ = store.set_method(request, Method::Other(text()))?;
                }
                6 if let Some(request) = self.requests.last().map(borrowed) => {
                    self.bodies.extend(RequestFunctions::body(store, request)?.ok());
                }
                7 if let Some(fields) = self.fields.pop() => {
                    self.responses.push(ResponseFunctions::new(store, fields)?);
                }
                8 if let Some(request) = self.requests.pop() => {
                    RequestFunctions::drop(store, request)?;
                }
                9 if let Some(fields) = self.fields.pop() => {
                    HostFields::drop(store, fields)?;
                }
                _ => {}
            }
            Ok(())
        }

        fn drop_all(self, store: &mut RunStore) -> wasmtime::Result<()> {
            self.bodies.into_iter().try_for_each(|body| BodyFunctions::drop(store, body))?;
            self.fields.into_iter().try_for_each(|fields| HostFields::drop(store, fields))?;
            self.requests.into_iter().try_for_each(|one| RequestFunctions::drop(store, one))?;
            self.responses.into_iter().try_for_each(|one| ResponseFunctions::drop(store, one))
        }
    }

    proptest! {
        /// Whatever a component does with objects of `wasi:http`, each is charged for at least its
        /// texts, and nothing is charged after they are dropped.
        #[test]
        fn charges_of_resources_return_to_zero(
            steps in prop::collection::vec((0_u8..10, 0_usize..2_000), 0..100),
        ) {
            let mut store = RunStore::idle();
            let mut hoard = Hoard::default();
            for (step, size) in steps {
                hoard.step(&mut store, step, size).expect("the account has room");
                let table = store.wasi().table();
                let objects: Vec<_> = table.iter_mut().map(|object| measure(object).expect("known")).collect();
                prop_assert_eq!(store.guest().memory.held(), objects.iter().sum::<u64>());
            }
            hoard.drop_all(&mut store).expect("they are there");
            prop_assert_eq!(store.guest().memory.held(), 0);
        }
    }

    #[test]
    fn a_resource_of_an_unknown_type_is_an_error() {
        struct Unknown;
        let mut store = RunStore::idle();
        let number = store.wasi().table().push(Unknown).expect("the table has room").rep();
        let error = store.charge(&[number]).expect_err("nothing measures it");
        assert!(error.is::<UnknownResource>(), "{error:?}");
    }

    #[test]
    fn no_more_resources_can_be_made_when_the_account_is_full() {
        let mut store = RunStore::idle();
        let error = loop {
            let list = vec![("a".to_owned(), vec![b'v'; 60_000])];
            if let Err(error) = HostFields::from_list(&mut store, list) {
                break error;
            }
        };
        let error = format!("{error:?}");
        assert!(error.contains("limits.host_memory"), "{error}");
        assert!(store.guest().memory.held() > 15 << 20, "{}", store.guest().memory.held());
    }
}
