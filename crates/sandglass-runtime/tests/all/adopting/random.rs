//! Partitions that move at random between hosts under load.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_model::{EntityRef, Event, Object, Partition, Position};
use tokio::task::JoinSet;

use super::hosts::{Host, Store, job_in, params};
use crate::partitions::{check, records};
use crate::world::{pass, pass_ms};

const PARTITIONS: u8 = 4;
const HOSTS: u8 = 3;
const STEPS: u32 = 400;

/// A sequence of numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn below(&mut self, many: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % many
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).expect("few")]
    }
}

type Acknowledged = Arc<Mutex<Vec<(EntityRef, Position, &'static str)>>>;

/// Moves partitions and sends requests; returns the requests that were acknowledged, and how many were
/// refused.
async fn run(store: &Store, jobs: &[EntityRef], dice: &mut Dice) -> (Acknowledged, usize) {
    let partitions: Vec<_> = Partition::all().take(PARTITIONS.into()).collect();
    let mut hosts = Vec::new();
    for id in 1..=HOSTS {
        hosts.push(Arc::new(Host::start(store, id).await));
    }
    for partition in &partitions {
        hosts[0].adopt(*partition).await;
    }
    for job in jobs {
        hosts[0].runtime.create(job.clone()).await.expect("new");
    }
    let (acknowledged, mut refused) = (Acknowledged::default(), 0);
    let (mut going, mut started) = (JoinSet::new(), HOSTS);
    for _ in 0..STEPS {
        let (partition, job) = (*dice.pick(&partitions), dice.pick(jobs).clone());
        let host = Arc::clone(dice.pick(&hosts));
        match dice.below(12) {
            0 => {
                // Planned, if it has it.
                let (next, millis) = (Arc::clone(dice.pick(&hosts)), dice.below(3_000));
                going.spawn(async move {
                    let patience = Duration::from_millis(millis);
                    if host.runtime.release(partition, patience).await {
                        next.adopt_if_possible(partition).await;
                    }
                    true
                });
            }
            // Taken from the host that has it, which learns that from the journal.
            1 => {
                going.spawn(async move {
                    host.adopt_if_possible(partition).await;
                    true
                });
            }
            2 => host.runtime.lose(partition),
            3 if dice.below(8) == 0 => {
                // It ends, and what it had has no owner until another host takes it.
                started += 1;
                let place = usize::try_from(dice.below(HOSTS.into())).expect("few");
                hosts[place] = Arc::new(Host::start(store, started).await);
            }
            3 => pass_ms(dice.below(2_000)).await,
            4 => {
                for host in &hosts {
                    // Its owner serves it again.
                    if store.is_owner(partition, host.id) {
                        host.adopt_if_possible(partition).await;
                    }
                }
            }
            kind => {
                let acknowledged = Arc::clone(&acknowledged);
                let (action, params) = match kind {
                    5 | 6 => ("Work", params("seconds", dice.below(3))),
                    _ => ("Count", Object::new()),
                };
                going.spawn(async move {
                    let Ok(accepted) = host.runtime.send(&job, action, params).await else {
                        return false;
                    };
                    let answer = (job, accepted.position, action);
                    acknowledged.lock().expect("no panic").push(answer);
                    true
                });
            }
        }
        if dice.below(3) == 0 {
            pass_ms(dice.below(300)).await;
        }
        while let Some(is_done) = going.try_join_next() {
            refused += usize::from(!is_done.expect("no panic"));
        }
    }
    while let Some(is_done) = going.join_next().await {
        refused += usize::from(!is_done.expect("no panic"));
    }
    (acknowledged, refused)
}

#[tokio::test(start_paused = true)]
async fn each_acknowledged_request_is_there_once_wherever_partitions_go() {
    for seed in 0..20 {
        let store = Store::new();
        let partitions = Partition::all().take(PARTITIONS.into());
        let names = |partition| ["a", "b", "c"].map(|name| job_in(partition, name));
        let jobs: Vec<_> = partitions.clone().flat_map(names).collect();
        let (acknowledged, refused) = run(&store, &jobs, &mut Dice(seed)).await;
        let acknowledged = acknowledged.lock().expect("no panic").clone();
        assert!(acknowledged.len() > 20 && refused > 20, "{} {refused}", acknowledged.len());
        let mut found = BTreeMap::new();
        for partition in partitions.clone() {
            for record in records(&store.journals[partition.index()]).await {
                if let (Some(job), Event::Transition { action, .. }) = (record.entity, record.event)
                {
                    found.insert((partition, record.position), (job, action));
                }
            }
        }
        let counts = |job: &EntityRef| {
            found.values().filter(|(of, action)| of == job && action == "Count").count()
        };
        for (job, position, action) in acknowledged {
            let record = found.get(&(Partition::of(&job), position));
            assert_eq!(record, Some(&(job, action.to_owned())), "seed {seed}");
        }
        let last = Host::start(&store, u8::MAX).await;
        for partition in partitions {
            last.adopt(partition).await;
        }
        pass(10).await;
        for job in &jobs {
            let now = last.job(job).await;
            assert_eq!(now.state, "Idle", "seed {seed}");
            assert_eq!(now.variables["count"], counts(job), "seed {seed}");
        }
        check(&store.journals).await;
    }
}
