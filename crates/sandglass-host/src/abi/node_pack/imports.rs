//! What a pack imports from `openwop`. A call ends, and is recorded, when its result is known: that
//! the pack then allocates memory for the result counts as the pack's own work.

use sandglass_source::json;
use serde_json::Value;
use wasmtime::{Caller, Linker, Result};

use crate::abi::guest_memory::{self, CallFailure, WhenTooSmall, fatal, fill, start_of_text, text};
use crate::boundary::{self, Arguments, instant};
use crate::store::RunStore;
use sandglass_supervisor::argument::Unreadable;
use sandglass_supervisor::capability::log::{LINE_MAX_BYTES, Level, cut};
use sandglass_supervisor::functions::{Class, FunctionId, Functions, Reads};
use sandglass_supervisor::node::NodeStatus;

use super::contract::{CHANNEL_READ, INTERRUPT, MODULE, PairForm, VARIABLE_GET};
use super::random::CALL_MAX_BYTES;
use super::response;
use super::run::{end_with, node, return_bytes};

/// Longest name of a channel or a variable that is read, in bytes.
const NAME_BYTES: u32 = 1024;

/// Longest log line that is read, in bytes: as for a handler.
const LOG_BYTES: u32 = 4 * LINE_MAX_BYTES;

/// A function that returns a pair: a pointer and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairFunction {
    ChannelRead,
    VariableGet,
    Interrupt,
}

/// Links every function of this ABI. Those that return a pair have the form that `form_of` returns.
pub(crate) fn link(
    linker: &mut Linker<RunStore>,
    functions: &mut Functions,
    form_of: impl Fn(&str) -> PairForm,
) -> Result<()> {
    for (name, function) in [
        (CHANNEL_READ, PairFunction::ChannelRead),
        (VARIABLE_GET, PairFunction::VariableGet),
        (INTERRUPT, PairFunction::Interrupt),
    ] {
        let id = functions.add(MODULE, name, name.to_owned(), Class::Instant, Reads::Response);
        link_pair_function(linker, (id, name), function, form_of(name))?;
    }
    instant! { linker, functions, MODULE;
        fn openwop_channel_write(caller, name_ptr: i32, name_len: i32, ptr: i32, len: i32) reads [(name_ptr, name_len), (ptr, len)] up_to (Reads::Response) -> i32 {
            write(caller, (name_ptr, name_len), (ptr, len), |store, name, value| {
                Ok(node(store)?.access.channel_write(name, value))
            })
        }
        fn openwop_variable_set(caller, key_ptr: i32, key_len: i32, ptr: i32, len: i32) reads [(key_ptr, key_len), (ptr, len)] up_to (Reads::Response) -> i32 {
            write(caller, (key_ptr, key_len), (ptr, len), |store, key, value| {
                Ok(node(store)?.access.variable_set(key, value))
            })
        }
        fn openwop_log(caller, level: i32, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(LOG_BYTES)) -> () {
            let message = start_of_text(caller, "the log message", (ptr, len), LOG_BYTES)?;
            Ok(log(caller.data_mut(), Level::numbered(level), message)?)
        }
        fn openwop_now_ms(caller) -> i64 {
            Ok(node(caller.data_mut())?.now.as_millis())
        }
        fn openwop_random(caller, ptr: i32, len: i32) -> () {
            let count = len.cast_unsigned() as usize;
            if count > CALL_MAX_BYTES {
                return Err(fatal(wasmtime::format_err!(
                    "{count} random bytes are too many for one call: {CALL_MAX_BYTES} are allowed"
                )));
            }
            let memory = guest_memory::memory(caller)?;
            #[allow(clippy::disallowed_methods, reason = "nothing is read")]
            let bytes = memory.data(&*caller);
            // There is no error code, and a pack must not go on with bytes that are not random.
            guest_memory::slice(bytes, "the place for random bytes", ptr, len).map_err(fatal)?;
            let random = node(caller.data_mut())?.random.take(count);
            fill(caller, (ptr, len), &random, WhenTooSmall::Refuse)?;
            Ok(())
        }
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "`call_pair` enters through the boundary")]
fn link_pair_function(
    linker: &mut Linker<RunStore>,
    (id, name): (FunctionId, &'static str),
    function: PairFunction,
    form: PairForm,
) -> Result<()> {
    match form {
        PairForm::Two => linker.func_wrap_async(
            MODULE,
            name,
            move |mut caller: Caller<'_, RunStore>, place: (i32, i32)| {
                Box::new(async move { call_pair(&mut caller, id, function, place).await })
            },
        ),
        PairForm::Packed => linker.func_wrap_async(
            MODULE,
            name,
            move |mut caller: Caller<'_, RunStore>, place: (i32, i32)| {
                Box::new(async move {
                    call_pair(&mut caller, id, function, place).await.map(PairForm::pack)
                })
            },
        ),
    }?;
    Ok(())
}

/// Executes a call that returns a pair.
async fn call_pair(
    caller: &mut Caller<'_, RunStore>,
    id: FunctionId,
    function: PairFunction,
    place: (i32, i32),
) -> Result<(i32, i32)> {
    let numbers = [place.0.into(), place.1.into()];
    let arguments = Arguments { numbers: &numbers, texts: &[place], lists: &[] };
    let entered = boundary::enter_from_module(caller, id, &arguments)?;
    let result = boundary::execute_for_module(caller, entered, |caller| {
        Ok(function.look_up(caller, place)?.map(|value| value.to_string().into_bytes()))
    })?;
    match result {
        Some(bytes) => return_bytes(caller, &bytes).await,
        // The error unwinds a node whose interrupt is not resolved, or has no valid payload.
        None if function == PairFunction::Interrupt => {
            Err(end_with(response::suspended(payload(caller, place)?)))
        }
        None => Ok((0, 0)),
    }
}

impl PairFunction {
    /// What the host has under the name, or for the payload, at this place.
    fn look_up(
        self,
        caller: &mut Caller<'_, RunStore>,
        place: (i32, i32),
    ) -> Result<Option<Value>, CallFailure> {
        if self == Self::Interrupt {
            let payload = payload(caller, place)?;
            let access = &node(caller.data_mut())?.access;
            // One that cannot be read ends the run after this call.
            return Ok(payload.ok().and_then(|payload| access.interrupt(&payload)));
        }
        let name = text(caller, "the name", place, NAME_BYTES)?;
        let access = &node(caller.data_mut())?.access;
        Ok(match self {
            Self::ChannelRead => access.channel_read(&name),
            Self::VariableGet | Self::Interrupt => access.variable_get(&name),
        })
    }
}

/// The payload of an interrupt, or why it has none.
#[allow(clippy::disallowed_methods, reason = "the payload has the limit of a response")]
fn payload(
    caller: &mut Caller<'_, RunStore>,
    place: (i32, i32),
) -> Result<Result<Value, sandglass_model::Failure>> {
    let max = caller.data().guest().grants.response_bytes;
    let memory = guest_memory::memory(caller)?;
    let bytes = guest_memory::slice(memory.data(&*caller), response::PAYLOAD, place.0, place.1);
    Ok(response::payload(bytes, max))
}

/// Writes the JSON at `value` under the name at `name`. Returns the status.
fn write(
    caller: &mut Caller<'_, RunStore>,
    name: (i32, i32),
    value: (i32, i32),
    write: impl FnOnce(&mut RunStore, &str, Value) -> Result<NodeStatus>,
) -> Result<i32, CallFailure> {
    let max = u32::try_from(caller.data().guest().grants.response_bytes).unwrap_or(u32::MAX);
    let name = text(caller, "the name", name, NAME_BYTES);
    let value = text(caller, "the value", value, max);
    let status = match (name, value) {
        (Ok(name), Ok(value)) => match json::read(&value) {
            Ok(value) => write(caller.data_mut(), &name, value)?,
            Err(error) => {
                caller.data_mut().guest_mut().fail(format!("the value is no JSON: {error}"));
                status_of(matches!(error, json::Error::TooManyValues(_)))
            }
        },
        (Err(failure), _) => {
            failure.report(caller.data_mut())?;
            NodeStatus::ValidationError
        }
        (_, Err(failure)) => {
            let is_too_large =
                matches!(failure, CallFailure::Unreadable(Unreadable::TooLong { .. }));
            failure.report(caller.data_mut())?;
            status_of(is_too_large)
        }
    };
    if status != NodeStatus::Ok {
        caller.data_mut().guest_mut().note_failure();
    }
    Ok(status.code())
}

/// The status of a value that is refused.
const fn status_of(is_too_large: bool) -> NodeStatus {
    if is_too_large { NodeStatus::CapabilityBreach } else { NodeStatus::ValidationError }
}

/// Writes a line to the host's log, and to the log of the workflow that invoked the node.
fn log(store: &mut RunStore, level: Level, message: String) -> Result<()> {
    let line = cut(&store.guest().redactor.text(message.clone()), LINE_MAX_BYTES);
    if !store.guest().log.is_full() {
        node(store)?.access.log(level, &line);
    }
    store.guest().log.write(level, message);
    Ok(())
}
