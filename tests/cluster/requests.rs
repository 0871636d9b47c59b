//! What clients were answered, compared with the records.

use std::collections::BTreeMap;

use sandglass_model::WallTime;

use crate::history::{Answer, Kind, Observed, Request, Taken, Violation, What};
use crate::verify::{Index, describe};

pub(crate) fn verify(observed: &Observed, index: &Index<'_>, found: &mut Vec<Violation>) {
    let mut creations: BTreeMap<&str, Vec<&Request>> = BTreeMap::new();
    for request in &observed.requests {
        let undocumented = |one: &&Answer| matches!(one, Answer::Undocumented(_));
        if request.tries.iter().map(|one| &one.answer).any(|answer| undocumented(&answer)) {
            found.push(Violation::new(Kind::Undocumented, describe(request)));
        }
        match request.what {
            What::Create => creations.entry(&request.entity).or_default().push(request),
            What::Act(action) => act(request, action, index, found),
            What::Look => {}
        }
        if let Some((taken, _)) = request.done() {
            states_the_truth(request, taken, index, found);
        }
    }
    for (entity, requests) in creations {
        create(entity, &requests, index, found);
    }
    in_order(observed, found);
}

/// Acknowledged: once. Refused: never. Unknown: at most once.
fn act(request: &Request, action: &str, index: &Index<'_>, found: &mut Vec<Violation>) {
    let records = index.tokens.get(&*request.token).map_or(&[][..], Vec::as_slice);
    let mut report = |kind| found.push(Violation::new(kind, describe(request)));
    if records.len() > 1 {
        report(Kind::Doubled);
    }
    let is_done = request.done().is_some();
    let may_be_done = request.tries.iter().any(|one| matches!(one.answer, Answer::Unknown(_)));
    match records {
        [] if is_done => report(Kind::Lost),
        [_, ..] if !is_done && !may_be_done => report(Kind::RefusedButDone),
        _ => {}
    }
    // A refusal by the entity is final, too; it is not possible for actions that are sent with a key.
    if request.has_key && !is_done {
        report(Kind::NeverAcknowledged);
    }
    let Some(record) = records.first() else { return };
    if record.entity != request.entity || record.action != action {
        report(Kind::FalseResponse);
    }
    for one in &request.tries {
        let Answer::Done(taken) = &one.answer else { continue };
        if taken.sequence != record.sequence
            || (taken.state != record.state)
            || taken.dispatches != record.started
        {
            let what = format!("{}; recorded: {record:?}", describe(request));
            found.push(Violation::new(Kind::FalseResponse, what));
        }
    }
}

fn create(entity: &str, requests: &[&Request], index: &Index<'_>, found: &mut Vec<Violation>) {
    let created = index.created.get(entity).copied().unwrap_or(0);
    let answers = || requests.iter().flat_map(|request| &request.tries).map(|one| &one.answer);
    let done = answers().filter(|answer| answer.is_done()).count();
    let exists = Answer::Refused("entity_exists".to_owned());
    let may_be_done = answers().any(|answer| matches!(answer, Answer::Unknown(_)));
    let kind = match (created, done) {
        (0, 1..) => Kind::Lost,
        (_, 2..) | (2.., _) => Kind::Doubled,
        (0, 0) if answers().any(|answer| *answer == exists) => Kind::FalseResponse,
        (1, 0) if !may_be_done => Kind::RefusedButDone,
        _ => return,
    };
    let all: Vec<String> = requests.iter().map(|request| describe(request)).collect();
    found.push(Violation::new(kind, all.join(" | ")));
}

/// What a response states of the entity's state has been so.
fn states_the_truth(
    request: &Request,
    taken: &Taken,
    index: &Index<'_>,
    found: &mut Vec<Violation>,
) {
    let state = index.states.get(&(request.entity.clone(), taken.sequence));
    if state != Some(&&*taken.state) {
        let what = format!("{}; recorded: {state:?}", describe(request));
        found.push(Violation::new(Kind::FalseResponse, what));
    }
}

/// If one request was acknowledged before another one was sent, its sequence is not behind. Responses state
/// the sequence, so sorting suffices.
fn in_order(observed: &Observed, found: &mut Vec<Violation>) {
    struct Seen<'a> {
        /// The sequence, and whether it was only read.
        place: (u64, bool),
        sent: WallTime,
        finished: WallTime,
        request: &'a Request,
    }
    let mut entities: BTreeMap<&str, Vec<Seen<'_>>> = BTreeMap::new();
    for request in &observed.requests {
        let (Some((taken, finished)), Some(sent)) = (request.done(), request.sent()) else {
            continue;
        };
        let place = (taken.sequence, request.what == What::Look);
        let seen = Seen { place, sent, finished, request };
        entities.entry(&request.entity).or_default().push(seen);
    }
    for seen in entities.values_mut() {
        seen.sort_by_key(|one| one.place);
        // Of those with a later place, the one that was finished first.
        let mut first: Option<&Seen<'_>> = None;
        for group in seen.chunk_by(|one, next| one.place == next.place).rev() {
            for one in group {
                if let Some(later) = first.filter(|later| later.finished < one.sent) {
                    let (one, later) = (describe(one.request), describe(later.request));
                    let what = format!("{later} was before {one}");
                    found.push(Violation::new(Kind::OutOfOrder, what));
                }
            }
            let earliest = group.iter().min_by_key(|one| one.finished);
            if first.is_none_or(|first| earliest.is_some_and(|one| one.finished < first.finished)) {
                first = earliest;
            }
        }
    }
}
