//! HTTP requests and responses piece by piece. The guest has a handle for each direction.
//!
//! These functions have error codes of their own: -2 is a request whose response is closed, -3 an invalid
//! handle, and -4 any other error. -1 stands for a write that the guest has to repeat, and is never
//! returned, because a write waits instead.

use serde_json::{Value, json};
use wasmtime::{Caller, Linker, Result};

use crate::abi::guest_memory::{CallFailure, WhenTooSmall, bytes, check_buffer, fill, text};
use crate::boundary::{instant, waiting};
use crate::store::RunStore;
use sandglass_supervisor::capability::exchanges::ExchangeError;
use sandglass_supervisor::capability::http::{HttpError, Request};
use sandglass_supervisor::capability::streams;
use sandglass_supervisor::functions::{Functions, Reads};
use sandglass_supervisor::race::Race;

use super::outside::{HEADERS_BYTES, URL_BYTES};
use super::{MODULE, NAME_BYTES, OK};

const CLOSED: i32 = -2;
const INVALID_HANDLE: i32 = -3;
const FAILED: i32 = -4;

/// The header by which the head of a response states why there is none.
const ERROR_HEADER: &str = "x-temper-stream-error";

/// A call that passes only numbers, after which the host may keep a piece of a response. Unlike after
/// other calls with numbers alone, that is charged each time.
const LEAVES_BYTES: Reads = Reads::bytes(0);

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_http_stream_begin_outbound(
            caller, race,
            method_ptr: i32, method_len: i32, url_ptr: i32, url_len: i32,
            headers_ptr: i32, headers_len: i32, request_out: i32, response_out: i32
        ) reads [(method_ptr, method_len), (url_ptr, url_len), (headers_ptr, headers_len)] up_to (Reads::bytes(NAME_BYTES + URL_BYTES + HEADERS_BYTES)) -> i32 {
            let head = [(method_ptr, method_len), (url_ptr, url_len), (headers_ptr, headers_len)];
            let begun = begin(caller, &race, head, [request_out, response_out]).await;
            with_code(caller, begun)
        }
        fn host_http_stream_try_write(caller, race, handle: i32, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::HostMemory) -> i32 {
            let written = write(caller, &race, handle, (ptr, len)).await;
            with_code(caller, written)
        }
        fn host_http_stream_response_head(caller, race, handle: i32, ptr: i32, len: i32) reads [] up_to (LEAVES_BYTES) -> i32 {
            let filled = head(caller, &race, handle, (ptr, len)).await;
            with_code(caller, filled)
        }
        fn host_http_stream_read(caller, race, handle: i32, ptr: i32, len: i32) reads [] up_to (LEAVES_BYTES) -> i32 {
            let filled = read(caller, &race, handle, (ptr, len)).await;
            with_code(caller, filled)
        }
    }
    instant! { linker, functions, MODULE;
        fn host_http_stream_close(caller, handle: i32) -> i32 {
            let closed = caller.data_mut().guest_mut().exchanges().close(handle.cast_unsigned());
            Ok(closed.map_or_else(|error| fail(caller, error), |()| OK))
        }
        fn host_http_stream_send_response_head(caller, handle: i32, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(HEADERS_BYTES)) -> i32 {
            let why = "no request from outside waits for a response of this handler";
            caller.data_mut().guest_mut().fail(why);
            Ok(INVALID_HANDLE)
        }
    }
    Ok(())
}

/// The result of a function, with the code of this ABI if it failed.
fn with_code(
    caller: &mut Caller<'_, RunStore>,
    result: Result<Option<i32>, CallFailure>,
) -> Result<Option<i32>, CallFailure> {
    result.or_else(|failure| {
        failure.report(caller.data_mut())?;
        Ok(Some(FAILED))
    })
}

/// Notes why the call failed, and returns its code.
fn fail(caller: &mut Caller<'_, RunStore>, error: ExchangeError) -> i32 {
    let code = match error {
        ExchangeError::InvalidHandle => INVALID_HANDLE,
        ExchangeError::Closed => CLOSED,
        ExchangeError::Http(_) => FAILED,
    };
    caller.data_mut().guest_mut().fail(error);
    code
}

/// Begins a request, and writes the handles of both directions to `out`.
async fn begin(
    caller: &mut Caller<'_, RunStore>,
    race: &Race,
    [method, url, headers]: [(i32, i32); 3],
    out: [i32; 2],
) -> Result<Option<i32>, CallFailure> {
    const HANDLE_BYTES: i32 = 4;
    let method = text(caller, "the method", method, NAME_BYTES)?;
    let url = text(caller, "the URL", url, URL_BYTES)?;
    let headers = text(caller, "the headers", headers, HEADERS_BYTES)?;
    for at in out {
        check_buffer(caller, (at, HANDLE_BYTES))?;
    }
    let (pieces, body) = streams::body();
    let request = Request::read_streamed(&method, &url, &headers, body)?;
    let outside = caller.data().outside();
    let exchanges = caller.data_mut().guest_mut().exchanges();
    let wait = exchanges.begin(pieces, || outside.open(request));
    let Some(begun) = race.call(wait).await else { return Ok(None) };
    let (request, response) = begun?;
    for (at, handle) in out.into_iter().zip([request, response]) {
        fill(caller, (at, HANDLE_BYTES), &handle.to_le_bytes(), WhenTooSmall::Refuse)?;
    }
    Ok(Some(OK))
}

async fn write(
    caller: &mut Caller<'_, RunStore>,
    race: &Race,
    handle: i32,
    (ptr, len): (i32, i32),
) -> Result<Option<i32>, CallFailure> {
    let piece = bytes(caller, "the piece", (ptr, len))?;
    let exchanges = caller.data_mut().guest_mut().exchanges();
    let wait = exchanges.write(handle.cast_unsigned(), piece);
    let Some(written) = race.call(wait).await else { return Ok(None) };
    Ok(Some(written.map_or_else(|error| fail(caller, error), |()| len)))
}

/// Waits for the head of a response, and writes it as JSON. A request that failed has one, too.
async fn head(
    caller: &mut Caller<'_, RunStore>,
    race: &Race,
    handle: i32,
    buffer: (i32, i32),
) -> Result<Option<i32>, CallFailure> {
    let handle = handle.cast_unsigned();
    let Some(mut head) = wait_for_head(caller, race, handle).await else { return Ok(None) };
    match head {
        // The call was ended, not the request.
        Err(ExchangeError::Http(error @ (HttpError::TimedOut(_) | HttpError::CutShort(_)))) => {
            return Err(error.into());
        }
        Err(error @ ExchangeError::Http(_)) => {
            fail(caller, error);
            let why = caller.data().guest().last_error().to_owned();
            let exchanges = caller.data_mut().guest_mut().exchanges();
            exchanges.set_failed(handle, (ERROR_HEADER, &why));
            let Some(failed) = wait_for_head(caller, race, handle).await else { return Ok(None) };
            head = failed;
        }
        _ => {}
    }
    match head {
        Ok(head) => fill(caller, buffer, head.to_string().as_bytes(), WhenTooSmall::Refuse),
        Err(error) => Ok(fail(caller, error)),
    }
    .map(Some)
}

async fn wait_for_head(
    caller: &mut Caller<'_, RunStore>,
    race: &Race,
    handle: u32,
) -> Option<Result<Value, ExchangeError>> {
    let exchanges = caller.data_mut().guest_mut().exchanges();
    race.call(async {
        let response = exchanges.head(handle).await?;
        Ok(json!({ "status": response.status, "headers": response.headers }))
    })
    .await
}

/// Reads the next piece of a response's body; 0 at the end.
async fn read(
    caller: &mut Caller<'_, RunStore>,
    race: &Race,
    handle: i32,
    (ptr, len): (i32, i32),
) -> Result<Option<i32>, CallFailure> {
    if len == 0 {
        return Err("the buffer has no room, and 0 would mean the end".into());
    }
    // What is read must not be lost.
    check_buffer(caller, (ptr, len))?;
    let exchanges = caller.data_mut().guest_mut().exchanges();
    let wait = exchanges.read(handle.cast_unsigned(), len.cast_unsigned());
    let Some(piece) = race.call(wait).await else { return Ok(None) };
    match piece {
        Ok(piece) => fill(caller, (ptr, len), &piece, WhenTooSmall::Refuse).map(Some),
        Err(error) => Ok(Some(fail(caller, error))),
    }
}
