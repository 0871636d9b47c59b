//! What a module of a scenario is granted: by its manifest, if it has one, and by the scenario.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use sandglass_host::manifest::Found;
use sandglass_host::{Destination, FixedSecrets, Manifest, Secret, file};
use sandglass_model::GuestLimits;
use sandglass_source::Finding;

use super::Module;
use crate::error::{Error, Result};

impl Module {
    /// Its files: the module, and its manifest if it has one.
    ///
    /// # Errors
    /// Errors if the manifest cannot be read.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = vec![self.path.clone()];
        if self.is_manifest {
            files.push(Found::read(&self.path)?.module_path());
        }
        Ok(files)
    }

    /// Reads the module: its name, its grants and its bytes.
    ///
    /// # Errors
    /// Errors if the module or its manifest cannot be read, and if a secret has no value.
    pub fn read(&self) -> Result<(String, Manifest, Vec<u8>)> {
        let wrong = |why: &dyn Display| Error::Failed(format!("module `{}`: {why}", self.name));
        let (manifest, bytes) = if self.is_manifest {
            let found = Found::read(&self.path)?;
            // There is at least one finding.
            let manifest = self.manifest(&found).map_err(|all| wrong(&all[0].diagnostic))?;
            (manifest, found.module().map_err(|finding| wrong(&finding.diagnostic))?)
        } else {
            let manifest = self.bare_manifest().map_err(|why| wrong(&why))?;
            let bytes = file::read(&self.path, manifest.module_max_bytes());
            (manifest, bytes.map_err(|why| wrong(&why))?)
        };
        Ok((self.name.clone(), manifest, bytes))
    }

    /// The grants of the manifest, and what the scenario adds. Errors if a secret that the manifest
    /// grants has no value.
    pub(super) fn manifest(&self, found: &Found) -> Result<Manifest, Vec<Finding>> {
        let own = self.secret_values();
        let value = |name: &str| match self.secrets.get(name) {
            Some(variable) => own.get(name).cloned().ok_or_else(|| set(variable)),
            None => Secret::granted(name),
        };
        // Reports all secrets without a value; the values are read again below.
        found.manifest(&value)?;
        let named = found.file().secrets.iter();
        let granted = named.filter_map(|name| Some((name.to_string(), value(name).ok()?)));
        let all: BTreeMap<String, Secret> = own.clone().into_iter().chain(granted).collect();
        let base = found.file().manifest(Arc::new(FixedSecrets::default()));
        Ok(self.with_additions(base, all))
    }

    /// The grants of a module without a manifest. Errors if a secret has no value.
    fn bare_manifest(&self) -> Result<Manifest, String> {
        let own = self.secret_values();
        match self.secrets.iter().find(|(name, _)| !own.contains_key(*name)) {
            Some((name, variable)) => {
                Err(format!("the secret `{name}` has no value: {}", set(variable)))
            }
            None => Ok(self.with_additions(Manifest::named(self.name.clone()), own)),
        }
    }

    fn with_additions(&self, base: Manifest, secrets: BTreeMap<String, Secret>) -> Manifest {
        let granted = base.limits;
        let limits = GuestLimits {
            memory_bytes: self.memory_bytes.unwrap_or(granted.memory_bytes),
            response_bytes: self.response_bytes.unwrap_or(granted.response_bytes),
            fuel: self.fuel.or(granted.fuel),
            ..granted
        };
        // The hosts were checked when the scenario was read.
        let hosts = self.allow_hosts.iter().filter_map(|host| host.parse::<Destination>().ok());
        base.limits(limits)
            .allow_more_hosts(hosts)
            .secrets(Arc::new(secrets.into_iter().collect::<FixedSecrets>()))
    }

    /// The environment variables of the secrets that the scenario names.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.secrets.values().map(String::as_str)
    }

    /// The secrets that the scenario names and that have a value.
    fn secret_values(&self) -> BTreeMap<String, Secret> {
        let value = |(name, variable): (&String, &String)| {
            Some((name.clone(), Secret::from_environment(variable)?))
        };
        self.secrets.iter().filter_map(value).collect()
    }
}

fn set(variable: &str) -> String {
    format!("set the environment variable `{variable}`")
}
