//! The command world of WASI 0.3: clocks, randomness, standard streams and the environment. Wasmtime
//! implements what neither waits nor streams. [`denied`](super::denied) has files and sockets.

use std::time::Duration;

use sandglass_supervisor::functions::{Class, FunctionId, Import};
use wasmtime::Result;
use wasmtime::component::{Access, FutureReader, HasSelf, Linker, Resource, StreamReader};
use wasmtime_wasi::cli::WasiCliView;
use wasmtime_wasi::clocks::WasiClocksView;
use wasmtime_wasi::p3::bindings::cli::types::ErrorCode;
use wasmtime_wasi::p3::bindings::{cli, clocks, random};
use wasmtime_wasi::random::WasiRandomView;

use super::{Calling, FIRST, pass, sleep, stdio};
use crate::abi::wasi::delegate;
use crate::store::RunStore;
use sandglass_supervisor::capability::log::Level;

delegate! { DELEGATED from FIRST;
    "wasi:cli/environment@0.3" in cli::environment by cli {
        Host {
            instant "get-environment" fn get_environment() -> Result<Vec<(String, String)>>;
            instant "get-arguments" fn get_arguments() -> Result<Vec<String>>;
            instant "get-initial-cwd" fn get_initial_cwd() -> Result<Option<String>>;
        }
    }
    "wasi:cli/exit@0.3" in cli::exit by cli {
        Host {
            instant "exit" fn exit(status: Result<(), ()>) -> Result<()>;
            instant "exit-with-code" fn exit_with_code(status_code: u8) -> Result<()>;
        }
    }
    "wasi:cli/terminal-input@0.3" in cli::terminal_input by cli {
        HostTerminalInput {
            instant "[resource-drop]terminal-input" fn drop(this: Resource<TerminalInput>) -> Result<()>;
        }
        Host {}
    }
    "wasi:cli/terminal-output@0.3" in cli::terminal_output by cli {
        HostTerminalOutput {
            instant "[resource-drop]terminal-output" fn drop(this: Resource<TerminalOutput>) -> Result<()>;
        }
        Host {}
    }
    "wasi:cli/terminal-stdin@0.3" in cli::terminal_stdin by cli {
        Host { instant "get-terminal-stdin" fn get_terminal_stdin() -> Result<Option<Resource<TerminalInput>>>; }
    }
    "wasi:cli/terminal-stdout@0.3" in cli::terminal_stdout by cli {
        Host { instant "get-terminal-stdout" fn get_terminal_stdout() -> Result<Option<Resource<TerminalOutput>>>; }
    }
    "wasi:cli/terminal-stderr@0.3" in cli::terminal_stderr by cli {
        Host { instant "get-terminal-stderr" fn get_terminal_stderr() -> Result<Option<Resource<TerminalOutput>>>; }
    }
    "wasi:clocks/monotonic-clock@0.3" in clocks::monotonic_clock by clocks {
        Host {
            instant "now" fn now() -> Result<Mark>;
            instant "get-resolution" fn get_resolution() -> Result<Duration>;
        }
    }
    "wasi:clocks/system-clock@0.3" in clocks::system_clock by clocks {
        Host {
            instant "now" fn now() -> Result<Instant>;
            instant "get-resolution" fn get_resolution() -> Result<Duration>;
        }
    }
    "wasi:random/random@0.3" in random::random by random {
        Host {
            instant "get-random-bytes" fn get_random_bytes(max_len: u64) -> Result<Vec<u8>>;
            instant "get-random-u64" fn get_random_u64() -> Result<u64>;
        }
    }
    "wasi:random/insecure@0.3" in random::insecure by random {
        Host {
            instant "get-insecure-random-bytes" fn get_insecure_random_bytes(max_len: u64) -> Result<Vec<u8>>;
            instant "get-insecure-random-u64" fn get_insecure_random_u64() -> Result<u64>;
        }
    }
    "wasi:random/insecure-seed@0.3" in random::insecure_seed by random {
        Host { instant "get-insecure-seed" fn get_insecure_seed() -> Result<(u64, u64)>; }
    }
}

const MONOTONIC_CLOCK: &str = "wasi:clocks/monotonic-clock@0.3";
const STDIN: &str = "wasi:cli/stdin@0.3";
const STDOUT: &str = "wasi:cli/stdout@0.3";
const STDERR: &str = "wasi:cli/stderr@0.3";

/// What Wasmtime does not implement for this host.
const OWN: &[Import] = &[
    Import { interface: MONOTONIC_CLOCK, function: "wait-until", class: Class::Async },
    Import { interface: MONOTONIC_CLOCK, function: "wait-for", class: Class::Async },
    Import { interface: STDIN, function: "read-via-stream", class: Class::Instant },
    Import { interface: STDOUT, function: "write-via-stream", class: Class::Instant },
    Import { interface: STDOUT, function: stdio::WRITE, class: Class::Instant },
    Import { interface: STDERR, function: "write-via-stream", class: Class::Instant },
    Import { interface: STDERR, function: stdio::WRITE, class: Class::Instant },
];

/// The functions of this module, in two parts.
pub(super) const IMPORTS: [&[Import]; 2] = [DELEGATED, OWN];

/// The index of the first function behind this module.
pub(super) const END: usize = FIRST + DELEGATED.len() + OWN.len();

const fn id(interface: &str, function: &str) -> FunctionId {
    FunctionId::of(FIRST + DELEGATED.len(), OWN, interface, function)
}

pub(super) fn link(linker: &mut Linker<RunStore>) -> Result<()> {
    macro_rules! link {
        ($($module:path),* $(,)?) => {$({
            use $module as module;
            module::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)?;
        })*};
    }
    link!(
        cli::environment,
        cli::exit,
        cli::types,
        cli::stdin,
        cli::stdout,
        cli::stderr,
        cli::terminal_input,
        cli::terminal_output,
        cli::terminal_stdin,
        cli::terminal_stdout,
        cli::terminal_stderr,
        clocks::types,
        clocks::monotonic_clock,
        clocks::system_clock,
        random::random,
        random::insecure,
        random::insecure_seed,
    );
    Ok(())
}

impl cli::types::Host for RunStore {}
impl clocks::types::Host for RunStore {}
impl cli::stdin::Host for RunStore {}
impl cli::stdout::Host for RunStore {}
impl cli::stderr::Host for RunStore {}

impl clocks::monotonic_clock::HostWithStore<RunStore> for HasSelf<RunStore> {
    async fn wait_until(calling: &Calling, when: u64) -> Result<()> {
        const FUNCTION: FunctionId = id(MONOTONIC_CLOCK, "wait-until");
        sleep(calling, FUNCTION, &when, |store| {
            let now = clocks::monotonic_clock::Host::now(&mut store.wasi().clocks());
            Duration::from_nanos(when.saturating_sub(now.unwrap_or(when)))
        })
        .await
    }

    async fn wait_for(calling: &Calling, how_long: u64) -> Result<()> {
        const FUNCTION: FunctionId = id(MONOTONIC_CLOCK, "wait-for");
        sleep(calling, FUNCTION, &how_long, |_| Duration::from_nanos(how_long)).await
    }
}

/// The result of a stream, as a guest gets it.
type Written = FutureReader<Result<(), ErrorCode>>;

impl cli::stdin::HostWithStore<RunStore> for HasSelf<RunStore> {
    fn read_via_stream(
        mut store: Access<'_, RunStore, Self>,
    ) -> Result<(StreamReader<u8>, Written)> {
        const FUNCTION: FunctionId = id(STDIN, "read-via-stream");
        pass(store.get(), FUNCTION)?;
        let empty = StreamReader::new(&mut store, stdio::Empty)?;
        let ended = FutureReader::new(&mut store, async { Ok::<_, wasmtime::Error>(Ok(())) })?;
        Ok((empty, ended))
    }
}

impl cli::stdout::HostWithStore<RunStore> for HasSelf<RunStore> {
    fn write_via_stream(
        store: Access<'_, RunStore, Self>,
        data: StreamReader<u8>,
    ) -> Result<Written> {
        const FUNCTIONS: (FunctionId, FunctionId) =
            (id(STDOUT, "write-via-stream"), id(STDOUT, stdio::WRITE));
        stdio::write(store, FUNCTIONS, Level::Info, data)
    }
}

impl cli::stderr::HostWithStore<RunStore> for HasSelf<RunStore> {
    fn write_via_stream(
        store: Access<'_, RunStore, Self>,
        data: StreamReader<u8>,
    ) -> Result<Written> {
        const FUNCTIONS: (FunctionId, FunctionId) =
            (id(STDERR, "write-via-stream"), id(STDERR, stdio::WRITE));
        stdio::write(store, FUNCTIONS, Level::Warn, data)
    }
}
