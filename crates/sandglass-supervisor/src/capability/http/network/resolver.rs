//! Resolves the names of upstream servers, and rejects addresses that are not public. The connection
//! uses the checked addresses, so no second resolution can differ from the first.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::OnceCell;

use super::address::is_public;

/// The name has no address that a guest may reach.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the host `{name}` resolves to {address}, which is not a public address; grant it with `private = true`"
)]
pub(super) struct NotPublic {
    name: String,
    address: IpAddr,
}

/// The system's resolver, created when the first name is resolved.
#[derive(Clone, Default)]
pub(super) struct SystemResolver(Arc<OnceCell<TokioResolver>>);

impl SystemResolver {
    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, BoxError> {
        let resolver = self.0.get_or_try_init(|| async {
            let mut builder = TokioResolver::builder_tokio()?;
            builder.options_mut().ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
            builder.build()
        });
        let found = resolver.await?.lookup_ip(name).await?;
        Ok(found.iter().collect())
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Resolves names for the connections of one pool.
pub(super) struct Resolver {
    pub(super) system: SystemResolver,
    /// Names that may have addresses that are not public.
    pub(super) private: Arc<BTreeSet<String>>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (system, private) = (self.system.clone(), Arc::clone(&self.private));
        Box::pin(async move {
            let found = system.lookup(name.as_str()).await?;
            let addresses = reachable(name.as_str(), found, &private)?;
            // The port of the URL replaces this one.
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

/// Returns the addresses of `name` that may be reached.
fn reachable(
    name: &str,
    mut found: Vec<IpAddr>,
    private: &BTreeSet<String>,
) -> Result<Vec<IpAddr>, NotPublic> {
    let first = found.first().copied();
    // A fully qualified name may end with a dot.
    if !private.contains(name.trim_end_matches('.')) {
        found.retain(|address| is_public(*address));
    }
    match first {
        Some(address) if found.is_empty() => Err(NotPublic { name: name.to_owned(), address }),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_grants_allow_addresses_that_are_not_public() {
        let private = BTreeSet::from(["inside.example".to_owned()]);
        let of = |name: &str, addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| text.parse().expect("an address"));
            reachable(name, addresses.collect(), &private).map(|found| found.len())
        };
        assert_eq!(of("api.example", &["1.1.1.1", "2606:4700::1111"]), Ok(2));
        assert_eq!(of("api.example", &["169.254.169.254", "1.1.1.1"]), Ok(1));
        assert_eq!(of("inside.example", &["10.0.0.1", "127.0.0.1"]), Ok(2));
        assert_eq!(of("inside.example.", &["10.0.0.1"]), Ok(1));
        assert_eq!(of("api.example", &[]), Ok(0));
        let refused = of("api.example", &["127.0.0.1", "::1"]).expect_err("local");
        assert!(refused.to_string().contains("`api.example` resolves to 127.0.0.1"), "{refused}");
        assert!(of("x.inside.example", &["10.0.0.1"]).is_err());
    }

    #[tokio::test]
    async fn localhost_is_not_public() {
        let resolver = Resolver { system: SystemResolver::default(), private: Arc::default() };
        let Err(error) = resolver.resolve("localhost".parse().expect("a name")).await else {
            panic!("it resolves to this machine");
        };
        assert!(error.downcast_ref::<NotPublic>().is_some(), "{error}");
    }
}
