//! The embedder's own functions as core modules import them, from a module with the name of their
//! interface.
//!
//! Texts and bytes are (pointer, length) pairs, `bool` is an `i32`. A function that returns a value
//! takes a buffer as its last arguments, fills it, and returns the count of bytes; numbers are
//! little-endian. It returns -1 if it failed, and `host_last_error` says why; -2 if the buffer is
//! too small.
//!
//! Functions of the module `env` have the types that existing guests import: numbers are returned as
//! they are, errors as codes, and a function without a result returns nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use wasmtime::{Caller, Engine, FuncType, Linker, Result, Val, ValType, component};

use super::guest_memory::{CallFailure, FAILED, WhenTooSmall, copy, fill, text};
use super::passed::{Passed, Recorded};
use crate::boundary::{self, Arguments};
use crate::host_function::{HostError, HostFunction, Linked, Registry, Signature, Type, Value};
use crate::store::RunStore;
use sandglass_supervisor::functions::{FunctionId, Functions, Reads};
use sandglass_supervisor::race::Race;

/// Adds `function`, which guests import from `module`, to the table.
fn add(functions: &mut Functions, function: &HostFunction, module: &str) -> FunctionId {
    let signature = &function.signature;
    functions.add(
        module.to_owned(),
        signature.name.clone(),
        signature.full_name(),
        function.class(),
        Reads::HostMemory,
    )
}

/// Longest text that is passed, in bytes. Nothing interrupts copying it.
const TEXT_BYTES: u32 = 16 << 20;

/// Links all functions of `registry`.
#[allow(clippy::disallowed_methods, reason = "it enters through the boundary")]
pub(crate) fn link(
    linker: &mut Linker<RunStore>,
    functions: &mut Functions,
    registry: &Registry,
) -> Result<()> {
    for function in registry.functions() {
        let Signature { interface, name, .. } = &function.signature;
        let linked = registry.link(function, add(functions, function, interface));
        let ty = func_type(linker.engine(), &function.signature);
        linker.func_new_async(interface, name, ty, move |mut caller, args, results| {
            let linked = Arc::clone(&linked);
            Box::new(async move {
                let signature = &linked.function.signature;
                if !signature.is_of_env() {
                    let length = call(&mut caller, &linked, args, FAILED, length).await?;
                    results[0] = Val::I32(length);
                    return Ok(());
                }
                let ty = signature.returned;
                let failed = error_value(ty, FAILED);
                let finish = |caller: &mut Caller<'_, RunStore>, returned| {
                    value_of_env(caller, ty, returned)
                };
                let value = call(&mut caller, &linked, args, failed, finish).await?;
                if let (Some(slot), Some(value)) = (results.first_mut(), number(&value)) {
                    *slot = value;
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// As [`link`], for components, which import them from instances.
pub(crate) fn link_components(
    linker: &mut component::Linker<RunStore>,
    functions: &mut Functions,
    registry: &Registry,
) -> Result<Vec<Arc<Linked>>> {
    let mut all = Vec::new();
    let mut by_interface: BTreeMap<&str, Vec<Arc<Linked>>> = BTreeMap::new();
    for function in registry.functions().iter().filter(|one| !one.signature.is_of_env()) {
        let signature = &function.signature;
        let linked = registry.link(function, add(functions, function, signature.unversioned()));
        by_interface.entry(&signature.interface).or_default().push(linked);
    }
    for (interface, linked) in by_interface {
        let mut instance = linker.instance(interface)?;
        for linked in linked {
            linked.link_component(&mut instance)?;
            all.push(linked);
        }
    }
    Ok(all)
}

/// A linker as `linker`, but for those of `functions` that `is_asynchronous`, because the component that
/// is linked imports them so; `None` if it imports none.
pub(crate) fn with_asynchronous(
    linker: &component::Linker<RunStore>,
    functions: &[Arc<Linked>],
    is_asynchronous: impl Fn(&Signature) -> bool,
) -> Result<Option<component::Linker<RunStore>>> {
    let mut other = None;
    for linked in functions {
        let signature = &linked.function.signature;
        if is_asynchronous(signature) {
            let linker = other.get_or_insert_with(|| {
                let mut linker = linker.clone();
                linker.allow_shadowing(true);
                linker
            });
            linked.link_asynchronous(&mut linker.instance(&signature.interface)?)?;
        }
    }
    Ok(other)
}

/// What a function returned, and the buffer that it is written to, if its type has one.
struct Returned {
    value: Result<Value, HostError>,
    buffer: Option<(i32, i32)>,
}

/// Calls the function. What it returned becomes a result of the ABI by `finish`, and is `failed` if
/// there is none.
async fn call<R: Recorded + Passed>(
    caller: &mut Caller<'_, RunStore>,
    linked: &Linked,
    args: &[Val],
    failed: R,
    finish: impl FnOnce(&mut Caller<'_, RunStore>, Returned) -> Result<R, CallFailure>,
) -> Result<R> {
    let (numbers, texts) = numbers_and_texts(&linked.function.signature.params, args);
    let arguments = Arguments { numbers: &numbers, texts: &texts, lists: &[] };
    boundary::park(caller.data_mut(), linked.id).await?;
    let entered = boundary::enter_from_module(caller, linked.id, &arguments)?;
    if let Some(recorded) = entered.recorded_for_module(caller) {
        return boundary::leave(caller.data_mut(), entered, recorded);
    }
    let race = Race::of(caller.data());
    let returned = execute(caller, &race, linked, args).await;
    let result = returned.and_then(|one| one.map(|one| finish(caller, one)).transpose());
    let result = result.or_else(|failure| failure.report(caller.data_mut()).map(|()| Some(failed)));
    boundary::leave_race(caller.data_mut(), entered, result)
}

/// Executes the function; `Ok(None)` if the run ends first.
async fn execute(
    caller: &mut Caller<'_, RunStore>,
    race: &Race,
    linked: &Linked,
    args: &[Val],
) -> Result<Option<Returned>, CallFailure> {
    let signature = &linked.function.signature;
    let mut args = args.iter();
    let values = read(caller, &signature.params, &mut args)?;
    let buffer = takes_buffer(signature).then(|| (i32_of(args.next()), i32_of(args.next())));
    let wait = linked.call(caller.data(), values, buffer.map(|(_, len)| len.cast_unsigned()));
    let Some(value) = race.call(wait).await else { return Ok(None) };
    Ok(Some(Returned { value, buffer }))
}

/// Whether a function writes its result to a buffer: a text in `env`, and any result elsewhere.
fn takes_buffer(signature: &Signature) -> bool {
    match signature.returned {
        Type::Text | Type::Bytes => true,
        Type::None => false,
        _ => !signature.is_of_env(),
    }
}

/// The result of a function that does not belong to `env`: the length of what it returned.
fn length(caller: &mut Caller<'_, RunStore>, returned: Returned) -> Result<i32, CallFailure> {
    let value = returned.value.map_err(|error| error.why)?;
    let Some(buffer) = returned.buffer else { return Ok(0) };
    fill(caller, buffer, &value.into_bytes(), WhenTooSmall::Refuse)
}

/// The result of a function of `env`.
fn value_of_env(
    caller: &mut Caller<'_, RunStore>,
    ty: Type,
    returned: Returned,
) -> Result<Value, CallFailure> {
    match (returned.value, returned.buffer) {
        (Ok(value), None) => Ok(value),
        (Ok(value), Some(buffer)) => {
            fill(caller, buffer, &value.into_bytes(), WhenTooSmall::Refuse).map(Value::S32)
        }
        (Err(error), _) => {
            caller.data_mut().guest_mut().fail(error.why);
            Ok(error_value(ty, error.code))
        }
    }
}

/// The numbers that a call passes, with its pointers and lengths, and the places of its texts.
fn numbers_and_texts(types: &[Type], args: &[Val]) -> (Vec<i64>, Vec<(i32, i32)>) {
    let number = |value: &Val| match value {
        Val::I32(number) => i64::from(*number),
        Val::I64(number) => *number,
        Val::F32(bits) => i64::from(*bits),
        Val::F64(bits) => bits.cast_signed(),
        _ => 0,
    };
    let (mut texts, mut at) = (Vec::new(), 0);
    for ty in types {
        at += match ty {
            Type::None => 0,
            Type::Text | Type::Bytes => {
                texts.push((i32_of(args.get(at)), i32_of(args.get(at + 1))));
                2
            }
            _ => 1,
        };
    }
    (args.iter().map(number).collect(), texts)
}

/// What a function of `env` that returns `returned` returns if it fails with `code`.
fn error_value(returned: Type, code: i32) -> Value {
    match returned {
        Type::None => Value::None,
        Type::S64 | Type::U64 => Value::S64(code.into()),
        Type::F32 => Value::F32(f32::NAN),
        Type::F64 => Value::F64(f64::NAN),
        Type::Bool | Type::S32 | Type::U32 | Type::Text | Type::Bytes => Value::S32(code),
    }
}

/// A number as WebAssembly has it; `None` for any other value.
fn number(value: &Value) -> Option<Val> {
    Some(match value {
        Value::Bool(value) => Val::I32((*value).into()),
        Value::S32(value) => Val::I32(*value),
        Value::U32(value) => Val::I32(value.cast_signed()),
        Value::S64(value) => Val::I64(*value),
        Value::U64(value) => Val::I64(value.cast_signed()),
        Value::F32(value) => Val::F32(value.to_bits()),
        Value::F64(value) => Val::F64(value.to_bits()),
        Value::None | Value::Text(_) | Value::Bytes(_) => return None,
    })
}

/// The values of these types.
fn read<'a>(
    caller: &mut Caller<'_, RunStore>,
    types: &[Type],
    args: &mut impl Iterator<Item = &'a Val>,
) -> Result<Vec<Value>, CallFailure> {
    let mut values = Vec::with_capacity(types.len());
    for ty in types {
        values.push(match ty {
            Type::None => Value::None,
            Type::Bool => Value::Bool(i32_of(args.next()) != 0),
            Type::S32 => Value::S32(i32_of(args.next())),
            Type::U32 => Value::U32(i32_of(args.next()).cast_unsigned()),
            Type::S64 => Value::S64(i64_of(args.next())),
            Type::U64 => Value::U64(i64_of(args.next()).cast_unsigned()),
            Type::F32 => Value::F32(args.next().and_then(Val::f32).unwrap_or_default()),
            Type::F64 => Value::F64(args.next().and_then(Val::f64).unwrap_or_default()),
            Type::Text => {
                let place = (i32_of(args.next()), i32_of(args.next()));
                Value::Text(text(caller, "an argument", place, TEXT_BYTES)?)
            }
            Type::Bytes => {
                let place = (i32_of(args.next()), i32_of(args.next()));
                Value::Bytes(copy(caller, "an argument", place)?)
            }
        });
    }
    Ok(values)
}

// Wasmtime has checked the arguments against the function's type.
fn i32_of(value: Option<&Val>) -> i32 {
    value.and_then(Val::i32).unwrap_or_default()
}

fn i64_of(value: Option<&Val>) -> i64 {
    value.and_then(Val::i64).unwrap_or_default()
}

fn func_type(engine: &Engine, signature: &Signature) -> FuncType {
    let mut params = Vec::new();
    for ty in &signature.params {
        match ty {
            Type::None => {}
            Type::Bool | Type::S32 | Type::U32 => params.push(ValType::I32),
            Type::S64 | Type::U64 => params.push(ValType::I64),
            Type::F32 => params.push(ValType::F32),
            Type::F64 => params.push(ValType::F64),
            Type::Text | Type::Bytes => params.extend([ValType::I32, ValType::I32]),
        }
    }
    let is_of_env = signature.is_of_env();
    let returned = signature.returned;
    if takes_buffer(signature) {
        params.extend([ValType::I32, ValType::I32]);
    }
    let result = match returned {
        Type::None if is_of_env => None,
        Type::S64 | Type::U64 if is_of_env => Some(ValType::I64),
        Type::F32 if is_of_env => Some(ValType::F32),
        Type::F64 if is_of_env => Some(ValType::F64),
        _ => Some(ValType::I32),
    };
    FuncType::new(engine, params, result)
}
