//! The fault of a state timer that a dispatch does not disarm: appends what a process with such a
//! defect would append beside the real records.

use sandglass_journal::{Batch, Expected};
use sandglass_liveness::spec::StateTimeout;
use sandglass_liveness::{Entity, Spec};
use sandglass_model::{Clock as _, EntityRef, Event, TraceContext, TransitionCause, WallTime};

use crate::store::Store;

/// If `batch` dispatches a handler, keeps the timer of the entered state running.
pub(crate) fn follow(store: &Store, batch: &Batch) {
    let events = || batch.records.iter().map(|(_, event)| event);
    let dispatches = events().any(|event| matches!(event, Event::Dispatched(_)));
    let entered = events().find_map(|event| match event {
        Event::Transition { to, .. } => Some(to.clone()),
        _ => None,
    });
    let entered = entered.filter(|_| dispatches);
    if let Some((name, state)) = batch.entity.clone().zip(entered) {
        tokio::spawn(go_on(store.clone(), name, state));
    }
}

async fn go_on(store: Store, name: EntityRef, state: String) {
    let process = store.process();
    let timeout = {
        let ledger = process.scene.ledger();
        let spec = ledger.entity(&name).and_then(|entity| ledger.spec_of(entity));
        spec.and_then(|spec| spec.timeouts.get(&state).cloned())
    };
    let Some(timeout) = timeout else { return };
    process.pause_ms(timeout.after_ms).await;
    let batch = {
        let ledger = process.scene.ledger();
        let entity = ledger.entity(&name).filter(|entity| entity.state == state);
        let entity = entity.filter(|entity| !entity.is_settled());
        let known = entity.and_then(|entity| Some((entity, ledger.spec_of(entity)?)));
        known.map(|(entity, spec)| firing(entity, spec, &timeout, process.clock.wall()))
    };
    if let Some(batch) = batch {
        store.slip_in(batch);
    }
}

/// The records of the firing of the timer.
fn firing(entity: &Entity, spec: &Spec, timeout: &StateTimeout, at: WallTime) -> Batch {
    let action = timeout.on_timeout.to_string();
    let to = spec.actions.get(&action).map(|action| action.leads_to(&entity.state).to_owned());
    let idle = Event::StateIdle {
        state: entity.state.clone(),
        after_ms: timeout.after_ms,
        idle_ms: timeout.after_ms,
        occurrence: 1,
        action: action.clone(),
        taken: true,
        observed: Vec::new(),
    };
    let transition = Event::Transition {
        action,
        params: timeout.params.clone(),
        from: entity.state.clone(),
        to: to.unwrap_or_default(),
        variables: entity.variables.clone(),
        cause: TransitionCause::StateIdle,
        trace: TraceContext::root([1; 24]),
        observed: Vec::new(),
        idempotency: None,
    };
    let sequence = entity.sequence;
    let records = vec![(sequence, idle), (sequence.next(), transition)];
    // The defective process would know its last position; here, its real records come in between.
    Batch::new(entity.entity.clone(), Expected::Any, at, records)
}
