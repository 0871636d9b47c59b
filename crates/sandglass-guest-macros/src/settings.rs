//! What stands in the attribute's parentheses.

use proc_macro2::TokenStream;
use syn::LitStr;
use syn::parse::Parser as _;

/// What the attribute says.
#[derive(Default)]
pub(crate) struct Settings {
    /// The action that completes the handler.
    pub(crate) action: Option<LitStr>,
}

impl Settings {
    /// Reads `action = "Finish"`, or nothing.
    ///
    /// # Errors
    /// Another key, the same one twice, or a name that is empty.
    pub(crate) fn read(tokens: TokenStream) -> syn::Result<Self> {
        let mut settings = Self::default();
        let parser = syn::meta::parser(|meta| {
            if !meta.path.is_ident("action") {
                return Err(meta.error("there is one key: `action`"));
            }
            if settings.action.is_some() {
                return Err(meta.error("`action` is there twice"));
            }
            let action: LitStr = meta.value()?.parse()?;
            if action.value().is_empty() {
                return Err(syn::Error::new(action.span(), "an action has a name"));
            }
            settings.action = Some(action);
            Ok(())
        });
        parser.parse2(tokens)?;
        Ok(settings)
    }
}
