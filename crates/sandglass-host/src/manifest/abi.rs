//! Which contract a module is written against, told from its bytes.

use std::fmt;

use sandglass_model::{Rejection, RejectionKind};
use sandglass_source::shortened;
use serde::Serialize;

use crate::error::rejection;
use crate::module::node_pack;
use crate::structure;

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
    /// As manifests name them.
    pub const NAMES: [&str; 3] = ["core", "component", "openwop"];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "core" => Some(Self::Core),
            "component" => Some(Self::Component),
            "openwop" => Some(Self::NodePack),
            _ => None,
        }
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

    /// The contract, with the version of it that this host has.
    #[must_use]
    pub const fn contract(self) -> &'static str {
        match self {
            Self::Core => "core ABI 1",
            Self::Component => "sandglass:integration@0.1.0",
            Self::NodePack => "OpenWOP node pack ABI 1",
        }
    }

    /// The one that a module's bytes, text or binary, are written against. It reads
    /// no more of them than it takes to tell: of a component the first bytes, of a binary core
    /// module what stands before its code, and of one in text all.
    ///
    /// # Errors
    /// They are no WebAssembly.
    pub fn of(bytes: &[u8]) -> Result<Self, Rejection> {
        /// `\0asm`, a version of 2 bytes, and a layer of 2.
        const MAGIC: [u8; 4] = *b"\0asm";
        const COMPONENT_LAYER: [u8; 2] = [1, 0];
        if bytes.starts_with(&MAGIC) {
            let component = bytes.get(6..8) == Some(&COMPONENT_LAYER);
            return Ok(if component { Self::Component } else { Self::of_core(bytes) });
        }
        let text = str::from_utf8(bytes).ok().map(after_comments);
        match text.and_then(|text| text.strip_prefix('(')).map(after_comments) {
            Some(text) if text.starts_with("component") => Ok(Self::Component),
            // What is wrong with one that can't be read is told when it is compiled.
            Some(_) => {
                Ok(structure::to_binary(bytes).map_or(Self::Core, |bytes| Self::of_core(&bytes)))
            }
            None => {
                let shown = text.map_or_else(String::new, |text| {
                    format!(": it begins with `{}`", shortened(text, 20).escape_debug())
                });
                let message = format!("module is no WebAssembly{shown}");
                Err(rejection(RejectionKind::InvalidModule, message))
            }
        }
    }

    fn of_core(binary: &[u8]) -> Self {
        if node_pack::is_one(binary) { Self::NodePack } else { Self::Core }
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

/// WebAssembly text behind the blanks and comments that it begins with.
fn after_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        if let Some(comment) = text.strip_prefix(";;") {
            text = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else if text.starts_with("(;") {
            text = behind_block(text);
        } else {
            return text;
        }
    }
}

/// What stands behind a block comment, which may hold others.
fn behind_block(text: &str) -> &str {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let pair = text.as_bytes().get(at..at + 2).unwrap_or_default();
        match pair {
            b"(;" => depth += 1,
            b";)" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return &text[at..];
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_told_from_a_component_in_text_and_binary() {
        for core in ["(module)", " ;; (component\n(module)", "(; (; é ;) (component ;)\n( module)"]
        {
            assert_eq!(Abi::of(core.as_bytes()), Ok(Abi::Core), "{core}");
        }
        assert_eq!(Abi::of(b"\0asm\x01\0\0\0"), Ok(Abi::Core));
        assert_eq!(Abi::of(b"\0asm\x0d\0\x01\0"), Ok(Abi::Component));
        assert_eq!(Abi::of(b"(component)"), Ok(Abi::Component));
        assert_eq!(Abi::of(b";; a comment\n(component $c)"), Ok(Abi::Component));
    }

    #[test]
    fn a_pack_is_told_by_what_it_exports_in_text_and_binary() {
        for export in ["openwop_abi_version", "openwop_node_invoke"] {
            let text = format!("(module (func (export \"run\")) (func (export \"{export}\")))");
            assert_eq!(Abi::of(text.as_bytes()), Ok(Abi::NodePack), "{text}");
            let binary = wat::parse_str(&text).expect("it is text");
            assert_eq!(Abi::of(&binary), Ok(Abi::NodePack), "{text}");
        }
        let other = "(module (func (export \"openwop_alloc\")))";
        assert_eq!(Abi::of(other.as_bytes()), Ok(Abi::Core));
        let broken = "(module (func (export \"openwop_node_invoke\"";
        assert_eq!(Abi::of(broken.as_bytes()), Ok(Abi::Core), "the compiler says what is wrong");
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in [&b""[..], b"#!/bin/sh", b"\xff\xfe", b"(;", b"(; (; ;)", b";)"] {
            let error = Abi::of(bad).expect_err("no WebAssembly");
            assert_eq!(error.kind, RejectionKind::InvalidModule, "{bad:?}");
        }
    }

    #[test]
    fn every_name_names_one() {
        for name in Abi::NAMES {
            assert_eq!(Abi::named(name).map(Abi::as_str), Some(name));
        }
        assert_eq!(Abi::named("Core"), None);
    }

    #[test]
    fn the_version_is_that_of_the_package() {
        let wit = include_str!("../../../sandglass-guest/wit/integration.wit");
        assert!(wit.contains(&format!("package {};", Abi::Component.contract())));
    }
}
