//! The figures that can be measured: their keys, and a description of each.

use std::fmt;
use std::str::FromStr;

use sandglass_source::nearest;

macro_rules! keys {
    ($($variant:ident $name:literal $about:literal;)+) => {
        /// A figure that can be measured.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Key {
            $(#[doc = $about] $variant,)+
        }

        impl Key {
            /// All keys, in the order in which they are measured and shown.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name on the command line and in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// A description in a few words.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$variant => $about,)+
                }
            }
        }
    };
}

keys! {
    DispatchThroughput "dispatch_throughput" "isolated dispatch, 64 in flight on 2 threads";
    DispatchInline "dispatch_inline" "isolated dispatch, one at a time, in place on the caller's task";
    DispatchInlineThreads "dispatch_inline_threads" "the same from as many threads as cores, beside one thread";
    DispatchExecutor "dispatch_executor" "isolated dispatch, one at a time, on the host's executor";
    DispatchComponent "dispatch_component" "isolated dispatch of a component, one at a time, in place";
    DispatchComponentAsync "dispatch_component_async" "the same of an asynchronous component, whose host call is asynchronous";
    DispatchTemplates "dispatch_templates" "dispatch_inline with templates, params and an entity's state, beside one without";
    HostCall "host_call" "synchronous host function through the boundary";
    TelemetryMetrics "telemetry_metrics" "dispatch_throughput with metrics, beside a host without telemetry";
    TelemetryTraces "telemetry_traces" "the same with metrics and traces, one in a hundred exported";
    KillSpinIdle "kill_spin_idle" "kill of a guest that spins, the other cores idle";
    KillSpinSaturated "kill_spin_saturated" "kill of guests that spin, one on every core";
    KillWaitIdle "kill_wait_idle" "kill of a guest that waits in a host call, all cores idle";
    KillWaitSaturated "kill_wait_saturated" "kill of a guest that waits in a host call, others spinning on every core";
    NeighbourDelay "neighbour_delay" "how much longer a handler of 1 ms takes among twice as many spinners as cores";
    EmbedderDelay "embedder_delay" "how late the embedder's timers of 2 ms are meanwhile";
    IdleCpu "idle_cpu" "CPU time for each second of a host that has nothing to do";
    Suspended "suspended" "memory of a handler that is suspended in a host call, 10,000 at once";
    Leaks "leaks" "what is left behind by kills of every kind";
    TickGap "tick_gap" "how late the ticker wakes, guests spinning on every core";
    OpenwopRuns "openwop_runs" "runs of three nodes over HTTP, beside their records appended alone";
    OpenwopReaders "openwop_readers" "delay of events to 2,000 readers of one run, among 500 runs a second";
    OpenwopSlowReaders "openwop_slow_readers" "runs among readers that take nothing or little, beside runs alone";
    OpenwopReaderMemory "openwop_reader_memory" "memory of an idle reader of events, 2,000 at once";
}

impl Key {
    /// Whether it measures the `sandglass` program itself, in a process of its own.
    #[must_use]
    pub const fn needs_program(self) -> bool {
        matches!(
            self,
            Self::OpenwopRuns
                | Self::OpenwopReaders
                | Self::OpenwopSlowReaders
                | Self::OpenwopReaderMemory
        )
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the key of a figure. The message names the nearest key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no figure `{}`; {}", .0.escape_debug(), help(.0))]
pub struct UnknownKey(String);

fn help(text: &str) -> String {
    match nearest(text, names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
    }
}

fn names() -> impl Iterator<Item = &'static str> + Clone {
    Key::ALL.iter().map(|key| key.name())
}

impl FromStr for Key {
    type Err = UnknownKey;

    fn from_str(text: &str) -> Result<Self, UnknownKey> {
        let text = text.trim();
        let found = Self::ALL.iter().find(|key| key.name() == text);
        found.copied().ok_or_else(|| UnknownKey(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written_and_the_nearest_one_is_named() {
        for key in Key::ALL {
            assert_eq!(key.name().parse(), Ok(*key));
        }
        assert_eq!(" host_call ".parse(), Ok(Key::HostCall), "as behind a comma");
        let none = "x".parse::<Key>().expect_err("it is like none");
        assert!(none.to_string().contains("openwop_reader_memory"), "all are named: {none}");
        let unknown = "hostcall".parse::<Key>().expect_err("it lacks a line");
        assert!(unknown.to_string().contains("did you mean `host_call`?"), "{unknown}");
    }
}
