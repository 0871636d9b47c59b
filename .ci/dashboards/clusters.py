"""Runs a cluster of three hosts on PostgreSQL through the faults of clusters, while a real Prometheus
scrapes the hosts, and checks that metrics, alerts and queries of clusters report them. A part of
.ci/check-dashboards, which says how to call it. Takes about a minute."""

import argparse
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import faults
from faults import CLUSTER, Load, Repeating, World, eventually, get

HOSTS = 3
TTL = 3

# Its handlers begin a host call every half second for 15 s, so that some are parked when the lease is over.
SPEC = """
[automaton]
name = "Caller"
states = ["Idle", "Calling", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Calling"]

[[action]]
name = "Call"
from = ["Idle"]
to = "Calling"
effect = ["trigger call"]

[[action]]
name = "Finish"
from = ["Calling"]
to = "Done"

[[integration]]
name = "call"
module = "caller"
deadline = "600s"
on_success = "Finish"
on_failure = "Finish"
on_timeout = "Finish"
on_interrupted = "Finish"
"""

MANIFEST = """name = "caller"
module = "caller.wat"
abi = "core"

[grants]
hosts = ["127.0.0.1:PORT"]
"""

GUEST = """(module
  (import "env" "host_http_call" (func $call
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 2)
  (data (i32.const 16) "{\\"action\\":\\"Finish\\",\\"success\\":true,\\"params\\":{}}")
  (data (i32.const 128) "GET")
  (data (i32.const 256) "URL")
  (func (export "run") (param i32 i32) (result i32)
    (local $number i32)
    (loop $again
      (local.set $number (i32.add (local.get $number) (i32.const 1)))
      (drop (call $call
        (i32.const 128) (i32.const 3) (i32.const 256) (i32.const LENGTH)
        (i32.const 0) (i32.const 0) (i32.const 4096) (i32.const 0)
        (i32.const 40960) (i32.const 4096)))
      (br_if $again (i32.lt_u (local.get $number) (i32.const CALLS))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Database:
    """A PostgreSQL server, which does not run as root."""

    def __init__(self, programs):
        self.programs, self.port = programs, free_port()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sandglass-clusters-"))
        self.user = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody")
            self.user = {"user": "nobody"}
        self.run("initdb", "--auth=trust", "--username=app", "--no-sync", self.data)
        (self.data / "postgresql.auto.conf").write_text(
            f"port = {self.port}\nlisten_addresses = '127.0.0.1'\n"
            f"unix_socket_directories = '{self.folder}'\nmax_connections = 60\n"
        )
        self.start()

    @property
    def data(self):
        return self.folder / "data"

    @property
    def url(self):
        return f"postgresql://app@127.0.0.1:{self.port}/postgres"

    def run(self, program, *arguments):
        command = [str(one) for one in (self.programs / program, *arguments)]
        log = self.folder / "said"
        with log.open("a") as said:
            if subprocess.run(command, stdout=said, stderr=said, cwd="/", **self.user).returncode:
                sys.exit(f"{program} failed: {log.read_text()[-2000:]}")

    def start(self):
        self.run("pg_ctl", "start", "-w", "-D", self.data, "-l", self.folder / "log")

    def stop(self):
        self.run("pg_ctl", "stop", "-m", "immediate", "-D", self.data)

    def session(self, sql):
        command = [self.programs / "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
                   "--set=ON_ERROR_STOP=1", "--command", sql, self.url]
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)

    def query(self, sql):
        out, _ = self.session(sql).communicate(timeout=30)
        return out.strip()

    def remove(self):
        subprocess.run(
            [str(self.programs / "pg_ctl"), "stop", "-m", "immediate", "-D", str(self.data)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", check=False, **self.user,
        )
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster(World):
    """Three hosts, and Prometheus."""

    def __init__(self, arguments, database):
        self.work, self.sandglass = arguments.work.resolve(), arguments.sandglass
        self.database, self.processes = database, []
        self.servers = faults.serve()
        self.write_specs()
        subprocess.run([self.sandglass, "journal", "create", database.url], check=True,
                       stdout=subprocess.DEVNULL)
        self.addresses = [f"http://127.0.0.1:{free_port()}" for _ in range(HOSTS)]
        self.hosts = [self.begin(number) for number in range(HOSTS)]
        for number in range(HOSTS):
            faults.listening(self.said(number), r"listening on (http://\S+)")
        self.load = Load(self.addresses[0], self.servers)
        eventually("each host owns partitions", lambda: min(self.owned()) >= 10)

    def write_specs(self):
        specs = self.work / "specs"
        specs.mkdir()
        url = f"{self.servers}/slow/500"
        guest = GUEST.replace("LENGTH", str(len(url))).replace("CALLS", "30").replace("URL", url)
        (specs / "caller.ioa.toml").write_text(SPEC)
        (specs / "caller.wat").write_text(guest)
        manifest = MANIFEST.replace("PORT", self.servers.rsplit(":", 1)[1])
        (specs / "integration.toml").write_text(manifest)
        (self.work / "sandglass.toml").write_text(f'[cluster]\nttl = "{TTL}s"\n')

    def said(self, number):
        return self.work / f"host-{number}"

    def begin(self, number):
        address = self.addresses[number]
        return self.start(
            self.said(number),
            self.sandglass, "up", "--specs", self.work / "specs",
            "--config", self.work / "sandglass.toml", "--listen", address.removeprefix("http://"),
            "--advertise", address, "--journal-env", "JOURNAL", JOURNAL=self.database.url,
        )

    @property
    def targets(self):
        return [address.removeprefix("http://") for address in self.addresses]

    def scrapes(self):
        return [get(f"{address}/metrics") for address in self.addresses]

    def owned(self):
        return [int(value) for scrape in self.scrapes()
                for value in re.findall(r"^temper_cluster_partitions (\d+)$", scrape, re.MULTILINE)]

    def calls(self, wait=""):
        """Begins a handler; if it is to wait, the request lasts until the handler has ended."""
        with self.load.lock:
            self.load.sent += 1
            entity = f"Caller/{self.load.sent}"
        self.load.post(entity, {})
        return self.load.post(f"{entity}/actions/Call{wait}", {"params": {}})


def alerts_fire(cluster, prometheus):
    """Makes every alert of clusters fire that can."""
    database, hosts = cluster.database, cluster.hosts

    def fired(alert):
        eventually(f"{alert} fires", lambda: alert in prometheus.have_fired(), 30)
        print(f"  {alert} fired", flush=True)

    for _ in range(12):
        cluster.calls()
    # Waits for replication, in which connections are cut: whether their records were written is unknown.
    for _ in range(5):
        database.query("ALTER SYSTEM SET synchronous_standby_names = 'none'")
        database.query("SELECT pg_reload_conf()")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        calls = [threading.Thread(target=cluster.calls, daemon=True) for _ in range(9)]
        [call.start() for call in calls]
        eventually("appends wait", lambda: int(database.query(waiting) or 0) >= HOSTS)
        database.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                       "WHERE wait_event = 'SyncRep'")
        database.query("ALTER SYSTEM RESET synchronous_standby_names")
        database.query("SELECT pg_reload_conf()")
        [call.join() for call in calls]
    fired("JournalCommitsUnknown")

    database.stop()
    fired("ClusterLeaseExpired")
    database.start()
    eventually("host calls were parked", lambda: cluster.reports("host_call_parked_seconds_count"))
    eventually("the leases are valid", lambda: not prometheus.query(
        "temper_cluster_lease_remaining_seconds == 0"))

    hosts[1].send_signal(signal.SIGSTOP)
    fired("ClusterHostDeclaredDead")
    hosts[1].send_signal(signal.SIGCONT)
    eventually("the host enters again", lambda: cluster.reports("cluster_rejoins_total"))
    eventually("each host owns partitions", lambda: min(cluster.owned()) >= 10)

    # Requests that wait at their owner when it is killed, and takeovers that cannot read the entities.
    waiting = [threading.Thread(target=cluster.calls, args=("?wait=settled&timeout=60s",), daemon=True)
               for _ in range(40)]
    [one.start() for one in waiting]
    in_flight = "sum(temper_handlers_in_flight)"
    eventually("handlers are in flight", lambda: float(
        prometheus.query(in_flight)[0]["value"][1]) >= 30)
    lock = database.session("BEGIN; LOCK TABLE sandglass.entities IN ACCESS EXCLUSIVE MODE; "
                            "SELECT pg_sleep(8); COMMIT")
    hosts[2].kill()
    for alert in ("ClusterOutcomesUnknown", "ClusterPartitionsUnserved"):
        fired(alert)
    lock.wait()
    fired("ClusterTakeoversSlow")
    hosts[2].wait()
    hosts[2] = cluster.begin(2)
    faults.listening(cluster.said(2), r"listening on (http://\S+)")
    eventually("each host owns partitions", lambda: min(cluster.owned()) >= 1)
    eventually("partitions move", lambda: cluster.reports("cluster_move_seconds_count"))


def happened(cluster):
    """Fails if a metric of clusters was reported by no host."""
    kinds = dict(faults.table())
    missing = []
    for name in (name for name, why in faults.METRICS_NOT_PROVOKED.items() if why == CLUSTER):
        suffix = "_count" if kinds[name] == "histogram" else ""
        if not (cluster.is_there(name) if kinds[name] == "gauge" else cluster.reports(name + suffix)):
            missing.append(name)
    if missing:
        sys.exit(f"no host has reported: {missing}")
    print("  SUCCESS: all metrics of clusters were reported")


def samples(scrapes, name):
    return [float(value) for scrape in scrapes
            for value in re.findall(rf"^temper_{name}(?:{{.*}})? (\S+)$", scrape, re.MULTILINE)]


def check(arguments, cluster):
    cluster.reports = lambda name: sum(samples(cluster.scrapes(), name)) > 0
    cluster.is_there = lambda name: bool(samples(cluster.scrapes(), name))
    prometheus = cluster.watch()
    reading = Repeating(lambda: [cluster.load.post(f"Caller/r{n}", {}) for n in range(8)], 0.5)
    time.sleep(5)
    # Each host took its partitions without a death.
    if alerts := prometheus.have_fired() - faults.ALERTS_OF_THE_MACHINE:
        sys.exit(f"alerts of a healthy cluster: {alerts}")
    print("  SUCCESS: no alert of a healthy cluster", flush=True)
    alerts_fire(cluster, prometheus)
    wanted = {alert for alert, why in faults.ALERTS_NOT_PROVOKED.items() if why == CLUSTER}
    if missing := wanted - prometheus.have_fired():
        sys.exit(f"never fired: {missing}")
    happened(cluster)
    queries = arguments.queries.read_text().splitlines()
    faults.answered(prometheus, [query for query in queries if faults.is_of_cluster(query)])
    eventually("alerts have cleared", lambda: not prometheus.firing() & wanted, 60)
    reading.end()
    print("  SUCCESS: alerts of clusters fired and cleared")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    path = {"required": True, "type": pathlib.Path}
    parser.add_argument("--sandglass", required=True, help="the binary")
    parser.add_argument("--postgres", **path, help="the folder of the programs of PostgreSQL")
    parser.add_argument("--queries", **path, help="a file with a query a line")
    parser.add_argument("--work", **path, help="an empty folder")
    arguments = parser.parse_args()
    database, cluster = Database(arguments.postgres), None
    try:
        cluster = Cluster(arguments, database)
        check(arguments, cluster)
    except BaseException:
        for log in sorted(arguments.work.glob("host-*")) + [arguments.work / "prometheus"]:
            if log.exists():
                print(f"---- {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]), file=sys.stderr)
        raise
    finally:
        if cluster:
            cluster.stop()
        database.remove()


if __name__ == "__main__":
    main()
