//! What a definition says of its runs as a whole.

use crate::fields::Fields;
use crate::problem::Problems;

/// How a definition's runs are bounded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Longest run, in milliseconds; none where it isn't given or 0.
    pub timeout_ms: Option<u64>,
    /// How often a node that failed is tried again; none where it isn't given.
    pub max_retries: Option<u32>,
    /// How often a loop is gone through: from 1, and 5 where it isn't given.
    pub max_loopback_iterations: u64,
    /// What becomes of nodes that a crash interrupts and that don't say it themselves.
    pub on_crash: Option<OnCrash>,
}

/// What becomes of a node that was under way when its host was lost: this host's own key
/// `onCrash` in the settings of a definition or of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCrash {
    /// It is run again.
    Rerun,
    /// It fails, with `run_interrupted`.
    Fail,
}

impl OnCrash {
    /// Reads it from settings.
    pub(super) fn read(settings: &Fields<'_>, out: &mut Problems) -> Option<Self> {
        settings.word("onCrash", &[("rerun", Self::Rerun), ("fail", Self::Fail)], out)
    }
}

/// How sensitive what a definition's runs handle is (`metadata.complianceClass`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComplianceClass {
    /// Anybody may see it.
    #[default]
    Public,
    /// It is about people.
    Pii,
    /// It is about people's health.
    Phi,
    /// It is about payment cards.
    Pci,
    /// A law says who may see it.
    Regulated,
}

impl ComplianceClass {
    /// The protocol's word for it, which is the span attribute `openwop.compliance_class`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Pii => "pii",
            Self::Phi => "phi",
            Self::Pci => "pci",
            Self::Regulated => "regulated",
        }
    }

    const ALL: [(&'static str, Self); 5] = [
        (Self::Public.as_str(), Self::Public),
        (Self::Pii.as_str(), Self::Pii),
        (Self::Phi.as_str(), Self::Phi),
        (Self::Pci.as_str(), Self::Pci),
        (Self::Regulated.as_str(), Self::Regulated),
    ];

    /// Reads it from the metadata, the rest of which is checked, too.
    pub(super) fn read(metadata: &Fields<'_>, out: &mut Problems) -> Self {
        for key in [
            "createdBy",
            "createdAt",
            "updatedBy",
            "updatedAt",
            "category",
            "author",
            "codeVersion",
            "customizedAt",
            "customizedBy",
            "forkedFrom",
            "clonedFrom",
            "clonedAt",
        ] {
            metadata.text(key, out);
        }
        for tag in metadata.texts("tags", 100, out) {
            if tag.is_empty() || tag.len() > 256 {
                out.add(metadata.under("tags"), "a tag has 1 to 256 bytes; shorten or drop it");
            }
        }
        metadata.object("customProperties", out);
        if let Some(config) = metadata.fields("complianceConfig", "`complianceConfig`", out) {
            const MODES: &[(&str, ())] =
                &[("mask", ()), ("omit", ()), ("hash", ()), ("passthrough", ())];
            config.word("maskingMode", MODES, out);
        }
        metadata.word("complianceClass", &Self::ALL, out).unwrap_or_default()
    }
}

impl Settings {
    pub(super) fn read(fields: &Fields<'_>, out: &mut Problems) -> Self {
        const LEVELS: &[(&str, ())] = &[("debug", ()), ("info", ()), ("warn", ()), ("error", ())];
        fields.word("logLevel", LEVELS, out);
        let retries = fields.whole("maxRetries", 0..=u64::from(u32::MAX), out);
        let iterations = fields.whole("maxLoopbackIterations", 1..=u64::MAX, out);
        Self {
            timeout_ms: fields.whole("timeout", 0..=u64::MAX, out).filter(|ms| *ms > 0),
            max_retries: retries.and_then(|retries| u32::try_from(retries).ok()),
            max_loopback_iterations: iterations.unwrap_or(5),
            on_crash: OnCrash::read(fields, out),
        }
    }
}
