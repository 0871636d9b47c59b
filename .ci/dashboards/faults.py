"""Runs the daemon under the faults of guest-fixtures/faults while a real Prometheus scrapes
it, and says whether metrics, alerts and queries tell of them. The last part of
.ci/check-dashboards, which says how to call it."""

import argparse
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Why something is not provoked by a daemon that is alone.
CLUSTER = "clusters.py provokes it, with hosts on PostgreSQL"

# No healthy host has these. Their unit tests in rules.test.yml prove that they fire and clear.
ALERTS_NOT_PROVOKED = {
    "EpochTickerDead": "the thread would have to die, or to be kept off every core for seconds",
    "HandlerKillsOverdue": "no guest that is known outlives its deadline by a second",
    "StoresLeaked": "there is no leak to be had",
    "JournalCommitsUnknown": CLUSTER,
    "JournalRecordsLost": "the journal is a file; .ci/check-postgres causes what they count",
    "ClusterPartitionsUnserved": CLUSTER,
    "ClusterLeaseExpired": CLUSTER,
    "ClusterHostDeclaredDead": CLUSTER,
    "ClusterTakeoversSlow": CLUSTER,
    "ClusterOutcomesUnknown": CLUSTER,
    "BlockingCallsLinger": "the daemon has no blocking host functions; those of embedders are",
}

# The metrics that stay at zero here, and why. All others must change.
METRICS_NOT_PROVOKED = {
    "handler_recordings_refused_total": "takes more recordings at once than fit into memory",
    "metric_observations_folded_total": "a host of so few names folds nothing, or it is a fault",
    "journal_unknown_commits_total": CLUSTER,
    "journal_lost_records_total": "the journal is a file; .ci/check-postgres causes them",
    "host_call_parked_seconds": CLUSTER,
    "cluster_hosts": CLUSTER,
    "cluster_partitions": CLUSTER,
    "cluster_partitions_unserved": CLUSTER,
    "cluster_lease_remaining_seconds": CLUSTER,
    "cluster_claims_total": CLUSTER,
    "cluster_takeover_seconds": CLUSTER,
    "cluster_move_seconds": CLUSTER,
    "cluster_hosts_declared_dead_total": CLUSTER,
    "cluster_rejoins_total": CLUSTER,
    "cluster_forwards_total": CLUSTER,
    "cluster_forward_seconds": CLUSTER,
    "cluster_request_failures_total": CLUSTER,
    "openwop_readers": "the daemon serves no workflows",
    "openwop_readers_dropped_total": "the daemon serves no workflows",
    "openwop_requests_refused_total": "the daemon serves no workflows",
    "cancels_refused_total": "the daemon has no keys, so everybody may cancel",
}

# On a machine that is busy with other work, these alerts fire, and correctly so: they need not be silent
# before the faults, and clear when nothing runs any more.
ALERTS_OF_THE_MACHINE = {"EpochTickerLate", "HandlerKillsSlow"}

CONTRACT = [
    "handler_deadline_remaining_ms",
    "handler_deadline_exceeded_total",
    "wasm_epoch_tick_interval_ms",
    "handler_kill_latency_ms",
]

# The real rules look back over minutes and wait for minutes. These are the same rules with short
# windows and waits; rules.test.yml tests the real ones.
WINDOW, WAIT = "15s", "2s"


class Servers(http.server.BaseHTTPRequestHandler):
    """The server that handlers call: /quick responds at once, /slow/MS later, and /silent never."""

    protocol_version = "HTTP/1.1"
    over = threading.Event()

    def do_GET(self):
        _, kind, *more = self.path.split("/")
        if kind == "silent":
            self.over.wait()
            return
        if kind == "slow":
            self.over.wait(int(more[0]) / 1000)
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            pass  # A handler that was killed has gone away.

    def log_message(self, *_):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Servers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def answers(url):
    try:
        return get(url) and True
    except urllib.error.URLError:
        return False


def eventually(what, holds, seconds=30):
    """Calls a function until its result is true, and returns that result."""
    until = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > until:
            sys.exit(f"gave up waiting until {what}")
        time.sleep(0.1)


def listening(process_log, pattern):
    """The address that a process writes into its log when it listens."""

    def address():
        found = re.search(pattern, process_log.read_text())
        return found and found.group(1)

    return eventually(f"{process_log.name} tells its address", address)


class Load:
    """Sends actions to entities that are new each time."""

    def __init__(self, daemon, servers):
        self.daemon, self.servers, self.sent = daemon, servers, 0
        self.lock = threading.Lock()
        self.agents = []

    def post(self, path, body, of="entities"):
        request = urllib.request.Request(
            f"{self.daemon}/v1/{of}/{path}",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as refused:
            return refused.code
        except (urllib.error.URLError, OSError):
            return 0  # It is paused; what comes of it, the metrics say.

    def send(self, entity_type, *actions, tool="fetch", url="/quick"):
        with self.lock:
            self.sent += 1
            entity = f"{entity_type}/{self.sent}"
            if entity_type == "Agent":
                self.agents.append(entity)
        self.post(entity, {})
        params = {"tool": tool, "url": self.servers + url}
        return [self.post(f"{entity}/actions/{action}", {"params": params}) for action in actions]

    def prepare(self):
        """Creates an entity before the faults begin, so that its action is what fails."""
        self.post("Session/prepared", {})

    def refused(self):
        return self.post("Session/prepared/actions/Call", {"params": {}}) == 503

    def healthy(self):
        for _ in range(5):
            self.send("Session", "Call")

    def faults(self):
        for _ in range(3):
            self.send("Session", "Call", url="/silent")
            self.send("Session", "Call", tool="compute")
            self.send("Report", "Build", url="/slow/4650")
        self.send("Session", "Call", "Leave", url="/slow/200")
        self.send("Session", "Wait")
        self.send("Report", "Hurry", url="/silent")
        self.send("Note", "Take")
        self.send("Note", "Tell")
        self.send("Note", "Repeat")
        self.send("Agent", "Call", url="/silent")
        if len(self.agents) < 3:
            self.send("Agent")

    def resume(self):
        """Resumes the sessions that wait for it, without a time limit."""
        for agent in self.agents:
            self.post(f"{agent}/resume", {"limits": {"run_timeout": 0}}, of="sessions")


class Prometheus:
    def __init__(self, address):
        self.address = address

    def query(self, expression):
        query = urllib.parse.urlencode({"query": expression})
        answer = json.loads(get(f"{self.address}/api/v1/query?{query}"))
        return answer["data"]["result"]

    def firing(self):
        found = self.query('ALERTS{alertstate="firing"}')
        return {one["metric"]["alertname"] for one in found}

    def have_fired(self):
        found = self.query('count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[10m]))')
        return {one["metric"]["alertname"] for one in found}


def scaled(rules):
    rules = re.sub(r"\[\d+[mh]\]", f"[{WINDOW}]", rules)
    rules = re.sub(r"\bfor: \d+m", f"for: {WAIT}", rules)
    return rules.replace("interval: 30s", "interval: 1s")


def table():
    """The metrics of docs/metrics.md, which a test compares with the table: name and kind."""
    page = (ROOT / "docs/metrics.md").read_text()
    return re.findall(r"^\| `temper_(\w+)`(?: ★)? \| (\w+) \|", page, re.MULTILINE)


def described(scrape):
    types = dict(re.findall(r"^# TYPE temper_(\w+) (\w+)$", scrape, re.MULTILINE))
    helps = set(re.findall(r"^# HELP temper_(\w+) \S", scrape, re.MULTILINE))
    wrong = [name for name, kind in table() if types.get(name) != kind or name not in helps]
    wrong += [name for name in CONTRACT if name not in types]
    wrong += [name for name in types if name not in dict(table()) and not name.startswith("guest_")]
    if wrong:
        sys.exit(f"not described, or in no table, from the first scrape on: {wrong}")


def happened(scrape):
    """Fails if a metric was never reported: a histogram or counter that counted nothing,
    or a gauge that is absent."""
    missing = []
    for name, kind in table():
        suffix = "_count" if kind == "histogram" else ""
        samples = re.findall(rf"^temper_{name}{suffix}(?:{{.*}})? (\S+)$", scrape, re.MULTILINE)
        seen = bool(samples) if kind == "gauge" else sum(map(float, samples)) > 0
        if seen == (name in METRICS_NOT_PROVOKED):
            missing.append(name)
    if missing:
        sys.exit(f"never reported, or reported although it cannot be: {missing}")


class World:
    """The daemon on a separate small disk, and Prometheus."""

    def __init__(self, arguments):
        self.work, self.disk = arguments.work.resolve(), arguments.disk.resolve()
        self.processes = []
        said = self.work / "daemon"
        daemon = self.start(
            said,
            arguments.sandglass, "up", "--specs", ROOT / "guest-fixtures/faults",
            "--listen", "127.0.0.1:0", "--journal", self.disk / "runs.journal",
            "--compiled-cache", self.work / "compiled",
            # A collector of traces that cannot be reached.
            OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        )
        self.daemon, self.address = daemon, listening(said, r"listening on (http://\S+)")
        self.load = Load(self.address, serve())

    def start(self, said, *command, **variables):
        with said.open("w") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
            )
        self.processes.append(process)
        return process

    @property
    def targets(self):
        return [self.address.removeprefix("http://")]

    def watch(self):
        rules = self.work / "rules.yml"
        rules.write_text(scaled((ROOT / "dashboards/prometheus/rules.yml").read_text()))
        (self.work / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(rules)],
                    "scrape_configs": [
                        {"job_name": "sandglass", "static_configs": [{"targets": self.targets}]}
                    ],
                }
            )
        )
        said = self.work / "prometheus"
        self.start(
            said,
            "prometheus", f"--config.file={self.work}/prometheus.yml",
            f"--storage.tsdb.path={self.work}/data", "--web.listen-address=127.0.0.1:0",
        )
        found = listening(said, r'msg="Listening on".* address=([0-9.:]+)')
        prometheus = Prometheus(f"http://{found}")
        eventually("Prometheus is ready", lambda: answers(f"{prometheus.address}/-/ready"))
        scraped = "count_over_time(temper_handlers_in_flight[1m]) >= 2"
        eventually("two scrapes", lambda: prometheus.query(scraped))
        return prometheus

    def metrics(self):
        return get(f"{self.address}/metrics")

    def shows(self, line):
        return line in self.metrics().splitlines()

    def pause(self):
        """As a virtual machine that is paused, or a container without CPU: in the pauses nothing
        ticks, and what should have been killed in one is killed after it."""
        for _ in range(8):
            self.daemon.send_signal(signal.SIGSTOP)
            time.sleep(0.25)
            self.daemon.send_signal(signal.SIGCONT)
            time.sleep(0.03)

    def fill_disk(self):
        with (self.disk / "filler").open("ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass

    def stop(self):
        Servers.over.set()
        for process in self.processes:
            process.kill()
            process.wait()


class Repeating:
    """Repeats a function in a thread, until it is stopped."""

    def __init__(self, does, every):
        self.over = threading.Event()

        def run():
            while not self.over.wait(every):
                does()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def end(self):
        self.over.set()
        self.thread.join()


def alerts_of(rules):
    return set(re.findall(r"^ *- alert: (\w+)$", rules, re.MULTILINE))


def check(arguments, world):
    described(world.metrics())
    print("  SUCCESS: all metrics are described before anything is dispatched")
    prometheus = world.watch()
    healthy = Repeating(world.load.healthy, 0.5)
    time.sleep(6)
    if alerts := prometheus.have_fired() - ALERTS_OF_THE_MACHINE:
        sys.exit(f"alerts of a healthy host: {alerts}")
    print("  SUCCESS: no alert of a healthy host")

    faults = Repeating(world.load.faults, 0.2)
    alerts_fire(world, prometheus)
    faults.end()
    # A session run that has just begun may still take too long.
    time.sleep(5)
    world.load.resume()
    eventually("alerts have cleared", lambda: prometheus.firing() <= ALERTS_OF_THE_MACHINE, 90)
    healthy.end()
    eventually("all alerts have cleared", lambda: not prometheus.firing(), 60)
    print("  SUCCESS: alerts fired and cleared; checked only by unit tests:")
    for alert, reason in ALERTS_NOT_PROVOKED.items():
        print(f"    {alert}: {reason}")

    scrape = world.metrics()
    (world.work / "scrape").write_text(scrape)
    happened(scrape)
    print(f"  SUCCESS: of {len(table())} metrics, all were reported except:")
    for metric, reason in METRICS_NOT_PROVOKED.items():
        print(f"    {metric}: {reason}")
    queries = arguments.queries.read_text().splitlines()
    answered(prometheus, [query for query in queries if not is_of_cluster(query)])
    if arguments.then:
        subprocess.run([*arguments.then.split(), world.address], check=True)


def alerts_fire(world, prometheus):
    """Makes every alert fire that can: besides the load's faults, with a paused machine and a
    full disk."""
    wanted = alerts_of((ROOT / "dashboards/prometheus/rules.yml").read_text())
    wanted -= set(ALERTS_NOT_PROVOKED)
    time.sleep(8)

    def machine_is_late():
        world.pause()
        return ALERTS_OF_THE_MACHINE <= prometheus.have_fired()

    eventually("pauses are told of", machine_is_late, 60)
    world.load.prepare()
    # Repeatedly, because SQLite sometimes frees space, and then accepts a few more records.
    filling = Repeating(world.fill_disk, 0.01)
    eventually("the journal takes nothing", lambda: world.shows("temper_journal_available 0"))
    eventually("JournalFailing fires", lambda: "JournalFailing" in prometheus.have_fired())
    eventually("a dispatch is refused", world.load.refused)
    filling.end()
    (world.disk / "filler").unlink()
    eventually("the journal works again", lambda: world.shows("temper_journal_available 1"))

    def missing():
        return sorted(wanted - prometheus.have_fired())

    try:
        eventually("all alerts have fired", lambda: not missing(), 60)
    except SystemExit:
        print(f"  never fired: {missing()}", file=sys.stderr)
        raise


def is_of_cluster(query):
    return "temper_cluster_" in query


def answered(prometheus, queries):
    """Fails if a query returns no figures."""
    answers = {query: prometheus.query(query) for query in queries}
    silent = [
        query for query, found in answers.items() if all(one["value"][1] == "NaN" for one in found)
    ]
    if silent:
        sys.exit("no figures:\n  " + "\n  ".join(silent))
    print(f"  SUCCESS: {len(queries)} queries return figures")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandglass", required=True, help="the binary")
    path = {"required": True, "type": pathlib.Path}
    parser.add_argument("--queries", **path, help="a file with a query a line")
    parser.add_argument("--disk", **path, help="a small file system to fill")
    parser.add_argument("--work", **path, help="an empty folder; `scrape` is left in it")
    parser.add_argument("--then", help="a command that is given the daemon's address at the end")
    arguments = parser.parse_args()
    world = World(arguments)
    try:
        check(arguments, world)
    except BaseException:
        for said in ("daemon", "prometheus"):
            log = world.work / said
            if log.exists():
                print(f"---- {said}\n" + "\n".join(log.read_text().splitlines()[-15:]), file=sys.stderr)
        raise
    finally:
        world.stop()


if __name__ == "__main__":
    main()
