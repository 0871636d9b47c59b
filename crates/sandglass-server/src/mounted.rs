//! The OpenWOP host inside the daemon: workflow runs beside its other entities, in the same journal,
//! host and HTTP interface.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_daemon::Forwarder;
use sandglass_http::Owners;
use sandglass_http::key::Digest;
use sandglass_journal::Journals;
use sandglass_liveness::Spec;
use sandglass_liveness::session::Ceilings;
use sandglass_openwop::{OpenWop, RunHandlers, Service, Settings};
use sandglass_runtime::Runtime;

use crate::base::Base;
use crate::config::Config;
use crate::error::Result;
use crate::{DaemonOptions, Report, openwop};

/// What can be prepared before there is a runtime.
pub(crate) struct Mounted {
    pub(crate) handlers: RunHandlers,
    key: Digest,
}

impl Mounted {
    /// Reads the folders of workflows and packs; `None` if the options name none.
    pub(crate) async fn read(
        options: &DaemonOptions,
        base: &Base,
        journals: &Journals,
        config: &Config,
        report: &Report,
    ) -> Result<Option<Self>> {
        let (Some(workflows), Some(variable)) = (&options.workflows, options.api_key_env.first())
        else {
            return Ok(None);
        };
        let key = openwop::key(variable, config.listen, report)?;
        let mut settings = Settings::default();
        // Its streams and polls hold connections, and the daemon's other clients need some too.
        settings.max_readers =
            settings.max_readers.min(config.http.connections.max_connections / 4);
        settings.max_polls = settings.max_polls.min(config.http.connections.max_connections / 8);
        let most = config.host.max_memory_bytes;
        settings.packs.max_memory_bytes = settings.packs.max_memory_bytes.min(most);
        let packs = options.packs.as_deref();
        let library = openwop::library(&base.host, workflows, packs, &settings, report).await?;
        let handlers = openwop::handlers(base, journals, library, settings);
        Ok(Some(Self { handlers, key }))
    }

    /// Serves runs of `runtime`, and of other hosts if it is in `cluster`.
    pub(crate) fn start(
        self,
        runtime: &Runtime,
        base: &Base,
        cluster: Option<sandglass_daemon::Cluster>,
    ) -> OpenWop {
        let service = Service::start(runtime.clone(), &self.handlers);
        let metrics = || base.telemetry.metrics.clone();
        let owners = cluster.map(|cluster| -> Arc<dyn Owners> {
            Arc::new(Forwarder::new(cluster, Arc::clone(&base.clock), metrics()))
        });
        OpenWop::new(service, self.key, base.exporter.clone(), owners)
    }
}

/// The specs of its entities; none if there is no OpenWOP host.
pub(crate) fn specs(options: &DaemonOptions) -> Vec<Spec> {
    options.workflows.iter().flat_map(|_| sandglass_openwop::specs()).collect()
}

/// The types of its entities, which no one else may operate on.
pub(crate) fn types(options: &DaemonOptions) -> BTreeSet<String> {
    specs(options).into_iter().map(|spec| spec.name.to_string()).collect()
}

/// Adds the ceilings of its entities to those of all sessions.
pub(crate) fn ceilings(options: &DaemonOptions, mut ceilings: Ceilings) -> Ceilings {
    if options.workflows.is_some() {
        ceilings.of_type.extend(Settings::default().ceilings().of_type);
        if ceilings.of_all.is_some() {
            // Otherwise, the ceilings of all sessions would end the entities that keep definitions.
            let kept =
                (sandglass_openwop::WORKFLOW_TYPE.to_owned(), sandglass_openwop::unbounded());
            ceilings.of_type.extend([kept]);
        }
    }
    ceilings
}
