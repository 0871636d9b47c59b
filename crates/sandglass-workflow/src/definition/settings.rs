//! Settings and metadata of a definition that affect its runs.

use crate::event::LogLevel;
use crate::fields::Fields;
use crate::names::names;

/// The limits of a definition's runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long a run may take, in milliseconds; `None` if it is absent or 0.
    pub timeout_ms: Option<u64>,
    /// How often a node that failed is retried.
    pub max_retries: Option<u32>,
    /// How often a loop may be taken: at least 1, and 5 by default.
    pub max_loopback_iterations: u64,
    /// What happens to nodes that a crash interrupts, unless they have a setting of their own.
    pub on_crash: Option<OnCrash>,
}

names! {
    /// What happens to a node that executes when its host is lost. `onCrash`, in the settings of a
    /// definition or of a node, is a key of this host.
    OnCrash {
        /// It is executed again.
        Rerun = "rerun",
        /// It fails, with `run_interrupted`.
        Fail = "fail",
    }
}

impl OnCrash {
    pub(super) fn read(settings: &Fields<'_>) -> Option<Self> {
        settings.word("onCrash", Self::WORDS)
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
    /// Reads the class from the metadata, and checks the rest of the metadata.
    pub(super) fn read(metadata: &Fields<'_>) -> Self {
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
            metadata.text(key);
        }
        for tag in metadata.texts("tags", 100) {
            if tag.is_empty() || tag.len() > 256 {
                metadata.report("tags", "a tag has 1 to 256 bytes; shorten or remove it");
            }
        }
        metadata.object("customProperties");
        if let Some(config) = metadata.open_child("complianceConfig", "`complianceConfig`") {
            config.one_of("maskingMode", &["mask", "omit", "hash", "passthrough"]);
        }
        metadata.word("complianceClass", Self::WORDS).unwrap_or_default()
    }
}

impl Settings {
    pub(super) fn read(fields: &Fields<'_>) -> Self {
        fields.word("logLevel", LogLevel::WORDS);
        let retries = fields.whole("maxRetries", 0..=u64::from(u32::MAX));
        let iterations = fields.whole("maxLoopbackIterations", 1..=u64::MAX);
        Self {
            timeout_ms: fields.whole("timeout", 0..=u64::MAX).filter(|ms| *ms > 0),
            max_retries: retries.and_then(|retries| u32::try_from(retries).ok()),
            max_loopback_iterations: iterations.unwrap_or(5),
            on_crash: OnCrash::read(fields),
        }
    }
}
