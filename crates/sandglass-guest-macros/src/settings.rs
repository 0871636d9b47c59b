//! The arguments of the attribute.

use proc_macro2::TokenStream;
use syn::LitStr;
use syn::parse::Parser as _;

/// The arguments of `#[handler(...)]`.
#[derive(Default)]
pub(crate) struct Settings {
    /// The action that completes the handler.
    pub(crate) action: Option<LitStr>,
}

impl Settings {
    /// Reads `action = "Finish"`, or nothing.
    ///
    /// # Errors
    /// Errors if there is another key, a duplicate key, or an empty name.
    pub(crate) fn read(tokens: TokenStream) -> syn::Result<Self> {
        let mut settings = Self::default();
        let parser = syn::meta::parser(|meta| {
            if !meta.path.is_ident("action") {
                return Err(meta.error("unknown key; the only key is `action`"));
            }
            if settings.action.is_some() {
                return Err(meta.error("`action` is given twice"));
            }
            let action: LitStr = meta.value()?.parse()?;
            if action.value().is_empty() {
                return Err(syn::Error::new(action.span(), "the name of the action is empty"));
            }
            settings.action = Some(action);
            Ok(())
        });
        parser.parse2(tokens)?;
        Ok(settings)
    }
}
