//! What a guest waits for: secrets, and HTTP.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, bytes, fill, text};
use crate::boundary::waiting;
use crate::capability::http::Request;
use crate::functions::Functions;
use crate::store::RunStore;

use super::{MODULE, NAME_BYTES, failed};

/// What is read of a URL, in bytes; servers refuse ones of a fraction of this.
const URL_BYTES: u32 = 64 * 1024;
/// What is read of all headers of a request, as JSON, in bytes; likewise.
const HEADERS_BYTES: u32 = 256 * 1024;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_get_secret(caller, race, key_ptr: i32, key_len: i32, ptr: i32, len: i32) -> i32 {
            let key = match text(caller, "the secret's name", (key_ptr, key_len), NAME_BYTES)? {
                Ok(key) => key,
                Err(unreadable) => return Ok(Some(failed(caller, unreadable))),
            };
            let wait = caller.data().guest.secret(key);
            let Some(secret) = race.call(wait).await else { return Ok(None) };
            match secret {
                Ok(secret) => {
                    caller.data_mut().guest.redactor.hide(&secret);
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
        ) -> i32 {
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
            let store = caller.data();
            let left = store.run.deadline().since(store.now());
            let wait = store.guest.http_call(request, left);
            let Some(answer) = race.call(wait).await else { return Ok(None) };
            match answer {
                Ok(response) => {
                    let answer = response.as_status_line_and_body();
                    fill(caller, (out_ptr, out_len), &answer, WhenTooSmall::Refuse).map(Some)
                }
                Err(error) => Ok(Some(failed(caller, error))),
            }
        }
    }
    Ok(())
}
