//! Defines a member of the kit: its handlers, what they need, and what a host must do to them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_host::{AskTarget, Manifest};
use sandglass_model::{GuestLimits, OutcomeKind};

/// Placeholder for the URL of a member's peer, in its fields and its configuration.
pub(crate) const PEER_URL: &str = "${peer}";

/// The default budget of a handler: long enough to begin in, and short enough to wait for fifty
/// times.
const BUDGET: Duration = Duration::from_millis(200);

/// How long after its deadline a handler may end by default. It does not measure how punctual a
/// host is, which is the purpose of the benchmark. It is long enough that a loaded machine does not
/// exceed it, but a handler that hangs does.
const MOST_OVERRUN: Duration = Duration::from_secs(5);

/// One way to hang or to do harm.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Member {
    /// Its name, which is unique.
    pub name: Cow<'static, str>,
    /// What it does, as a sentence without its subject.
    pub does: Cow<'static, str>,
    /// Its peer; `None` if it has none.
    pub peer: Option<Peer>,
    /// Its handlers; most members have one.
    pub handlers: Vec<Handler>,
    /// How long after its deadline each of its handlers may end; the default is 5 s. On an otherwise
    /// idle machine, 100 ms is enough to find host functions that block a guest's thread.
    pub most_overrun: Duration,
}

/// The other side of a member's connections: a server of the kit on 127.0.0.1, which exists while
/// the member runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// It accepts requests and never responds.
    Silent,
    /// As [`Peer::Silent`], and it does not read bodies either.
    Unread,
    /// It responds at once, and sends its body one byte at a time.
    Drips,
    /// It neither accepts nor refuses connections.
    Nowhere,
}

impl Member {
    pub(crate) fn new(
        name: impl Into<Cow<'static, str>>,
        does: impl Into<Cow<'static, str>>,
        handlers: impl IntoIterator<Item = Handler>,
    ) -> Self {
        Self {
            name: name.into(),
            does: does.into(),
            peer: None,
            handlers: handlers.into_iter().collect(),
            most_overrun: MOST_OVERRUN,
        }
    }

    pub(crate) fn with(self, peer: Peer) -> Self {
        Self { peer: Some(peer), ..self }
    }
}

/// One handler of a member: an entity with one integration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Handler {
    /// The type of its entity, which is unique within its member.
    pub entity_type: Cow<'static, str>,
    /// Its module: a core module or a component, as text or binary.
    pub module: Cow<'static, [u8]>,
    /// The configuration of its integration; `${peer}` in it stands for the URL of its member's
    /// peer.
    pub config: BTreeMap<&'static str, String>,
    /// The fields of its entity's state, all of which are strings; `${peer}` as in its
    /// configuration.
    pub fields: BTreeMap<&'static str, String>,
    /// Its resource limits.
    pub limits: GuestLimits,
    ask_targets: Vec<AskTarget>,
    functions: Vec<String>,
    /// Its budget.
    pub budget: Duration,
    /// When it begins.
    pub begins: Begins,
    /// What the host must do to it.
    pub must: Must,
}

/// When a handler begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// When its member begins.
    AtOnce,
    /// When another handler of its member asks its entity.
    WhenAsked,
}

impl Handler {
    pub(crate) fn of(module: impl Into<Cow<'static, [u8]>>, must: Must) -> Self {
        Self {
            entity_type: "Misbehaving".into(),
            module: module.into(),
            config: BTreeMap::new(),
            fields: BTreeMap::new(),
            limits: GuestLimits::default(),
            ask_targets: Vec::new(),
            functions: Vec::new(),
            budget: BUDGET,
            begins: Begins::AtOnce,
            must,
        }
    }

    pub(crate) fn entity(self, entity_type: impl Into<Cow<'static, str>>) -> Self {
        Self { entity_type: entity_type.into(), ..self }
    }

    pub(crate) fn config(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.config.insert(key, value.into());
        self
    }

    pub(crate) fn field(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.insert(name, value.into());
        self
    }

    pub(crate) fn memory_bytes(self, memory_bytes: u64) -> Self {
        Self { limits: GuestLimits { memory_bytes, ..self.limits }, ..self }
    }

    pub(crate) fn asks(mut self, target: AskTarget) -> Self {
        self.ask_targets.push(target);
        self
    }

    pub(crate) fn function(mut self, name: String) -> Self {
        self.functions.push(name);
        self
    }

    pub(crate) fn budget_of(self, budget: Duration) -> Self {
        Self { budget, ..self }
    }

    pub(crate) fn when_asked(self) -> Self {
        Self { begins: Begins::WhenAsked, ..self }
    }

    /// What it is granted, in addition to the address of its member's peer.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        Manifest::named(&*self.entity_type)
            .limits(self.limits)
            .ask_targets(self.ask_targets.iter().cloned())
            .functions(self.functions.iter().cloned())
    }
}

/// What a host must do to a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Must {
    /// End it in one of these ways.
    End(Vec<Ending>),
    /// Never begin it.
    NeverBegin,
}

impl From<Ending> for Must {
    fn from(ending: Ending) -> Self {
        Self::End(vec![ending])
    }
}

impl Must {
    /// The permitted endings; empty if the handler must never begin.
    #[must_use]
    pub fn endings(&self) -> &[Ending] {
        match self {
            Self::End(endings) => endings,
            Self::NeverBegin => &[],
        }
    }
}

/// One permitted ending of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The outcome.
    pub outcome: OutcomeKind,
    /// The kind of its error; `None` if any kind is permitted.
    pub error: Option<&'static str>,
    /// A text that the error's message must contain.
    pub says: &'static str,
    /// The permitted dying spans, as reports name them; any if empty.
    pub dying_spans: Vec<Cow<'static, str>>,
}

impl Ending {
    fn new(outcome: OutcomeKind, error: Option<&'static str>) -> Self {
        Self { outcome, error, says: "", dying_spans: Vec::new() }
    }

    /// The guest completes in time.
    pub(crate) fn completed() -> Self {
        Self::new(OutcomeKind::Completed, None)
    }

    pub(crate) fn failed(error: &'static str) -> Self {
        Self::new(OutcomeKind::Failed, Some(error))
    }

    pub(crate) fn trapped(error: &'static str) -> Self {
        Self::new(OutcomeKind::Trapped, Some(error))
    }

    pub(crate) fn limit(error: &'static str) -> Self {
        Self::new(OutcomeKind::Limit, Some(error))
    }

    /// The host stops it because the asking handler is gone.
    pub(crate) fn cancelled() -> Self {
        Self::new(OutcomeKind::Cancelled, None)
    }

    /// The host kills it at its deadline in one of `spans`.
    pub(crate) fn timed_out_in<S: Into<Cow<'static, str>>>(
        spans: impl IntoIterator<Item = S>,
    ) -> Self {
        Self::new(OutcomeKind::TimedOut, None).in_one_of(spans)
    }

    pub(crate) fn in_one_of<S: Into<Cow<'static, str>>>(
        self,
        spans: impl IntoIterator<Item = S>,
    ) -> Self {
        Self { dying_spans: spans.into_iter().map(Into::into).collect(), ..self }
    }

    pub(crate) fn saying(self, says: &'static str) -> Self {
        Self { says, ..self }
    }
}
