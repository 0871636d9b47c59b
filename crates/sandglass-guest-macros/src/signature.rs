//! Reads the arguments and the return type of a handler from its signature.

use syn::spanned::Spanned as _;
use syn::{Error, FnArg, ItemFn, Result, ReturnType, Signature, Type};

/// One argument of a handler.
pub(crate) enum Argument<'a> {
    /// The input, by value.
    Input(&'a Type),
    /// The context, by reference.
    Context(&'a Type),
}

/// The arguments that a handler can have, for error messages.
const EXPECTED: &str = "a handler takes its input by value, `&Context`, both or neither";

/// Returns the arguments and the return type of `function`.
///
/// # Errors
/// Errors if it cannot be a handler; the error points at the cause.
pub(crate) fn read(function: &ItemFn) -> Result<(Vec<Argument<'_>>, &Type)> {
    let Signature { inputs, output, .. } = &function.sig;
    refuse_qualifiers(&function.sig)?;
    let mut arguments = Vec::new();
    for argument in inputs {
        let argument = match argument {
            FnArg::Receiver(this) => {
                return Err(Error::new(
                    this.span(),
                    format!("a handler cannot be a method: {EXPECTED}"),
                ));
            }
            FnArg::Typed(argument) => match &*argument.ty {
                Type::Reference(context) => {
                    if let Some(mutable) = &context.mutability {
                        return Err(Error::new(
                            mutable.span(),
                            "the context is read-only: take `&Context`",
                        ));
                    }
                    Argument::Context(&argument.ty)
                }
                input => Argument::Input(input),
            },
        };
        if arguments.iter().any(|other| is_same_kind(other, &argument)) {
            let what = match argument {
                Argument::Input(ty) => Error::new(ty.span(), format!("a second input: {EXPECTED}")),
                Argument::Context(ty) => {
                    Error::new(ty.span(), format!("a second reference: {EXPECTED}"))
                }
            };
            return Err(what);
        }
        arguments.push(argument);
    }
    match output {
        ReturnType::Type(_, returned) => Ok((arguments, returned)),
        ReturnType::Default => Err(Error::new(
            function.sig.ident.span(),
            "a handler returns a `Result`: its output, or why it failed",
        )),
    }
}

fn is_same_kind(one: &Argument<'_>, other: &Argument<'_>) -> bool {
    matches!(
        (one, other),
        (Argument::Input(_), Argument::Input(_)) | (Argument::Context(_), Argument::Context(_))
    )
}

fn refuse_qualifiers(signature: &Signature) -> Result<()> {
    let refused = |span: proc_macro2::Span, why: &str| Err(Error::new(span, why));
    if let Some(token) = &signature.unsafety {
        return refused(token.span(), "a handler cannot be an `unsafe fn`: the host calls it");
    }
    if let Some(abi) = &signature.abi {
        return refused(abi.span(), "a handler uses Rust's calling convention: remove `extern`");
    }
    if let Some(token) = &signature.variadic {
        return refused(token.span(), EXPECTED);
    }
    if !signature.generics.params.is_empty() {
        return refused(
            signature.generics.span(),
            "a handler cannot be generic: the host calls one function",
        );
    }
    Ok(())
}
