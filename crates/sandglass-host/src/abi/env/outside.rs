//! What a guest waits for: secrets, and HTTP, one request or several.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, bytes, fill, text, too_small};
use crate::boundary::waiting;
use crate::store::RunStore;
use sandglass_supervisor::capability::http::Request;
use sandglass_supervisor::capability::http_batch::REQUESTS_MAX;
use sandglass_supervisor::functions::{Functions, Reads};
use sandglass_supervisor::race::CallEnded;

use super::batch::{BatchRequest, BatchResponse, ForBuffer};
use super::{MODULE, NAME_BYTES, failed, json};

/// What is read of a URL, in bytes; servers refuse ones of a fraction of this.
pub(super) const URL_BYTES: u32 = 64 * 1024;
/// What is read of a batch of requests with their bodies, as JSON, in bytes: parsing
/// can't be interrupted either, and takes a few milliseconds for this.
const BATCH_BYTES: u32 = 1024 * 1024;
/// What is read of all headers of a request, as JSON, in bytes; likewise.
pub(super) const HEADERS_BYTES: u32 = 256 * 1024;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_get_secret(caller, race, key_ptr: i32, key_len: i32, ptr: i32, len: i32) reads [(key_ptr, key_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let key = match text(caller, "the secret's name", (key_ptr, key_len), NAME_BYTES)? {
                Ok(key) => key,
                Err(unreadable) => return Ok(Some(failed(caller, unreadable))),
            };
            let wait = caller.data().guest().secret(key.clone());
            let Some(secret) = race.call(wait).await else { return Ok(None) };
            match secret {
                Ok(secret) => {
                    caller.data_mut().give_secret(&key, &secret);
                    let value = secret.expose().as_bytes();
                    fill(caller, (ptr, len), value, WhenTooSmall::SayTheSize).map(Some)
                }
                Err(why) => Ok(Some(failed(caller, why))),
            }
        }
    }
    waiting! { linker, functions, MODULE;
        fn host_http_call(
            caller, race,
            method_ptr: i32, method_len: i32, url_ptr: i32, url_len: i32,
            headers_ptr: i32, headers_len: i32, body_ptr: i32, body_len: i32,
            out_ptr: i32, out_len: i32
        ) reads [(method_ptr, method_len), (url_ptr, url_len), (headers_ptr, headers_len), (body_ptr, body_len)] up_to (Reads::HostMemory) -> i32 {
            let request = Request::read(
                text(caller, "the method", (method_ptr, method_len), NAME_BYTES)?,
                text(caller, "the URL", (url_ptr, url_len), URL_BYTES)?,
                text(caller, "the headers", (headers_ptr, headers_len), HEADERS_BYTES)?,
                bytes(caller, "the body", (body_ptr, body_len))?,
            );
            let request = match request {
                Ok(request) => request,
                Err(why) => return Ok(Some(failed(caller, why))),
            };
            let wait = caller.data().outside().send(request);
            let Some(answer) = race.call(wait).await else { return Ok(None) };
            match answer {
                Ok(received) => {
                    let answer = received.response.as_status_line_and_body();
                    fill(caller, (out_ptr, out_len), &answer, WhenTooSmall::Refuse).map(Some)
                }
                Err(error) => Ok(Some(failed(caller, error))),
            }
        }
    }
    waiting! { linker, functions, MODULE;
        fn host_http_call_batch(caller, race, ptr: i32, len: i32, out_ptr: i32, out_len: i32) reads [(ptr, len)] up_to (Reads::bytes(BATCH_BYTES)) -> i32 {
            let requests = match len {
                0 => Ok(Vec::new()),
                _ => json::<Vec<BatchRequest>>(caller, "the batch", (ptr, len), BATCH_BYTES)?,
            };
            let requests = match requests {
                Ok(requests) if requests.len() > REQUESTS_MAX => {
                    let why = format!(
                        "the batch has {} requests, and {REQUESTS_MAX} are allowed",
                        requests.len()
                    );
                    return Ok(Some(failed(caller, why)));
                }
                Ok(requests) => requests.into_iter().map(BatchRequest::read).collect(),
                Err(why) => return Ok(Some(failed(caller, why))),
            };
            let batch = caller.data().outside().send_batch(requests);
            let wait = async { Ok::<_, CallEnded>(batch.await) };
            let Some(answers) = race.call(wait).await else { return Ok(None) };
            let answers = match answers {
                Ok(answers) => answers,
                Err(ended) => return Ok(Some(failed(caller, ended))),
            };
            let store = caller.data();
            let responses: Vec<_> = answers
                .iter()
                .map(|answer| BatchResponse::of(answer, &store.guest().redactor))
                .collect();
            let mut output = ForBuffer::new(store, out_len.cast_unsigned() as usize);
            let written = serde_json::to_writer(&mut output, &responses);
            let (json, size) = (output.json, output.size);
            match written {
                Ok(()) if size > json.len() => Ok(Some(too_small(caller, out_len, size))),
                Ok(()) => fill(caller, (out_ptr, out_len), &json, WhenTooSmall::Refuse).map(Some),
                Err(error) => Ok(Some(failed(caller, error))),
            }
        }
    }
    Ok(())
}
