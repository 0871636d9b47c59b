//! Calls of the Connect protocol.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{copy, text};
use crate::boundary::waiting;
use crate::store::RunStore;
use sandglass_supervisor::capability::connect;
use sandglass_supervisor::functions::{Functions, Reads};

use super::MODULE;
use super::batch::{fill_json, json_for_buffer};
use super::outside::{HEADERS_BYTES, URL_BYTES};

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_connect_call(
            caller, race,
            url_ptr: i32, url_len: i32, headers_ptr: i32, headers_len: i32,
            body_ptr: i32, body_len: i32, out_ptr: i32, out_len: i32
        ) reads [(url_ptr, url_len), (headers_ptr, headers_len), (body_ptr, body_len)] up_to (Reads::HostMemory) -> i32 {
            let url = text(caller, "the URL", (url_ptr, url_len), URL_BYTES)?;
            let headers = text(caller, "the headers", (headers_ptr, headers_len), HEADERS_BYTES)?;
            let message = copy(caller, "the message", (body_ptr, body_len))?;
            let body = caller.data().guest().memory.bytes(connect::envelope(&message)?)?;
            drop(message);
            let request = connect::request(&url, &headers, body)?;
            let wait = caller.data().outside().send(request);
            let Some(answer) = race.call(wait).await else { return Ok(None) };
            let answer = answer?;
            let messages = connect::messages(&answer.response, &caller.data().guest().redactor)?;
            let written = json_for_buffer(caller.data(), &messages, out_len)?;
            if let Some(error) = messages.error {
                // The messages count nevertheless; the ABI has no other place for the error.
                caller.data_mut().guest_mut().fail(error);
            }
            fill_json(caller, (out_ptr, out_len), &written).map(Some)
        }
    }
    Ok(())
}
