//! The users' own ABI: the imports of module `env` that core modules have today.
//!
//! Strings are (pointer, length) pairs of UTF-8. A function that fails answers
//! -1, and `host_last_error` says why.

use wasmtime::{Caller, Linker, Result};

use crate::boundary::{instant, waiting};
use crate::capability::ask::{self, AskError};
use crate::capability::http::Request;
use crate::capability::log::LINE_MAX_BYTES;
use crate::capability::{signal, time};
use crate::functions::Functions;
use crate::store::RunStore;

use super::guest_memory::{FAILED, WhenTooSmall, bytes, fill, memory, slice, start_of_text, text};

/// The module that these functions are imported from. Its name is left out of
/// theirs in reports.
pub(crate) const MODULE: &str = "env";

/// The import by which a guest says that it fetches its context itself.
pub(crate) const GET_CONTEXT: &str = "host_get_context";

const OK: i32 = 0;

// What is read of a text, in bytes. Reading can't be interrupted, so each bound is
// a little above what can be meant.

/// A name: of a level, a method, a secret.
const NAME_BYTES: u32 = 1024;
/// A log line, with room for the secrets that are taken out before it is cut.
const LOG_BYTES: u32 = 4 * LINE_MAX_BYTES;
/// A status, likewise.
const STATUS_BYTES: u32 = 4 * signal::STATUS_MAX_BYTES;
/// A URL; servers refuse ones of a fraction of this.
const URL_BYTES: u32 = 64 * 1024;
/// All headers of a request, as JSON; likewise.
const HEADERS_BYTES: u32 = 256 * 1024;

/// Links every function of this ABI.
pub(crate) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    link_context_and_result(linker, functions)?;
    link_telling(linker, functions)?;
    link_time(linker, functions)?;
    link_outside(linker, functions)?;
    link_ask(linker, functions)
}

fn link_context_and_result(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_get_context(caller, ptr: i32, len: i32) -> i32 {
            let context = caller.data().guest.context();
            fill(caller, (ptr, len), &context, WhenTooSmall::SayTheSize)
        }
    }
    instant! { linker, functions, MODULE;
        fn host_set_result(caller, ptr: i32, len: i32) -> () {
            let memory = memory(caller)?;
            let (memory, store) = memory.data_and_store_mut(caller);
            store.guest.result.set(slice(memory, "the result", ptr, len));
            Ok(())
        }
    }
    instant! { linker, functions, MODULE;
        fn host_last_error(caller, ptr: i32, len: i32) -> i32 {
            let error = caller.data().guest.last_error().to_owned();
            fill(caller, (ptr, len), error.as_bytes(), WhenTooSmall::RefuseInSilence)
        }
    }
    Ok(())
}

fn link_telling(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_log(caller, level_ptr: i32, level_len: i32, ptr: i32, len: i32) -> () {
            let level = start_of_text(caller, "the log level", (level_ptr, level_len), NAME_BYTES)?;
            let message = start_of_text(caller, "the log message", (ptr, len), LOG_BYTES)?;
            let guest = &mut caller.data_mut().guest;
            match level.and_then(|level| message.map(|message| (level, message))) {
                Ok((level, message)) => guest.log(&level, message),
                Err(unreadable) => guest.fail(unreadable),
            }
            Ok(())
        }
    }
    instant! { linker, functions, MODULE;
        fn host_emit_progress(caller, ptr: i32, len: i32) -> i32 {
            let progress = text(caller, "the progress", (ptr, len), signal::SIGNAL_MAX_BYTES)?;
            let guest = &mut caller.data_mut().guest;
            let read = progress.map_err(|unreadable| unreadable.to_string()).and_then(|text| {
                serde_json::from_str(&text)
                    .map_err(|error| format!("the progress is no JSON: {error}"))
            });
            Ok(match read {
                Ok(progress) => {
                    guest.progress(progress);
                    OK
                }
                Err(why) => {
                    guest.fail(why);
                    FAILED
                }
            })
        }
    }
    instant! { linker, functions, MODULE;
        fn host_set_status(caller, ptr: i32, len: i32) -> i32 {
            let status = start_of_text(caller, "the status", (ptr, len), STATUS_BYTES)?;
            let guest = &mut caller.data_mut().guest;
            Ok(match status {
                Ok(status) => {
                    guest.status(status);
                    OK
                }
                Err(unreadable) => {
                    guest.fail(unreadable);
                    FAILED
                }
            })
        }
    }
    Ok(())
}

fn link_time(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_get_time(caller, ptr: i32, len: i32) -> i32 {
            match time::compact_utc(caller.data().clock.wall()) {
                Some(time) => fill(caller, (ptr, len), time.as_bytes(), WhenTooSmall::Refuse),
                None => {
                    caller.data_mut().guest.fail("the host's clock shows no time of this calendar");
                    Ok(FAILED)
                }
            }
        }
    }
    instant! { linker, functions, MODULE;
        fn host_get_time_millis(caller) -> i64 {
            Ok(caller.data().clock.wall().as_millis())
        }
    }
    Ok(())
}

fn link_outside(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_get_secret(caller, race, key_ptr: i32, key_len: i32, ptr: i32, len: i32) -> i32 {
            let key = match text(caller, "the secret's name", (key_ptr, key_len), NAME_BYTES)? {
                Ok(key) => key,
                Err(unreadable) => return failed(caller, unreadable),
            };
            let wait = caller.data().guest.secret(key);
            let Some(secret) = race.run(wait).await else { return Ok(None) };
            match secret {
                Ok(secret) => {
                    caller.data_mut().guest.redactor.hide(&secret);
                    let value = secret.expose().as_bytes();
                    fill(caller, (ptr, len), value, WhenTooSmall::SayTheSize).map(Some)
                }
                Err(why) => failed(caller, why),
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
                Err(why) => return failed(caller, why),
            };
            let store = caller.data();
            let left = store.run.deadline().since(store.now());
            let wait = store.guest.http_call(request, left);
            let Some(answer) = race.run(wait).await else { return Ok(None) };
            match answer {
                Ok(response) => {
                    let answer = response.as_status_line_and_body();
                    fill(caller, (out_ptr, out_len), &answer, WhenTooSmall::Refuse).map(Some)
                }
                Err(error) => failed(caller, error),
            }
        }
    }
    Ok(())
}

fn link_ask(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_ask(caller, race, ptr: i32, len: i32, out_ptr: i32, out_len: i32) -> i32 {
            let request = match text(caller, "the ask", (ptr, len), ask::REQUEST_MAX_BYTES)? {
                Ok(text) => ask::Request::from_json(&text),
                Err(unreadable) => Err(AskError::Invalid(unreadable.to_string())),
            };
            let wait = match request.and_then(|request| ask::begin(caller.data_mut(), request)) {
                Ok(wait) => wait,
                Err(error) => return failed(caller, error.to_guest()),
            };
            let Some(answer) = race.run(wait).await else { return Ok(None) };
            match answer {
                Ok(answered) => {
                    let answer = answered.to_json();
                    fill(caller, (out_ptr, out_len), &answer, WhenTooSmall::Refuse).map(Some)
                }
                Err(error) => failed(caller, error.to_guest()),
            }
        }
    }
    Ok(())
}

fn failed(caller: &mut Caller<'_, RunStore>, why: impl ToString) -> Result<Option<i32>> {
    caller.data_mut().guest.fail(why);
    Ok(Some(FAILED))
}
