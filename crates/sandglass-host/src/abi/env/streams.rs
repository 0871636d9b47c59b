//! Named streams, the cache that keeps them for later handler runs, their hashes, and HTTP from one
//! stream to another.

use std::fmt::Write as _;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use wasmtime::{Caller, Linker, Result};

use crate::abi::guest_memory::{CallFailure, WhenTooSmall, fill, text};
use crate::boundary::{instant, waiting};
use crate::store::RunStore;
use sandglass_supervisor::capability::http::Request;
use sandglass_supervisor::executor::give_way;
use sandglass_supervisor::functions::{Functions, Reads};

use super::outside::{HEADERS_BYTES, URL_BYTES};
use super::{MODULE, NAME_BYTES, OK};

/// How much is hashed at once, in bytes: well under a millisecond of work.
const PIECE_BYTES: usize = 64 << 10;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    link_cache(linker, functions)?;
    link_hash(linker, functions)?;
    link_http(linker, functions)
}

fn link_cache(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_cache_contains(caller, key_ptr: i32, key_len: i32) reads [(key_ptr, key_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let found = text(caller, "the key", (key_ptr, key_len), NAME_BYTES)
                .and_then(|key| Ok(caller.data().guest().cache.contains(&key)?));
            match found {
                Ok(is_cached) => Ok(is_cached.into()),
                // The ABI has no code for an error: what cannot be a key is not cached.
                Err(failure) => {
                    failure.report(caller.data_mut())?;
                    Ok(0)
                }
            }
        }
        fn host_cache_to_stream(
            caller, key_ptr: i32, key_len: i32, stream_ptr: i32, stream_len: i32
        ) reads [(key_ptr, key_len), (stream_ptr, stream_len)] up_to (Reads::bytes(2 * NAME_BYTES)) -> i32 {
            let (key, stream) =
                key_and_stream(caller, (key_ptr, key_len), (stream_ptr, stream_len))?;
            let guest = caller.data_mut().guest_mut();
            let bytes = guest.cache.find(&key)?.ok_or_else(|| {
                format!("there is nothing in the cache under the key `{key}`")
            })?;
            let size = bytes.len();
            guest.put_stream(&stream, bytes)?;
            Ok(i32::try_from(size).map_err(|_| "its size is beyond an i32")?)
        }
        fn host_cache_from_stream(
            caller, key_ptr: i32, key_len: i32, stream_ptr: i32, stream_len: i32
        ) reads [(key_ptr, key_len), (stream_ptr, stream_len)] up_to (Reads::bytes(2 * NAME_BYTES)) -> i32 {
            let (key, stream) =
                key_and_stream(caller, (key_ptr, key_len), (stream_ptr, stream_len))?;
            let guest = caller.data().guest();
            guest.cache.keep(&key, guest.stream(&stream)?)?;
            Ok(OK)
        }
    }
    Ok(())
}

fn key_and_stream(
    caller: &mut Caller<'_, RunStore>,
    key: (i32, i32),
    stream: (i32, i32),
) -> Result<(String, String), CallFailure> {
    let key = text(caller, "the key", key, NAME_BYTES)?;
    Ok((key, text(caller, "the stream's name", stream, NAME_BYTES)?))
}

/// Hashing takes time in proportion to the stream, so it is done in pieces. Between them, other
/// guests run, and the call can be cut.
fn link_hash(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_hash_stream(
            caller, race, stream_ptr: i32, stream_len: i32,
            algorithm_ptr: i32, algorithm_len: i32, out_ptr: i32, out_len: i32
        ) reads [(stream_ptr, stream_len), (algorithm_ptr, algorithm_len)] up_to (Reads::bytes(2 * NAME_BYTES)) -> i32 {
            let stream =
                text(caller, "the stream's name", (stream_ptr, stream_len), NAME_BYTES)?;
            let algorithm =
                text(caller, "the algorithm", (algorithm_ptr, algorithm_len), NAME_BYTES)?;
            if algorithm != "sha256" {
                return Err("the algorithm is not known: there is `sha256`".into());
            }
            let bytes = caller.data().guest().stream(&stream)?;
            let mut hash = Sha256::new();
            for piece in bytes.chunks(PIECE_BYTES) {
                hash.update(piece);
                if race.run(give_way()).await.is_none() {
                    return Ok(None);
                }
            }
            let mut answer = "sha256:".to_owned();
            for byte in hash.finalize() {
                // Writing to a string cannot fail.
                let _ = write!(answer, "{byte:02x}");
            }
            fill(caller, (out_ptr, out_len), answer.as_bytes(), WhenTooSmall::Refuse).map(Some)
        }
    }
    Ok(())
}

fn link_http(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_http_call_stream(
            caller, race,
            method_ptr: i32, method_len: i32, url_ptr: i32, url_len: i32,
            headers_ptr: i32, headers_len: i32, body_ptr: i32, body_len: i32,
            out_ptr: i32, out_len: i32
        ) reads [(method_ptr, method_len), (url_ptr, url_len), (headers_ptr, headers_len), (body_ptr, body_len), (out_ptr, out_len)] up_to (Reads::bytes(3 * NAME_BYTES + URL_BYTES + HEADERS_BYTES)) -> i32 {
            let method = text(caller, "the method", (method_ptr, method_len), NAME_BYTES)?;
            let url = text(caller, "the URL", (url_ptr, url_len), URL_BYTES)?;
            let headers = text(caller, "the headers", (headers_ptr, headers_len), HEADERS_BYTES)?;
            let body = text(caller, "the body's stream", (body_ptr, body_len), NAME_BYTES)?;
            let out = text(caller, "the response's stream", (out_ptr, out_len), NAME_BYTES)?;
            let guest = caller.data().guest();
            // An empty name stands for no body, or for a body of the response that is not wanted.
            let body = match body.as_str() {
                "" => Bytes::new(),
                name => guest.stream(name)?,
            };
            let max_bytes = match out.as_str() {
                "" => guest.grants.response_bytes,
                name => guest.stream_room(name)?,
            };
            let request = Request::read(&method, &url, &headers, body)?;
            let wait = caller.data().outside().send_within(request, max_bytes);
            let Some(answer) = race.call(wait).await else { return Ok(None) };
            let response = answer?.response;
            let status = i32::from(response.status);
            if !out.is_empty() {
                // From here on, the stream is charged.
                caller.data_mut().guest_mut().put_stream(&out, response.body.into())?;
            }
            Ok(Some(status))
        }
    }
    Ok(())
}
