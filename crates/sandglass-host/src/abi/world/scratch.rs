//! `sandglass:integration/scratch`: the key-value scratch of a dispatch.

use wasmtime::Result;

use super::interface::scratch;
use super::telemetry;
use crate::boundary::imports;
use crate::store::RunStore;
use sandglass_supervisor::capability::scratch::ScratchError;

imports! { IMPORTS from telemetry::END;
    "sandglass:integration/scratch" in scratch {
        Host {
            instant "get"
            fn get(store, key: String) -> Result<Result<Option<Vec<u8>>, Error>> {
                let value = store.guest().scratch.get(&key);
                let value = value.map(|value| value.map(<[u8]>::to_vec));
                Ok(value.map_err(|error| failed(store, error)))
            }
            instant "set"
            fn set(store, key: String, value: Vec<u8>) -> Result<Result<(), Error>> {
                let set = store.guest_mut().scratch.set(&key, &value);
                Ok(set.map_err(|error| failed(store, error)))
            }
            instant "delete" fn delete(store, key: String) -> Result<Result<bool, Error>> {
                let deleted = store.guest_mut().scratch.delete(&key);
                Ok(deleted.map_err(|error| failed(store, error)))
            }
            instant "keys" fn keys(store) -> Result<Result<Vec<String>, Error>> {
                let keys = store.guest().scratch.keys();
                Ok(keys.map_err(|error| failed(store, error)))
            }
        }
    }
}

fn failed(store: &mut RunStore, error: ScratchError) -> scratch::Error {
    if error == ScratchError::Denied {
        store.guest_mut().note_refusal(&error);
    }
    store.failed(error)
}

impl From<ScratchError> for scratch::Error {
    fn from(error: ScratchError) -> Self {
        match error {
            ScratchError::Denied => Self::Denied,
            ScratchError::Full(bytes) => Self::Full(bytes),
            ScratchError::OutOfMemory(error) => Self::Full(error.limit),
            ScratchError::InvalidKey(_) => Self::InvalidKey(error.to_string()),
        }
    }
}
