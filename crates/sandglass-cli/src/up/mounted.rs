//! The OpenWOP host inside the daemon: runs of workflows beside its other entities, in the
//! same journal, host and HTTP interface.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_host::Host;
use sandglass_http::key::Digest;
use sandglass_journal::Journal;
use sandglass_liveness::Spec;
use sandglass_liveness::session::Ceilings;
use sandglass_model::Clock;
use sandglass_openwop::{OpenWop, RunHandlers, Service, Settings};
use sandglass_runtime::Runtime;
use sandglass_telemetry::prometheus::Exporter;

use super::config::Config;
use crate::command::up::Arguments;
use crate::openwop;

/// What there is before the runtime.
pub(super) struct Mounted {
    pub(super) handlers: RunHandlers,
    key: Digest,
}

impl Mounted {
    /// Reads the folders of workflows and packs, where there are some.
    pub(super) async fn read(
        arguments: &Arguments,
        host: &Host,
        journal: &Arc<dyn Journal>,
        clock: &Arc<dyn Clock>,
        config: &Config,
    ) -> anyhow::Result<Option<Self>> {
        let (Some(workflows), Some(variable)) =
            (&arguments.workflows, arguments.api_key_env.first())
        else {
            return Ok(None);
        };
        let key = openwop::key(variable, config.listen)?;
        let mut settings = Settings::default();
        // Its streams and polls hold connections, of which the daemon's other clients need some.
        settings.max_readers =
            settings.max_readers.min(config.http.connections.max_connections / 4);
        settings.max_polls = settings.max_polls.min(config.http.connections.max_connections / 8);
        let most = config.host.max_memory_bytes;
        settings.packs.max_memory_bytes = settings.packs.max_memory_bytes.min(most);
        let packs = arguments.packs.as_deref();
        let library = openwop::library(host, workflows, packs, &settings).await?;
        let handlers = openwop::handlers(host, journal, clock, library, settings);
        Ok(Some(Self { handlers, key }))
    }

    /// Serves them over `runtime`.
    pub(super) async fn start(
        self,
        runtime: &Runtime,
        exporter: &Exporter,
    ) -> anyhow::Result<OpenWop> {
        let service = Service::start(runtime.clone(), &self.handlers).await?;
        Ok(OpenWop::new(service, self.key, exporter.clone()))
    }
}

/// The specs of its entities, where there is one.
pub(super) fn specs(arguments: &Arguments) -> Vec<Spec> {
    arguments.workflows.iter().flat_map(|_| sandglass_openwop::specs()).collect()
}

/// The types of its entities, which only it operates on, where there is one.
pub(super) fn types(arguments: &Arguments) -> BTreeSet<String> {
    specs(arguments).into_iter().map(|spec| spec.name.to_string()).collect()
}

/// The ceilings of all sessions, with those of its runs, where there is one.
pub(super) fn ceilings(arguments: &Arguments, mut ceilings: Ceilings) -> Ceilings {
    if arguments.workflows.is_some() {
        ceilings.of_type.extend(Settings::default().ceilings().of_type);
        if ceilings.of_all.is_some() {
            // What keeps definitions would be held to what all are, else.
            let kept =
                (sandglass_openwop::WORKFLOW_TYPE.to_owned(), sandglass_openwop::unbounded());
            ceilings.of_type.extend([kept]);
        }
    }
    ceilings
}
