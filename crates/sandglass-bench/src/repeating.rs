//! Repeats one kind of dispatch, for a caller that counts something that exists once per process,
//! such as allocations.

use std::fmt;

use sandglass_host::Settings;
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry};
use tokio::runtime::Runtime;

use crate::Failure;
use crate::bench_host::{BenchHost, one_thread};
use crate::guests;
use crate::plain::{Plain, Pool};

/// The way in which a dispatch is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In plain Wasmtime: a store, an instance, a call.
    Plain,
    /// In place on the caller's task, as in [`Key::DispatchInline`](crate::Key).
    InPlace,
    /// In place, in a host that has metrics.
    InPlaceMeasured,
    /// On the host's own threads, as in [`Key::DispatchExecutor`](crate::Key).
    OnExecutor,
    /// A component, in place, as in [`Key::DispatchComponent`](crate::Key).
    ComponentInPlace,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 5] = [
        Self::Plain,
        Self::InPlace,
        Self::InPlaceMeasured,
        Self::OnExecutor,
        Self::ComponentInPlace,
    ];

    /// The name that reports show.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain Wasmtime",
            Self::InPlace => "dispatch_inline",
            Self::InPlaceMeasured => "dispatch_inline, with metrics",
            Self::OnExecutor => "dispatch_executor",
            Self::ComponentInPlace => "dispatch_component",
        }
    }
}

/// What dispatches need, created once.
pub struct Repeating(Through);

enum Through {
    Plain(Box<Plain>),
    InPlace(BenchHost, Runtime),
    OnExecutor(BenchHost, Runtime),
}

impl fmt::Debug for Repeating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeating").finish_non_exhaustive()
    }
}

impl Repeating {
    /// Prepares for dispatches that are made in this way.
    ///
    /// # Errors
    /// No host can be built on this machine.
    pub fn new(way: Way) -> Result<Self, Failure> {
        let exporter = Exporter::new(Prefix::default());
        let measured = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
        Ok(Self(match way {
            Way::Plain => Through::Plain(Box::new(Plain::new(guests::ANSWERS, Pool::Best)?)),
            Way::InPlace => Through::InPlace(BenchHost::new(guests::ANSWERS)?, one_thread()?),
            Way::InPlaceMeasured => {
                let host = BenchHost::with(Settings::default(), measured, guests::ANSWERS)?;
                Through::InPlace(host, one_thread()?)
            }
            Way::OnExecutor => Through::OnExecutor(BenchHost::new(guests::ANSWERS)?, one_thread()?),
            Way::ComponentInPlace => {
                Through::InPlace(BenchHost::new(guests::COMPONENT)?, one_thread()?)
            }
        }))
    }

    /// Dispatches `count` guests, one after the other, each of which must complete.
    ///
    /// # Errors
    /// A guest did not complete.
    pub fn dispatch(&self, count: u32) -> Result<(), Failure> {
        match &self.0 {
            Through::Plain(plain) => (0..count).try_for_each(|_| Ok(plain.dispatch().map(drop)?)),
            Through::InPlace(host, embedder) => embedder.block_on(async {
                for _ in 0..count {
                    host.complete_in_place().await?;
                }
                Ok(())
            }),
            Through::OnExecutor(host, embedder) => embedder.block_on(async {
                for _ in 0..count {
                    host.complete().await?;
                }
                Ok(())
            }),
        }
    }
}
