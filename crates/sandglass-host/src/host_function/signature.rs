//! What an embedder's function is called and takes, as those see it who write guests
//! for it, or make them.

use super::HostFunction;
use super::value::Type;

/// One host function of the embedder's own, as guests import it
/// ([`Host::functions`](crate::Host::functions)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The interface, with its version where it has one: the module that core modules
    /// import it from.
    pub interface: String,
    /// Its name in the interface.
    pub name: String,
    /// What it takes, beside the call.
    pub params: Vec<Type>,
    /// What it answers; [`Type::None`] where that is nothing.
    pub returned: Type,
}

impl Signature {
    pub(crate) fn of(function: &HostFunction) -> Self {
        Self {
            interface: function.interface.clone(),
            name: function.field.clone(),
            params: function.params.clone(),
            returned: function.returned,
        }
    }

    /// `interface.name` without a version: what manifests grant, and what reports and dying
    /// spans say.
    #[must_use]
    pub fn full_name(&self) -> String {
        let interface = &*self.interface;
        let unversioned = interface.split_once('@').map_or(interface, |(before, _)| before);
        format!("{unversioned}.{}", self.name)
    }
}
