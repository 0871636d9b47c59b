//! The attribute `#[handler]`, which makes a function the handler of a guest. `sandglass_guest`
//! re-exports it and documents how to use it.

mod expansion;
mod settings;
mod signature;

use proc_macro::TokenStream;

/// Makes a function the handler of this guest, which the host calls once per dispatch.
///
/// The function takes up to two arguments, in any order: its input by value, which is read from
/// the params of the triggering action and so implements `serde::Deserialize`, and `&Context`. It
/// returns a `Result`: its output, or why it failed.
///
/// ```text
/// #[sandglass_guest::handler]
/// fn handle(input: Input, context: &Context) -> Result<Output, Failure> { ... }
/// ```
///
/// The output is `()`, a `Completion`, or a value that serializes to an object, which becomes the
/// params of the completing action. That action is the one that the `Completion` names, or else the
/// one in `#[handler(action = "Finish")]`, or else the one that the integration declares as
/// `on_success`. The error is a `Failure`, or any type that converts into one.
///
/// The function itself is unchanged, so tests can call it. A guest has one handler. It may be an `async fn`.
///
/// # Errors
/// Compilation fails, with the error at the cause, if the function is `unsafe`, generic or a
/// method, takes other arguments or returns nothing, or if the attribute has a key other than
/// `action`.
#[proc_macro_attribute]
pub fn handler(settings: TokenStream, function: TokenStream) -> TokenStream {
    expansion::expand(settings.into(), function.into()).into()
}
