//! Functions whose types are known only at run time: tests use them in place of an embedder's functions.

use std::sync::Arc;

use wasmtime::component::Val;

use super::executing::{execute, execute_beside};
use super::typed::Link;
use super::value::{Type, Value};
use super::{Body, HostCall, HostError, HostFunction, Linked, Signature};
use sandglass_supervisor::secret::Answer;

impl HostFunction {
    /// A function that takes values of the types `params` and returns one of the type `returned`. It may
    /// wait, as an [asynchronous](HostFunction::asynchronous) one.
    ///
    /// If it returns a value of another type, the call fails.
    pub fn dynamic(
        interface: &str,
        name: &str,
        params: Vec<Type>,
        returned: Type,
        function: impl Fn(HostCall, Vec<Value>) -> Answer<'static, Result<Value, HostError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let checked = move |call, values| -> Answer<'static, Result<Value, HostError>> {
            let result = function(call, values);
            Box::pin(async move {
                let value = result.await?;
                if value.ty() == returned {
                    return Ok(value);
                }
                let found = value.ty();
                Err(HostError::new(format_args!(
                    "it returned {found:?}, and is declared with {returned:?}"
                )))
            })
        };
        let (interface, name) = (interface.to_owned(), name.to_owned());
        let signature = Signature { interface, name, params, returned };
        Self { signature, body: Body::Async(Arc::new(checked)), link: LINK }
    }
}

/// Links such a function for components. Its parameters are checked at each call.
#[allow(clippy::disallowed_methods, reason = "it enters through the boundary")]
const LINK: Link = Link {
    waiting: |linker, function| {
        let name = function.function.signature.name.clone();
        linker.func_new_async(&name, move |store, _, params, results| {
            let function = Arc::clone(&function);
            Box::new(async move {
                let values = arguments(&function, params)?;
                set(results, execute(store, &function, values).await?)
            })
        })
    },
    asynchronous: |linker, function| {
        let name = function.function.signature.name.clone();
        linker.func_new_concurrent(&name, move |calling, _, params, results| {
            let function = Arc::clone(&function);
            Box::pin(async move {
                let values = arguments(&function, params)?;
                set(results, execute_beside(calling, &function, values).await?)
            })
        })
    },
};

fn arguments(function: &Linked, params: &[Val]) -> wasmtime::Result<Vec<Value>> {
    let values = params.iter().zip(&function.function.signature.params);
    let values: Option<Vec<Value>> = values.map(|(value, ty)| read(value, *ty)).collect();
    let values = values.filter(|values| values.len() == params.len());
    values.ok_or_else(|| wrong("is called with"))
}

fn set(results: &mut [Val], result: Result<Value, String>) -> wasmtime::Result<()> {
    let Some(slot) = results.first_mut() else { return Err(wrong("is to return")) };
    *slot = Val::Result(match result {
        Ok(value) => Ok(write(value).map(Box::new)),
        Err(why) => Err(Some(Box::new(Val::String(why)))),
    });
    Ok(())
}

fn wrong(what: &str) -> wasmtime::Error {
    wasmtime::format_err!("a host function {what} other types than it is declared with")
}

fn read(value: &Val, ty: Type) -> Option<Value> {
    Some(match (value, ty) {
        (Val::Bool(value), Type::Bool) => Value::Bool(*value),
        (Val::S32(value), Type::S32) => Value::S32(*value),
        (Val::U32(value), Type::U32) => Value::U32(*value),
        (Val::S64(value), Type::S64) => Value::S64(*value),
        (Val::U64(value), Type::U64) => Value::U64(*value),
        (Val::Float32(value), Type::F32) => Value::F32(*value),
        (Val::Float64(value), Type::F64) => Value::F64(*value),
        (Val::String(value), Type::Text) => Value::Text(value.clone()),
        (Val::List(values), Type::Bytes) => {
            let byte = |value: &Val| match value {
                Val::U8(byte) => Some(*byte),
                _ => None,
            };
            Value::Bytes(values.iter().map(byte).collect::<Option<Vec<u8>>>()?)
        }
        _ => return None,
    })
}

/// The value as components get it; `None` for [`Value::None`].
fn write(value: Value) -> Option<Val> {
    Some(match value {
        Value::None => return None,
        Value::Bool(value) => Val::Bool(value),
        Value::S32(value) => Val::S32(value),
        Value::U32(value) => Val::U32(value),
        Value::S64(value) => Val::S64(value),
        Value::U64(value) => Val::U64(value),
        Value::F32(value) => Val::Float32(value),
        Value::F64(value) => Val::Float64(value),
        Value::Text(value) => Val::String(value),
        Value::Bytes(bytes) => Val::List(bytes.into_iter().map(Val::U8).collect()),
    })
}
