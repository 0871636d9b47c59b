//! The database of a trial: a server, and for each daemon two proxies before it and a standby, by which
//! the daemon reaches them.

use std::ffi::OsString;
use std::time::Duration;

use sandglass_journal::{Entry, PAGE_MAX_ENTRIES};
use sandglass_liveness::Replay;
use sandglass_model::{Cursor, Partition, Record};
use sandglass_postgres::{Database, Settings};

use crate::place::Place;
use crate::proxy::{Flow, Proxy, wait};
use crate::random::Random;
use crate::server::{Server, block, until};

const DATABASE: &str = "trial";
/// The client backends of daemons.
const BACKENDS: &str =
    "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// What happens to the server, or on the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outage {
    /// All its processes are killed, and it is started again.
    Killed,
    /// Only its first process is killed.
    Beheaded,
    Restarted,
    /// All backends of the daemon are terminated.
    Terminated,
    /// All connections are cut, and new ones for a time.
    Cut,
    /// What one direction carries is lost, then all connections are cut.
    Lossy,
    Slow,
    /// Nothing arrives any more, and the connections stay.
    HalfOpen,
    /// The server is killed for ever, and a synchronous standby takes its place.
    Promoted,
}

pub(crate) const OUTAGES: [Outage; 9] = [
    Outage::Killed,
    Outage::Beheaded,
    Outage::Restarted,
    Outage::Terminated,
    Outage::Cut,
    Outage::Lossy,
    Outage::Slow,
    Outage::HalfOpen,
    Outage::Promoted,
];

pub(crate) struct Rig {
    pub(crate) server: Server,
    /// The way of each daemon.
    pub(crate) links: Vec<Link>,
}

/// The way of a daemon to the server.
pub(crate) struct Link {
    /// The first leads to the server. A new standby is behind the second.
    proxies: [Proxy; 2],
    pub(crate) url: String,
}

impl Link {
    fn to(server: &Server) -> Self {
        let proxies = [Proxy::of(server.port), Proxy::of(server.port)];
        let [one, other] = proxies.each_ref().map(|proxy| format!("127.0.0.1:{}", proxy.port));
        let url = format!("postgresql://sandglass@{one},{other}/{DATABASE}");
        Self { proxies, url }
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        self.proxies.iter().for_each(Proxy::cut);
    }

    /// Whether new connections are cut at once.
    pub(crate) fn close(&self, is_closed: bool) {
        self.proxies.iter().for_each(|proxy| proxy.close(is_closed));
    }

    pub(crate) fn set(&self, to_server: Flow, to_client: Flow) {
        self.proxies.iter().for_each(|proxy| proxy.set(to_server, to_client));
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::over(Server::start(&["wal_level = replica"]))
    }

    pub(crate) fn over(server: Server) -> Self {
        Self::with_links(server, 1)
    }

    /// With a way for each of so many daemons.
    pub(crate) fn with_links(server: Server, daemons: usize) -> Self {
        server.new_database(DATABASE);
        let links = (0..daemons).map(|_| Link::to(&server)).collect();
        Self { server, links }
    }

    /// The URL of the database without a proxy.
    pub(crate) fn url(&self) -> String {
        self.server.url(DATABASE)
    }

    /// Whether the server has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.server.has_ended()
    }

    /// Starts the server again if it has ended by itself.
    pub(crate) fn revive(&mut self) {
        self.server.revive();
    }

    /// Lets it happen, and end.
    pub(crate) fn suffer(&mut self, outage: Outage, random: &mut Random) {
        match outage {
            Outage::Killed => {
                self.server.kill_all();
                pause(random, 1500);
                self.server.resume();
            }
            Outage::Beheaded => {
                self.server.kill();
                self.server.resume();
            }
            Outage::Restarted => {
                self.server.stop();
                pause(random, 1500);
                self.server.resume();
            }
            Outage::Terminated => {
                self.server.psql(
                    "postgres",
                    &format!("SELECT count(pg_terminate_backend(pid)) {BACKENDS}"),
                );
            }
            Outage::Cut => {
                self.links.iter().for_each(|link| link.close(true));
                self.cut();
                pause(random, 1500);
                self.links.iter().for_each(|link| link.close(false));
            }
            Outage::Lossy => {
                let (to_server, to_client) = if random.below(2) == 0 {
                    (Flow::Lose, Flow::Pass)
                } else {
                    (Flow::Pass, Flow::Lose)
                };
                self.set(to_server, to_client);
                pause(random, 60);
                self.cut();
                self.set(Flow::Pass, Flow::Pass);
            }
            Outage::Slow => {
                let millis = u64::try_from(1 + random.below(60)).expect("it fits");
                let slow = Flow::Delay(Duration::from_millis(millis));
                self.set(slow, slow);
                block(wait(Duration::from_millis(millis * 30)));
                self.set(Flow::Pass, Flow::Pass);
            }
            Outage::HalfOpen => {
                self.set(Flow::Hold, Flow::Hold);
                pause(random, 7000);
                if random.below(2) == 0 {
                    self.cut();
                }
                self.set(Flow::Pass, Flow::Pass);
            }
            Outage::Promoted => self.promote(),
        }
    }

    fn cut(&self) {
        self.links.iter().for_each(Link::cut);
    }

    fn set(&self, to_server: Flow, to_client: Flow) {
        self.links.iter().for_each(|link| link.set(to_server, to_client));
    }

    /// Kills the server for ever, and lets a synchronous standby take its place.
    pub(crate) fn promote(&mut self) {
        let standby = Server::standby_of(&self.server, "standby");
        for link in &mut self.links {
            link.proxies.swap(0, 1);
            link.proxies[0].lead_to(standby.port);
        }
        self.wait_for_standby("standby");
        let state = "SELECT sync_state FROM pg_stat_replication";
        until(|| self.server.psql("postgres", state) == "sync");
        self.server.kill_all();
        standby.pg_ctl(&["promote", "-w"]);
        self.server = standby;
        // It has no standby that it could wait for.
        self.wait_for_standby("");
    }

    fn wait_for_standby(&self, name: &str) {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
        self.server.psql("postgres", &set);
        self.server.psql("postgres", "SELECT pg_reload_conf()");
        let shown = "SHOW synchronous_standby_names";
        until(|| self.server.psql("postgres", shown) == name);
    }
}

/// Waits for less than so many milliseconds.
fn pause(random: &mut Random, most: usize) {
    let millis = u64::try_from(random.below(most)).expect("it fits");
    block(wait(Duration::from_millis(millis)));
}

impl Place for Rig {
    fn option(&self) -> (&'static str, OsString) {
        ("--journal-env", "JOURNAL".into())
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![("JOURNAL", self.links[0].url.clone())]
    }

    fn journals(&self) -> usize {
        usize::from(Partition::COUNT)
    }

    fn read_behind(&self, after: &Cursor) -> (Vec<(usize, Record)>, bool) {
        let (address, after) = (self.server.address(DATABASE), after.clone());
        block(async move {
            let database = Database::open_read_only(&address, Settings::default()).await;
            let database = database.expect("the server works");
            let page = database.journals().read_behind(after, None, PAGE_MAX_ENTRIES).await;
            database.close().await;
            let page = page.expect("it can be read");
            let intact = |(journal, entry): (usize, Entry)| {
                (journal, entry.into_record().expect("it is intact"))
            };
            (page.entries.into_iter().map(intact).collect(), page.is_end)
        })
    }

    fn settle(&self) {
        let count = format!("SELECT count(*) {BACKENDS}");
        until(|| self.server.psql("postgres", &count) == "0");
    }

    fn replay(&self, records: &[(usize, Record)]) {
        let mut replays: Vec<Replay> =
            Partition::all().map(|partition| Replay::new().of_partition(partition)).collect();
        for (journal, record) in records {
            replays[*journal].feed(record);
        }
        for (journal, replay) in replays.into_iter().enumerate() {
            let divergences = replay.finish().divergences;
            assert!(divergences.is_empty(), "partition {journal}: {divergences:?}");
        }
    }
}
