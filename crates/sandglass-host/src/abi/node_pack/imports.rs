//! What a pack imports from `openwop`. A call is over, and recorded, when its answer is known:
//! that the pack then allocates the place for it is the pack's own work.

use sandglass_model::json;
use serde_json::Value;
use wasmtime::{Caller, Linker, Result};

use crate::abi::guest_memory::{self, WhenTooSmall, fill, start_of_text, text};
use crate::boundary::{self, Arguments, instant};
use crate::store::RunStore;
use sandglass_supervisor::argument::Unreadable;
use sandglass_supervisor::capability::log::{LINE_MAX_BYTES, Level, cut};
use sandglass_supervisor::functions::{Class, FunctionId, Functions, Reads};
use sandglass_supervisor::node::NodeStatus;

use super::contract::{CHANNEL_READ, INTERRUPT, MODULE, PairForm, VARIABLE_GET};
use super::random::MOST_BYTES;
use super::response;
use super::run::{ended, give, node};

/// What is read of the name of a channel or a variable, in bytes.
const NAME_BYTES: u32 = 1024;

/// What is read of a log line, in bytes: as of a handler's.
const LOG_BYTES: u32 = 4 * LINE_MAX_BYTES;

/// A function that answers a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gives {
    Channel,
    Variable,
    Resumption,
}

/// Links every function of this ABI, those that answer a pair as `form_of` says.
pub(crate) fn link(
    linker: &mut Linker<RunStore>,
    functions: &mut Functions,
    form_of: impl Fn(&str) -> PairForm,
) -> Result<()> {
    for (name, gives) in [
        (CHANNEL_READ, Gives::Channel),
        (VARIABLE_GET, Gives::Variable),
        (INTERRUPT, Gives::Resumption),
    ] {
        let id = functions.add_bare(MODULE, name, Class::Instant, Reads::Response);
        link_giving(linker, (id, name), gives, form_of(name))?;
    }
    instant! { linker, functions, MODULE;
        fn openwop_channel_write(caller, name_ptr: i32, name_len: i32, ptr: i32, len: i32) reads [(name_ptr, name_len), (ptr, len)] up_to (Reads::Response) -> i32 {
            written(caller, (name_ptr, name_len), (ptr, len), |store, name, value| {
                Ok(node(store)?.access.channel_write(name, value))
            })
        }
    }
    instant! { linker, functions, MODULE;
        fn openwop_variable_set(caller, key_ptr: i32, key_len: i32, ptr: i32, len: i32) reads [(key_ptr, key_len), (ptr, len)] up_to (Reads::Response) -> i32 {
            written(caller, (key_ptr, key_len), (ptr, len), |store, key, value| {
                Ok(node(store)?.access.variable_set(key, value))
            })
        }
    }
    instant! { linker, functions, MODULE;
        fn openwop_log(caller, level: i32, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(LOG_BYTES)) -> () {
            match start_of_text(caller, "the log message", (ptr, len), LOG_BYTES)? {
                Ok(message) => log(caller.data_mut(), Level::numbered(level), message)?,
                Err(unreadable) => caller.data_mut().guest_mut().fail(unreadable),
            }
            Ok(())
        }
    }
    instant! { linker, functions, MODULE;
        fn openwop_now_ms(caller) -> i64 {
            Ok(node(caller.data_mut())?.now.as_millis())
        }
    }
    instant! { linker, functions, MODULE;
        fn openwop_random(caller, ptr: i32, len: i32) -> () {
            let count = len.cast_unsigned() as usize;
            if count > MOST_BYTES {
                wasmtime::bail!("{count} random bytes are too many for one call: {MOST_BYTES} are allowed");
            }
            let memory = guest_memory::memory(caller)?;
            #[allow(clippy::disallowed_methods, reason = "nothing is read")]
            let bytes = memory.data(&*caller);
            guest_memory::slice(bytes, "the place for random bytes", ptr, len)?;
            let random = node(caller.data_mut())?.random.take(count);
            fill(caller, (ptr, len), &random, WhenTooSmall::Refuse)?;
            Ok(())
        }
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "`given` enters by the boundary")]
fn link_giving(
    linker: &mut Linker<RunStore>,
    (id, name): (FunctionId, &'static str),
    gives: Gives,
    form: PairForm,
) -> Result<()> {
    match form {
        PairForm::Two => linker.func_wrap_async(
            MODULE,
            name,
            move |mut caller: Caller<'_, RunStore>, place: (i32, i32)| {
                Box::new(async move { given(&mut caller, id, gives, place).await })
            },
        ),
        PairForm::Packed => linker.func_wrap_async(
            MODULE,
            name,
            move |mut caller: Caller<'_, RunStore>, place: (i32, i32)| {
                Box::new(
                    async move { given(&mut caller, id, gives, place).await.map(PairForm::pack) },
                )
            },
        ),
    }?;
    Ok(())
}

/// Carries out a call that answers a pair.
async fn given(
    caller: &mut Caller<'_, RunStore>,
    function: FunctionId,
    gives: Gives,
    place: (i32, i32),
) -> Result<(i32, i32)> {
    let arguments =
        Arguments { numbers: &[place.0.into(), place.1.into()], texts: &[place], list: None };
    let entered = boundary::enter_from_module(caller, function, &arguments)?;
    let answer = boundary::carry_out_for_module(caller, entered, |caller| {
        Ok(gives.answer(caller, place)?.map(|value| value.to_string().into_bytes()))
    })?;
    match answer {
        Some(bytes) => give(caller, &bytes).await,
        None if gives == Gives::Resumption => Err(suspended(caller, place)?),
        None => Ok((0, 0)),
    }
}

impl Gives {
    /// What the host has under the name, or for the payload, at this place.
    fn answer(self, caller: &mut Caller<'_, RunStore>, place: (i32, i32)) -> Result<Option<Value>> {
        if self == Self::Resumption {
            let payload = payload(caller, place)?;
            let access = &node(caller.data_mut())?.access;
            // One that can't be read ends the run behind this call.
            return Ok(payload.ok().and_then(|payload| access.interrupt(&payload)));
        }
        let name = match text(caller, "the name", place, NAME_BYTES)? {
            Ok(name) => name,
            Err(unreadable) => {
                caller.data_mut().guest_mut().fail(unreadable);
                return Ok(None);
            }
        };
        let access = &node(caller.data_mut())?.access;
        Ok(match self {
            Self::Channel => access.channel_read(&name),
            Self::Variable | Self::Resumption => access.variable_get(&name),
        })
    }
}

/// The payload of an interrupt, or the failure that it is.
#[allow(clippy::disallowed_methods, reason = "the payload has the limit of a response")]
fn payload(
    caller: &mut Caller<'_, RunStore>,
    place: (i32, i32),
) -> Result<Result<Value, sandglass_model::Failure>> {
    let max = caller.data().guest().response_bytes();
    let memory = guest_memory::memory(caller)?;
    let bytes = guest_memory::slice(memory.data(&*caller), response::PAYLOAD, place.0, place.1);
    Ok(response::payload(bytes, max))
}

/// The error that unwinds a node whose interrupt isn't resolved, or is none.
fn suspended(caller: &mut Caller<'_, RunStore>, place: (i32, i32)) -> Result<wasmtime::Error> {
    Ok(ended(response::suspended(payload(caller, place)?)))
}

/// Writes the JSON at `value` under the name at `name`; answers the status.
fn written(
    caller: &mut Caller<'_, RunStore>,
    name: (i32, i32),
    value: (i32, i32),
    write: impl FnOnce(&mut RunStore, &str, Value) -> Result<NodeStatus>,
) -> Result<i32> {
    let name = text(caller, "the name", name, NAME_BYTES)?;
    let status = match (name, value_at(caller, value)?) {
        (Ok(name), Ok(value)) => write(caller.data_mut(), &name, value)?,
        (Err(unreadable), _) => {
            caller.data_mut().guest_mut().fail(unreadable);
            NodeStatus::ValidationError
        }
        (_, Err((status, why))) => {
            caller.data_mut().guest_mut().fail(why);
            status
        }
    };
    if status != NodeStatus::Ok {
        caller.data_mut().guest_mut().note_failure();
    }
    Ok(status.code())
}

/// The JSON at this place, or what is wrong with it.
fn value_at(
    caller: &mut Caller<'_, RunStore>,
    place: (i32, i32),
) -> Result<Result<Value, (NodeStatus, String)>> {
    let max = u32::try_from(caller.data().guest().response_bytes()).unwrap_or(u32::MAX);
    let text = text(caller, "the value", place, max)?;
    Ok(text
        .map_err(|unreadable| {
            let status = match unreadable {
                Unreadable::TooLong { .. } => NodeStatus::CapabilityBreach,
                _ => NodeStatus::ValidationError,
            };
            (status, unreadable.to_string())
        })
        .and_then(|text| {
            json::read(&text).map_err(|error| {
                let status = match error {
                    json::Error::TooManyValues(_) => NodeStatus::CapabilityBreach,
                    _ => NodeStatus::ValidationError,
                };
                (status, format!("the value is no JSON: {error}"))
            })
        }))
}

/// Tells a line to the host's log, and to whoever invoked the node.
fn log(store: &mut RunStore, level: Level, message: String) -> Result<()> {
    let line = cut(&message, LINE_MAX_BYTES);
    if !store.guest().lines().is_full() {
        node(store)?.access.log(level, &line);
    }
    store.guest_mut().log(level, message);
    Ok(())
}
