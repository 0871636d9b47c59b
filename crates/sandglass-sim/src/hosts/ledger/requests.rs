//! What clients and handlers request, how each request was answered, and where its record is.

use std::collections::BTreeMap;

use sandglass_model::{Object, Position};

use super::PlaceOf;
use crate::invariant::Invariant;

/// Who requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Client,
    Ask,
    Signal,
}

impl Kind {
    const fn once(self) -> Invariant {
        match self {
            Self::Client | Self::Signal => Invariant::RequestOnce,
            Self::Ask => Invariant::AskOnce,
        }
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was done, and its record has this position in the log of its partition, if that is known.
    Accepted(Option<Position>),
    /// Nothing was done.
    Refused,
    /// It may have been done.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    kind: Kind,
    answer: Option<Answer>,
    place: Option<PlaceOf>,
    /// Whether a failover has lost its record.
    is_lost: bool,
}

/// All requests of a world, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Requests(BTreeMap<u64, State>);

type Finding = Option<(Invariant, String)>;

impl Requests {
    /// Adds a request. Returns its number, and params that contain the number.
    pub(crate) fn next(&mut self, kind: Kind) -> (u64, Object) {
        let id = self.0.len() as u64;
        self.0.insert(id, State { kind, ..State::default() });
        (id, Object::from([("request".to_owned(), id.into())]))
    }

    pub(super) fn note_record(&mut self, id: u64, place: PlaceOf) -> Finding {
        let state = self.0.entry(id).or_default();
        let kind = state.kind;
        if let Some((partition, position)) = state.place.replace(place) {
            let what = format!(
                "request {id} ({kind:?}) is in the log of partition {partition} at {position} and of {} \
                 at {}",
                place.0, place.1
            );
            return Some((kind.once(), what));
        }
        (state.answer == Some(Answer::Refused)).then(|| {
            let what =
                format!("request {id} ({kind:?}) was refused, and is in the log at {}", place.1);
            (Invariant::RefusedIsNothing, what)
        })
    }

    pub(super) fn note_answer(&mut self, id: u64, answer: Answer) -> Finding {
        let state = self.0.entry(id).or_default();
        let kind = state.kind;
        state.answer = Some(answer);
        match (answer, state.place) {
            (Answer::Accepted(at), Some((_, place))) if at.is_some_and(|at| at != place) => {
                let what =
                    format!("request {id} ({kind:?}) is acknowledged at {at:?}, not {place}");
                Some((Invariant::DurableFirst, what))
            }
            (Answer::Accepted(_), None) if !state.is_lost => {
                let what = format!("request {id} ({kind:?}) is acknowledged, and is in no log");
                Some((Invariant::DurableFirst, what))
            }
            (Answer::Refused, Some((_, place))) => {
                let what =
                    format!("request {id} ({kind:?}) is refused, and is in the log at {place}");
                Some((Invariant::RefusedIsNothing, what))
            }
            _ => None,
        }
    }

    /// A failover has lost what is behind this place.
    pub(super) fn lose(&mut self, (partition, last): PlaceOf) {
        for state in self.0.values_mut() {
            if state.place.is_some_and(|(of, at)| of == partition && at > last) {
                (state.place, state.is_lost) = (None, true);
            }
        }
    }

    pub(super) fn close(&self) -> Finding {
        self.0.iter().find_map(|(id, state)| {
            let is_acknowledged = matches!(state.answer, Some(Answer::Accepted(_)));
            (is_acknowledged && state.place.is_none() && !state.is_lost).then(|| {
                let what = format!("request {id} ({:?}) was acknowledged, and is lost", state.kind);
                (state.kind.once(), what)
            })
        })
    }
}
