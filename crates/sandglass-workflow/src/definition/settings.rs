//! What a definition says of its runs as a whole.

use crate::event::LogLevel;
use crate::fields::Fields;
use crate::names::names;
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

names! {
    /// What becomes of a node that executes when its host is lost: this host's own key
    /// `onCrash` in the settings of a definition or of a node.
    OnCrash {
        /// It is executed again.
        Rerun = "rerun",
        /// It fails, with `run_interrupted`.
        Fail = "fail",
    }
}

impl OnCrash {
    pub(super) fn read(settings: &Fields<'_>, out: &mut Problems) -> Option<Self> {
        settings.word("onCrash", Self::WORDS, out)
    }
}

names! {
    /// How sensitive the data of a definition's runs is (`metadata.complianceClass`); its name is also
    /// the span attribute `openwop.compliance_class`.
    #[derive(Default)]
    ComplianceClass {
        /// Public data.
        #[default]
        Public = "public",
        /// Data about people.
        Pii = "pii",
        /// Data about the health of people.
        Phi = "phi",
        /// Data about payment cards.
        Pci = "pci",
        /// Data whose use is regulated by law.
        Regulated = "regulated",
    }
}

impl ComplianceClass {
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
            config.one_of("maskingMode", &["mask", "omit", "hash", "passthrough"], out);
        }
        metadata.word("complianceClass", Self::WORDS, out).unwrap_or_default()
    }
}

impl Settings {
    pub(super) fn read(fields: &Fields<'_>, out: &mut Problems) -> Self {
        fields.word("logLevel", LogLevel::WORDS, out);
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
