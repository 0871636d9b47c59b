//! The topic of an import, the grant that it needs, and which functions of WASI are refused.

use serde::Serialize;

use crate::abi::env;
use crate::abi::wasi::preview1;

/// A grant of a manifest that an import needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// `hosts`
    Hosts,
    /// `secrets`
    Secrets,
    /// `ask`
    Ask,
    /// `signal`
    Signal,
    /// `scratch`
    Scratch,
    /// One of `functions`.
    Function(String),
}

impl Grant {
    /// Its key in `[grants]`.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Secrets => "secrets",
            Self::Ask => "ask",
            Self::Signal => "signal",
            Self::Scratch => "scratch",
            Self::Function(_) => "functions",
        }
    }
}

/// The group of the embedder's own functions.
pub(super) const OWN: &str = "own";

/// The group of a function that core modules can import.
pub(super) fn of_core(module: &str, name: &str) -> &'static str {
    if module == preview1::MODULE {
        return "wasi";
    }
    if module != env::MODULE {
        return OWN;
    }
    by_prefix(
        name,
        &[
            ("host_get_context", "context"),
            ("host_read_field", "context"),
            ("host_set_result", "result"),
            ("host_last_error", "result"),
            ("host_log", "log"),
            ("host_emit_wide_event", "log"),
            ("host_emit_metric", "metrics"),
            ("host_emit_progress", "progress"),
            ("host_set_status", "progress"),
            ("host_start_span", "spans"),
            ("host_add_span", "spans"),
            ("host_set_span", "spans"),
            ("host_end_span", "spans"),
            ("host_get_time", "clock"),
            ("host_deadline", "clock"),
            ("host_should_stop", "clock"),
            ("host_scratch", "scratch"),
            ("host_get_secret", "secrets"),
            ("host_ask", "ask"),
            ("host_signal", "signal"),
            ("host_http", "http"),
            ("host_connect", "http"),
            ("host_hash_stream", "streams"),
            ("host_cache", "cache"),
            ("host_evaluate_spec", "specs"),
        ],
    )
}

/// The group of a function that packs of OpenWOP nodes can import.
pub(super) fn of_pack(name: &str) -> &'static str {
    by_prefix(
        name,
        &[
            ("openwop_channel", "channels"),
            ("openwop_variable", "variables"),
            ("openwop_interrupt", "interrupts"),
            ("openwop_log", "log"),
            ("openwop_now", "clock"),
            ("openwop_random", "random"),
        ],
    )
}

fn by_prefix(name: &str, groups: &[(&str, &'static str)]) -> &'static str {
    let found = groups.iter().find(|(prefix, _)| name.starts_with(prefix));
    found.map_or("other", |(_, group)| group)
}

/// Groups that have the name of an interface of components.
const OF_THEIR_INTERFACE: [&str; 11] = [
    "log", "context", "http", "secrets", "clock", "progress", "spans", "metrics", "scratch", "ask",
    "signal",
];

/// The group of the functions of `interface`, which has no version.
pub(super) fn of_component(interface: &str) -> &'static str {
    if is_wasi(interface) {
        return if interface.starts_with("wasi:http/") { "wasi-http" } else { "wasi" };
    }
    match interface.strip_prefix("sandglass:integration/") {
        Some("fail") => "result",
        Some("timer") => "clock",
        Some(name) => {
            OF_THEIR_INTERFACE.into_iter().find(|group| *group == name).unwrap_or("other")
        }
        None => OWN,
    }
}

/// The grant that a function of `group` needs. If it is the embedder's own, `own` is its name.
pub(super) fn grant(group: &str, own: Option<String>) -> Option<Grant> {
    match group {
        "http" | "wasi-http" => Some(Grant::Hosts),
        "secrets" => Some(Grant::Secrets),
        "ask" => Some(Grant::Ask),
        "signal" => Some(Grant::Signal),
        "scratch" => Some(Grant::Scratch),
        _ => own.map(Grant::Function),
    }
}

/// Whether `module` is an interface of WASI in any version.
pub(super) fn is_wasi(module: &str) -> bool {
    module.starts_with("wasi:") || module == preview1::MODULE || module == "wasi_unstable"
}

/// Whether a function of WASI needs files or sockets, and is refused.
pub(super) fn is_refused(module: &str, name: &str) -> bool {
    if module == preview1::MODULE {
        return name.starts_with("path_") || name.starts_with("sock_") || name == "fd_readdir";
    }
    module.starts_with("wasi:filesystem/") || module.starts_with("wasi:sockets/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use sandglass_supervisor::functions::Functions;

    #[test]
    fn every_function_of_the_host_has_a_group() {
        let engine = wasmtime::Engine::default();
        let mut linker = wasmtime::Linker::new(&engine);
        let mut functions = Functions::default();
        env::link(&mut linker, &mut functions).expect("they are linked");
        for name in functions.names() {
            assert_ne!(of_core(env::MODULE, name), "other", "{name}");
        }
        for name in abi::node_pack::imports() {
            assert_ne!(of_pack(name), "other", "{name}");
        }
        let mut linker = wasmtime::component::Linker::new(&engine);
        let mut functions = Functions::default();
        abi::world::link(&mut linker, &mut functions).expect("they are linked");
        for interface in functions.interfaces() {
            assert!(!["other", OWN].contains(&of_component(interface)), "{interface}");
        }
    }
}
