use sandglass_model::{Agreement, DeploymentStatus};

use super::*;

const ME: HostId = HostId::from_bytes([1; 16]);
const PEER: HostId = HostId::from_bytes([2; 16]);
const OTHER: HostId = HostId::from_bytes([3; 16]);

/// Milliseconds on this host's clock.
fn ms(millis: u64) -> Monotonic {
    Monotonic::from_nanos(millis * 1_000_000)
}

fn member(host: HostId) -> Member {
    Member {
        host,
        name: "a machine".to_owned(),
        url: Some(format!("http://{host}")),
        version: "1".to_owned(),
        reads_format: 1,
        is_draining: false,
        beats: 1,
        ttl: None,
        is_dead: false,
        deployed: DeploymentStatus::default(),
    }
}

/// These hosts, with no partition owned.
fn hosts<const N: usize>(hosts: [HostId; N]) -> Membership {
    let free = |partition| Ownership { partition, epoch: 4, owner: None };
    Membership {
        hosts: hosts.map(member).to_vec(),
        partitions: Partition::all().map(free).collect(),
        agreed: Agreement { writes_format: 1, ..Agreement::default() },
    }
}

/// The database, as this host reads it.
struct Store {
    membership: Membership,
    tenure: Tenure,
}

impl Store {
    fn new(membership: Membership) -> Self {
        Self { membership, tenure: Tenure::new(ME, Settings::default()) }
    }

    /// This host and a peer, which own what has its home at each.
    fn shared() -> Self {
        let mut store = Self::new(hosts([ME, PEER]));
        for one in &mut store.membership.partitions {
            one.owner = home(one.partition, &[ME, PEER]).copied();
        }
        store.take(1_000);
        store
    }

    fn member(&mut self, host: HostId) -> &mut Member {
        let mut members = self.membership.hosts.iter_mut();
        members.find(|member| member.host == host).expect("a member")
    }

    fn own(&mut self, partition: Partition, owner: Option<HostId>) {
        self.membership.partitions[partition.index()].owner = owner;
    }

    /// A beat that took a millisecond.
    fn beat(&mut self, at: u64) -> Vec<Order> {
        self.tenure.on_beat(ms(at), ms(at + 1), &self.membership)
    }

    /// A beat, and the claim that it orders.
    fn take(&mut self, at: u64) -> Vec<Partition> {
        let orders = self.beat(at);
        let wanted: Vec<Partition> = claimed(&orders);
        for partition in &wanted {
            self.own(*partition, Some(ME));
        }
        self.tenure.on_claim(&wanted, ms(at + 2));
        wanted
    }
}

/// The partitions that `orders` claim.
fn claimed(orders: &[Order]) -> Vec<Partition> {
    let claims = orders.iter().filter_map(|order| match order {
        Order::Claim(wanted) => Some(wanted),
        _ => None,
    });
    claims.flatten().map(|(partition, _)| *partition).collect()
}

fn moved(orders: &[Order]) -> Vec<Partition> {
    let moved = orders.iter().filter_map(|order| match order {
        Order::Move(partition) => Some(*partition),
        _ => None,
    });
    moved.collect()
}

fn declared(host: HostId, beats: u64) -> Order {
    Order::Declare { host, beats }
}

#[test]
fn the_lease_begins_before_the_beat_was_sent() {
    let mut store = Store::new(hosts([ME]));
    assert_eq!(store.tenure.trusted_until(), None);
    store.tenure.on_beat(ms(1_000), ms(3_000), &store.membership);
    assert_eq!(store.tenure.trusted_until(), Some(ms(5_500)));
    // A failure neither extends nor ends it.
    store.tenure.on_failed_beat();
    assert_eq!(store.tenure.trusted_until(), Some(ms(5_500)));
}

#[test]
fn what_is_free_is_claimed_by_its_home_with_the_epoch_that_was_seen() {
    let mut store = Store::new(hosts([ME, PEER]));
    let orders = store.beat(1_000);
    let [Order::Claim(wanted)] = &orders[..] else { panic!("{orders:?}") };
    let ours = |partition: &Partition| home(*partition, &[ME, PEER]) == Some(&ME);
    let expected: Vec<_> = Partition::all().filter(ours).map(|partition| (partition, 4)).collect();
    assert_eq!(*wanted, expected);
    assert!((1..64).contains(&wanted.len()));
}

#[test]
fn one_claim_at_a_time_and_only_what_it_obtained_is_held() {
    let mut store = Store::new(hosts([ME]));
    let wanted = claimed(&store.beat(1_000));
    assert_eq!(store.beat(2_000), []);
    store.tenure.on_claim(&wanted[..1], ms(2_500));
    assert_eq!(store.tenure.held_partitions().collect::<Vec<_>>(), wanted[..1]);
    // What was read before says nothing of it; afterwards it counts.
    store.own(wanted[0], Some(ME));
    assert_eq!(claimed(&store.beat(3_000)), wanted[1..]);
    // A result that belongs to no claim changes nothing.
    store.tenure.on_claim(&[], ms(3_100));
    store.tenure.on_claim(&wanted, ms(3_200));
    assert_eq!(store.tenure.held_partitions().count(), 1);
}

#[test]
fn partitions_of_dead_and_removed_hosts_are_claimed_and_those_of_live_ones_are_not() {
    let mut store = Store::shared();
    let theirs: Vec<Partition> = {
        let held: BTreeSet<Partition> = store.tenure.held_partitions().collect();
        Partition::all().filter(|partition| !held.contains(partition)).collect()
    };
    assert_eq!(store.beat(2_000), []);
    store.member(PEER).is_dead = true;
    assert_eq!(claimed(&store.beat(3_000)), theirs);
    store.tenure.on_claim(&[], ms(3_001));
    store.membership.hosts.pop();
    assert_eq!(claimed(&store.beat(4_000)), theirs);
}

#[test]
fn what_this_process_owns_without_holding_it_is_claimed_wherever_its_home_is() {
    let mut store = Store::shared();
    let theirs = store.membership.partitions.iter().find(|one| one.owner == Some(PEER));
    let theirs = theirs.expect("some").partition;
    store.own(theirs, Some(ME));
    assert_eq!(claimed(&store.beat(2_000)), [theirs]);
    store.tenure.on_claim(&[theirs], ms(2_001));
    store.member(PEER).beats += 1;
    assert_eq!(store.beat(3_000), [Order::Move(theirs)]);
}

#[test]
fn what_another_process_has_or_none_is_disowned() {
    let mut store = Store::shared();
    let held: Vec<Partition> = store.tenure.held_partitions().take(2).collect();
    store.own(held[0], Some(PEER));
    store.own(held[1], None);
    let orders = store.beat(2_000);
    assert_eq!(orders[..2], [Order::Disown(held[0]), Order::Disown(held[1])]);
    // The second is free, and has its home here.
    assert_eq!(claimed(&orders), [held[1]]);
    assert!(!store.tenure.held_partitions().any(|partition| held.contains(&partition)));
}

#[test]
fn a_read_that_was_sent_before_a_change_says_nothing_of_it() {
    let mut store = Store::new(hosts([ME]));
    let wanted = claimed(&store.beat(1_000));
    // The next beat is sent, then the claim succeeds, then what was read before it arrives.
    store.tenure.on_claim(&wanted, ms(2_005));
    assert_eq!(store.tenure.on_beat(ms(2_000), ms(2_010), &store.membership), []);
    for partition in &wanted {
        store.own(*partition, Some(ME));
    }
    // The same for one whose append was refused.
    store.tenure.on_loss(wanted[0], ms(3_005));
    assert_eq!(store.tenure.on_beat(ms(3_000), ms(3_010), &store.membership), []);
    assert_eq!(claimed(&store.beat(4_000)), wanted[..1]);
}

#[test]
fn what_is_being_moved_is_not_claimed_before_the_move_is_reported() {
    let mut store = Store::new(hosts([ME]));
    store.take(1_000);
    store.membership.hosts.push(member(PEER));
    let first = moved(&store.beat(2_000))[0];
    // The statement takes effect, its response is late, and the peer dies.
    store.own(first, None);
    store.member(PEER).is_dead = true;
    let orders = store.beat(3_000);
    assert!(orders.contains(&Order::Disown(first)));
    assert_eq!(claimed(&orders), []);
    store.tenure.on_release(first, ms(3_500));
    assert_eq!(claimed(&store.beat(4_000)), [first]);
    store.tenure.on_claim(&[first], ms(4_002));
    // A report that belongs to no move changes nothing.
    store.tenure.on_release(first, ms(4_500));
    assert_eq!(store.tenure.held_partitions().count(), 64);
}

#[test]
fn a_refused_append_ends_the_hold() {
    let mut store = Store::shared();
    let held = store.tenure.held_partitions().next().expect("one");
    store.tenure.on_loss(held, ms(1_500));
    assert!(!store.tenure.held_partitions().any(|partition| partition == held));
}

#[test]
fn a_host_is_dead_after_a_ttl_without_a_new_beat() {
    let mut store = Store::shared();
    // First seen at 1001.
    for at in (2_000..=5_000).step_by(1_000) {
        assert_eq!(store.beat(at), [], "{at}");
    }
    assert_eq!(store.beat(6_000), [declared(PEER, 1)]);
    assert_eq!(store.beat(7_000), [declared(PEER, 1)], "again until the database says so");
    store.member(PEER).beats = 2;
    assert_eq!(store.beat(8_000), [], "it was late and lives");
    store.member(PEER).is_dead = true;
    assert_eq!(claimed(&store.beat(9_000)).len(), 64 - store.tenure.held_partitions().count());
}

#[test]
fn observations_begin_anew_after_a_failed_beat_and_after_a_long_gap() {
    let mut store = Store::shared();
    for at in (2_000..=5_000).step_by(1_000) {
        store.beat(at);
    }
    store.tenure.on_failed_beat();
    assert_eq!(store.beat(6_000), []);
    assert_eq!(store.beat(8_000), []);
    assert_eq!(store.beat(10_000), []);
    // A pause of this process, or a beat that took long: nothing fails, and time has passed.
    assert_eq!(store.beat(12_600), []);
    for at in (14_000..=17_000).step_by(1_000) {
        assert_eq!(store.beat(at), [], "{at}");
    }
    assert_eq!(store.beat(17_600), [declared(PEER, 1)]);
}

#[test]
fn a_refused_connection_counts_if_the_beats_stand_still() {
    let mut store = Store::shared();
    assert_eq!(store.tenure.on_refusal(PEER, ms(2_000)), None, "it may beat at any moment");
    store.member(PEER).beats = 2;
    assert_eq!(store.beat(2_000), [], "it beats, so the address is wrong");
    // Seen at 2001.
    assert_eq!(store.tenure.on_refusal(PEER, ms(3_250)), None);
    assert_eq!(store.tenure.on_refusal(PEER, ms(3_251)), Some(declared(PEER, 2)));
    assert_eq!(store.tenure.on_refusal(OTHER, ms(3_251)), None, "unknown");
}

#[test]
fn a_refusal_is_remembered_for_the_next_reads() {
    let mut store = Store::shared();
    assert_eq!(store.tenure.on_refusal(PEER, ms(1_500)), None);
    assert_eq!(store.beat(2_000), []);
    assert_eq!(store.beat(3_000), [declared(PEER, 1)]);
}

#[test]
fn a_refusal_does_not_count_while_the_database_does_not_respond_or_if_switched_off() {
    let mut store = Store::shared();
    store.beat(2_000);
    assert_eq!(store.tenure.on_refusal(PEER, ms(4_502)), None, "no read for too long");
    store.tenure.on_failed_beat();
    assert_eq!(store.tenure.on_refusal(PEER, ms(2_500)), None);
    assert_eq!(store.beat(3_000), []);
    store.tenure.settings.is_fast = false;
    assert_eq!(store.tenure.on_refusal(PEER, ms(5_000)), None);
    assert_eq!(store.beat(5_000), []);
}

#[test]
fn a_new_host_gets_its_share_a_few_partitions_at_a_time() {
    let mut store = Store::new(hosts([ME]));
    assert_eq!(store.take(1_000).len(), 64);
    store.membership.hosts.push(member(PEER));
    let first = moved(&store.beat(2_000));
    assert_eq!(first.len(), 8);
    assert_eq!(store.beat(3_000), []);
    store.tenure.on_release(first[0], ms(3_100));
    store.own(first[0], None);
    store.tenure.on_keep(first[1], ms(3_200));
    store.member(PEER).beats += 1;
    let next = moved(&store.beat(4_000));
    assert_eq!(next.len(), 2);
    assert!(!next.contains(&first[1]), "it is tried again after the pause");
    store.tenure.on_release(next[0], ms(8_100));
    store.own(next[0], None);
    assert_eq!(moved(&store.beat(8_210)), [first[1]]);
}

#[test]
fn nothing_is_moved_to_a_home_that_has_never_beaten() {
    let mut store = Store::new(hosts([ME]));
    store.take(1_000);
    // Perhaps a row without a process.
    store.membership.hosts.push(Member { beats: 0, ..member(PEER) });
    assert_eq!(store.beat(2_000), []);
    store.member(PEER).beats = 1;
    assert_eq!(moved(&store.beat(3_000)).len(), 8);
}

#[test]
fn if_all_hosts_drain_they_have_the_partitions() {
    let mut store = Store::shared();
    store.member(ME).is_draining = true;
    store.member(PEER).is_draining = true;
    assert_eq!(store.beat(2_000), [], "each keeps its own");
    store.member(PEER).is_dead = true;
    let number = store.tenure.held_partitions().count();
    assert_eq!(store.take(3_000).len(), 64 - number, "no other host can take them");
}

#[test]
fn what_has_its_home_here_again_stays() {
    let mut store = Store::new(hosts([ME]));
    store.take(1_000);
    store.membership.hosts.push(member(PEER));
    let first = moved(&store.beat(2_000));
    store.member(PEER).is_dead = true;
    let stay: Vec<Order> = first.iter().map(|partition| Order::Stay(*partition)).collect();
    assert_eq!(store.beat(3_000), stay);
    assert_eq!(store.beat(4_000), [], "each is said once");
    store.tenure.on_release(first[0], ms(4_100));
    assert_eq!(store.tenure.held_partitions().count(), 63, "it was too late for this one");
    store.tenure.on_keep(first[1], ms(4_100));
    store.member(PEER).is_dead = false;
    assert_eq!(moved(&store.beat(5_000)).len(), 2, "six are not reported yet");
}

#[test]
fn hosts_that_drain_are_alone_or_read_older_formats_are_no_homes() {
    let mut store = Store::new(hosts([ME, PEER]));
    store.member(PEER).is_draining = true;
    assert_eq!(store.take(1_000).len(), 64);
    store.member(PEER).is_draining = false;
    store.member(PEER).url = None;
    assert_eq!(store.beat(2_000), []);
    store.member(PEER).url = Some("http://peer".to_owned());
    store.member(PEER).reads_format = 0;
    assert_eq!(store.beat(3_000), []);
    store.member(PEER).reads_format = 2;
    store.member(PEER).beats += 1;
    assert_eq!(moved(&store.beat(4_000)).len(), 8);
}

#[test]
fn free_partitions_are_claimed_by_hosts_that_run_the_active_generation() {
    let mut store = Store::new(hosts([ME, PEER]));
    store.membership.agreed.generation = Some(2);
    store.member(ME).deployed.generation = Some(1);
    assert_eq!(claimed(&store.beat(1_000)), [], "this host is behind");
    store.member(PEER).deployed.generation = Some(2);
    assert_eq!(claimed(&store.beat(2_000)), []);
    store.member(ME).deployed.generation = Some(2);
    store.member(PEER).deployed.generation = None;
    assert_eq!(claimed(&store.beat(3_000)).len(), 64, "the other one starts");
}

#[test]
fn a_host_that_is_behind_keeps_what_it_has_and_gets_no_more() {
    let mut store = Store::shared();
    let number = store.tenure.held_partitions().count();
    store.membership.agreed.generation = Some(2);
    store.member(PEER).deployed.generation = Some(2);
    assert_eq!(store.beat(2_000), [], "it is about to follow");
    store.member(ME).deployed.trouble = Some("a secret has no value".to_owned());
    assert_eq!(moved(&store.beat(3_000)).len(), number.min(8), "it cannot follow");
    let mut store = Store::shared();
    store.membership.agreed.generation = Some(2);
    for host in [ME, PEER] {
        store.member(host).deployed.trouble = Some("a module was refused".to_owned());
    }
    assert_eq!(store.beat(2_000), [], "no host can");
    store.member(ME).deployed = DeploymentStatus { generation: Some(2), trouble: None };
    store.own(store.membership.partitions[0].partition, None);
    assert!(!claimed(&store.beat(3_000)).is_empty());
}

#[test]
fn nothing_moves_to_a_host_that_is_behind() {
    let mut store = Store::new(hosts([ME, PEER]));
    store.member(PEER).is_draining = true;
    store.take(1_000);
    store.membership.agreed.generation = Some(2);
    store.member(ME).deployed.generation = Some(2);
    store.member(PEER).is_draining = false;
    store.member(PEER).beats += 1;
    assert_eq!(store.beat(9_000), []);
    store.member(PEER).deployed.generation = Some(2);
    store.member(PEER).beats += 1;
    assert_eq!(moved(&store.beat(10_000)).len(), 8);
}

#[test]
fn a_draining_host_gives_everything_away_if_there_is_another() {
    let mut store = Store::shared();
    let number = store.tenure.held_partitions().count();
    store.member(ME).is_draining = true;
    assert_eq!(moved(&store.beat(2_000)).len(), number.min(8));
    let mut store = Store::shared();
    store.member(ME).is_draining = true;
    store.member(PEER).is_draining = true;
    assert_eq!(store.beat(2_000), [], "nothing moves if all drain");
}

#[test]
fn a_process_that_was_declared_dead_enters_again_with_nothing() {
    let mut store = Store::shared();
    assert_eq!(store.tenure.on_death(), [Order::Rejoin]);
    assert_eq!(store.tenure.trusted_until(), None);
    assert_eq!(store.tenure.held_partitions().count(), 0);
    assert_eq!(store.beat(2_000), [Order::Rejoin], "nothing else until then");
    store.tenure.on_rejoin(OTHER);
    store.member(ME).is_dead = true;
    store.membership.hosts.push(member(OTHER));
    assert_eq!(store.tenure.trusted_until(), None);
    assert!(!claimed(&store.beat(3_000)).is_empty());
    assert_eq!(store.tenure.trusted_until(), Some(ms(7_500)));
}

#[test]
fn a_membership_in_which_this_process_is_dead_extends_no_lease() {
    let mut store = Store::shared();
    store.member(ME).is_dead = true;
    assert_eq!(store.beat(2_000), [Order::Rejoin]);
    assert_eq!(store.tenure.trusted_until(), None);
}
