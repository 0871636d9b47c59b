//! Creates the hosts that the kit is tested against.

use sandglass_host::{Host, HostFunction, Settings};

/// A host with these host functions of the embedder.
pub(crate) fn host(functions: impl IntoIterator<Item = HostFunction>) -> Host {
    let settings = Settings { max_runs: 64, ..Settings::default() };
    let builder = Host::builder().settings(settings);
    functions
        .into_iter()
        .fold(builder, |builder, one| builder.function(one))
        .build()
        .expect("a host")
}
