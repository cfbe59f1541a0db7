"""What a run of the simulator can find, besides the errors of bursar itself."""

from __future__ import annotations

from bursar.errors import BursarError


class InvariantError(AssertionError):
    """Raised by a scenario's `check` or `audit`: something that must always hold does not."""


class EndlessError(BursarError):
    """Events went on and on without time passing."""


class RunFailedError(BursarError):
    """A run that found something: what, in which seed, when, and the history that led there."""

    def __init__(self, scenario: str, seed: int, at_ns: int, why: str, history: tuple[str, ...]) -> None:
        super().__init__(scenario, seed, at_ns, why, history)
        self.scenario = scenario
        self.seed = seed
        self.at_ns = at_ns
        self.why = why
        self.history = history

    @property
    def replay(self) -> str:
        """The command that shows the whole history of this failure."""
        return f"bursar sim {self.scenario} --seed {self.seed}"

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.scenario}, seed {self.seed}, at {self.at_ns / 1e9:.9f} s: {self.why}",
                f"replay: {self.replay}",
                *(f"  {line}" for line in self.history),
            ]
        )
