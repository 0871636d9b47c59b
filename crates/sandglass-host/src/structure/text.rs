//! Converts text modules, which people write and which are short.

use std::borrow::Cow;

use sandglass_model::{Rejection, RejectionKind};

use sandglass_supervisor::rejection::rejection;

/// Longest text module, in bytes: parsing takes up to 160 times as much memory.
pub(crate) const TEXT_MAX_BYTES: usize = 512 << 10;

/// The binary form of `bytes`, which are binary or text.
///
/// # Errors
/// They are neither, or text of more than 512 KiB.
pub(crate) fn to_binary(bytes: &[u8]) -> Result<Cow<'_, [u8]>, Rejection> {
    if bytes.starts_with(b"\0asm") {
        return Ok(Cow::Borrowed(bytes));
    }
    if bytes.len() > TEXT_MAX_BYTES && str::from_utf8(bytes).is_ok() {
        return Err(rejection(
            RejectionKind::ModuleTooLarge,
            format!(
                "module is text of {} bytes, and text may have {TEXT_MAX_BYTES}; convert it to \
                 binary first, for example with `wasm-tools parse`",
                bytes.len()
            ),
        ));
    }
    match str::from_utf8(bytes) {
        Ok(text) => parse(text).map(Cow::Owned),
        Err(_) => {
            let what = "module is not WebAssembly: it begins with neither \\0asm nor text";
            Err(rejection(RejectionKind::InvalidModule, what))
        }
    }
}

#[cfg(not(feature = "text"))]
fn parse(_: &str) -> Result<Vec<u8>, Rejection> {
    let what = "module is text, which this host was built without (the feature `text`); convert it \
                to binary, for example with `wasm-tools parse`";
    Err(rejection(RejectionKind::UnsupportedModule, what))
}

#[cfg(feature = "text")]
fn parse(text: &str) -> Result<Vec<u8>, Rejection> {
    wat::parse_str(text).map_err(|error| {
        let what = format!("module is not WebAssembly text: {}", in_one_line(&error.to_string()));
        rejection(RejectionKind::InvalidModule, what)
    })
}

/// The message of a parser with its position, without the excerpt below it.
#[cfg(feature = "text")]
fn in_one_line(message: &str) -> String {
    let mut lines = message.lines();
    let what = lines.next().unwrap_or_default();
    match lines.find_map(|line| line.trim().strip_prefix("--> <anon>:")) {
        Some(place) => format!("{what} (at {place})"),
        None => what.to_owned(),
    }
}
