"""When a node that does not lead should.

The store's leader node goes with its session, and that takes long (ten seconds at defaults). A leader that
is well says so to every node, with every beat; a candidate that heard it and then misses three beats takes
its place. That is safe at any time, because the state's epoch decides who leads; what is decided here is
only that it happens soon after a leader died, and hardly ever to one that is well:

- beats are counted by the candidate's own clock ringing, not by the time that has passed: a candidate that
  was stopped for a while has missed one, not twenty;
- after two, it asks everybody else whether they hear the leader. One that does is enough to leave it. One
  that answers at all, and does not, is needed to go on: a candidate that nobody answers is itself cut off,
  and waits for the session to end. Only where there is nobody else to ask does it decide alone;
- a leader whose connection is gone is most likely dead, and is missed at once: everybody is asked, the leader
  among them, and a tenth of a second is time enough to answer. All else is as above;
- a leader that was never heard here is not missed: two that cannot hear each other would depose each other
  for ever. One that led and was deposed soon is in no hurry to lead again: it misses twice as many beats
  each time, until things are calm.
"""

from __future__ import annotations

from collections.abc import Collection

from bursar.world import MILLISECOND_NS, SECOND_NS

BEAT_MAX_NS = SECOND_NS
"""Between two beats, at most: otherwise it is an interval."""

ASKED_AT = 2
MISSED_MAX = 3
"""Beats missed before others are asked, and before the leader's place is taken."""

SOON = 10
"""Whoever led for fewer beats than this was deposed soon."""

CALM = 50
"""Beats heard in a row after which a candidate is as quick as at first."""

CAUTION_MAX = 16

LOST_NS = 20 * MILLISECOND_NS
ANSWERS_NS = 80 * MILLISECOND_NS
"""After a connection is gone: until others have found out too and are asked, and then until they have
answered."""


class Candidacy:
    """What one candidate has heard. Nothing that safety rests on."""

    def __init__(self) -> None:
        self.epoch = 0
        self.leader = ""
        self._heard = False
        self._armed = False
        self._lost = False
        self._missed = 0
        self._in_a_row = 0
        self._caution = 1
        self._answers: list[bool] = []

    def hear(self, epoch: int, leader: str) -> None:
        """A beat of a leader."""
        if epoch < self.epoch:
            return
        self.epoch, self.leader = epoch, leader
        self._heard = self._armed = True
        self._lost = False
        self._missed = 0

    def answer(self, epoch: int) -> bool:
        """Another candidate misses the leader of that epoch: whether it is heard here."""
        heard = self._armed and not self._lost and self._missed < ASKED_AT
        return self.epoch > epoch or (self.epoch == epoch and heard)

    def hear_answer(self, epoch: int, heard: bool) -> None:
        if epoch == self.epoch:
            self._answers.append(heard)

    def lose(self, peer: str) -> bool:
        """The connection to a peer is gone. Whether that is the leader, and it is not heard otherwise."""
        self._lost |= self._armed and peer == self.leader
        return self._lost and peer == self.leader

    def miss(self) -> bool:
        """Others have found out too, if it is so. Whether they should be asked now, ahead of the beats."""
        if not self._lost or self._caution > 1:
            return False
        self._missed, self._answers = max(self._missed, self._patience), []
        return True

    def beat(self) -> bool:
        """The time of a beat has passed. Whether others should be asked now."""
        heard, self._heard = self._heard, False
        self._in_a_row = self._in_a_row + 1 if heard else 0
        if self._in_a_row >= CALM:
            self._caution = 1
        if heard or not self._armed:
            return False
        self._missed += 1
        if self._missed == self._patience - 1:
            self._answers = []
            return True
        return False

    @property
    def _patience(self) -> int:
        return MISSED_MAX * self._caution

    def should_lead(self, others: Collection[str]) -> bool:
        """`others` are the nodes that could have answered: all but this one and the leader."""
        if not self._armed or self._missed < self._patience:
            return False
        if any(self._answers):
            self._missed, self._lost = 0, False
            return False
        return bool(self._answers) or not others

    def lead(self) -> None:
        """This node takes the lead, or tries to."""
        self._armed, self._lost, self._missed = False, False, 0

    def deposed(self, beats: int) -> None:
        """It led for so many beats."""
        if beats < SOON:
            self._caution = min(2 * self._caution, CAUTION_MAX)
