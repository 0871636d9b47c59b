//! The name and types of an embedder's function, for authors of guests and for tools.

use super::value::Type;
use crate::abi::env;
use crate::module::component::without_version;

/// One of the embedder's own host functions, as guests import it
/// ([`Host::functions`](crate::Host::functions)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The interface, with its version if it has one. Core modules import the function from a module
    /// with this name; components cannot import one of `env`.
    pub interface: String,
    /// Its name in the interface.
    pub name: String,
    /// Types of its parameters, without the call.
    pub params: Vec<Type>,
    /// Type of its result; [`Type::None`] if it returns nothing.
    pub returned: Type,
}

impl Signature {
    /// Whether core modules import it from the module of the core ABI.
    pub(crate) fn is_of_env(&self) -> bool {
        self.interface == env::MODULE
    }

    /// The interface without a version: Wasmtime's linker matches versions for components.
    pub(crate) fn unversioned(&self) -> &str {
        without_version(&self.interface)
    }

    /// `interface.name` without a version: its name in manifests, reports and dying spans.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.unversioned(), self.name)
    }
}
