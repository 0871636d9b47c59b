"""What Datadog makes of dashboards/datadog: `models` reads the JSON as its API would, and
`names URL` runs the agent's own check against a live daemon and looks for each metric and
tag that a query asks for. Part of .ci/check-dashboards."""

import json
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "dashboards/datadog"


def overview():
    return json.loads((FOLDER / "handler-liveness-overview.json").read_text())


def monitors():
    return json.loads((FOLDER / "handler-liveness-monitors.json").read_text())


def odd(value, path):
    """The parts that the models reject: values of the wrong type, and unknown keys."""
    if getattr(value, "_unparsed", False):
        yield f"{path}: not as {type(value).__name__} wants it"
    if hasattr(value, "_data_store"):
        for key, inner in value._data_store.items():
            if key not in getattr(value, "openapi_types", {key}):
                yield f"{path}: {type(value).__name__} has no `{key}`"
            yield from odd(inner, f"{path}.{key}")
        # If several models are possible, the one that fits best.
        for inner in getattr(value, "_composed_instances", []):
            yield from odd(inner, path)
    elif isinstance(value, list):
        for nth, inner in enumerate(value):
            yield from odd(inner, f"{path}[{nth}]")


def models():
    from datadog_api_client import Configuration
    from datadog_api_client.model_utils import validate_and_convert_types
    from datadog_api_client.v1.model.dashboard import Dashboard
    from datadog_api_client.v1.model.monitor import Monitor

    def read(data, model):
        return validate_and_convert_types(data, (model,), ["data"], True, True, Configuration())

    found = list(odd(read(overview(), Dashboard), "dashboard"))
    for monitor in monitors():
        found += odd(read(monitor, Monitor), monitor["name"])
    # An unknown key must be detected; otherwise the check checks nothing.
    wrong = overview()
    wrong["widgets"][0]["definition"]["widgets"][1]["definition"]["requests"][0]["colour"] = "red"
    if not list(odd(read(wrong, Dashboard), "dashboard")):
        found.append("a wrong key deep in the dashboard is not noticed")
    if found:
        sys.exit("\n".join(found))
    print(f"  SUCCESS: a dashboard and {len(monitors())} monitors fit Datadog's models")


def asked():
    """Each metric of a query, with the tags by which it is filtered and grouped."""
    text = json.dumps([overview(), [monitor["query"] for monitor in monitors()]])
    pattern = r"temper\.([a-z0-9_.]+)\{([^}]*)\}(?: by \{([^}]*)\})?"
    for name, scope, groups in re.findall(pattern, text):
        chosen = [tag.lstrip("$").split(":")[0] for tag in scope.split(",") if tag != "*"]
        yield f"temper.{name}", set(chosen) | set(filter(None, groups.split(",")))


def names(url):
    import yaml
    from datadog_checks.base import OpenMetricsBaseCheckV2
    from datadog_checks.base.stubs import aggregator

    instances = yaml.safe_load((FOLDER / "openmetrics.yaml").read_text())["instances"]
    submitted = {}
    for instance in instances:
        instance["openmetrics_endpoint"] = f"{url}/metrics"
        check = OpenMetricsBaseCheckV2("openmetrics", {}, [instance])
        # Counters are submitted as differences, so two runs are needed.
        for _ in range(2):
            said = check.run()
            if said:
                sys.exit(f"the agent's check failed: {said}")
    for stubs in (aggregator._metrics, aggregator._histogram_buckets):
        for name, found in stubs.items():
            tags = submitted.setdefault(name, set())
            tags.update(tag.split(":")[0] for one in found for tag in one.tags)
    # The daemon is in no cluster.
    queried = [(name, tags) for name, tags in asked() if not name.startswith("temper.cluster_")]
    # The agent adds this tag to everything.
    from_agent = {"host"}
    wrong = [
        f"{name} by {sorted(tags)}: " + ("not submitted" if name not in submitted else "no such tag")
        for name, tags in queried
        if not tags <= submitted.get(name, set()) | from_agent or name not in submitted
    ]
    if wrong:
        sys.exit("\n".join(wrong))
    wanted = {name for name, _ in queried}
    print(f"  SUCCESS: the agent's check submits all {len(wanted)} metrics of the queries")


if __name__ == "__main__":
    if sys.argv[1:] == ["models"]:
        models()
    elif len(sys.argv) == 3 and sys.argv[1] == "names":
        names(sys.argv[2])
    else:
        sys.exit("usage: as_datadog.py models | names URL")
