//! What a guest requests from outside and waits for: secrets, and HTTP, one request or several.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, bytes, fill, text};
use crate::boundary::waiting;
use crate::store::RunStore;
use sandglass_supervisor::capability::http::Request;
use sandglass_supervisor::capability::http_batch::REQUESTS_MAX;
use sandglass_supervisor::functions::{Functions, Reads};
use sandglass_supervisor::race::CallEnded;

use super::batch::{BatchRequest, BatchResponse, fill_json, json_for_buffer};
use super::{MODULE, NAME_BYTES, json};

/// Longest URL that is read, in bytes; servers refuse URLs of a fraction of this.
pub(super) const URL_BYTES: u32 = 64 * 1024;
/// Largest batch of requests that is read, with their bodies, as JSON, in bytes. Nothing interrupts
/// parsing, which takes a few milliseconds for this.
const BATCH_BYTES: u32 = 1024 * 1024;
/// Largest headers of a request that are read, as JSON, in bytes; likewise.
pub(super) const HEADERS_BYTES: u32 = 256 * 1024;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_get_secret(caller, race, key_ptr: i32, key_len: i32, ptr: i32, len: i32) reads [(key_ptr, key_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let key = text(caller, "the secret's name", (key_ptr, key_len), NAME_BYTES)?;
            let wait = caller.data().guest().secret(key.clone());
            let Some(secret) = race.call(wait).await else { return Ok(None) };
            let secret = secret?;
            caller.data_mut().give_secret(&key, &secret);
            let value = secret.expose().as_bytes();
            fill(caller, (ptr, len), value, WhenTooSmall::ReturnSize).map(Some)
        }
        fn host_http_call(
            caller, race,
            method_ptr: i32, method_len: i32, url_ptr: i32, url_len: i32,
            headers_ptr: i32, headers_len: i32, body_ptr: i32, body_len: i32,
            out_ptr: i32, out_len: i32
        ) reads [(method_ptr, method_len), (url_ptr, url_len), (headers_ptr, headers_len), (body_ptr, body_len)] up_to (Reads::HostMemory) -> i32 {
            let method = text(caller, "the method", (method_ptr, method_len), NAME_BYTES)?;
            let url = text(caller, "the URL", (url_ptr, url_len), URL_BYTES)?;
            let headers = text(caller, "the headers", (headers_ptr, headers_len), HEADERS_BYTES)?;
            let body = bytes(caller, "the body", (body_ptr, body_len))?;
            let request = Request::read(&method, &url, &headers, body)?;
            let wait = caller.data().outside().send(request);
            let Some(answer) = race.call(wait).await else { return Ok(None) };
            let answer = answer?.response.as_status_line_and_body();
            fill(caller, (out_ptr, out_len), &answer, WhenTooSmall::Refuse).map(Some)
        }
    }
    link_http_batch(linker, functions)
}

fn link_http_batch(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_http_call_batch(caller, race, ptr: i32, len: i32, out_ptr: i32, out_len: i32) reads [(ptr, len)] up_to (Reads::bytes(BATCH_BYTES)) -> i32 {
            let requests: Vec<BatchRequest> = match len {
                0 => Vec::new(),
                _ => json(caller, "the batch", (ptr, len), BATCH_BYTES)?,
            };
            if requests.len() > REQUESTS_MAX {
                let count = requests.len();
                let why = format!("the batch has {count} requests, and {REQUESTS_MAX} are allowed");
                return Err(why.into());
            }
            let requests = requests.into_iter().map(BatchRequest::read).collect();
            let batch = caller.data().outside().send_batch(requests);
            let wait = async { Ok::<_, CallEnded>(batch.await) };
            let Some(answers) = race.call(wait).await else { return Ok(None) };
            let answers = answers?;
            let store = caller.data();
            let redactor = &store.guest().redactor;
            let responses: Vec<_> =
                answers.iter().map(|answer| BatchResponse::of(answer, redactor)).collect();
            let written = json_for_buffer(store, &responses, out_len)?;
            fill_json(caller, (out_ptr, out_len), &written).map(Some)
        }
    }
    Ok(())
}
