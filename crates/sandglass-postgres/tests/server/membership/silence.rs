//! Members of which one address or one row of the database does not respond.

use std::net::Ipv4Addr;
use std::time::Duration;

use sandglass_postgres::{Address, Database, Settings};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{beat, join, membership};
use crate::locks::{self, Lock};
use crate::proxy::wait;
use crate::server::{self, Server, block, spawn};

/// How long a beat may take here: less than an attempt to connect.
const BEAT_LIMIT: Duration = Duration::from_millis(500);

/// A port on which a connection is neither accepted nor refused, as at a machine that is lost.
struct Silent {
    port: u16,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Silent {
    fn new() -> Self {
        block(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let listener = socket.listen(1).unwrap();
            let address = listener.local_addr().unwrap();
            let mut queued = Vec::new();
            // Nothing is accepted, so further connections wait as soon as the queue is full.
            loop {
                tokio::select! {
                    stream = TcpStream::connect(address) => queued.push(stream.unwrap()),
                    () = wait(BEAT_LIMIT) => break,
                }
                assert!(queued.len() < 16, "the queue has no end");
            }
            Self { port: address.port(), _listener: listener, _queued: queued }
        })
    }

    /// A database whose first address is silent.
    fn before(&self, server: &Server, database: &str) -> Address {
        let (silent, port) = (self.port, server.port);
        let hosts = format!("127.0.0.1:{silent},127.0.0.1:{port}");
        Address::parse(&format!("postgresql://sandglass@{hosts}/{database}")).unwrap()
    }
}

/// Beats until one succeeds, and gives each up after [`BEAT_LIMIT`], as the cluster does. Returns how
/// many were sent.
fn beat_until_reached(member: &Database) -> usize {
    let member = member.clone();
    block(async move {
        for count in 1..=40 {
            tokio::select! {
                beaten = member.beat_as_member() => match beaten {
                    Ok(Some(_)) => return count,
                    other => println!("{other:?}"),
                },
                () = wait(BEAT_LIMIT) => {}
            }
        }
        panic!("no beat reached the database");
    })
}

#[test]
fn a_member_beats_although_the_first_address_is_silent() {
    let server = server::shared();
    server.new_database("silent_address");
    let silent = Silent::new();
    let member = join(&silent.before(server, "silent_address"));
    let beats = beat_until_reached(&member);
    assert!(beats > 1, "connecting takes longer than a beat may");
    // Its connection is lost, and made again in the same way.
    server.end_connections("silent_address");
    beat_until_reached(&member);
    let seen = membership(&join(&server.address("silent_address")));
    assert!(!seen.host(member.host()).unwrap().is_dead);
    block(async move { member.close().await });
}

#[test]
fn no_beat_waits_for_a_change_of_another_host() {
    let server = server::shared();
    let address = server.new_database("held_row");
    let (member, other) = (joined_with_long_limits(&address), join(&address));
    let host = other.host();
    let row = format!("SELECT FROM sandglass.hosts WHERE host = '{host}' FOR UPDATE");
    let lock = Lock::by(server, "held_row", &row);
    let draining = member.clone();
    let drained = spawn(async move { draining.set_draining(&host, true).await });
    locks::until_waiting(server, "held_row", 1);
    assert!(beat(&member).is_some());
    assert!(!drained.is_finished(), "it waits for the row");
    lock.release();
    assert_eq!(block(drained).unwrap(), Ok(true));
    // A declaration that its caller gave up has its effect as well.
    let lock = Lock::by(server, "held_row", &row);
    let (declaring, beats) = (member.clone(), membership(&member).host(host).unwrap().beats);
    block(async move {
        tokio::select! {
            declared = declaring.declare_dead(&host, beats) => panic!("{declared:?}"),
            () = wait(BEAT_LIMIT) => {}
        }
    });
    assert!(beat(&member).is_some());
    lock.release();
    server::until(|| membership(&member).host(host).unwrap().is_dead);
}

/// As [`join`], with limits that a slow machine does not reach.
fn joined_with_long_limits(address: &Address) -> Database {
    let limit = Duration::from_secs(30);
    let (address, settings) = (address.clone(), Settings::default().limits(limit, limit));
    block(async move { Database::join(&address, settings, "http://member.example:7070").await })
        .unwrap()
}
