"""YCSB's mixes and its distribution of records."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bursar.errors import UsageError
from bursar_lab.experiments.ycsb import EXPONENT, MIXES, SCAN_MAX, Workload, Zipfian

SEED = 3
DRAWS = 20_000


@pytest.mark.parametrize("letter", MIXES)
def test_operations_come_in_the_shares_of_the_workload(letter: str) -> None:
    workload = Workload(letter, random.Random(SEED), records=1_000)
    counts = Counter(workload.draw().operation for _ in range(DRAWS))
    assert set(counts) == {operation for operation, _ in MIXES[letter]}
    for operation, part in MIXES[letter]:
        assert counts[operation] / DRAWS == pytest.approx(part, abs=0.02)


def test_records_are_as_likely_as_the_zipfian_says() -> None:
    count = 1_000
    zipfian, chance = Zipfian(count), random.Random(SEED)
    drawn = Counter(zipfian.draw(chance) for _ in range(200_000))
    total = sum((k + 1) ** -EXPONENT for k in range(count))
    for rank in (0, 1, 9, 99):
        assert drawn[rank] / 200_000 == pytest.approx((rank + 1) ** -EXPONENT / total, rel=0.1)
    assert max(drawn) < count


def test_the_popular_records_are_scattered_and_all_of_them_exist() -> None:
    workload = Workload("C", random.Random(SEED), records=1_000)
    counts = Counter(workload.draw().record for _ in range(DRAWS))
    assert all(0 <= record < 1_000 for record in counts)
    popular = sorted(record for record, _ in counts.most_common(10))
    assert popular[-1] - popular[0] > 300, "side by side, they would be one place"
    assert len(counts) > 700


def test_workload_d_reads_the_latest_and_inserts_after_it() -> None:
    workload = Workload("D", random.Random(SEED), records=1_000)
    newest, near = 999, 0
    for _ in range(5_000):
        request = workload.draw()
        if request.operation == "insert":
            assert request.record == newest + 1
            newest += 1
        else:
            near += request.record > newest - 100
    assert workload.records == newest + 1
    assert near > 0.5 * 5_000


def test_workload_e_scans_up_to_a_hundred_records() -> None:
    workload = Workload("E", random.Random(SEED), records=1_000)
    scans = [request for request in (workload.draw() for _ in range(2_000)) if request.operation == "scan"]
    lengths = {len(request.keys) for request in scans}
    assert min(lengths) == 1 and max(lengths) == SCAN_MAX
    assert scans[0].keys[0] == scans[0].key


def test_values_have_the_size_of_a_record_and_keys_are_those_to_load() -> None:
    workload = Workload("A", random.Random(SEED), records=3, record_bytes=4096)
    assert len(workload.value()) == 4096
    assert workload.value() != workload.value()
    assert list(workload.keys()) == ["user0", "user1", "user2"]


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="there is A, B, C, D, E, F"):
        Workload("G", random.Random(SEED))
    with pytest.raises(UsageError, match="at least 1"):
        Zipfian(0)
