"""The rooms: what every promise rests on, and the tests that stand beside it.

Kernels are left out: compiling each mutant takes longer than its tests. Of the tests, so are those that start
the server of a store, and the long campaigns of the simulator, which have commands of their own.
"""

from __future__ import annotations

from bursar_lab.mutation.trials import Room

SERVERS = "zookeeper or postgresql or etcd"
CAMPAIGNS = "seeds or caught or every_fault or these_runs or are_killed"


def _make_room(name: str, folder: str, sources: str, *tests: str) -> Room:
    """`folder` has the sources; `tests` are folders, each with the names of its files behind a colon."""
    files = []
    for each in tests:
        place, _, names = each.partition(": ")
        files += [f"tests/{place}/test_{name}.py" for name in names.split()]
    paths = tuple(f"src/bursar/{folder}/{each}.py" for each in sources.split())
    return Room(name, paths, tuple(files), f"{SERVERS} or {CAMPAIGNS}")


_ROOMS = (
    _make_room(
        "rates",
        "rates",
        "controller server views ledger allotment standing candidacy blocks zones dispatcher",
        "rates: controller_book server_book zone_book candidacy columns observation placement plan "
        "dispatcher rate_journal rate_rounds rate_tenants rate_resource rate_restart rate_changes blocks "
        "rate_lots rate_pacing rate_zones",
    ),
    _make_room(
        "shares",
        "shares",
        "book borrowing handout queues bursts gate served",
        "shares: target_book bursts gate served target share_lots share_resource borrowing",
    ),
    _make_room(
        "pools",
        "pools",
        "monitor_book engine_book accounts layout rounds capacity admission",
        "pools: monitor engine rounds shared_limits pool_lots pool_fleet pool_resource placing",
    ),
    _make_room(
        "quotas",
        "quotas",
        "book ledger balances round registry gathering replay entries keys settling lots growing blocks "
        "demand",
        "quotas: quota_round registry quota_ledger quota_budget quota_settling quota_templates quota_windows "
        "quota_history quota_keys quota_leaving quota_holds quota_lots quota_resource quota_adoption "
        "quota_changes",
    ),
    _make_room(
        "claims",
        "claims",
        "book instance_book queue lots ending granting counting takeover fences sweeping reservations",
        "claims: claim_book decider requirements queue parts durations keys outages sweeping verbs "
        "tries_and_counts waiting tasks dividing survival claim_operations acquisitions claim_resource "
        "claim_fleet counts",
        "integrations: guards",
    ),
    _make_room(
        "door",
        "resource",
        "door asking hand tickets lots far line clients client_lots sessions only grants several",
        "resources: ahead asking rows line excerpts more_names door",
        "rates: rate_lots",
        "quotas: quota_lots",
        "runtime: client",
        "resources: contract",
    ),
    _make_room("journal", "runtime", "journal session_record", "runtime: journal session_record state_files"),
    _make_room(
        "stores",
        "stores",
        "sqlite database writer draft memory tree credentials schema",
        "stores: memory sqlite schema",
    ),
)

ROOMS = {room.name: room for room in _ROOMS}
