//! What a caller states about its request besides the action: the sequence that it expects, and a key by
//! which the entity recognizes the request if it is sent again.

use sandglass_model::{Event, Idempotency, IdempotencyKey, Sequence};

use super::{Input, Refusal};
use crate::entity::Entity;

/// What a caller states about its request besides the action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The sequence that the entity has to be at; `None` for any.
    pub expected: Option<Sequence>,
    /// Its idempotency key, if it has one.
    pub key: Option<IdempotencyKey>,
}

/// Checks the terms of a request, before all else: a request that was taken before is recognized
/// whatever has become of the entity since. Returns what its record states.
pub(super) fn check(entity: &Entity, input: &Input) -> Result<Option<Idempotency>, Refusal> {
    // Handlers ask without terms: an ask is identified by its dispatch.
    let Input::Action { action, params, asked: None, terms, .. } = input else { return Ok(None) };
    let Terms { expected, key } = terms;
    let of_key = |key: &IdempotencyKey| Idempotency::of(key.clone(), *expected, action, params);
    let idempotency = key.as_ref().map(of_key);
    let used = idempotency.as_ref().and_then(|one| Some((one, entity.used_key(&one.key)?)));
    if let Some((idempotency, used)) = used {
        let sequence = used.sequence;
        return Err(if used.request == idempotency.request {
            Refusal::TakenBefore { sequence }
        } else {
            Refusal::KeyReused { sequence }
        });
    }
    match *expected {
        Some(expected) if expected != entity.sequence => Err(Refusal::NotAtSequence { expected }),
        _ => Ok(idempotency),
    }
}

/// Records the key with the transition that begins the decision.
pub(super) fn record(first: Option<&mut Event>, key: Option<Idempotency>) {
    if let (Some(Event::Transition { idempotency, .. }), Some(key)) = (first, key) {
        *idempotency = Some(Box::new(key));
    }
}
