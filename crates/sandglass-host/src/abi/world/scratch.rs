//! `sandglass:integration/scratch`: the key-value scratch of a dispatch.

use wasmtime::Result;

use super::interface::scratch;
use super::telemetry;
use crate::boundary::imports;
use sandglass_supervisor::capability::scratch::ScratchError;

imports! { IMPORTS from telemetry::END;
    "sandglass:integration/scratch" in scratch {
        Host {
            instant "get"
            fn get(store, key: String) -> Result<Result<Option<Vec<u8>>, Error>> {
                let value = store.guest().scratch.get(&key);
                Ok(value.map(|value| value.map(<[u8]>::to_vec)).map_err(Error::from))
            }
            instant "set"
            fn set(store, key: String, value: Vec<u8>) -> Result<Result<(), Error>> {
                Ok(store.guest_mut().scratch.set(&key, &value).map_err(Error::from))
            }
            instant "delete" fn delete(store, key: String) -> Result<Result<bool, Error>> {
                Ok(store.guest_mut().scratch.delete(&key).map_err(Error::from))
            }
            instant "keys" fn keys(store) -> Result<Result<Vec<String>, Error>> {
                Ok(store.guest().scratch.keys().map_err(Error::from))
            }
        }
    }
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
