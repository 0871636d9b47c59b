//! Measures what the host costs and how exact it is, on the machine at hand and beside plain
//! Wasmtime in the same process. It also measures an OpenWOP host, in a process of its own.
//!
//! It compares the figures with [goals](Goal), and prints nothing. No product code depends on it:
//! it serves `sandglass bench` and the host's bench target.
//!
//! ```text
//! run(options) --> for each key: host and plain Wasmtime, by turns --> Figure --> Report
//! ```

#![allow(
    clippy::cast_precision_loss,
    reason = "counts and nanoseconds of a benchmark are far below 2^53"
)]

mod bench_host;
mod dispatching;
mod figure;
mod guests;
mod host_call;
mod idling;
mod key;
mod killing;
mod leaking;
mod machine;
mod neighbours;
mod openwop;
mod plain;
mod process;
mod recorder;
mod repeating;
mod report;
mod suspending;
mod table;
mod telemetry;
mod ticking;
mod timing;

use std::path::Path;

use killing::Load;
use sandglass_host::BuildError;

pub use figure::{Figure, Goal, Unit};
pub use key::{Key, UnknownKey};
pub use machine::Machine;
pub use repeating::{Repeating, Way};
pub use report::{NotMeasured, Report};
pub use table::lines;

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As much as fits into a minute and a half on two cores, for all figures together.
    Quick,
    /// As much as makes the last percent of each figure repeatable.
    Full,
}

impl Effort {
    /// Selects one of two sizes.
    pub(crate) const fn of(self, quick: u32, full: u32) -> u32 {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// Why something inside a measurement failed. It is only ever shown, so it needs no structure.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures each of `keys`, in their order. If one cannot be measured, the report has its error,
/// and the others are measured nevertheless. `tell` is called when the measurement of each key
/// begins. Keys that [need the program](Key::needs_program) start `program`, which is the
/// `sandglass` that is measured.
///
/// It uses the whole machine while it measures, starts threads of its own, and must be called
/// outside of any asynchronous runtime.
///
/// # Errors
/// No host can be built on this machine.
pub fn run(
    effort: Effort,
    keys: &[Key],
    program: Option<&Path>,
    tell: &mut dyn FnMut(Key),
) -> Result<Report, BuildError> {
    let machine = Machine::present()?;
    let mut figures = Vec::new();
    for &key in keys {
        tell(key);
        let figure = measure(key, effort, program);
        figures.push((key, figure.map_err(|why| NotMeasured { why: why.to_string() })));
    }
    Ok(Report { figures, machine, quick: effort == Effort::Quick })
}

fn measure(key: Key, effort: Effort, program: Option<&Path>) -> Result<Figure, Failure> {
    match key {
        Key::DispatchThroughput => dispatching::throughput(effort),
        Key::DispatchInline => dispatching::inline(effort),
        Key::DispatchInlineThreads => dispatching::inline_threads(effort),
        Key::DispatchExecutor => dispatching::executor(effort),
        Key::DispatchComponent => dispatching::component(effort),
        Key::DispatchComponentAsync => dispatching::component_async(effort),
        Key::DispatchTemplates => dispatching::templates(effort),
        Key::HostCall => host_call::measure(effort),
        Key::TelemetryMetrics => telemetry::metrics(effort),
        Key::TelemetryTraces => telemetry::traces(effort),
        Key::KillSpinIdle => killing::spinning(effort, Load::Idle),
        Key::KillSpinSaturated => killing::spinning(effort, Load::Saturated),
        Key::KillWaitIdle => killing::waiting(effort, Load::Idle),
        Key::KillWaitSaturated => killing::waiting(effort, Load::Saturated),
        Key::NeighbourDelay => neighbours::handlers(effort),
        Key::EmbedderDelay => neighbours::embedder(effort),
        Key::IdleCpu => idling::measure(effort),
        Key::Suspended => suspending::measure(effort),
        Key::Leaks => leaking::measure(effort),
        Key::TickGap => ticking::gap(effort),
        Key::OpenwopRuns => openwop::runs(effort, program),
        Key::OpenwopReaders => openwop::readers(effort, program),
        Key::OpenwopSlowReaders => openwop::slow_readers(effort, program),
        Key::OpenwopReaderMemory => openwop::memory(effort, program),
    }
}
