//! What a journal need not keep: entities that have ended, and nothing else.

use std::time::Duration;

use proptest::prelude::*;
use sandglass_liveness::Retention;
use sandglass_liveness::retention::{Ended, Survey};
use sandglass_model::{EntityRef, Position, Record, WallTime};

use crate::generated::{live, steps};
use crate::session::Life;

fn surveyed(log: &[Record]) -> Vec<Ended> {
    let mut survey = Survey::default();
    let mut by_entity: Vec<&Record> = log.iter().collect();
    by_entity.sort_by_key(|record| (record.entity.clone(), record.position));
    by_entity.into_iter().for_each(|record| survey.feed(record).expect("it fits"));
    survey.finish()
}

proptest! {
    #[test]
    fn an_entity_that_can_still_change_is_not_found_as_ended(steps in steps()) {
        let life: Life = live(&steps);
        let ended = surveyed(&life.log);
        for entity in life.entities() {
            let found = ended.iter().find(|one| one.entity == entity.entity);
            let is_over = life.spec.is_terminal(&entity.state) && entity.is_settled();
            prop_assert_eq!(found.is_some(), is_over, "{:?}", entity);
            let own = life.log.iter().filter(|record| record.entity.as_ref() == Some(&entity.entity));
            let last = own.clone().next_back().map(|record| (record.position, record.at));
            let records = own.count() as u64;
            if let Some(found) = found {
                prop_assert_eq!((Some((found.last, found.at)), found.records), (last, records));
            }
        }
    }
}

fn ended(number: i64) -> Ended {
    let entity = EntityRef::new("Session", number.to_string()).expect("a valid name");
    let (last, at) = (Position(number.unsigned_abs()), WallTime::from_millis(number * 1_000));
    Ended { entity, last, at, records: 1 }
}

#[test]
fn age_and_count_choose_the_oldest() {
    let all = || vec![ended(3), ended(1), ended(2)];
    let now = WallTime::from_millis(4_000);
    let chosen = |retention: Retention| -> Vec<u64> {
        retention.beyond(all(), now).iter().map(|one| one.last.0).collect()
    };
    let secs = |secs| Retention::OlderThan(Duration::from_secs(secs));
    assert_eq!((chosen(secs(0)), chosen(secs(1))), (vec![1, 2, 3], vec![1, 2]));
    assert_eq!((chosen(secs(3)), chosen(secs(9))), (vec![], vec![]));
    let keep = Retention::Keep;
    assert_eq!((chosen(keep(0)), chosen(keep(1))), (vec![1, 2, 3], vec![1, 2]));
    assert_eq!((chosen(keep(3)), chosen(keep(u64::MAX))), (vec![], vec![]));
}
