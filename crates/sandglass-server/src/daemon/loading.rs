//! What a daemon serves when it starts: its folder with uploaded modules or, as a member of a cluster, the
//! active generation.

use std::sync::Arc;

use sandglass_daemon::Modules;
use sandglass_liveness::Spec;
use sandglass_runtime::HostHandlers;

use super::DaemonOptions;
use crate::base::Base;
use crate::config::Config;
use crate::deployments::{InitialState, Local};
use crate::error::Result;
use crate::folder::{self, Served};
use crate::journal::JournalPlace;
use crate::{Report, mounted};

/// The parts of this host's configuration that generations depend on.
pub(super) fn local(options: &DaemonOptions, config: &Config) -> Local {
    let ceilings = mounted::ceilings(options, config.ceilings.clone());
    Local { secrets: config.secrets.clone(), ceilings }
}

/// Loads what a process that is in no cluster serves: its folder, with the modules that clients have uploaded.
pub(super) async fn load_alone(
    served: Served,
    config: &Config,
    base: &Base,
    report: &Report,
) -> Result<(Vec<Spec>, Modules, HostHandlers)> {
    folder::check_timed_functions(&served.specs, &base.host)?;
    let uploads = config.modules.clone();
    let uploads = uploads.or_else(|| config.journal.as_ref().and_then(JournalPlace::modules));
    if uploads.is_none() && config.journal.is_some() {
        report(
            "modules that clients upload are lost when this process ends: set `modules` in \
             [journal]",
        );
    }
    let modules = Modules::open(served.modules, uploads)?;
    for (name, by) in modules.uploaded() {
        report(&format!(
            "module `{name}` is the version that `{by}` uploaded, not the one in the folder"
        ));
    }
    let handlers =
        HostHandlers::new(base.host.clone(), Arc::clone(&base.clock), modules.for_handlers());
    handlers.compile().await;
    let specs = served.specs.into_iter().map(|(_, spec)| spec).collect();
    Ok((specs, modules, handlers.recording(config.recording)))
}

/// Loads what a member of a cluster serves: the active generation, or nothing if it cannot run that one.
pub(super) async fn load_active(
    served: Served,
    begun: &mut InitialState,
    config: &Config,
    base: &Base,
) -> (Vec<Spec>, Modules, HostHandlers) {
    let handlers = HostHandlers::new(base.host.clone(), Arc::clone(&base.clock), [])
        .recording(config.recording);
    let modules = Modules::deployed(served.modules);
    let checked = folder::check_timed_functions(&served.specs, &base.host);
    let checked = checked.map_err(|why| why.to_string());
    let loaded = match checked {
        Ok(()) => handlers
            .put_all(modules.for_handlers())
            .await
            .map_err(|(name, why)| format!("module `{name}` cannot be used: {why}")),
        Err(why) => Err(why),
    };
    match loaded {
        Ok(()) => {
            let specs = served.specs.into_iter().map(|(_, spec)| spec).collect();
            (specs, modules, handlers)
        }
        Err(why) => {
            begun.fail(&why);
            (Vec::new(), Modules::deployed([]), handlers)
        }
    }
}
