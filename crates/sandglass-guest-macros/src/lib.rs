//! The attribute that makes a function the handler of a guest. `sandglass_guest`
//! exports it, and tells how it is used.

mod expansion;
mod settings;
mod signature;

use proc_macro::TokenStream;

/// Makes a function the handler of this guest: what the host calls, once per dispatch.
///
/// The function takes up to two arguments: its input by value, which is read from the
/// params of the action that triggered it and so implements `serde::Deserialize`, and
/// `&Context`, in any order. It answers a `Result`: what it made, or why it failed.
///
/// ```text
/// #[sandglass_guest::handler]
/// fn handle(input: Input, context: &Context) -> Result<Output, Failure> { ... }
/// ```
///
/// What it made is `()`, a value that serializes to an object, which becomes the params
/// of the completing action, or a `Completion`. The action's name is the completion's, or
/// else that of `#[handler(action = "Finish")]`, or else what the integration declares as
/// `on_success`. Why it failed is a `Failure`, or whatever converts into one.
///
/// The function itself stays as it is, so tests can call it. A guest has one handler.
///
/// # Errors
/// Compilation fails, at the place in question, where the function is `async`, `unsafe`,
/// generic or a method, takes other arguments, answers nothing, or where the attribute has
/// a key other than `action`.
#[proc_macro_attribute]
pub fn handler(settings: TokenStream, function: TokenStream) -> TokenStream {
    expansion::expand(settings.into(), function.into()).into()
}
