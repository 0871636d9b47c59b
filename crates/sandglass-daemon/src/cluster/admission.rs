//! Which of the headers between hosts count in a request that arrives, and for whom it acts.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sandglass_model::HostId;
use serde::{Deserialize, Deserializer, Serialize};

use super::{CLUSTER_KEY, Cluster, FORWARDED_BY, PRINCIPAL};
use crate::access::{Permission, Principal};
use crate::error::{Code, Error};

/// The extension of a request that another host has forwarded. It is never forwarded again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForwardedBy(pub(crate) HostId);

/// The extension of a request whose sender has the cluster key, or a certificate of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrustedPeer;

/// What the headers between hosts state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// For whom the request acts, if its sender has the cluster key, or a certificate of a host.
    pub(crate) principal: Option<Principal>,
    pub(crate) forwarded_by: Option<HostId>,
}

impl Cluster {
    /// Takes the headers between hosts out of `headers`, and returns what counts of them. Unless the sender
    /// has the cluster key, or its connection `is_peer`, that of a host by its certificate, they count for
    /// nothing, because clients can send them, too.
    pub(crate) fn admit(&self, headers: &mut HeaderMap, is_peer: bool) -> Result<Admitted, Error> {
        let [key, principal, forwarded_by] =
            [CLUSTER_KEY, PRINCIPAL, FORWARDED_BY].map(|name| Sent::take(headers, &name));
        let of_host = || {
            let principal = match &principal {
                Sent::Nothing => Principal::peer(),
                Sent::Once(sent) => read_principal(sent)?,
                Sent::Several => return Err(bad_header(&PRINCIPAL)),
            };
            let forwarded_by = read_host(&forwarded_by)?;
            Ok(Admitted { principal: Some(principal), forwarded_by })
        };
        match (&self.key, &key) {
            _ if is_peer => of_host(),
            (Some(own), Sent::Once(sent)) if own.is(sent) => of_host(),
            (_, Sent::Nothing) if self.authenticates_hosts() => Ok(Admitted::default()),
            (Some(_), _) => {
                let message = "this is not the key of this cluster; give all hosts the same one";
                Err(Error::new(Code::WrongClusterKey, message))
            }
            (None, Sent::Nothing) if matches!(principal, Sent::Nothing) => {
                Ok(Admitted { principal: None, forwarded_by: read_host(&forwarded_by)? })
            }
            (None, _) => {
                let message = "this host has no cluster key; give all hosts the same one, or none";
                Err(Error::new(Code::WrongClusterKey, message))
            }
        }
    }
}

/// The values of a header.
enum Sent {
    Nothing,
    Once(HeaderValue),
    Several,
}

impl Sent {
    fn take(headers: &mut HeaderMap, name: &HeaderName) -> Self {
        let count = headers.get_all(name).iter().count();
        match (headers.remove(name), count) {
            (None, _) => Self::Nothing,
            (Some(value), 1) => Self::Once(value),
            (Some(_), _) => Self::Several,
        }
    }
}

fn bad_header(name: &HeaderName) -> Error {
    let message = format!("`{name}` cannot be read; use the same version on all hosts");
    Error::new(Code::BadHeader, message)
}

fn read_host(sent: &Sent) -> Result<Option<HostId>, Error> {
    match sent {
        Sent::Nothing => Ok(None),
        Sent::Once(value) => {
            let host = value.to_str().ok().and_then(|text| text.parse().ok());
            host.map(Some).ok_or_else(|| bad_header(&FORWARDED_BY))
        }
        Sent::Several => Err(bad_header(&FORWARDED_BY)),
    }
}

/// A principal as hosts send it. Every field is required, and no other is accepted: one that is
/// overlooked could have restricted it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    owner: String,
    #[serde(deserialize_with = "null_or_text")]
    tenant: Option<String>,
    may: Vec<String>,
}

/// Unlike the default, does not accept the absence of the field.
fn null_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)
}

fn read_principal(sent: &HeaderValue) -> Result<Principal, Error> {
    let read = || {
        let json = URL_SAFE_NO_PAD.decode(sent.as_bytes()).ok()?;
        let Written { owner, tenant, may } = serde_json::from_slice(&json).ok()?;
        let permission =
            |name: String| Permission::ALL.into_iter().find(|one| one.as_str() == name);
        let may: Option<Vec<Permission>> = may.into_iter().map(permission).collect();
        Some(Principal::new(owner, tenant, may?))
    };
    read().ok_or_else(|| bad_header(&PRINCIPAL))
}

/// The value of [`PRINCIPAL`] for `principal`. It is not shown in logs.
pub(super) fn write_principal(principal: &Principal) -> Result<HeaderValue, Error> {
    let may = principal.may().iter().map(|one| one.as_str().to_owned()).collect();
    let written = Written { owner: principal.owner.clone(), tenant: principal.tenant.clone(), may };
    let text = serde_json::to_vec(&written).map(|json| URL_SAFE_NO_PAD.encode(json));
    let value = text.ok().and_then(|text| HeaderValue::from_str(&text).ok());
    let mut value =
        value.ok_or_else(|| Error::new(Code::Internal, "the sender of a request has no text"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Principal, Code> {
        let text = URL_SAFE_NO_PAD.encode(json);
        let value = HeaderValue::from_str(&text).expect("a value");
        read_principal(&value).map_err(|error| error.code())
    }

    #[test]
    fn a_principal_arrives_as_it_was_sent() {
        for principal in [
            Principal::local(),
            Principal::peer(),
            Principal::new("é \"".to_owned(), Some("a\u{7f}".to_owned()), vec![Permission::Act]),
        ] {
            let written = write_principal(&principal).expect("text");
            assert!(written.is_sensitive());
            assert_eq!(read_principal(&written).expect("complete"), principal);
        }
    }

    #[test]
    fn a_principal_that_is_not_complete_or_not_known_is_refused() {
        let complete = r#"{"owner": "a", "tenant": null, "may": ["read"]}"#;
        assert!(read(complete).is_ok_and(|one| one.tenant.is_none()));
        for bad in [
            "",
            "{}",
            r#"{"owner": "a", "may": ["read"]}"#,
            r#"{"owner": "a", "tenant": null}"#,
            r#"{"owner": "a", "tenant": null, "may": ["everything"]}"#,
            r#"{"owner": "a", "tenant": null, "may": [], "only": "Session/1"}"#,
            r#"{"owner": "a", "tenant": null, "may": [], "may": ["act"]}"#,
            r#"{"owner": "a", "tenant": 1, "may": []}"#,
        ] {
            assert_eq!(read(bad), Err(Code::BadHeader), "{bad}");
        }
        let no_base64 = HeaderValue::from_static("{}");
        assert_eq!(read_principal(&no_base64).expect_err("JSON").code(), Code::BadHeader);
    }
}
