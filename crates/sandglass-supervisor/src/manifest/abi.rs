//! The contracts that modules are written against.

use std::fmt;

use serde::Serialize;

/// The contract that a module is written against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Abi {
    /// A core module that imports from `env`.
    Core,
    /// A component of the world `sandglass:integration/handler`.
    Component,
    /// A core module that is a pack of OpenWOP nodes (RFC 0008): it exports
    /// `openwop_abi_version` or `openwop_node_invoke`.
    #[serde(rename = "openwop")]
    NodePack,
}

impl Abi {
    /// The names in manifests.
    pub const NAMES: [&str; 3] = ["core", "component", "openwop"];

    /// Returns the ABI of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Core, Self::Component, Self::NodePack].into_iter().find(|abi| abi.as_str() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Component => "component",
            Self::NodePack => "openwop",
        }
    }

    /// The contract, with the version that this host implements.
    #[must_use]
    pub const fn contract(self) -> &'static str {
        match self {
            Self::Core => "core ABI 1",
            Self::Component => "sandglass:integration@0.1.1",
            Self::NodePack => "OpenWOP node pack ABI 1",
        }
    }
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "a core module",
            Self::Component => "a component",
            Self::NodePack => "an OpenWOP node pack",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_the_name_of_an_abi() {
        for name in Abi::NAMES {
            assert_eq!(Abi::named(name).map(Abi::as_str), Some(name));
        }
        assert_eq!(Abi::named("Core"), None);
    }

    #[test]
    fn the_contract_of_components_is_the_wit_package() {
        let wit = include_str!("../../../sandglass-guest/wit/integration.wit");
        assert!(wit.contains(&format!("package {};", Abi::Component.contract())));
    }
}
