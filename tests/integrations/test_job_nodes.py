"""How many nodes a job runs on: asked of a scheduler, a file or a program; and jobs that end."""

from __future__ import annotations

import json
import sys

import pytest

from bursar.errors import BursarError, FormatError, PolicyError
from bursar.integrations.lustre import jobs
from bursar.integrations.lustre.jobs import JobNodes, read_lines, read_qstat
from bursar.policy import parse
from bursar.shares.book import FORGET_EVERY, IDLE_NS, TargetBook
from bursar.shares.handout import TenantTerms
from bursar.units import Rate
from bursar.world import MILLISECOND_NS

INTERVAL_NS = 100 * MILLISECOND_NS


def test_lines_are_a_job_and_its_nodes():
    assert read_lines("500 16\n# later\n\ndd with a space 2\n") == {"500": 16, "dd with a space": 2}


@pytest.mark.parametrize("bad", ["500", "500 0", "500 -1", "500 many", "500 2000000", "500 ²"])
def test_a_line_without_a_number_of_nodes_is_refused_with_its_number(bad):
    with pytest.raises(FormatError, match="line 2"):
        read_lines(f"1 1\n{bad}\n")


def test_qstat_says_which_run_and_on_how_many_nodes():
    text = json.dumps(
        {
            "Jobs": {
                "12.pbs": {"job_state": "R", "Resource_List": {"nodect": 4}},
                "13.pbs": {"job_state": "Q", "Resource_List": {"nodect": 9}},
            }
        }
    )
    assert read_qstat(text) == {"12": 4}
    for broken in ("no JSON", '{"Jobs": {"1": {"job_state": "R"}}}', "[]"):
        with pytest.raises(FormatError):
            read_qstat(broken)


async def test_a_file_and_a_command_are_asked_now_and_then_and_what_was_said_last_is_kept(tmp_path):
    path = tmp_path / "jobs"
    path.write_text("a 3\n")
    nodes = JobNodes(f"file://{path}")
    assert await nodes.look() == {"a": 3}
    path.write_text("a 4\n")
    assert await nodes.look() == {"a": 3}, "not in every interval"
    for _ in range(jobs.LOOK_INTERVALS - 1):
        await nodes.look()
    assert await nodes.look() == {"a": 4}
    path.unlink()
    for _ in range(jobs.LOOK_INTERVALS):
        await nodes.look()
    with pytest.raises(BursarError, match="cannot be read"):
        await nodes.look()
    assert nodes.known == {"a": 4}
    program = "import sys; print(sys.argv[1], 7)"
    path.write_text(program)
    assert await JobNodes(f"command:{sys.executable} {path} b").look() == {"b": 7}
    with pytest.raises(BursarError, match="cannot be run"):
        await JobNodes("command:/no/such/program").look()
    with pytest.raises(BursarError, match="failed"):
        await JobNodes(f"command:{sys.executable} -c exit(3)").look()


def test_a_job_has_its_weight_once_for_each_node():
    book = TargetBook({"*": TenantTerms(weight=2)}, Rate.of(1000), INTERVAL_NS)
    book.set_sizes({"large": 3})
    lines = book.close({"large": 500, "small": 500}).lines
    assert (lines["large"].weight, lines["large"].final, lines["small"].final) == (6, 75, 25)
    book.set_sizes({"large": 1, "small": 4})
    lines = book.close({"large": 500, "small": 500}).lines
    assert (lines["large"].initial, lines["small"].initial) == (20, 80)


def test_five_thousand_jobs_that_ended_leave_nothing_and_no_debt():
    book = TargetBook({"*": TenantTerms()}, Rate.of(1_000_000), INTERVAL_NS)
    for first in range(0, 5_000, 500):
        names = [f"job.{number}" for number in range(first, first + 500)]
        book.close_served({name: 50 + number for number, name in enumerate(names)}, INTERVAL_NS)
        book.close_served(dict.fromkeys(names[:9], 900) | {names[9]: 90_000}, INTERVAL_NS)
    assert len(book.tenants) > 500
    for _ in range(IDLE_NS // INTERVAL_NS + 2 * FORGET_EVERY):
        book.close_served({"stays": 100}, INTERVAL_NS)
    assert book.tenants == ("stays",) and book.records() == {"stays": 0}
    assert len(book._wants) == 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('job_nodes = "squeue"', "jobs have nodes"),
        ('enforce = "lustre"\njob_nodes = "sinfo"', "knows no jobs"),
        ('enforce = "lustre"\njob_nodes = "command: "', "knows no jobs"),
    ],
)
def test_what_knows_no_jobs_is_refused(lines, words):
    with pytest.raises(PolicyError, match=words):
        parse(f'[resource.oss]\nkind = "share"\ncapacity = "1k/s"\n{lines}\n')
