//! The requests of clients, how each was answered, and where in the log its record is.

use std::collections::BTreeMap;

use sandglass_model::{Position, Record};

use super::{Finding, request_of};
use crate::invariant::Invariant;

/// The answer that a client got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was done, and its record has this position; `None` if the answer did not say where.
    Accepted(Option<Position>),
    /// Nothing was done.
    Refused,
    /// The disk did not take it: it has no effect, unless a crash finds it on the disk.
    NotWritten,
}

#[derive(Clone, Copy, Debug, Default)]
struct RequestState {
    answer: Option<Answer>,
    place: Option<Position>,
    /// Whether the process that answered has ended since.
    is_past: bool,
}

/// All requests of a seed, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Requests(BTreeMap<u64, RequestState>);

impl Requests {
    /// Adds a request and returns its number.
    pub(crate) fn next(&mut self) -> u64 {
        let id = self.0.len() as u64;
        self.0.insert(id, RequestState::default());
        id
    }

    /// Notes that the record of a request is durable, and checks that it is its only one and that
    /// the request was not refused.
    pub(super) fn note_record(&mut self, id: u64, place: Position) -> Finding {
        let asked = self.0.entry(id).or_default();
        if let Some(first) = asked.place.replace(place) {
            let what = format!("request {id} is in the log at {first} and at {place}");
            return Some((Invariant::AcknowledgedOnce, what));
        }
        let is_nothing = match asked.answer {
            Some(Answer::Refused) => true,
            Some(Answer::NotWritten) => !asked.is_past,
            _ => false,
        };
        is_nothing.then(|| {
            let what = format!("request {id} was refused, and is in the log at {place}");
            (Invariant::RefusedIsNothing, what)
        })
    }

    pub(super) fn note_answer(&mut self, id: u64, answer: Answer, log: &[Record]) -> Finding {
        let asked = self.0.entry(id).or_default();
        asked.answer = Some(answer);
        match (answer, asked.place) {
            (Answer::Accepted(position), Some(place))
                if position.is_none_or(|position| position == place) =>
            {
                None
            }
            (Answer::Accepted(position), place) => {
                let (position, end) = (position.map(|position| position.0), log.len());
                let what = format!(
                    "request {id} is acknowledged at {position:?}, and its record is at {place:?} of {end}"
                );
                Some((Invariant::DurableFirst, what))
            }
            (Answer::Refused | Answer::NotWritten, Some(place)) => {
                let what = format!("request {id} is refused, and is in the log at {place}");
                Some((Invariant::RefusedIsNothing, what))
            }
            (Answer::Refused | Answer::NotWritten, None) => None,
        }
    }

    pub(super) fn end_process(&mut self) {
        self.0.values_mut().for_each(|asked| asked.is_past = true);
    }

    /// Compares the acknowledged requests with what is really on the disk.
    pub(super) fn close(&self, disk: &[Record]) -> Finding {
        let mut times: BTreeMap<u64, u32> = BTreeMap::new();
        for id in disk.iter().filter_map(|record| request_of(&record.event)) {
            *times.entry(id).or_default() += 1;
        }
        self.0.iter().find_map(|(id, asked)| {
            let is_acknowledged = matches!(asked.answer, Some(Answer::Accepted(_)));
            let times = times.get(id).copied().unwrap_or(0);
            (times > 1 || (is_acknowledged && times == 0)).then(|| {
                let what = format!("request {id} is {times} times on the disk");
                (Invariant::AcknowledgedOnce, what)
            })
        })
    }
}
