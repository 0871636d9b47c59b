//! Converts typed Rust functions to functions that take values. The traits are not exported, so the
//! supported types are those of this file.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wasmtime::StoreContextMut;
use wasmtime::component::{Accessor, LinkerInstance};

use super::call::{HostCall, HostError};
use super::executing::{execute_typed, execute_typed_beside};
use super::value::{Type, Value, Wire};
use super::{Linked, Outcome};
use crate::store::RunStore;
use sandglass_supervisor::secret::Answer;

/// Any value that serde can convert, passed as JSON text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// A type that a function can take.
pub trait Parameter: Sized + Send + 'static {
    /// What it is passed as.
    type Wire: Wire;

    /// Reads it.
    ///
    /// # Errors
    /// The value is not of this type; the text states why.
    fn read(wire: Self::Wire) -> Result<Self, String>;
}

/// A type that a function can return.
pub trait Returned: Sized + Send + 'static {
    /// What it is passed as.
    type Wire: Wire;

    /// Writes it.
    ///
    /// # Errors
    /// It cannot be written; the text states why.
    fn write(self) -> Result<Self::Wire, String>;
}

macro_rules! plain {
    ($($rust:ty),*) => {$(
        impl Parameter for $rust {
            type Wire = Self;

            fn read(wire: Self) -> Result<Self, String> {
                Ok(wire)
            }
        }

        impl Returned for $rust {
            type Wire = Self;

            fn write(self) -> Result<Self, String> {
                Ok(self)
            }
        }
    )*};
}

plain!(bool, i32, u32, i64, u64, f32, f64, String, Vec<u8>);

impl Returned for () {
    type Wire = ();

    fn write(self) -> Result<(), String> {
        Ok(())
    }
}

impl<T: DeserializeOwned + Send + 'static> Parameter for Json<T> {
    type Wire = String;

    fn read(text: String) -> Result<Self, String> {
        sandglass_source::json::read(&text).map(Self).map_err(|error| error.to_string())
    }
}

impl<T: Serialize + Send + 'static> Returned for Json<T> {
    type Wire = String;

    fn write(self) -> Result<String, String> {
        serde_json::to_string(&self.0).map_err(|error| error.to_string())
    }
}

/// The parameters of a function, without the call.
pub trait Arguments: Sized + Send + 'static {
    /// Their types.
    fn types() -> Vec<Type>;

    /// Reads them.
    ///
    /// # Errors
    /// One of them cannot be read.
    fn read(values: Vec<Value>) -> Result<Self, HostError>;

    /// How a function that returns an `R` is linked for components.
    fn link<R: Returned>() -> Link;
}

/// How a function is linked into the instance from which components import it.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "it cannot be named outside of this crate")]
pub struct Link {
    /// As a function that returns when it has its result.
    pub(super) waiting: LinkInto,
    /// As an `async func`, which can be in flight beside others.
    pub(super) asynchronous: LinkInto,
}

type LinkInto = fn(&mut LinkerInstance<'_, RunStore>, Arc<Linked>) -> wasmtime::Result<()>;

/// An async function that takes a [`HostCall`] and `Args`.
pub trait AsyncFunction<Args>: Send + Sync + 'static {
    /// What it returns.
    type Returned: Returned;

    /// Calls it.
    fn call(&self, call: HostCall, values: Vec<Value>) -> Answer<'static, Outcome>;
}

/// A function that takes a [`HostCall`] and `Args`.
pub trait SyncFunction<Args>: Send + Sync + 'static {
    /// What it returns.
    type Returned: Returned;

    /// Calls it.
    ///
    /// # Errors
    /// It failed, or its arguments cannot be read.
    fn call(&self, call: HostCall, values: Vec<Value>) -> Outcome;
}

fn write<R: Returned>(answer: Result<R, HostError>) -> Outcome {
    let wire = answer?.write().map_err(|why| {
        HostError::new(format_args!("the function's result cannot be written as JSON: {why}"))
    })?;
    Ok(wire.into_value())
}

fn read<A: Parameter>(value: Option<Value>, nth: usize) -> Result<A, HostError> {
    let wire = value.and_then(A::Wire::from_value);
    let wire = wire.ok_or_else(|| HostError::new(format_args!("argument {nth} is missing")))?;
    A::read(wire)
        .map_err(|why| HostError::new(format_args!("argument {nth} cannot be read: {why}")))
}

macro_rules! arity {
    ($($arg:ident),*) => {
        #[allow(non_snake_case, unused, reason = "one name for each type and its value")]
        impl<$($arg: Parameter),*> Arguments for ($($arg,)*) {
            fn types() -> Vec<Type> {
                vec![$($arg::Wire::TYPE),*]
            }

            fn read(values: Vec<Value>) -> Result<Self, HostError> {
                let mut values = values.into_iter();
                let mut nth = 0;
                $(nth += 1;
                let $arg = read::<$arg>(values.next(), nth)?;)*
                Ok(($($arg,)*))
            }

            #[allow(clippy::disallowed_methods, reason = "it enters through the boundary")]
            fn link<R: Returned>() -> Link {
                Link {
                    waiting: |linker, function| {
                        let name = function.function.signature.name.clone();
                        linker.func_wrap_async(
                            &name,
                            move |store: StoreContextMut<'_, RunStore>,
                                  ($($arg,)*): ($($arg::Wire,)*)| {
                                let function = Arc::clone(&function);
                                Box::new(async move {
                                    let values = vec![$($arg.into_value()),*];
                                    execute_typed::<R>(store, &function, values).await
                                })
                            },
                        )
                    },
                    asynchronous: |linker, function| {
                        let name = function.function.signature.name.clone();
                        linker.func_wrap_concurrent(
                            &name,
                            move |calling: &Accessor<RunStore>,
                                  ($($arg,)*): ($($arg::Wire,)*)| {
                                let function = Arc::clone(&function);
                                Box::pin(async move {
                                    let values = vec![$($arg.into_value()),*];
                                    execute_typed_beside::<R>(calling, &function, values).await
                                })
                            },
                        )
                    },
                }
            }
        }

        #[allow(non_snake_case, reason = "one name for each type and its value")]
        impl<F, Fut, R, $($arg: Parameter),*> AsyncFunction<($($arg,)*)> for F
        where
            F: Fn(HostCall, $($arg),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<R, HostError>> + Send + 'static,
            R: Returned,
        {
            type Returned = R;

            fn call(&self, call: HostCall, values: Vec<Value>) -> Answer<'static, Outcome> {
                match <($($arg,)*)>::read(values) {
                    Ok(($($arg,)*)) => {
                        let answer = self(call, $($arg),*);
                        Box::pin(async move { write(answer.await) })
                    }
                    Err(error) => Box::pin(std::future::ready(Err(error))),
                }
            }
        }

        #[allow(non_snake_case, reason = "one name for each type and its value")]
        impl<F, R, $($arg: Parameter),*> SyncFunction<($($arg,)*)> for F
        where
            F: Fn(HostCall, $($arg),*) -> Result<R, HostError> + Send + Sync + 'static,
            R: Returned,
        {
            type Returned = R;

            fn call(&self, call: HostCall, values: Vec<Value>) -> Outcome {
                let ($($arg,)*) = <($($arg,)*)>::read(values)?;
                write(self(call, $($arg),*))
            }
        }
    };
}

arity!();
arity!(A);
arity!(A, B);
arity!(A, B, C);
arity!(A, B, C, D);
