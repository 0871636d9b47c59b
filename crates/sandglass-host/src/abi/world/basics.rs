//! The interfaces of the world without resources or types of their own to convert: log, context,
//! secrets, clock, progress, fail.

use serde_json::Value;
use wasmtime::{Error, Result};

use super::interface::{clock, context, fail, log, progress, secrets};
use super::{FIRST, Raised, check_length, fields_of};
use crate::boundary::imports;
use crate::store::RunStore;
use sandglass_supervisor::capability::log::Level as LogLevel;
use sandglass_supervisor::capability::signal;

imports! { IMPORTS from FIRST;
    "sandglass:integration/log" in log {
        Host {
            instant "write" fn write(store, level: Level, message: String) -> Result<()> {
                store.guest().log.write(level.into(), message);
                Ok(())
            }
            instant "write-fields"
            fn write_fields(store, level: Level, message: String, fields: Json)
                -> Result<Result<(), String>>
            {
                Ok(fields_of("the fields", &fields).map(|fields| {
                    store.guest().log.write_fields(level.into(), message, fields.into());
                }))
            }
            instant "wide-event" fn wide_event(store, event: Json) -> Result<Result<(), String>> {
                Ok(fields_of("the event", &event).map(|event| store.guest_mut().wide_event(event)))
            }
        }
    }
    "sandglass:integration/context" in context {
        Host {
            instant "whole" fn whole(store) -> Result<Json> {
                Ok(String::from_utf8_lossy(store.guest().context.json()).into_owned())
            }
            instant "read-field" fn read_field(store, name: String) -> Result<Option<Json>> {
                Ok(store.guest_mut().field(&name).map(Value::to_string))
            }
        }
    }
    "sandglass:integration/secrets" in secrets {
        Host {
            waiting "get" fn get(store, race, name: String) -> Result<Result<String, String>> {
                let wait = store.guest().secret(name.clone());
                let Some(secret) = race.call(wait).await else { return Ok(None) };
                Ok(Some(match secret {
                    Ok(secret) => {
                        store.give_secret(&name, &secret);
                        Ok(secret.expose().to_owned())
                    }
                    Err(why) => Err(store.failed(why)),
                }))
            }
        }
    }
    "sandglass:integration/clock" in clock {
        Host {
            instant "now-ms" fn now_ms(store) -> Result<i64> {
                Ok(store.clock().shared().wall().as_millis())
            }
            instant "deadline-remaining-ms" fn deadline_remaining_ms(store) -> Result<u64> {
                Ok(u64::try_from(store.remaining().as_millis()).unwrap_or(u64::MAX))
            }
            instant "should-stop" fn should_stop(store) -> Result<bool> {
                Ok(store.run().should_stop(store.watch.checked_at))
            }
        }
    }
    "sandglass:integration/progress" in progress {
        Host {
            instant "emit" fn emit(store, progress: Json) -> Result<Result<(), String>> {
                Ok(emit(store, &progress))
            }
            instant "heartbeat" fn heartbeat(store) -> Result<()> {
                store.guest_mut().heartbeat();
                Ok(())
            }
            instant "set-status" fn set_status(store, status: String) -> Result<()> {
                store.guest_mut().status(status);
                Ok(())
            }
        }
    }
    "sandglass:integration/fail" in fail {
        Host {
            instant "raise" fn raise(_store, failure: TypedFailure) -> Result<()> {
                // The boundary has checked the clock when the call entered, so this is in time.
                Err(Error::from(Raised(failure)))
            }
        }
    }
}

/// Reports progress.
pub(crate) fn emit(store: &mut RunStore, progress: &str) -> Result<(), String> {
    check_length("the progress", progress, signal::SIGNAL_MAX_BYTES)
        .and_then(|()| signal::progress(progress))
        .map(|progress| store.guest_mut().progress(progress))
}

impl From<log::Level> for LogLevel {
    fn from(level: log::Level) -> Self {
        match level {
            log::Level::Trace => Self::Trace,
            log::Level::Debug => Self::Debug,
            log::Level::Info => Self::Info,
            log::Level::Warn => Self::Warn,
            log::Level::Error => Self::Error,
        }
    }
}
