//! The present state of an entity as far as its records show, and whether that state takes the
//! possible endings of a retry.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::{Dispatched, EntityRef, Event, Record, RulesVersion, SpecDigest};

use sandglass_liveness::spec::Spec;

/// Most bytes of specs that are kept: hundreds of specs of usual size. Whether a state takes an
/// ending is unknown for specs beyond that.
const SPECS_MAX_BYTES: usize = 32 << 20;

/// Whether the present state of an entity takes the possible endings of a retry of its handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Retryable {
    /// The records do not show it.
    #[default]
    Unknown,
    /// It takes all of them.
    Yes,
    /// It does not take all of them, so a retry is refused.
    No {
        /// The present state.
        state: String,
        /// The endings that the state does not take, as `key = action`.
        missing: Vec<String>,
        /// Whether the state takes none of the endings.
        is_all: bool,
    },
}

/// The specs that were seen, parsed only when one is needed.
#[derive(Debug, Default)]
pub(super) struct Specs {
    known: BTreeMap<SpecDigest, Known>,
    bytes: usize,
}

#[derive(Debug)]
enum Known {
    Source(String, RulesVersion),
    Parsed(Arc<Spec>),
}

impl Specs {
    pub(super) fn add(&mut self, digest: SpecDigest, source: &str, rules: RulesVersion) {
        let bytes = self.bytes.saturating_add(source.len());
        if bytes <= SPECS_MAX_BYTES && !self.known.contains_key(&digest) {
            self.bytes = bytes;
            self.known.insert(digest, Known::Source(source.to_owned(), rules));
        }
    }

    pub(super) fn add_parsed(&mut self, spec: Arc<Spec>) {
        self.known.insert(spec.digest, Known::Parsed(spec));
    }

    fn find(&self, digest: SpecDigest) -> Option<Arc<Spec>> {
        match self.known.get(&digest)? {
            Known::Source(source, rules) => Spec::parse_recorded(source, *rules).spec.map(Arc::new),
            Known::Parsed(spec) => Some(Arc::clone(spec)),
        }
    }
}

/// The present state of the entity of one handler.
#[derive(Clone, Debug)]
pub(super) struct Present {
    entity: EntityRef,
    state: String,
    spec: Option<SpecDigest>,
    /// How many gaps there were when the state was last known. After another gap, it is unknown.
    gaps: u64,
}

impl Present {
    /// The state at the dispatch of the handler.
    pub(super) fn at_dispatch(entity: &EntityRef, dispatched: &Dispatched, gaps: u64) -> Self {
        let (state, spec) = (dispatched.state.clone(), dispatched.spec);
        Self { entity: entity.clone(), state, spec, gaps }
    }

    /// Applies the next record, of any entity; `gaps` counts the gaps before it.
    pub(super) fn feed(&mut self, record: &Record, gaps: u64) {
        if record.entity.as_ref() != Some(&self.entity) {
            return;
        }
        match &record.event {
            Event::Transition { to, .. } => {
                to.clone_into(&mut self.state);
                self.gaps = gaps;
            }
            Event::SpecChanged { to, .. } => self.spec = Some(*to),
            Event::Created { spec, state, .. } => {
                (self.spec, self.gaps) = (Some(*spec), gaps);
                state.clone_into(&mut self.state);
            }
            _ => {}
        }
    }

    /// Whether the handler may be retried in the present state.
    pub(super) fn takes(&self, integration: &str, specs: &Specs, gaps: u64) -> Retryable {
        let spec = self.spec.filter(|_| gaps == self.gaps).and_then(|spec| specs.find(spec));
        let of = spec.as_ref().and_then(|spec| spec.integrations.get(integration));
        let (Some(spec), Some(of)) = (&spec, of) else { return Retryable::Unknown };
        let missing = spec.endings_not_taken(of, &self.state);
        if missing.is_empty() {
            return Retryable::Yes;
        }
        let is_all = missing.len() == of.endings().count();
        Retryable::No { state: self.state.clone(), missing, is_all }
    }
}

#[cfg(test)]
mod tests {
    use sandglass_model::{Position, Sequence, WallTime};
    use serde_json::{Value, json};

    use super::*;
    use crate::why::{Inquiry, Which};

    const WAITER: &str = r#"
[automaton]
name = "Waiter"
states = ["Idle", "Waiting", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Waiting"]
[[action]]
name = "Wait"
from = ["Idle"]
to = "Waiting"
effect = ["trigger waits"]
[[action]]
name = "End"
from = ["Waiting"]
to = "Done"
[[integration]]
name = "waits"
trigger = "waits"
module = "waits"
deadline = "2s"
on_failure = "End"
on_timeout = "End"
"#;

    /// The advice for a lost handler whose entity then went to `Done`.
    fn advised(source: &str) -> String {
        let digest = Spec::parse(source).spec.expect("a spec").digest;
        let dispatch = "b7fe14e2fde4b443f0a8e0b918aafe8d";
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let events = [
            json!({
                "type": "spec_registered", "digest": digest, "automaton": "Waiter",
                "source": source,
            }),
            json!({
                "type": "dispatched", "dispatch": dispatch, "spec": digest, "integration": "waits",
                "module": "waits", "action": "Wait", "params": {}, "state": "Waiting",
                "variables": {}, "config": {}, "attempt": 1, "budget_ms": 2000, "trace": trace,
            }),
            json!({
                "type": "ended", "dispatch": dispatch, "attempt": 1,
                "outcome": { "outcome": "interrupted" }, "cause": "host_lost",
                "decision": { "decision": "take", "action": "End" },
                "deadline": { "budget_ms": 2000, "elapsed_ms": 0, "overrun_us": 0, "owner": "handler" },
            }),
            json!({
                "type": "transition", "action": "End", "params": {}, "from": "Waiting", "to": "Done",
                "variables": {}, "cause": { "cause": "handler_ended", "dispatch": dispatch },
                "trace": trace,
            }),
        ];
        let mut inquiry = Inquiry::about(Which::Latest);
        for (position, event) in (1..).zip(events) {
            let entity = (position > 1).then(|| "Waiter/1".parse().expect("a name"));
            inquiry.feed(&Record {
                position: Position(position),
                at: WallTime::default(),
                entity,
                sequence: Sequence(1),
                event: serde_json::from_value(event).expect("as the journal has it"),
            });
        }
        let found = inquiry.finish().expect("it is there");
        let explained = serde_json::to_value(&found).expect("plain data");
        assert_eq!(explained["deadline"]["elapsed_ms"], Value::Null, "it is unknown: {explained}");
        assert_eq!(explained["time_split_us"], Value::Null, "it is unknown: {explained}");
        found.advise().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_retry_is_advised_only_where_the_present_state_takes_its_endings() {
        let refused = advised(WAITER);
        let why = "its entity is in `Done` now, which takes none of its endings (on_failure = End";
        assert!(refused.contains(why) && !refused.contains("may retry"), "{refused}");
        let rests = WAITER
            .replace("terminal = [\"Done\"]", "")
            .replace("[\"Idle\", \"Waiting\"]", "[\"Idle\", \"Waiting\", \"Done\"]")
            .replace("from = [\"Waiting\"]", "from = [\"Waiting\", \"Done\"]");
        let advised = advised(&rests);
        assert!(advised.contains("once that is known, an operator may retry it (in"), "{advised}");
    }
}
