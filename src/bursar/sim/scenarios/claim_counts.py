"""Claims and tasks that need counted names, several at once, under every fault: see `claim.world` for what
must hold. The search tries every order of what two instances ask of the store."""

from __future__ import annotations

from bursar.policy.values import ClaimPolicy, Table
from bursar.sim.scenario import Boot
from bursar.sim.scenarios.claim.asking import CountedClaims
from bursar.sim.scenarios.claim.policies import ClaimPolicies
from bursar.sim.scenarios.claim.tries import Tries
from bursar.sim.scenarios.claim.world import ClaimScenario

COUNTED = Table({"gpu": 3, "port": 2})


class CountedPolicies(ClaimPolicies):
    def _read(self) -> ClaimPolicy:
        policy = super()._read()
        return ClaimPolicy(
            name=policy.name,
            dead_holder=policy.dead_holder,
            aging_ns=policy.aging_ns,
            attempts=policy.attempts,
            paths=policy.paths,
            counted=COUNTED,
        )


class CountedClaimScenario(ClaimScenario):
    """Every run has two counted names."""

    def nodes(self) -> dict[str, Boot]:
        found = dict(super().nodes())
        self.policies = CountedPolicies(self.sim.chance.stream("policy"))
        self.tries = Tries(self.policies.first.attempts, self.duration_ns)
        return found


SCENARIO = CountedClaimScenario
SMALL_WORLD = CountedClaims
