//! The users' own ABI: the imports of module `env` that core modules have today.
//!
//! Strings are (pointer, length) pairs of UTF-8. A function that fails answers
//! -1, and `host_last_error` says why.

use serde_json::Value;
use wasmtime::{Caller, Linker, Result};

use crate::boundary::{instant, waiting};
use crate::capability::http::Request;
use crate::capability::time;
use crate::functions::Functions;
use crate::store::RunStore;

use super::guest_memory::{FAILED, WhenTooSmall, bytes, fill, memory, slice, text};

/// The module that these functions are imported from. Its name is left out of
/// theirs in reports.
pub(crate) const MODULE: &str = "env";

/// The import by which a guest says that it fetches its context itself.
pub(crate) const GET_CONTEXT: &str = "host_get_context";

const OK: i32 = 0;

/// Links every function of this ABI.
pub(crate) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    link_context_and_result(linker, functions)?;
    link_telling(linker, functions)?;
    link_time(linker, functions)?;
    link_outside(linker, functions)
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
            fill(caller, (ptr, len), error.as_bytes(), WhenTooSmall::Refuse)
        }
    }
    Ok(())
}

fn link_telling(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_log(caller, level_ptr: i32, level_len: i32, ptr: i32, len: i32) -> () {
            let level = text(caller, "the log level", (level_ptr, level_len))?;
            let message = text(caller, "the log message", (ptr, len))?;
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
            let progress = text(caller, "the progress", (ptr, len))?;
            let guest = &mut caller.data_mut().guest;
            let told = progress.map_err(|unreadable| unreadable.to_string()).and_then(|text| {
                let progress: Value = serde_json::from_str(&text)
                    .map_err(|error| format!("the progress is no JSON: {error}"))?;
                guest.progress(progress)
            });
            Ok(told_or_failed(caller, told))
        }
    }
    instant! { linker, functions, MODULE;
        fn host_set_status(caller, ptr: i32, len: i32) -> i32 {
            let status = text(caller, "the status", (ptr, len))?;
            let guest = &mut caller.data_mut().guest;
            let told = status
                .map_err(|unreadable| unreadable.to_string())
                .and_then(|text| guest.status(text));
            Ok(told_or_failed(caller, told))
        }
    }
    Ok(())
}

fn told_or_failed(caller: &mut Caller<'_, RunStore>, told: Result<(), String>) -> i32 {
    match told {
        Ok(()) => OK,
        Err(why) => {
            caller.data_mut().guest.fail(why);
            FAILED
        }
    }
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
            let key = match text(caller, "the secret's name", (key_ptr, key_len))? {
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
                text(caller, "the method", (method_ptr, method_len))?,
                text(caller, "the URL", (url_ptr, url_len))?,
                text(caller, "the headers", (headers_ptr, headers_len))?,
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

fn failed(caller: &mut Caller<'_, RunStore>, why: impl ToString) -> Result<Option<i32>> {
    caller.data_mut().guest.fail(why);
    Ok(Some(FAILED))
}
