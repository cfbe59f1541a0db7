"""A stand-in for Lustre's lctl that keeps state in a file and takes only what the manual allows.

    lctl_standin.py STATE get_param -n PARAMETER
    lctl_standin.py STATE set_param PARAMETER=VALUE ...

STATE is a JSON file: policies, rules (in matching order), jobs, partitions, and what to do wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9_]{1,15}")
START = re.compile(r"start (\S+) jobid=\{([^{}]+)\} rate=(\d+)(?: rank=(\S+))?")
CHANGE = re.compile(r"change (\S+)(?: rate=(\d+))?(?: rank=(\S+))?")
STOP = re.compile(r"stop (\S+)")


class Refused(Exception):
    pass


POLICIES = ("fifo", "crrn", "orr", "trr", "tbf", "delay")


def new_state(partitions=2, version="2.15.5"):
    return {
        "version": version,
        "policies": ["fifo"],
        "rules": [{"name": "default", "condition": "*", "rate": 10000}],
        "jobs": {},
        "partitions": partitions,
        "fail": "",
        "log": [],
    }


def get(state, parameter):
    if parameter == "cpu_partition_table":
        return "".join(f"{n}\t: {2 * n} {2 * n + 1}\n" for n in range(state["partitions"]))
    if parameter == "version":
        return f"lustre: {state['version']}\n"
    if parameter.endswith("job_stats"):
        return state["raw"] if "raw" in state else job_stats(state["jobs"])
    if parameter.endswith("nrs_tbf_rule"):
        return rules(state)
    if parameter.endswith("nrs_policies"):
        return policies(state)
    raise Refused(f"param_path '{parameter}': No such file or directory")


def job_stats(jobs):
    lines = ["job_stats:"]
    for job, (reads, writes) in jobs.items():
        lines += [
            f"- job_id:          {job}",
            "  snapshot_time:   1322494602.123456789 secs.nsecs",
            "  start_time:      1322494500.000000000 secs.nsecs",
            "  elapsed_time:    102.123456789 secs.nsecs",
            field("read_bytes", reads, "bytes"),
            field("write_bytes", writes, "bytes"),
            field("read", reads * 7, "usecs"),
            field("write", writes * 7, "usecs"),
            "  getattr:         { samples:           0, unit:  usecs }",
        ]
    return "\n".join(lines) + "\n"


def field(name, samples, unit):
    if not samples:
        return f"  {name}:      {{ samples:           0, unit: {unit}, min:  0, max:  0, sum: 0, sumsq: 0 }}"
    size = samples * 1048576
    return (
        f"  {name}:      {{ samples: {samples:11d}, unit: {unit}, min: 1048576, max: 1048576, "
        f"sum: {size}, sumsq: {size * 1048576}, hist: {{ 1M: {samples} }} }}"
    )


def rules(state):
    if state["policies"][0] not in ("tbf jobid", "tbf"):
        raise Refused("nrs_tbf_rule: No such device")
    lines = []
    for section in ("regular_requests", "high_priority_requests"):
        lines.append(f"{section}:")
        for number in range(state["partitions"]):
            lines.append(f"CPT {number}:")
            shown = state["rules"] if section == "regular_requests" else state["rules"][-1:]
            lines += [f"{rule['name']} {{{rule['condition']}}} {rule['rate']}, ref 0" for rule in shown]
    return "\n".join(lines) + "\n"


def policies(state):
    """As servers print it: the fallback is started beside whatever else is, and an argument is part of the
    name."""
    [running] = state["policies"]
    lines = []
    for name in POLICIES:
        shown = running if running.split()[0] == name else name
        started = name == "fifo" or shown == running
        lines += [
            f"  - name: {shown}",
            f"    state: {'started' if started else 'stopped'}",
            f"    fallback: {'yes' if name == 'fifo' else 'no'}",
            "    queued: 0                   ",
            "    active: 0                   ",
            "",
        ]
    body = "\n".join(lines)
    return f"\nregular_requests:\n{body}\nhigh_priority_requests:\n{body}"


def is_limited(state, rate):
    old = tuple(map(int, state["version"].split(".")[:2])) < (2, 15)
    return 0 < int(rate) < (65_535 if old else 1_000_000)


def set_(state, parameter, value):
    state["log"].append(value)
    if parameter.endswith("nrs_policies"):
        state["policies"] = [value]
        return
    if not parameter.endswith("nrs_tbf_rule"):
        raise Refused(f"param_path '{parameter}': No such file or directory")
    if state["policies"][0] not in ("tbf jobid", "tbf"):
        raise Refused("nrs_tbf_rule: No such device")
    if len(value) > 4095:
        raise Refused("Argument list too long")
    apply_rule(state, value)


def apply_rule(state, value):
    order = {rule["name"]: rule for rule in state["rules"]}
    if match := START.fullmatch(value):
        name, job, rate, rank = match.groups()
        if not NAME.fullmatch(name) or not is_limited(state, rate):
            raise Refused("Invalid argument")
        if name in order:
            raise Refused("File exists")
        put(state, {"name": name, "condition": job, "rate": int(rate)}, rank)
    elif match := CHANGE.fullmatch(value):
        name, rate, rank = match.groups()
        if name not in order:
            raise Refused("No such file or directory")
        if rate is not None and not is_limited(state, rate):
            raise Refused("Invalid argument")
        rule = order[name] | ({"rate": int(rate)} if rate else {})
        if rank is None:
            state["rules"][state["rules"].index(order[name])] = rule
        else:
            state["rules"].remove(order[name])
            put(state, rule, rank)
    elif match := STOP.fullmatch(value):
        if match[1] not in order or match[1] == "default":
            raise Refused("No such file or directory")
        state["rules"].remove(order[match[1]])
    else:
        raise Refused("Invalid argument")


def put(state, rule, rank):
    """At the head, or in front of the rule named by `rank`."""
    if rank is None:
        state["rules"].insert(0, rule)
        return
    names = [each["name"] for each in state["rules"]]
    if rank not in names:
        raise Refused("No such file or directory")
    state["rules"].insert(names.index(rank), rule)


def main():
    path = Path(sys.argv[1])
    state = json.loads(path.read_text())
    command, *arguments = sys.argv[2:]
    code = 0
    if state["fail"] and state["fail"] in " ".join(sys.argv[2:]):
        print("error: lctl: Input/output error", file=sys.stderr)
        return 5
    for argument in arguments:
        if argument == "-n":
            continue
        try:
            if command == "get_param":
                print(get(state, argument), end="")
            else:
                set_(state, *argument.split("=", 1))
        except Refused as error:
            print(f"error: {command}: setting {argument[:60]}: {error}", file=sys.stderr)
            code = 22
    if command == "set_param":
        path.write_text(json.dumps(state))
    return code


if __name__ == "__main__":
    sys.exit(main())
