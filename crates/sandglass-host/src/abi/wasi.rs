//! WASI of both versions: clocks and randomness of the system, streams to the log, an empty standard
//! input, no arguments, no environment, no files and no sockets.

mod charges;
mod clocks;
pub(crate) mod command;
pub(crate) mod http;
pub(crate) mod preview1;
mod recorded;
mod sending;
mod stdio;

use wasmtime::Error;
use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::{StreamError, bindings};
use wasmtime_wasi::{TrappableError, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::p2::{HeaderError, HttpError};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView};

use crate::abi::concurrent::http::Bodies;
use crate::boundary::CallError;
use crate::store::RunStore;
use sandglass_supervisor::capability::log::{GuestLog, Level};
use sandglass_supervisor::capability::outside::Outside;
use sandglass_supervisor::functions::Functions;
use sandglass_supervisor::measured;

use charges::Charges;
use sending::{HEADERS_MAX_BYTES, Sending};
pub(super) use sending::{code_of, header_map, header_texts};
pub(super) use stdio::LogStream;

/// Most resources (streams, pollables, requests) of one handler run: more than a program uses, and a
/// bound on what one that leaks can keep.
const MAX_RESOURCES: usize = 10_000;

/// Most random bytes of one call: under a millisecond of work, because nothing interrupts it.
const MAX_RANDOM_BYTES: u64 = 64 << 10;

/// The state of both versions for one handler run.
pub(crate) struct Wasi {
    pub(crate) preview1: WasiP1Ctx,
    http: WasiHttpCtx,
    sending: Sending,
    charges: Charges,
    bodies: Bodies,
    /// Where the standard output and error go.
    output: LogStream,
    error: LogStream,
}

measured!(in crate::measured::Measured; Wasi: preview1, http, sending, charges, bodies, output, error);

impl WasiView for Wasi {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.preview1.ctx()
    }
}

impl Wasi {
    /// For a handler run that writes to `log` and sends its requests through `outside`.
    pub(crate) fn new(log: &GuestLog, outside: Outside) -> Self {
        let mut builder = WasiCtxBuilder::new();
        if !outside.clock.is_of_the_system() {
            clocks::set(&mut builder, &outside.clock);
        }
        let output = LogStream::new(log.clone(), Level::Info, &outside);
        let error = LogStream::new(log.clone(), Level::Warn, &outside);
        let mut preview1 = builder
            .stdout(output.clone())
            .stderr(error.clone())
            .allow_tcp(false)
            .allow_udp(false)
            .max_random_size(MAX_RANDOM_BYTES)
            .build_p1();
        preview1.ctx().table.set_max_capacity(MAX_RESOURCES);
        let charges = Charges::new(outside.memory.clone());
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(HEADERS_MAX_BYTES);
        Self {
            preview1,
            http,
            sending: Sending(outside),
            charges,
            bodies: Bodies::default(),
            output,
            error,
        }
    }

    pub(super) fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            hooks: &mut self.sending,
            table: self.preview1.ctx().table,
            ctx: &mut self.http,
        }
    }

    /// Charges the resources with these numbers for the memory that they take now.
    ///
    /// # Errors
    /// The account has no room, or one of them has a type that cannot be measured.
    pub(crate) fn charge(&mut self, numbers: &[u32]) -> wasmtime::Result<()> {
        self.charges.settle(self.preview1.ctx().table, &mut self.sending, numbers)
    }

    /// Where what the guest writes at this level goes.
    pub(super) fn log_stream(&self, level: Level) -> LogStream {
        match level {
            Level::Info => self.output.clone(),
            _ => self.error.clone(),
        }
    }

    /// The bodies of requests and responses of `wasi:http` 0.3.
    pub(super) const fn bodies(&mut self) -> &mut Bodies {
        &mut self.bodies
    }

    /// The resources of the guest.
    pub(crate) fn table(&mut self) -> &mut ResourceTable {
        self.preview1.ctx().table
    }
}

/// Links everything that components can import of WASI 0.2.
pub(crate) fn link(
    linker: &mut Linker<RunStore>,
    functions: &mut Functions,
) -> wasmtime::Result<()> {
    functions.add_imports(command::IMPORTS);
    let options = bindings::LinkOptions::default();
    bindings::Command::add_to_linker::<_, HasSelf<RunStore>>(linker, &options, |store| store)?;
    functions.add_imports(http::IMPORTS);
    functions.add_imports(http::HANDLER);
    http::link(linker)
}

/// Errors of Wasmtime's WASI that either end the run or contain an error for the guest.
macro_rules! trappable {
    ($([$($generic:ident)?] $error:ty;)+) => {$(
        impl$(<$generic: std::error::Error + Send + Sync + 'static>)? CallError for $error {
            fn ending(error: Error) -> Self {
                Self::trap(error)
            }

            fn ends_the_run(&self) -> bool {
                self.downcast_ref().is_none()
            }
        }
    )+};
}

trappable! {
    [T] TrappableError<T>;
    [] HttpError;
    [] HeaderError;
}

impl CallError for StreamError {
    fn ending(error: Error) -> Self {
        Self::Trap(error)
    }

    fn ends_the_run(&self) -> bool {
        matches!(self, Self::Trap(_))
    }
}

/// As `boundary::imports!`, for functions that Wasmtime implements. Each interface names the view of
/// the handler run's [`Wasi`] that implements it.
macro_rules! delegate {
    ($table:ident from $first:expr;
     $($interface:literal in $($module:ident)::+ by $view:ident {
        $($trait:ident {
            $($class:ident $wit:literal fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*
            $(=> fn $convert:ident($from:ty) -> $to:ty;)*
        })*
     })*) => {
        pub(crate) const $table: &[::sandglass_supervisor::functions::Import] = &[
            $($($(::sandglass_supervisor::functions::Import {
                interface: $interface,
                function: $wit,
                class: $crate::boundary::class!($class),
            },)*)*)*
        ];
        $(const _: () = {
            use $($module)::+::*;
            $(impl $trait for $crate::store::RunStore {
                $($crate::abi::wasi::delegated! { $class
                    ::sandglass_supervisor::functions::FunctionId::of($first, $table, $interface, $wit);
                    $trait, $view, fn $name($($arg: $ty),*) -> $ret
                })*
                $(fn $convert(&mut self, error: $from) -> $to {
                    $crate::boundary::record_error(self, |store| {
                        $trait::$convert(&mut store.wasi().$view(), error)
                    })
                })*
            })*
        };)*
    };
}

macro_rules! delegated {
    (instant $function:expr; $trait:ident, $view:ident,
     fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        $crate::boundary::import! { instant $function;
            fn $name(store $(, $arg: $ty)*) -> $ret {
                $trait::$name(&mut store.wasi().$view() $(, $arg)*)
            }
        }
    };
    ($class:ident $function:expr; $trait:ident, $view:ident,
     fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        $crate::boundary::import! { $class $function;
            fn $name(store, race $(, $arg: $ty)*) -> $ret {
                let mut view = store.wasi().$view();
                race.run($trait::$name(&mut view $(, $arg)*)).await.transpose()
            }
        }
    };
}

pub(super) use {delegate, delegated};
