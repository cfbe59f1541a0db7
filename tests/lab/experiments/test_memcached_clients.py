"""What `bursar experiment memcached-clients` does, with one way to be refused."""

from __future__ import annotations

import pytest

from bursar_lab.experiments.memcached.libraries import LIBRARIES
from bursar_lab.experiments.memcached.standing import stand
from bursar_lab.experiments.memcached.suites import MISS, run


@pytest.mark.needs("memcached")
def test_who_is_refused_disturbs_nobody_who_shares_its_client() -> None:
    modules = {"meta-memcache": "meta_memcache"}
    with stand(1, *MISS) as found:
        for name in LIBRARIES:
            pytest.importorskip(modules.get(name, name))
            told = run(name, found)
            assert (told["acme failed"], told["acme wrong"], told["guest wrong"]) == (0, 0, 0), name
            assert told["connections"] == 1 and told["guest refused"] > 0, name
