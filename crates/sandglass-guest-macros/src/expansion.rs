//! From a function to a handler: the function as it is, and beside it what the host calls.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{ItemFn, Result};

use crate::settings::Settings;
use crate::signature::{self, Argument};

/// The function with its export, or with the error that it can't have one.
pub(crate) fn expand(settings: TokenStream, function: TokenStream) -> TokenStream {
    match exported(settings, function.clone()) {
        Ok(exported) => exported,
        // The function stays, so that nothing else is complained about.
        Err(error) => {
            let error = error.into_compile_error();
            quote! { #error #function }
        }
    }
}

fn exported(settings: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let settings = Settings::read(settings)?;
    let function: ItemFn = syn::parse2(function)
        .map_err(|error| syn::Error::new(error.span(), "only a function can be a handler"))?;
    let (arguments, answer) = signature::read(&function)?;
    let name = &function.sig.ident;
    let given = arguments.iter().map(|argument| match argument {
        // Where a type doesn't fit, the complaint is about the place where it is written.
        Argument::Input(input) => quote_spanned! { input.span() =>
            ::sandglass_guest::__private::input::<#input>(__context)?
        },
        Argument::Context(reference) => quote_spanned! { reference.span() => __context },
    });
    let action = match &settings.action {
        Some(action) => quote! { ::core::option::Option::Some(#action) },
        None => quote! { ::core::option::Option::None },
    };
    let answered = quote_spanned! { answer.span() =>
        ::sandglass_guest::__private::answer(__answered, ACTION)
    };
    Ok(quote! {
        #function

        const _: () = {
            const ACTION: ::core::option::Option<&str> = #action;

            // No name of the function's own author can mean one of these.
            fn __handler(
                __context: &::sandglass_guest::Context,
            ) -> ::sandglass_guest::__private::Answered {
                let __answered = #name(#(#given),*);
                #answered
            }

            ::sandglass_guest::__export_handler!(__handler);
        };
    })
}
