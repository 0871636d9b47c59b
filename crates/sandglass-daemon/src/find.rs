//! Finds entities and dispatches for those who may see them.

use std::sync::Arc;

use sandglass_insight::why::{Explanation, Host, Inquiry, Which};
use sandglass_journal::Entry;
use sandglass_model::{Decision, DispatchId, EntityRef, Event, HandlerEnd, Position, Record};
use sandglass_runtime::{ActorError, Snapshot};

use crate::Daemon;
use crate::access::Principal;
use crate::error::{Code, Error};
use crate::view::{DispatchView, OutcomeView};

/// Entries that are read at once in search of something.
const SEARCH_PAGE: usize = 256;

/// How many entries a page is to have.
pub(crate) fn limit(asked: Option<usize>, default: usize, max: usize) -> Result<usize, Error> {
    let limit = asked.unwrap_or(default);
    if (1..=max).contains(&limit) {
        return Ok(limit);
    }
    Err(Error::new(Code::BadQuery, format!("`limit` is {limit}, and must be 1 to {max}")))
}

/// The entity, where the principal may see it: one of another tenant doesn't exist for
/// them.
pub(crate) async fn entity(
    daemon: &Daemon,
    principal: &Principal,
    entity: &EntityRef,
) -> Result<Arc<Snapshot>, Error> {
    let snapshot = daemon.runtime().entity(entity).await?;
    let hidden = principal.tenant.as_ref().is_some_and(|tenant| *tenant != snapshot.tenant);
    if hidden { Err(ActorError::UnknownEntity(entity.clone()).into()) } else { Ok(snapshot) }
}

/// The entity that has or had this dispatch, where the principal may see it, and the
/// position of its first record.
pub(crate) async fn owner(
    daemon: &Daemon,
    principal: &Principal,
    dispatch: DispatchId,
) -> Result<(EntityRef, Position), Error> {
    let found = daemon.runtime().find_dispatch(dispatch).await?;
    let (found, at) = found.ok_or_else(|| unknown(dispatch))?;
    let seen = entity(daemon, principal, &found).await;
    seen.map_err(|error| hidden(error, dispatch))?;
    Ok((found, at))
}

/// What is hidden is as unknown as what never was; what can't be read is neither.
fn hidden(error: Error, dispatch: DispatchId) -> Error {
    if error.code() == Code::UnknownEntity { unknown(dispatch) } else { error }
}

fn unknown(dispatch: DispatchId) -> Error {
    Error::new(Code::UnknownDispatch, format!("there is no dispatch {dispatch}"))
}

/// What the records of its entity tell of a dispatch that was first recorded at `from`.
pub(crate) async fn dispatch(
    daemon: &Daemon,
    entity: &EntityRef,
    dispatch: DispatchId,
    from: Position,
) -> Result<DispatchView, Error> {
    let mut view = None;
    let mut fold = |record: Record| match record.event {
        Event::Dispatched(dispatched) if dispatched.dispatch == dispatch => {
            view = Some(DispatchView::of(entity.clone(), record.at, *dispatched));
        }
        Event::Ended(ended) if ended.dispatch == dispatch => {
            view = view.take().map(|view| view.ended(record.at, *ended));
        }
        _ => {}
    };
    each(daemon, entity, from, &mut fold).await?;
    view.ok_or_else(|| unknown(dispatch))
}

/// Why a dispatch of `entity` ended as it did, by all of the entity's records.
pub(crate) async fn explanation(
    daemon: &Daemon,
    entity: &EntityRef,
    dispatch: DispatchId,
) -> Result<Explanation, Error> {
    let mut inquiry = Inquiry::about(Which::Dispatch(dispatch)).host(Host::Alive);
    // The records of an entity have no specs. Of one that obeys an older one it stays unknown.
    if let Some(spec) = daemon.runtime().spec(entity.entity_type()) {
        inquiry = inquiry.knowing(spec);
    }
    each_entry(daemon, entity, Position(1), &mut |entry| match entry {
        Entry::Record(record) => inquiry.feed(&record),
        torn if torn.damage().is_some() => inquiry.gap(),
        _ => {}
    })
    .await?;
    let mut explanation = inquiry.finish().ok_or_else(|| unknown(dispatch))?;
    resolve_frames(daemon, &mut explanation).await;
    Ok(explanation)
}

/// Resolves the frames that were recorded as offsets.
async fn resolve_frames(daemon: &Daemon, explanation: &mut Explanation) {
    let module = explanation.dispatched.module_hash;
    let ended = explanation.ending.as_mut().map(|ending| &mut ending.ended);
    if let Some((module, ended)) = module.zip(ended) {
        let frames = daemon.runtime().resolve_frames(module, ended.frames().to_vec()).await;
        ended.set_frames(frames);
    }
}

/// How those of `dispatches` ended that have, which were recorded at `from` or later.
pub(crate) async fn outcomes(
    daemon: &Daemon,
    entity: &EntityRef,
    dispatches: &[DispatchId],
    from: Position,
) -> Result<Vec<OutcomeView>, Error> {
    let mut outcomes = Vec::new();
    let mut fold = |record: Record| {
        if let Event::Ended(ended) = record.event
            && dispatches.contains(&ended.dispatch)
            && ended.decision != Decision::Rerun
        {
            let HandlerEnd { dispatch, outcome, .. } = Arc::unwrap_or_clone(ended.end);
            outcomes.push(OutcomeView { dispatch, outcome });
        }
    };
    if !dispatches.is_empty() {
        each(daemon, entity, from, &mut fold).await?;
    }
    Ok(outcomes)
}

/// Gives each whole record of an entity from `from` on to `fold`.
async fn each(
    daemon: &Daemon,
    entity: &EntityRef,
    from: Position,
    fold: &mut (dyn FnMut(Record) + Send),
) -> Result<(), Error> {
    let mut whole = |entry: Entry| {
        if let Entry::Record(record) = entry {
            fold(record);
        }
    };
    each_entry(daemon, entity, from, &mut whole).await
}

/// Gives each entry of an entity from `from` on to `fold`, whole or not.
async fn each_entry(
    daemon: &Daemon,
    entity: &EntityRef,
    from: Position,
    fold: &mut (dyn FnMut(Entry) + Send),
) -> Result<(), Error> {
    let mut next = Some(from);
    while let Some(from) = next {
        let page = daemon.runtime().history(entity, from, SEARCH_PAGE).await?;
        next = page.next;
        page.entries.into_iter().for_each(&mut *fold);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_not_be_seen_is_unknown_and_not_what_cannot_be_read() {
        let (dispatch, one) = (DispatchId::from_bytes([7; 16]), EntityRef::new("Session", "1"));
        let told = |error: ActorError| hidden(error.into(), dispatch).code();
        let unknown = ActorError::UnknownEntity(one.expect("a name"));
        assert_eq!(told(unknown), Code::UnknownDispatch);
        let what = "disk full".to_owned();
        assert_eq!(told(ActorError::JournalUnavailable { what }), Code::JournalUnavailable);
        assert_eq!(told(ActorError::Closed), Code::ShuttingDown);
    }
}
