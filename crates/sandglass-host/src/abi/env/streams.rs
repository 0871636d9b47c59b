//! Streams by name, the cache that they are kept in from run to run, their hashes,
//! and HTTP from one to another.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use wasmtime::{Caller, Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, fill, text};
use crate::boundary::{instant, waiting};
use crate::store::RunStore;
use sandglass_supervisor::capability::http::Request;
use sandglass_supervisor::executor::give_way;
use sandglass_supervisor::functions::{Functions, Reads};

use super::outside::{HEADERS_BYTES, URL_BYTES};
use super::{MODULE, NAME_BYTES, done, failed};

/// Whether something is cached.
const CACHED: i32 = 1;
const NOT_CACHED: i32 = 0;

/// What is hashed at once, in bytes: well under a millisecond of work.
const PIECE_BYTES: usize = 64 << 10;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    link_cache(linker, functions)?;
    link_hash(linker, functions)?;
    link_http(linker, functions)
}

fn link_cache(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_cache_contains(caller, key_ptr: i32, key_len: i32) reads [(key_ptr, key_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let key = text(caller, "the key", (key_ptr, key_len), NAME_BYTES)?;
            let guest = caller.data_mut().guest_mut();
            let found = key.map_err(|unreadable| unreadable.to_string()).and_then(|key| {
                guest.cache.contains(&key).map_err(|error| error.to_string())
            });
            Ok(match found {
                Ok(true) => CACHED,
                Ok(false) => NOT_CACHED,
                // It has no answer for an error: what can't be a key isn't there.
                Err(why) => {
                    guest.fail(why);
                    NOT_CACHED
                }
            })
        }
    }
    instant! { linker, functions, MODULE;
        fn host_cache_to_stream(
            caller, key_ptr: i32, key_len: i32, stream_ptr: i32, stream_len: i32
        ) reads [(key_ptr, key_len), (stream_ptr, stream_len)] up_to (Reads::bytes(2 * NAME_BYTES)) -> i32 {
            let names = key_and_stream(caller, (key_ptr, key_len), (stream_ptr, stream_len))?;
            let guest = caller.data_mut().guest_mut();
            let put = names.and_then(|(key, stream)| {
                let found = guest.cache.find(&key).map_err(|error| error.to_string())?;
                let bytes = found.ok_or_else(|| {
                    format!("there is nothing in the cache under the key `{key}`")
                })?;
                let size = bytes.len();
                guest.put_stream(&stream, bytes).map_err(|error| error.to_string())?;
                i32::try_from(size).map_err(|_| "its size is beyond an i32".to_owned())
            });
            Ok(put.unwrap_or_else(|why| failed(caller, why)))
        }
    }
    instant! { linker, functions, MODULE;
        fn host_cache_from_stream(
            caller, key_ptr: i32, key_len: i32, stream_ptr: i32, stream_len: i32
        ) reads [(key_ptr, key_len), (stream_ptr, stream_len)] up_to (Reads::bytes(2 * NAME_BYTES)) -> i32 {
            let names = key_and_stream(caller, (key_ptr, key_len), (stream_ptr, stream_len))?;
            let guest = caller.data().guest();
            let kept = names.and_then(|(key, stream)| {
                let bytes = guest.stream(&stream).map_err(|error| error.to_string())?;
                guest.cache.keep(&key, bytes).map_err(|error| error.to_string())
            });
            Ok(done(caller, kept))
        }
    }
    Ok(())
}

fn key_and_stream(
    caller: &mut Caller<'_, RunStore>,
    key: (i32, i32),
    stream: (i32, i32),
) -> Result<Result<(String, String), String>> {
    let key = text(caller, "the key", key, NAME_BYTES)?;
    let stream = text(caller, "the stream's name", stream, NAME_BYTES)?;
    let names = key.and_then(|key| stream.map(|stream| (key, stream)));
    Ok(names.map_err(|unreadable| unreadable.to_string()))
}

/// It computes as long as the stream is large, so it does so in pieces, gives others
/// a turn between them, and can be cut there.
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
            let (stream, algorithm) = match stream.and_then(|s| algorithm.map(|a| (s, a))) {
                Ok(names) => names,
                Err(unreadable) => return Ok(Some(failed(caller, unreadable))),
            };
            if algorithm != "sha256" {
                let why = "the algorithm is not known: there is `sha256`";
                return Ok(Some(failed(caller, why)));
            }
            let bytes = match caller.data().guest().stream(&stream) {
                Ok(bytes) => bytes,
                Err(error) => return Ok(Some(failed(caller, error))),
            };
            let mut hash = Sha256::new();
            for piece in bytes.chunks(PIECE_BYTES) {
                hash.update(piece);
                if race.run(give_way()).await.is_none() {
                    return Ok(None);
                }
            }
            let answer = hash.finalize().iter().fold("sha256:".to_owned(), |mut answer, byte| {
                use std::fmt::Write as _;
                // Writing to a string can't fail.
                let _ = write!(answer, "{byte:02x}");
                answer
            });
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
            let prepared = body.and_then(|body| out.map(|out| (body, out)));
            let prepared = prepared.map_err(|unreadable| unreadable.to_string());
            let prepared = prepared.and_then(|(body, out)| {
                // Without a name there is no body, or nobody wants the response's.
                let body = match body.as_str() {
                    "" => Bytes::new(),
                    name => guest.stream(name).map_err(|error| error.to_string())?,
                };
                let room = match out.as_str() {
                    "" => guest.response_bytes(),
                    name => guest.stream_room(name).map_err(|error| error.to_string())?,
                };
                Ok((Request::read(method, url, headers, Ok(body))?, out, room))
            });
            let (request, out, room) = match prepared {
                Ok(prepared) => prepared,
                Err(why) => return Ok(Some(failed(caller, why))),
            };
            let wait = caller.data().outside().send_within(request, room);
            let Some(answer) = race.call(wait).await else { return Ok(None) };
            let response = match answer {
                // From here on, the stream is charged.
                Ok(received) => received.response,
                Err(error) => return Ok(Some(failed(caller, error))),
            };
            let status = i32::from(response.status);
            if out.is_empty() {
                return Ok(Some(status));
            }
            match caller.data_mut().guest_mut().put_stream(&out, response.body.into()) {
                Ok(()) => Ok(Some(status)),
                Err(error) => Ok(Some(failed(caller, error))),
            }
        }
    }
    Ok(())
}
