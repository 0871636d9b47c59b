//! Expands the attribute: the function itself, unchanged, and next to it the export that the host calls.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{ItemFn, Result};

use crate::settings::Settings;
use crate::signature::{self, Argument};

/// Returns the function with its export, or with a compile error if it cannot be a handler.
pub(crate) fn expand(settings: TokenStream, function: TokenStream) -> TokenStream {
    match with_export(settings, function.clone()) {
        Ok(expanded) => expanded,
        // The function stays, so that its callers cause no further errors.
        Err(error) => {
            let error = error.into_compile_error();
            quote! { #error #function }
        }
    }
}

fn with_export(settings: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let settings = Settings::read(settings)?;
    let function: ItemFn = syn::parse2(function)
        .map_err(|error| syn::Error::new(error.span(), "only a function can be a handler"))?;
    let (arguments, returned) = signature::read(&function)?;
    let name = &function.sig.ident;
    let passed = arguments.iter().map(|argument| match argument {
        // The span makes the compiler point at the type if it does not fit.
        Argument::Input(input) => quote_spanned! { input.span() =>
            ::sandglass_guest::__private::input::<#input>(__context)?
        },
        Argument::Context(reference) => quote_spanned! { reference.span() => __context },
    });
    let action = match &settings.action {
        Some(action) => quote! { ::core::option::Option::Some(#action) },
        None => quote! { ::core::option::Option::None },
    };
    let result = quote_spanned! { returned.span() =>
        ::sandglass_guest::__private::into_result(__returned, ACTION)
    };
    let (asyncness, called, export) = match function.sig.asyncness {
        Some(_) => (
            quote! { async },
            quote_spanned! { returned.span() => #name(#(#passed),*).await },
            quote! { __export_async_handler },
        ),
        None => (quote! {}, quote! { #name(#(#passed),*) }, quote! { __export_handler }),
    };
    Ok(quote! {
        #function

        const _: () = {
            const ACTION: ::core::option::Option<&str> = #action;

            // Names in the author's code cannot refer to these items.
            #asyncness fn __handler(
                __context: &::sandglass_guest::Context,
            ) -> ::sandglass_guest::__private::HandlerResult {
                let __returned = #called;
                #result
            }

            ::sandglass_guest::#export!(__handler);
        };
    })
}
