//! What a handler takes and answers, read off its signature.

use syn::spanned::Spanned as _;
use syn::{Error, FnArg, ItemFn, Result, ReturnType, Signature, Type};

/// One argument of a handler.
pub(crate) enum Argument<'a> {
    /// The input, by value.
    Input(&'a Type),
    /// The context, by reference.
    Context(&'a Type),
}

/// What is wanted, for whoever wrote something else.
const WANTED: &str = "a handler takes its input by value, `&Context`, both or neither";

/// The arguments of `function`, and what it answers.
///
/// # Errors
/// It can't be a handler; the error has the place that is why.
pub(crate) fn read(function: &ItemFn) -> Result<(Vec<Argument<'_>>, &Type)> {
    let Signature { inputs, output, .. } = &function.sig;
    refuse_qualifiers(&function.sig)?;
    let mut arguments = Vec::new();
    for argument in inputs {
        let argument = match argument {
            FnArg::Receiver(this) => {
                return Err(Error::new(this.span(), format!("a handler is no method: {WANTED}")));
            }
            FnArg::Typed(argument) => match &*argument.ty {
                Type::Reference(context) => {
                    if let Some(mutable) = &context.mutability {
                        return Err(Error::new(mutable.span(), "the context can't be changed"));
                    }
                    Argument::Context(&argument.ty)
                }
                input => Argument::Input(input),
            },
        };
        if arguments.iter().any(|other| same(other, &argument)) {
            let what = match argument {
                Argument::Input(ty) => Error::new(ty.span(), format!("a second input: {WANTED}")),
                Argument::Context(ty) => {
                    Error::new(ty.span(), format!("a second reference: {WANTED}"))
                }
            };
            return Err(what);
        }
        arguments.push(argument);
    }
    match output {
        ReturnType::Type(_, answer) => Ok((arguments, answer)),
        ReturnType::Default => Err(Error::new(
            function.sig.ident.span(),
            "a handler answers a `Result`: what it made, or why it failed",
        )),
    }
}

fn same(one: &Argument<'_>, other: &Argument<'_>) -> bool {
    matches!(
        (one, other),
        (Argument::Input(_), Argument::Input(_)) | (Argument::Context(_), Argument::Context(_))
    )
}

fn refuse_qualifiers(signature: &Signature) -> Result<()> {
    let refused = |place: proc_macro2::Span, why: &str| Err(Error::new(place, why));
    if let Some(token) = &signature.asyncness {
        return refused(
            token.span(),
            "a handler is no `async fn`: host functions wait by themselves",
        );
    }
    if let Some(token) = &signature.unsafety {
        return refused(token.span(), "a handler is no `unsafe fn`: the host would call it");
    }
    if let Some(abi) = &signature.abi {
        return refused(abi.span(), "a handler has Rust's own calling convention");
    }
    if let Some(token) = &signature.variadic {
        return refused(token.span(), WANTED);
    }
    if !signature.generics.params.is_empty() {
        return refused(signature.generics.span(), "a handler is not generic: the host calls one");
    }
    Ok(())
}
