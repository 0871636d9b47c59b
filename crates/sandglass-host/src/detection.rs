//! Detects from a module's bytes which contract it is written against.

use sandglass_model::{ModuleHash, Rejection, RejectionKind};
use sandglass_source::shortened;
use sandglass_supervisor::manifest::{Abi, Manifest};
use sandglass_supervisor::rejection::rejection;

use crate::module::node_pack;
use crate::structure;

/// The first bytes of every binary.
const MAGIC: &[u8] = b"\0asm";

/// Returns the contract that a module is written against. Reads as little as possible of `bytes`:
/// the first bytes of a component, a binary core module up to its code, and all of a text.
///
/// # Errors
/// `bytes` are not WebAssembly.
pub fn abi_of(bytes: &[u8]) -> Result<Abi, Rejection> {
    if bytes.starts_with(MAGIC) {
        return Ok(if is_component(bytes) { Abi::Component } else { core_abi(bytes) });
    }
    match first_form(bytes) {
        Some(form) if form.starts_with("component") => Ok(Abi::Component),
        // The compiler reports what is wrong with a text that cannot be read.
        Some(_) => Ok(structure::to_binary(bytes).map_or(Abi::Core, |bytes| core_abi(&bytes))),
        None => {
            let text = str::from_utf8(bytes).ok().map(after_comments);
            let shown = text.map_or_else(String::new, |text| {
                format!(": it begins with `{}`", shortened(text, 20).escape_debug())
            });
            let message = format!("module is not WebAssembly{shown}");
            Err(rejection(RejectionKind::InvalidModule, message))
        }
    }
}

/// Whether `bytes`, text or binary, are a component.
pub(crate) fn is_component(bytes: &[u8]) -> bool {
    /// After `\0asm` and a version of 2 bytes.
    const LAYER: &[u8] = &[1, 0];
    match bytes.starts_with(MAGIC) {
        true => bytes.get(6..8) == Some(LAYER),
        false => first_form(bytes).is_some_and(|form| form.starts_with("component")),
    }
}

/// What follows the first parenthesis of a text; `None` if it does not begin with one.
fn first_form(bytes: &[u8]) -> Option<&str> {
    after_comments(str::from_utf8(bytes).ok()?).strip_prefix('(').map(after_comments)
}

fn core_abi(binary: &[u8]) -> Abi {
    if node_pack::is_node_pack(binary) { Abi::NodePack } else { Abi::Core }
}

/// Checks that `bytes` are the module that `manifest` is about.
///
/// # Errors
/// The hash or the ABI differs.
pub(crate) fn check_module(manifest: &Manifest, bytes: &[u8]) -> Result<(), Rejection> {
    if let Some(named) = manifest.module_hash {
        let found = ModuleHash::of(bytes);
        if found != named {
            let message = format!("module has the hash {found}, and its manifest names {named}");
            return Err(rejection(RejectionKind::ModuleHashMismatch, message));
        }
    }
    if let Some(named) = manifest.abi {
        let found = abi_of(bytes)?;
        if found != named {
            let message = format!("module is {found}, and its manifest says {named}");
            return Err(rejection(RejectionKind::ModuleAbiMismatch, message));
        }
    }
    Ok(())
}

/// Returns the text after leading blanks and comments.
fn after_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        if let Some(comment) = text.strip_prefix(";;") {
            text = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else if text.starts_with("(;") {
            text = after_block_comment(text);
        } else {
            return text;
        }
    }
}

/// Returns the text after a block comment, which may contain others.
fn after_block_comment(text: &str) -> &str {
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
    fn modules_and_components_are_distinguished_in_text_and_binary() {
        for core in ["(module)", " ;; (component\n(module)", "(; (; é ;) (component ;)\n( module)"]
        {
            assert_eq!(abi_of(core.as_bytes()), Ok(Abi::Core), "{core}");
        }
        assert_eq!(abi_of(b"\0asm\x01\0\0\0"), Ok(Abi::Core));
        assert_eq!(abi_of(b"\0asm\x0d\0\x01\0"), Ok(Abi::Component));
        assert_eq!(abi_of(b"(component)"), Ok(Abi::Component));
        assert_eq!(abi_of(b";; a comment\n(component $c)"), Ok(Abi::Component));
    }

    #[test]
    fn a_pack_is_recognized_by_its_exports_in_text_and_binary() {
        for export in ["openwop_abi_version", "openwop_node_invoke"] {
            let text = format!("(module (func (export \"run\")) (func (export \"{export}\")))");
            assert_eq!(abi_of(text.as_bytes()), Ok(Abi::NodePack), "{text}");
            let binary = wat::parse_str(&text).expect("it is text");
            assert_eq!(abi_of(&binary), Ok(Abi::NodePack), "{text}");
        }
        let other = "(module (func (export \"openwop_alloc\")))";
        assert_eq!(abi_of(other.as_bytes()), Ok(Abi::Core));
        let broken = "(module (func (export \"openwop_node_invoke\"";
        assert_eq!(abi_of(broken.as_bytes()), Ok(Abi::Core), "the compiler says what is wrong");
    }

    #[test]
    fn bytes_that_are_not_webassembly_are_refused() {
        for bad in [&b""[..], b"#!/bin/sh", b"\xff\xfe", b"(;", b"(; (; ;)", b";)"] {
            let error = abi_of(bad).expect_err("no WebAssembly");
            assert_eq!(error.kind, RejectionKind::InvalidModule, "{bad:?}");
        }
    }
}
