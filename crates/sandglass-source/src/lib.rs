//! Reads text that others wrote, within bounds.
//!
//! - TOML files that people write (specs, manifests, scenarios): start with [`Document`] and [`Table`].
//!   All errors of a file are reported at once as [`Diagnostics`], each with its place and what to do.
//! - JSON from guests, clients, authors and journals: [`json`].
//! - Durations, sizes and names as people write them, and the escaping of foreign text for terminals
//!   ([`printable()`]).
//!
//! This crate opens no file and knows no key: the meaning of a key belongs to the reader of its format.
//!
//! ```
//! use sandglass_source::{Diagnostics, Document};
//!
//! let source = "name = \"tools\"\nmemroy = \"64MiB\"\n";
//! let mut out = Diagnostics::new(source);
//! let document = Document::parse(source, 1 << 20, &mut out).expect("it is TOML");
//! let file = document.table("the manifest");
//! file.only(&["name", "memory"], &mut out);
//! assert_eq!(file.text("name", &mut out).as_deref(), Some("tools"));
//! assert_eq!(
//!     out.finish()[0].to_string(),
//!     "2:1: error: unknown key `memroy` in the manifest\n  help: did you mean `memory`?"
//! );
//! ```

mod diagnostic;
mod document;
pub mod duration;
mod finding;
pub mod json;
mod name;
mod printable;
mod repeated_keys;
pub mod size;
mod table;
pub mod toml_value;

pub use diagnostic::{
    DIAGNOSTICS_MAX, Diagnostic, Diagnostics, Help, Severity, did_you_mean, is_one_slip, nearest,
};
pub use document::{Document, KEY_PARTS_MAX, not_text};
pub use finding::Finding;
pub use name::Name;
pub use printable::{is_unprintable, printable, shortened};
pub use repeated_keys::without_repeated_keys;
pub use table::{Spot, Table, items_of, no_unit, valid_name, wrong_type};
