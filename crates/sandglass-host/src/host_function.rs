//! The embedder's own host functions: their registration, their names, and the execution of a call,
//! whichever ABI it comes through.
//!
//! ```text
//! builder.function(..) --> Registry --> linked for core modules and components
//! guest --> boundary --> Linked::call: argument types, class, timeout, panics --> the function
//! ```

mod blocking;
mod call;
mod dynamic;
mod executing;
mod signature;
mod typed;
mod value;

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use wasmtime::component::LinkerInstance;

use crate::abi::env;
use crate::error::BuildError;
use crate::store::RunStore;
use sandglass_supervisor::functions::{Class, FunctionId};
use sandglass_supervisor::secret::Answer;

pub(crate) use blocking::BlockingCalls;
pub use call::{HostCall, HostError};
pub use signature::Signature;
pub use typed::Json;
use typed::{Arguments, AsyncFunction, Link, Returned, SyncFunction};
pub use value::Type;
pub use value::Value;
pub(crate) use value::Wire;

/// Most functions of one host: more than any embedder has, and few enough for reports to list.
const MAX_FUNCTIONS: usize = 1000;

/// Longest name of an interface or a function, in bytes, because metric labels contain it.
const NAME_MAX_BYTES: usize = 128;

/// One of the embedder's own host functions, with the name by which guests import it. It is registered
/// with [`Builder::function`](crate::Builder::function), and granted to an integration by
/// [`Manifest::functions`](crate::Manifest::functions).
///
/// The interface is written as in WIT, `namespace:package/interface`, with or without `@version`; the
/// function in lower case with hyphens. A core module imports the function from a module with the name
/// of the interface; a component imports `name: func(..) -> result<.., string>` of the interface, or
/// `name: async func(..)`, of which several calls can be in flight. In reports, dying spans and manifests, its name is `interface.name`, without a version.
///
/// The interface `env` is the module of the core ABI, for functions that existing core modules import
/// and that are not built in. Their names have letters, digits and underscores, and components cannot
/// import them. Numbers and `bool` are returned as they are, and a failure as -1 or the code of
/// [`HostError::with_code`] (a float as not a number); a function that returns `()` has no result.
///
/// Its first parameter is a [`HostCall`]; up to four follow, each a `String`, `Vec<u8>`, `bool`, `i32`,
/// `u32`, `i64`, `u64`, `f32`, `f64` or [`Json`]. It returns `Result<R, HostError>`; `R` is one of these
/// types or `()`. The guest gets an error if the function fails, panics, or exceeds its time limit.
///
/// ```
/// use std::time::Duration;
/// use sandglass_host::{
///     Context, Dispatch, Host, HostCall, HostError, HostFunction, Json, Manifest, Settings,
/// };
///
/// #[derive(serde::Serialize)]
/// struct Contact {
///     name: String,
/// }
///
/// async fn find(call: HostCall, email: String) -> Result<Json<Contact>, HostError> {
///     let name = format!("{email} as {} knows it", call.tenant());
///     Ok(Json(Contact { name }))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let host = Host::builder()
///     .settings(Settings { max_runs: 8, ..Settings::default() })
///     .function(HostFunction::asynchronous("acme:crm/contacts", "find", find))
///     .build()?;
/// let guest = host.load(
///     br#"(module
///         (import "acme:crm/contacts" "find"
///             (func $find (param $email i32) (param i32) (param $out i32) (param i32) (result i32)))
///         (memory (export "memory") 1)
///         (func (export "run") (param i32 i32) (result i32)
///             (drop (call $find (i32.const 8) (i32.const 0) (i32.const 64) (i32.const 256)))
///             i32.const 0))"#,
///     Manifest::named("crm").functions(["acme:crm/contacts.find".to_owned()]),
/// )?;
/// let dispatch = Dispatch::new("Session/1".parse()?, "Begin", Context::default());
/// let report = host.run(&guest, dispatch).await?;
/// assert_eq!(report.host_calls.by_function[0].name, "acme:crm/contacts.find");
/// # Ok(())
/// # }
/// ```
pub struct HostFunction {
    pub(crate) signature: Signature,
    body: Body,
    link: Link,
}

type Outcome = Result<Value, HostError>;
type Sync = Arc<dyn Fn(HostCall, Vec<Value>) -> Outcome + Send + std::marker::Sync>;
type Async =
    Arc<dyn Fn(HostCall, Vec<Value>) -> Answer<'static, Outcome> + Send + std::marker::Sync>;

enum Body {
    Instant(Sync),
    Async(Async),
    Blocking(Duration, Sync),
}

impl HostFunction {
    /// A function that waits for nothing. It is executed on the guest's thread, where no deadline can
    /// end it, so it must not take longer than a few memory accesses. It is also called while the host
    /// has no [lease](crate::Builder::lease), so it must have no effect outside of this process.
    pub fn instant<F: SyncFunction<Args>, Args: Arguments>(
        interface: &str,
        name: &str,
        function: F,
    ) -> Self {
        let body = Body::Instant(Arc::new(move |call, values| function.call(call, values)));
        Self::new::<Args, F::Returned>(interface, name, body)
    }

    /// A function that may wait. Its future is dropped when the handler ends, or when it has taken as
    /// long as a host call may.
    pub fn asynchronous<F: AsyncFunction<Args>, Args: Arguments>(
        interface: &str,
        name: &str,
        function: F,
    ) -> Self {
        let body = Body::Async(Arc::new(move |call, values| function.call(call, values)));
        Self::new::<Args, F::Returned>(interface, name, body)
    }

    /// A function that blocks a thread for at most `bound`. It is executed on a thread of its own and
    /// cannot be ended: if its handler ends first, or its bound has passed, it continues, its result is
    /// dropped, and it counts as lingering. There are at most
    /// [`Settings::max_blocking_calls`](crate::Settings) at a time, including lingering ones; further
    /// calls are refused.
    pub fn blocking<F: SyncFunction<Args>, Args: Arguments>(
        interface: &str,
        name: &str,
        bound: Duration,
        function: F,
    ) -> Self {
        let body = Body::Blocking(bound, Arc::new(move |call, values| function.call(call, values)));
        Self::new::<Args, F::Returned>(interface, name, body)
    }

    fn new<Args: Arguments, R: Returned>(interface: &str, name: &str, body: Body) -> Self {
        let signature = Signature {
            interface: interface.to_owned(),
            name: name.to_owned(),
            params: Args::types(),
            returned: R::Wire::TYPE,
        };
        Self { signature, body, link: Args::link::<R>() }
    }

    pub(crate) fn class(&self) -> Class {
        match self.body {
            Body::Instant(_) => Class::Instant,
            Body::Async(_) => Class::Async,
            Body::Blocking(..) => Class::Blocking,
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let Signature { interface: versioned, name, .. } = &self.signature;
        let (interface, version) = match versioned.split_once('@') {
            Some((interface, version)) => (interface, Some(version)),
            None => (&**versioned, None),
        };
        if versioned.len() > NAME_MAX_BYTES || name.len() > NAME_MAX_BYTES {
            return Err("a name has at most 128 bytes");
        }
        if matches!(self.body, Body::Blocking(bound, _) if bound.is_zero()) {
            return Err("a blocking function needs a bound on its time that is above zero");
        }
        if self.signature.is_of_env() {
            return check_env_name(name);
        }
        let namespace = interface.split(':').next().unwrap_or_default();
        if namespace == "env" || namespace == "sandglass" || namespace.starts_with("wasi") {
            return Err(
                "`env`, `wasi` and `sandglass` are the host's own; choose another namespace",
            );
        }
        let parts = interface.split_once(':').and_then(|(namespace, rest)| {
            rest.split_once('/').map(|(package, interface)| [namespace, package, interface])
        });
        if !parts.is_some_and(|parts| parts.into_iter().all(is_kebab)) {
            return Err("an interface is written `namespace:package/interface`, in lower case");
        }
        if version.is_some_and(|version| !is_version(version)) {
            return Err("a version is written `1.2.3`");
        }
        if !is_kebab(name) {
            return Err("a function's name is written in lower case, with hyphens");
        }
        Ok(())
    }
}

/// Checks the name of a function of module `env`.
fn check_env_name(name: &str) -> Result<(), &'static str> {
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if !is_name(name) {
        return Err("the name of a function of `env` has letters, digits and underscores");
    }
    if env::is_built_in(name) {
        return Err("it is built in; choose another name");
    }
    Ok(())
}

fn is_kebab(name: &str) -> bool {
    name.split('-').all(|word| {
        word.starts_with(|first: char| first.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    })
}

fn is_version(version: &str) -> bool {
    let numbers: Vec<&str> = version.split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFunction")
            .field("name", &self.signature.full_name())
            .field("class", &self.class())
            .finish_non_exhaustive()
    }
}

/// The embedder's functions of one host, with valid and different names.
#[derive(Debug)]
pub(crate) struct Registry {
    functions: Vec<Arc<HostFunction>>,
    blocking: Arc<BlockingCalls>,
}

impl Registry {
    pub(crate) fn new(
        functions: Vec<HostFunction>,
        blocking: Arc<BlockingCalls>,
    ) -> Result<Self, BuildError> {
        let refused = |function: &HostFunction, why: &str| BuildError::Function {
            name: function.signature.full_name().escape_debug().to_string(),
            why: why.to_owned(),
        };
        let mut names = BTreeSet::new();
        for function in &functions {
            function.check().map_err(|why| refused(function, why))?;
            if !names.insert(function.signature.full_name()) {
                return Err(refused(function, "it is registered already"));
            }
            if names.len() > MAX_FUNCTIONS {
                return Err(refused(function, "a host takes at most 1000 functions"));
            }
        }
        let functions = functions.into_iter().map(Arc::new).collect();
        Ok(Self { functions, blocking })
    }

    pub(crate) fn functions(&self) -> &[Arc<HostFunction>] {
        &self.functions
    }

    /// Gives `function` its id in the table of one engine.
    pub(crate) fn link(&self, function: &Arc<HostFunction>, id: FunctionId) -> Arc<Linked> {
        let function = Arc::clone(function);
        Arc::new(Linked { function, id, blocking: Arc::clone(&self.blocking) })
    }
}

/// A function with its id in the table of one engine.
pub(crate) struct Linked {
    pub(crate) function: Arc<HostFunction>,
    pub(crate) id: FunctionId,
    blocking: Arc<BlockingCalls>,
}

impl Linked {
    /// Links it into the instance from which components import it.
    pub(crate) fn link_component(
        self: &Arc<Self>,
        linker: &mut LinkerInstance<'_, RunStore>,
    ) -> wasmtime::Result<()> {
        (self.function.link.waiting)(linker, Arc::clone(self))
    }

    /// As [`Linked::link_component`], for components that import it as an `async func`.
    pub(crate) fn link_asynchronous(
        self: &Arc<Self>,
        linker: &mut LinkerInstance<'_, RunStore>,
    ) -> wasmtime::Result<()> {
        (self.function.link.asynchronous)(linker, Arc::clone(self))
    }

    /// Executes a call, whose guest has a buffer of so many bytes for the result. The caller races it
    /// with the end of the handler run.
    pub(crate) fn call(
        &self,
        store: &RunStore,
        values: Vec<Value>,
        buffer_bytes: Option<u32>,
    ) -> Answer<'static, Outcome> {
        let name = store.calls.functions.name(self.id).to_owned();
        let failed = |why: String| -> Answer<'static, Outcome> {
            Box::pin(std::future::ready(Err(HostError::new(why))))
        };
        let Some(call) = HostCall::of(store, buffer_bytes) else {
            return failed("no handler makes this call".to_owned());
        };
        // Charged for as long as the function has them, which may be longer than its call takes.
        let charge = match store.guest().memory.charge(values.iter().map(Value::heap_bytes).sum()) {
            Ok(charge) => charge,
            Err(error) => return failed(error.to_string()),
        };
        match &self.function.body {
            Body::Instant(function) => {
                let result = catch_unwind(AssertUnwindSafe(|| function(call, values))).ok();
                Box::pin(std::future::ready(unless_panicked(&name, result)))
            }
            Body::Async(function) => {
                let function = Arc::clone(function);
                Box::pin(async move {
                    let _charge = charge;
                    // Inside, so that a panic of the function before its future is caught, too.
                    let result = AssertUnwindSafe(async { function(call, values).await });
                    unless_panicked(&name, result.catch_unwind().await.ok())
                })
            }
            Body::Blocking(bound, function) => {
                let (bound, function) = (*bound, Arc::clone(function));
                let blocking = Arc::clone(&self.blocking);
                Box::pin(async move {
                    let running = blocking.run(move || {
                        let _charge = charge;
                        function(call, values)
                    });
                    let running = running.map_err(|most| {
                        HostError::new(format_args!(
                            "`{name}` was not called: {most} blocking calls are under way"
                        ))
                    })?;
                    #[allow(clippy::disallowed_methods, reason = "the outside takes real time")]
                    let result = tokio::time::timeout(bound, running).await.map_err(|_| {
                        let bound = bound.as_millis();
                        HostError::new(format_args!(
                            "`{name}` took longer than its limit of {bound} ms"
                        ))
                    })?;
                    unless_panicked(&name, result)
                })
            }
        }
    }
}

/// The result; `None` stands for a panic of the function. The embedder's panic hook has printed or
/// logged the panic itself.
fn unless_panicked(name: &str, result: Option<Outcome>) -> Outcome {
    result.unwrap_or_else(|| {
        tracing::error!(function = name, "a host function of the embedder's panicked");
        Err(HostError::new(format_args!("`{name}` failed inside the host")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_named(interface: &str, name: &str) -> HostFunction {
        HostFunction::instant(interface, name, |_: HostCall| Ok(()))
    }

    fn refusal(functions: Vec<HostFunction>) -> String {
        let blocking = Arc::new(BlockingCalls::new(1, sandglass_telemetry::Metrics::disabled()));
        Registry::new(functions, blocking).expect_err("it is refused").to_string()
    }

    #[test]
    fn invalid_and_duplicate_names_are_refused() {
        let cases = [
            ("env", "find-one", "letters, digits and underscores"),
            ("env", "1st", "letters, digits and underscores"),
            ("env", "", "letters, digits and underscores"),
            ("env", "host_http_call", "built in"),
            ("env", "host_evaluate_spec", "built in"),
            ("env:acme/crm", "find", "host's own"),
            ("wasi:http/outgoing", "find", "host's own"),
            ("wasi_snapshot_preview1", "find", "host's own"),
            ("sandglass:integration/http", "find", "host's own"),
            ("acme", "find", "namespace:package/interface"),
            ("acme:crm", "find", "namespace:package/interface"),
            ("Acme:crm/contacts", "find", "namespace:package/interface"),
            ("acme:crm/contacts@new", "find", "1.2.3"),
            ("acme:crm/contacts", "find_contact", "with hyphens"),
            ("acme:crm/contacts", "", "with hyphens"),
            ("acme:crm/contacts", "a\u{1b}", "with hyphens"),
        ];
        for (interface, name, why) in cases {
            let refusal = refusal(vec![function_named(interface, name)]);
            assert!(refusal.contains(why), "{refusal}");
            assert!(!refusal.contains('\u{1b}'));
        }
        let twice = refusal(vec![
            function_named("acme:crm/contacts@1.0.0", "find"),
            function_named("acme:crm/contacts", "find"),
        ]);
        assert!(twice.contains("registered already"), "{twice}");
        let twice = refusal(vec![function_named("env", "Find_1"), function_named("env", "Find_1")]);
        assert!(twice.contains("`env.Find_1`") && twice.contains("registered already"), "{twice}");
    }

    #[test]
    fn a_blocking_function_without_a_bound_is_refused() {
        let endless =
            HostFunction::blocking("acme:crm/c", "f", Duration::ZERO, |_: HostCall| Ok(()));
        assert!(refusal(vec![endless]).contains("above zero"));
    }
}
