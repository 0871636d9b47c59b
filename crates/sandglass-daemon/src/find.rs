//! Look-ups of entities and dispatches that check what the caller may see, and reading of their
//! records.

use std::sync::Arc;

use sandglass_insight::why::{Explanation, Host, Inquiry, Which};
use sandglass_journal::Entry;
use sandglass_model::{Decision, DispatchId, EntityRef, Event, HandlerEnd, Position, Record};
use sandglass_runtime::{Accepted, ActorError, Snapshot};

use crate::Daemon;
use crate::access::Principal;
use crate::error::{Code, Error};
use crate::view::{DispatchView, NotSpawnedView, OutcomeView};

/// Entries that are read from a history at once.
const READ_PAGE: usize = 256;

/// Entries on one page of a response: by default, and at most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// The number of entries on a page, if the client requests `limit`.
pub(crate) fn page_limit(limit: Option<usize>) -> Result<usize, Error> {
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    if (1..=PAGE_MAX).contains(&limit) {
        return Ok(limit);
    }
    Err(Error::new(Code::BadQuery, format!("`limit` is {limit}, and must be 1 to {PAGE_MAX}")))
}

/// Finds an entity. For a principal of one tenant, entities of other tenants do not exist.
pub(crate) async fn find_entity(
    daemon: &Daemon,
    principal: &Principal,
    entity: &EntityRef,
) -> Result<Arc<Snapshot>, Error> {
    let snapshot = daemon.runtime().entity(entity).await?;
    let hidden = principal.tenant.as_ref().is_some_and(|tenant| *tenant != snapshot.tenant);
    if hidden { Err(ActorError::UnknownEntity(entity.clone()).into()) } else { Ok(snapshot) }
}

/// Finds the entity of a dispatch, if the principal may see it, and the position of the dispatch's
/// first record.
pub(crate) async fn find_dispatch(
    daemon: &Daemon,
    principal: &Principal,
    dispatch: DispatchId,
) -> Result<(EntityRef, Position), Error> {
    let found = daemon.runtime().find_dispatch(dispatch).await?;
    let (entity, at) = found.ok_or_else(|| unknown(dispatch))?;
    let visible = find_entity(daemon, principal, &entity).await;
    visible.map_err(|error| hide_entity(error, dispatch))?;
    Ok((entity, at))
}

/// Reports a dispatch of an entity that is hidden like one that never existed. Other errors stay: a
/// journal that cannot be read says nothing about the dispatch.
fn hide_entity(error: Error, dispatch: DispatchId) -> Error {
    if error.code() == Code::UnknownEntity { unknown(dispatch) } else { error }
}

fn unknown(dispatch: DispatchId) -> Error {
    Error::new(Code::UnknownDispatch, format!("there is no dispatch {dispatch}"))
}

/// Reads a dispatch from the records of its entity; the first one is at `from`.
pub(crate) async fn read_dispatch(
    daemon: &Daemon,
    entity: &EntityRef,
    dispatch: DispatchId,
    from: Position,
) -> Result<DispatchView, Error> {
    let mut view = None;
    let fold = |record: Record| match record.event {
        Event::Dispatched(dispatched) if dispatched.dispatch == dispatch => {
            view = Some(DispatchView::new(entity.clone(), record.at, *dispatched));
        }
        Event::Ended(ended) if ended.dispatch == dispatch => {
            view = view.take().map(|view| view.with_end(record.at, *ended));
        }
        _ => {}
    };
    fold_records(daemon, entity, from, fold).await?;
    view.ok_or_else(|| unknown(dispatch))
}

/// Explains why a dispatch of `entity` ended as it did, from all records of the entity.
pub(crate) async fn explain_dispatch(
    daemon: &Daemon,
    entity: &EntityRef,
    dispatch: DispatchId,
) -> Result<Explanation, Error> {
    let mut inquiry = Inquiry::about(Which::Dispatch(dispatch)).host(Host::Alive);
    // An entity's records do not contain its spec. If the dispatch used an older spec than the
    // present one, the inquiry notices and leaves that part unknown.
    if let Some(spec) = daemon.runtime().spec(entity.entity_type()) {
        inquiry = inquiry.with_spec(spec);
    }
    fold_entries(daemon, entity, Position(1), |entry| match entry {
        Entry::Record(record) => inquiry.feed(&record),
        torn if torn.damage().is_some() => inquiry.add_gap(),
        _ => {}
    })
    .await?;
    let mut explanation = inquiry.finish().ok_or_else(|| unknown(dispatch))?;
    resolve_frames(daemon, &mut explanation).await;
    Ok(explanation)
}

/// Resolves backtrace frames that were recorded as offsets.
async fn resolve_frames(daemon: &Daemon, explanation: &mut Explanation) {
    let module = explanation.dispatched.module_hash;
    let ended = explanation.ending.as_mut().map(|ending| &mut ending.ended);
    if let Some((module, ended)) = module.zip(ended) {
        let frames = daemon.runtime().resolve_frames(module, ended.frames().to_vec()).await;
        ended.set_frames(frames);
    }
}

/// What became of an action besides its transition: how its handlers ended, and which entities were
/// not spawned.
pub(crate) type Results = (Vec<OutcomeView>, Vec<NotSpawnedView>);

/// Reads what became of an action so far from the records of its entity.
pub(crate) async fn read_results(
    daemon: &Daemon,
    entity: &EntityRef,
    accepted: &Accepted,
) -> Result<Results, Error> {
    let mut results = Results::default();
    fold_records(daemon, entity, accepted.position, |record| {
        add_result(&mut results, accepted, record.event);
    })
    .await?;
    Ok(results)
}

fn add_result((outcomes, not_spawned): &mut Results, accepted: &Accepted, event: Event) {
    match event {
        Event::Ended(ended)
            if accepted.dispatches.contains(&ended.dispatch)
                && ended.decision != Decision::Rerun =>
        {
            let HandlerEnd { dispatch, outcome, .. } = Arc::unwrap_or_clone(ended.end);
            outcomes.push(OutcomeView { dispatch, outcome });
        }
        Event::SpawnRefused { spawned_at, entity, reason, .. }
            if spawned_at == accepted.sequence =>
        {
            not_spawned.push(NotSpawnedView { entity, reason });
        }
        _ => {}
    }
}

/// Passes each intact record of an entity, from `from` on, to `fold`.
async fn fold_records(
    daemon: &Daemon,
    entity: &EntityRef,
    from: Position,
    mut fold: impl FnMut(Record) + Send,
) -> Result<(), Error> {
    fold_entries(daemon, entity, from, |entry| {
        if let Entry::Record(record) = entry {
            fold(record);
        }
    })
    .await
}

/// Passes each entry of an entity, intact or not, from `from` on, to `fold`.
async fn fold_entries(
    daemon: &Daemon,
    entity: &EntityRef,
    from: Position,
    mut fold: impl FnMut(Entry) + Send,
) -> Result<(), Error> {
    let mut next = Some(from);
    while let Some(from) = next {
        let page = daemon.runtime().history(entity, from, READ_PAGE).await?;
        next = page.next;
        page.entries.into_iter().for_each(&mut fold);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sandglass_model::{Sequence, SpawnObstacle};

    use super::*;

    #[test]
    fn only_entities_that_the_action_was_to_spawn_are_reported() {
        let accepted = Accepted {
            sequence: Sequence(3),
            state: "Open".to_owned(),
            dispatches: Vec::new(),
            position: Position(9),
        };
        let mut results = Results::default();
        for (spawned_at, id) in [(2, "earlier"), (3, "own"), (4, "later")] {
            let entity = EntityRef::new("Parcel", id).expect("a name");
            let (spawned_at, reason) = (Sequence(spawned_at), SpawnObstacle::Exists);
            let refused = Event::SpawnRefused { spawned_at, index: 0, entity, reason };
            add_result(&mut results, &accepted, refused);
        }
        let found = serde_json::to_value(&results.1).expect("plain data");
        let expected = serde_json::json!([{ "entity": "Parcel/own", "reason": "exists" }]);
        assert_eq!((results.0.len(), found), (0, expected));
    }

    #[test]
    fn a_hidden_entity_hides_its_dispatch_and_an_unreadable_journal_does_not() {
        let (dispatch, one) = (DispatchId::from_bytes([7; 16]), EntityRef::new("Session", "1"));
        let code = |error: ActorError| hide_entity(error.into(), dispatch).code();
        let unknown = ActorError::UnknownEntity(one.expect("a name"));
        assert_eq!(code(unknown), Code::UnknownDispatch);
        let what = "disk full".to_owned();
        assert_eq!(code(ActorError::JournalUnavailable { what }), Code::JournalUnavailable);
        assert_eq!(code(ActorError::Closed), Code::ShuttingDown);
    }
}
