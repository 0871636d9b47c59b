//! An entity of each partition, and how long it takes until they accept actions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sandglass_model::{Clock as _, EntityRef, Partition, WallTime};

use crate::clients::World;
use crate::history::{Request, What};
use crate::proxy::wait;
use crate::server::block;

/// How long all entities may take to accept an action after a fault.
pub(crate) const ACCEPTED_WITHIN: Duration = Duration::from_secs(30);
/// Between two requests to one entity.
const BETWEEN: Duration = Duration::from_millis(100);
/// The same while an operator moves it.
const BETWEEN_IN_MOVES: Duration = Duration::from_millis(200);

pub(crate) struct Probes {
    /// By their partitions.
    entities: Vec<String>,
    sent: AtomicUsize,
}

/// What was measured of each partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Swept {
    /// When it first accepted an action, after the beginning.
    pub(crate) accepted: BTreeMap<usize, Duration>,
    /// The longest that a request took.
    pub(crate) slowest: BTreeMap<usize, Duration>,
}

impl Probes {
    pub(crate) fn new() -> Self {
        let mut entities = BTreeMap::new();
        let mut number = 0;
        while entities.len() < usize::from(Partition::COUNT) {
            let name = format!("Counter/probe-{number}");
            let entity: EntityRef = name.parse().expect("a name");
            entities.entry(Partition::of(&entity)).or_insert(name);
            number += 1;
        }
        Self { entities: entities.into_values().collect(), sent: AtomicUsize::new(0) }
    }

    pub(crate) fn count(&self) -> usize {
        self.entities.len()
    }

    /// Creates them.
    pub(crate) fn create(&self, world: &World) {
        for partition in 0..self.count() {
            self.send(world, 0, partition, What::Create);
        }
    }

    /// Touches an entity once; returns how long that took if it was accepted.
    pub(crate) fn touch(&self, world: &World, host: usize, partition: usize) -> Option<Duration> {
        self.send(world, host, partition, What::Act("Touch"))
    }

    fn send(&self, world: &World, host: usize, partition: usize, what: What) -> Option<Duration> {
        let token = format!("probe-{}", self.sent.fetch_add(1, Ordering::Relaxed));
        let entity = self.entities[partition].clone();
        let (has_key, waits) = (false, false);
        let mut request = Request { token, entity, what, has_key, waits, tries: Vec::new() };
        let begun = world.clock.now();
        let one = world.send(host, &request);
        let took = world.clock.now().since(begun);
        let is_done = one.answer.is_done();
        request.tries.push(one);
        world.add(request);
        is_done.then_some(took)
    }

    /// Touches all at the same time, each until it accepts the action, by hosts in rotation but `avoid`.
    pub(crate) fn sweep(&self, world: &World, from: WallTime, avoid: Option<usize>) -> Swept {
        let accepted = self.each(|partition| {
            let late = world.clock.wall().after(ACCEPTED_WITHIN);
            for nth in partition.. {
                if let Some(host) = nth_host(world, nth, avoid)
                    && self.touch(world, host, partition).is_some()
                {
                    return Some(world.clock.wall().since(from));
                }
                if world.clock.wall() > late {
                    break;
                }
                block(wait(BETWEEN));
            }
            None
        });
        Swept { accepted, slowest: BTreeMap::new() }
    }

    /// Touches all again and again until `is_over`.
    pub(crate) fn follow(&self, world: &World, is_over: &AtomicBool) -> Swept {
        let slowest = self.each(|partition| {
            let mut slowest = Duration::ZERO;
            for nth in partition.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let begun = world.clock.now();
                if let Some(host) = nth_host(world, nth, None) {
                    self.touch(world, host, partition);
                }
                slowest = slowest.max(world.clock.now().since(begun));
                block(wait(BETWEEN_IN_MOVES));
            }
            Some(slowest)
        });
        Swept { accepted: BTreeMap::new(), slowest }
    }

    /// Does something with each partition, and collects the results.
    fn each(&self, work: impl Fn(usize) -> Option<Duration> + Sync) -> BTreeMap<usize, Duration> {
        let work = &work;
        thread::scope(|threads| {
            let threads: Vec<_> = (0..self.count())
                .map(|partition| threads.spawn(move || (partition, work(partition))))
                .collect();
            let results = threads.into_iter().map(|it| it.join().expect("it does not panic"));
            results.filter_map(|(partition, result)| Some((partition, result?))).collect()
        })
    }
}

/// One of the hosts in rotation but `avoid`.
fn nth_host(world: &World, nth: usize, avoid: Option<usize>) -> Option<usize> {
    let hosts = 0..world.addresses.len();
    let is_good = |host: &usize| Some(*host) != avoid && world.is_in_rotation(*host);
    let hosts: Vec<usize> = hosts.filter(is_good).collect();
    hosts.get(nth % hosts.len().max(1)).copied()
}

#[test]
fn each_partition_has_an_entity() {
    let probes = Probes::new();
    for (partition, name) in probes.entities.iter().enumerate() {
        assert_eq!(Partition::of(&name.parse().unwrap()).index(), partition);
    }
    assert_eq!(probes.count(), 64);
}
