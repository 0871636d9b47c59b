//! The addresses of a scenario's servers, which replace their names in specs and parameters.

use std::collections::BTreeMap;

use sandglass_model::Object;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::file::{SpecFile, with_servers};

/// The address of each server, by the server's name.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses(pub(super) BTreeMap<String, String>);

impl Addresses {
    pub(super) fn resolve_specs(&self, specs: &[SpecFile]) -> Result<Vec<SpecFile>> {
        let resolve = |spec: &SpecFile| {
            Ok(SpecFile { path: spec.path.clone(), source: self.resolve_text(&spec.source)? })
        };
        specs.iter().map(resolve).collect()
    }

    pub(super) fn resolve_params(&self, params: &Object) -> Result<Object> {
        let params = params.clone().into_iter();
        params.map(|(key, value)| Ok((key, self.resolve_value(value)?))).collect()
    }

    fn resolve_value(&self, value: Value) -> Result<Value> {
        Ok(match value {
            Value::String(text) => Value::String(self.resolve_text(&text)?),
            Value::Array(items) => {
                let items = items.into_iter().map(|item| self.resolve_value(item));
                Value::Array(items.collect::<Result<_>>()?)
            }
            Value::Object(fields) => {
                let fields =
                    fields.into_iter().map(|(key, field)| Ok((key, self.resolve_value(field)?)));
                Value::Object(fields.collect::<Result<_>>()?)
            }
            other => other,
        })
    }

    fn resolve_text(&self, text: &str) -> Result<String> {
        let address = |name: &str| self.0.get(name).cloned();
        with_servers(text, address)
            .map_err(|name| Error::Failed(format!("there is no server `{name}`")))
    }
}
