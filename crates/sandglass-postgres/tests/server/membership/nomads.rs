//! Clients that go from member to member, while partitions move, members are declared dead and
//! connections fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sandglass_journal::conformance::{batch, session, signal};
use sandglass_journal::{Error, Expected};
use sandglass_model::{EntityRef, HostId, Membership, Partition};
use sandglass_postgres::Database;

use super::join;
use crate::faults::through;
use crate::load::{self, Answers};
use crate::proxy::{Flow, Proxy, wait};
use crate::server::{self, Server, block, spawn};

const MEMBERS: usize = 3;
const CLIENTS: usize = 12;

/// What the tasks of a test share.
#[derive(Debug)]
struct World {
    members: Vec<Database>,
    /// Decides which member shall have which partition.
    plan: AtomicU64,
    is_over: AtomicBool,
    acknowledged: AtomicU64,
    claims: AtomicU64,
    moves: AtomicU64,
    deaths: AtomicU64,
}

impl World {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The member that shall have a partition.
    fn home(&self, partition: Partition) -> usize {
        let seed = self.plan.load(Ordering::Relaxed) * 64 + u64::from(partition.number());
        fastrand::Rng::with_seed(seed).usize(0..MEMBERS)
    }
}

/// Keeps the partitions of one member, as the cluster does.
async fn keep(world: Arc<World>, index: usize) {
    let member = &world.members[index];
    let mut held: BTreeSet<Partition> = BTreeSet::new();
    while !world.is_over() {
        wait(Duration::from_millis(30)).await;
        let state = match member.beat_as_member().await {
            Ok(Some(state)) => state,
            Ok(None) => {
                held.clear();
                if member.rejoin().await.is_ok() {
                    world.deaths.fetch_add(1, Ordering::Relaxed);
                }
                continue;
            }
            Err(Error::Unavailable { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let me = member.host();
        let (mut wanted, mut given) = (Vec::new(), Vec::new());
        for one in &state.partitions {
            let is_mine = one.owner == Some(me);
            if !is_mine && held.remove(&one.partition) {
                member.disown(&[one.partition], "another host owns it");
            }
            let is_home = world.home(one.partition) == index;
            let is_free = one.owner.is_none_or(|owner| is_dead(&state, owner));
            if is_mine && !is_home && held.contains(&one.partition) {
                given.push(one.partition);
            } else if is_mine && !held.contains(&one.partition) || is_home && is_free {
                wanted.push((one.partition, one.epoch));
            }
        }
        if let Ok(obtained) = member.claim(&wanted).await {
            world.claims.fetch_add(obtained.len() as u64, Ordering::Relaxed);
            held.extend(obtained);
        }
        if let Ok(given) = member.release(&given).await {
            world.moves.fetch_add(given.len() as u64, Ordering::Relaxed);
            held.retain(|partition| !given.contains(partition));
        }
    }
}

fn is_dead(state: &Membership, host: HostId) -> bool {
    state.host(host).is_none_or(|member| member.is_dead)
}

/// Appends to one entity by whichever member takes it. What is refused is in no journal, so another member
/// may append it.
async fn wander(world: Arc<World>, entity: EntityRef, seed: u64) -> Answers {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut answers = Answers {
        entity: entity.clone(),
        acknowledged: BTreeMap::new(),
        refused: Vec::new(),
        ended: None,
        longest: Duration::ZERO,
    };
    let mut expected = Expected::None;
    let mut number = 0;
    while !world.is_over() {
        let member = &world.members[random.usize(0..MEMBERS)];
        let journal = member.journal(Partition::of(&entity));
        match journal.append(batch(&entity, expected, vec![(0, signal(number))])).await {
            Ok(positions) => {
                expected = Expected::At(positions.last);
                answers.acknowledged.insert(number, positions.first);
                world.acknowledged.fetch_add(1, Ordering::Relaxed);
                number += 1;
            }
            Err(Error::Unavailable { .. } | Error::Disowned { .. }) => {
                wait(Duration::from_millis(5)).await;
            }
            // Another record than expected: one that was refused is there nevertheless.
            Err(error) => panic!("{entity} {number}: {error}"),
        }
    }
    answers
}

/// What goes wrong.
async fn disturb(world: &World, proxies: &[Proxy], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..40 {
        let victim = random.usize(0..MEMBERS);
        let proxy = &proxies[victim];
        let pause = Duration::from_millis(random.u64(1..60));
        match random.u8(0..8) {
            0 | 1 => drop(world.plan.fetch_add(1, Ordering::Relaxed)),
            2 => {
                let observer = &world.members[(victim + 1) % MEMBERS];
                let host = world.members[victim].host();
                if let Ok(state) = observer.membership().await
                    && let Some(member) = state.host(host)
                {
                    let _ = observer.declare_dead(&host, member.beats).await;
                }
            }
            3 => proxy.cut(),
            4 | 5 => {
                proxy.set(Flow::Pass, Flow::Lose);
                wait(pause).await;
                proxy.cut();
            }
            6 => {
                proxy.set(Flow::Lose, Flow::Pass);
                wait(pause).await;
                proxy.cut();
            }
            _ => {
                // Statements arrive late, perhaps when their partitions have moved.
                proxy.set(Flow::Hold, Flow::Pass);
                world.plan.fetch_add(1, Ordering::Relaxed);
                wait(pause * 5).await;
            }
        }
        proxy.set(Flow::Pass, Flow::Pass);
        wait(Duration::from_millis(random.u64(10..150))).await;
    }
}

#[test]
fn what_is_acknowledged_by_any_member_is_there_once() {
    let server = Server::start(&[]);
    let fresh = std::env::var("SANDGLASS_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in [1, 2].into_iter().chain(fresh) {
        let name = format!("nomads_{seed}");
        server.new_database(&name);
        let proxies: Vec<Proxy> = (0..MEMBERS).map(|_| Proxy::of(server.port)).collect();
        let members = proxies.iter().map(|proxy| join(&through(proxy, &name))).collect();
        let world = Arc::new(World {
            members,
            plan: AtomicU64::new(seed),
            is_over: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            claims: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            deaths: AtomicU64::new(0),
        });
        let keepers: Vec<_> =
            (0..MEMBERS).map(|index| spawn(keep(Arc::clone(&world), index))).collect();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let entity = session(&format!("nomad-{number}"));
                spawn(wander(Arc::clone(&world), entity, seed * 100 + number as u64))
            })
            .collect();
        wait_for(&world, 100);
        let disturbed = Arc::clone(&world);
        let proxies = block(async move {
            disturb(&disturbed, &proxies, seed).await;
            proxies
        });
        // All goes on when the faults are over.
        wait_for(&world, 500);
        world.is_over.store(true, Ordering::Relaxed);
        let answers = clients.into_iter().map(|client| block(client).unwrap()).collect();
        keepers.into_iter().for_each(|keeper| block(keeper).unwrap());
        println!("seed {seed}: {world:?}");
        let lost = world.members.iter().map(|member| member.counts().lost_records).sum::<u64>();
        assert_eq!(lost, 0);
        assert!(world.moves.load(Ordering::Relaxed) > 50, "few partitions moved");
        drop(proxies);
        load::check(&server::open(&server.address(&name)), answers);
    }
}

/// Waits until so many further appends were acknowledged.
fn wait_for(world: &World, count: u64) {
    let goal = world.acknowledged.load(Ordering::Relaxed) + count;
    let begun = Instant::now();
    while world.acknowledged.load(Ordering::Relaxed) < goal {
        assert!(begun.elapsed() < Duration::from_secs(120), "appends do not go on: {world:?}");
        server::pause();
    }
}
