//! Scripted host functions of an embedder, built from their signatures.

use std::sync::Arc;

use sandglass_host::{HostError, HostFunction, HostValue, Signature, ValueType};
use serde_json::Value;

use crate::world::World;

/// Creates a function with this signature whose calls `world` answers.
pub(crate) fn scripted_function(world: &Arc<World>, signature: Signature) -> HostFunction {
    let name = signature.full_name();
    let Signature { interface, name: field, params, returned } = signature;
    let world = Arc::clone(world);
    HostFunction::dynamic(&interface, &field, params, returned, move |_, _| {
        let (world, name) = (Arc::clone(&world), name.clone());
        Box::pin(async move {
            let value = world.call(&name).await.map_err(HostError::new)?;
            to_host_value(&value, returned).ok_or_else(|| {
                HostError::new(format_args!(
                    "the case answers {name} with {value}, which is not a {returned:?}"
                ))
            })
        })
    })
}

/// Converts `json` to a value of this type; `None` if it is not one.
fn to_host_value(json: &Value, ty: ValueType) -> Option<HostValue> {
    let float = || json.as_f64();
    Some(match ty {
        ValueType::None => HostValue::None,
        ValueType::Bool => HostValue::Bool(json.as_bool()?),
        ValueType::S32 => HostValue::S32(json.as_i64()?.try_into().ok()?),
        ValueType::U32 => HostValue::U32(json.as_u64()?.try_into().ok()?),
        ValueType::S64 => HostValue::S64(json.as_i64()?),
        ValueType::U64 => HostValue::U64(json.as_u64()?),
        #[allow(clippy::cast_possible_truncation, reason = "the nearest value of the type")]
        ValueType::F32 => HostValue::F32(float()? as f32),
        ValueType::F64 => HostValue::F64(float()?),
        ValueType::Text => HostValue::Text(match json {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }),
        ValueType::Bytes => HostValue::Bytes(json.as_str()?.as_bytes().to_vec()),
    })
}
