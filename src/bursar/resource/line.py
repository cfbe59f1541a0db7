"""A client's line to a daemon: sessions, numbers, and what is to be given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bursar.errors import (
    BursarError,
    DeniedError,
    NetworkError,
    NoAnswerError,
    Refused,
    RemoteError,
    Unknown,
    UnreachableError,
    UsageError,
)
from bursar.resource import wire
from bursar.world import MILLISECOND_NS, SECOND_NS, Message, World

RECONNECT_NS = 250 * MILLISECOND_NS
RETRY_NS = 20 * MILLISECOND_NS
ALIVE_NS = 2 * SECOND_NS
ASK_NS = 2 * SECOND_NS

HOME_NS = SECOND_NS
HOME_MAX_NS = 32 * SECOND_NS
HOME_ANSWER_NS = 250 * MILLISECOND_NS
"""How often a client that went on to another daemon tries its first one again, and how fast that must answer:
without this, clients pile up at the last daemon that did not die. One that was left again sooner than it is
tried is tried half as often, down to the least."""


class Line:
    """One client's line to a daemon, or to several of which one is asked at a time."""

    def __init__(
        self,
        world: World,
        peers: Sequence[str],
        token: str | None,
        *,
        learn: Callable[[Mapping[str, wire.Described]], None],
        recall: Callable[[int], None],
    ) -> None:
        """`learn` is told what the daemon has, `recall` that a lot must end now."""
        self.world = world
        self._learn = learn
        self._recall = recall
        self._peers = tuple(peers)
        self._at = 0
        self._left: set[str] = set()
        self._home_pause_ns = HOME_NS
        self._home_since = world.clock.now()
        self._token = token
        self._number = world.incarnation << 32  # never one of an earlier life under the same name
        self._back: dict[str, dict[int, int]] = {}
        self._told: list[wire.Told] = []
        self._untold: dict[tuple[str, str], wire.Settle | wire.Release] = {}
        self._serial = world.incarnation << 32
        self.away = False
        self.denied: str | None = None
        """Why the daemon does not take this client's token. Not to be taken for a daemon that is away, after
        which a client goes on by itself: not even when the answer to a wrong token is late."""

        self._returning = False
        self._holding = 0
        self._closed = False

    @property
    def peer(self) -> str:
        return self._peers[self._at]

    async def open(self, timeout_ns: int) -> None:
        """Learn what the daemon has. Raises DeniedError for a wrong token, NetworkError."""
        until = self.world.clock.now() + timeout_ns
        while True:
            left_ns = until - self.world.clock.now()
            try:
                await self._open_at(self.peer, max(left_ns, MILLISECOND_NS))
                break
            except NetworkError as error:
                # It may just be starting: its port is open before it has its resources.
                if left_ns <= 0 or (isinstance(error, UnreachableError) and self._at == len(self._peers) - 1):
                    raise
                self._move_on(self.peer)
                await self.world.clock.sleep(RETRY_NS)
        self.world.network.serve(wire.RECALL_TOPIC, wire.Recall, self._answer_recall, anyone=True)
        self.world.spawn(self._keep_alive(), "client.alive")
        if len(self._peers) > 1:
            self.world.spawn(self._keep_home(), "client.home")

    async def _open_at(self, peer: str, timeout_ns: int) -> None:
        try:
            reply = await self._call(peer, wire.Open(self._token), timeout_ns)
        except NoAnswerError:
            if self.denied is None:
                raise
            raise DeniedError(self.denied) from None
        error = read_error(reply)
        self.denied = str(error) if isinstance(error, DeniedError) else None
        if error is not None:
            raise error
        assert isinstance(reply, wire.Opened), "asked for"
        self._learn(reply.resources)

    async def _call(self, peer: str, message: Message, timeout_ns: int) -> Message:
        try:
            reply: Message = await self.world.network.call(
                peer, wire.TOPIC, message, wire.Replies, timeout_ns
            )
        except (UnreachableError, NoAnswerError):
            self.away = True
            raise
        self.away = False
        return reply

    def _move_on(self, peer: str) -> None:
        """This daemon does not answer: the next one is asked, if there is one."""
        if self._peers[self._at] == peer:
            self._leave(peer)
            self._at = (self._at + 1) % len(self._peers)

    def _leave(self, peer: str) -> None:
        """What is held there keeps its session."""
        if self._holding > 0:
            self._left.add(peer)
        if self._at == 0:
            soon = self.world.clock.now() - self._home_since < self._home_pause_ns
            self._home_pause_ns = min(2 * self._home_pause_ns, HOME_MAX_NS) if soon else HOME_NS

    async def _keep_home(self) -> None:
        """Go back to the first daemon once it answers again."""
        while not self._closed:
            await self.world.clock.sleep(self._home_pause_ns)
            if self._at and await self._is_back(self._peers[0]) and self._at:
                self._leave(self.peer)
                self._at, self._home_since = 0, self.world.clock.now()

    async def _is_back(self, peer: str) -> bool:
        # Another daemon answers meanwhile: neither this one's silence is news nor that it knows no token yet.
        denied = self.denied
        try:
            reply = await self.world.network.call(
                peer, wire.TOPIC, wire.Alive(), wire.Replies, HOME_ANSWER_NS
            )
            if isinstance(reply, wire.NotOpened):
                await self._open_at(peer, HOME_ANSWER_NS)
                return True
        except (NetworkError, DeniedError, Refused, Unknown, UsageError) as error:
            self.denied = denied
            self.world.trace("client.not_home", peer=peer, why=str(error)[:200])
            return False
        return isinstance(reply, wire.Done)

    async def call(self, message: Message, timeout_ns: int) -> tuple[str, Message]:
        """Ask the daemon, or the next one if nothing reached it; open a session where there is none."""
        for attempt in range(len(self._peers) + 1):
            peer = self.peer
            try:
                reply = await self._call(peer, message, timeout_ns)
                if not isinstance(reply, wire.NotOpened):
                    return peer, reply
                await self._open_at(peer, timeout_ns)
            except UnreachableError:
                self._move_on(peer)
                if attempt + 1 >= len(self._peers):
                    raise
            except NoAnswerError:
                self._move_on(peer)
                raise
        raise Unknown("the daemon does not take this client's token any more")

    async def ask(self, message: Message, timeout_ns: int = ASK_NS) -> Message:
        """Ask what is not an acquisition. Raises UsageError, Refused, Unknown, NetworkError."""
        _, reply = await self.call(message, timeout_ns)
        error = read_error(reply)
        if error is not None:
            raise error
        return reply

    def next_number(self) -> int:
        self._number += 1
        return self._number

    # -- giving back: soon, together with others, until the daemon has said that it knows

    def hold(self) -> None:
        """One more grant to be given back, or not to be had: until then the session lives."""
        self._holding += 1

    def let_go(self) -> None:
        self._holding -= 1

    def give_back(self, peer: str, number: int, unused: int) -> None:
        self.let_go()
        self._back.setdefault(peer, {})[number] = unused
        self._return_soon()

    def tell_later(self, message: wire.Settle | wire.Release) -> None:
        """The daemon did not answer: it is told again until it does."""
        self._untold[message.resource, message.id] = message
        self._return_soon()

    def tell(self, lot: int, granted: int, requests: int, unspent: int, refused: int, refusals: int) -> None:
        self._serial += 1
        self._told.append(wire.Told(self._serial, lot, granted, requests, unspent, refused, refusals))
        self._return_soon()

    def take_told(self) -> tuple[wire.Told, ...]:
        """What is to be told, to go with a message that is sent anyway."""
        told, self._told = tuple(self._told), []
        return told

    def put_told_back(self, told: Sequence[wire.Told]) -> None:
        """It may not have arrived."""
        self._told.extend(told)

    def _return_soon(self) -> None:
        if not self._returning and not self._closed:
            self._returning = True
            self.world.spawn(self._return_all(), "client.return")

    async def _return_all(self) -> None:
        try:
            await self.world.clock.sleep(0)
            while self._back or self._told or self._untold:
                if not await self._return_batch():
                    await self.world.clock.sleep(RECONNECT_NS)
        finally:
            self._returning = False

    async def _return_batch(self) -> bool:
        """Try to give back what there is; whether all of it went."""
        told = self.take_told()
        batches, self._back = self._back or {self.peer: {}}, {}
        done = True
        for peer, batch in batches.items():
            if not await self._return_once(peer, batch, told):
                self._back.setdefault(peer, {}).update(batch)
                self.put_told_back(told)
                done = False
            told = ()
        for key, message in list(self._untold.items()):
            if await self._tell_again(message):
                del self._untold[key]
            else:
                done = False
        return done

    async def _return_once(self, peer: str, batch: Mapping[int, int], told: tuple[wire.Told, ...]) -> bool:
        if not batch and not told:
            return True
        try:
            await self._call(peer, wire.GiveBack(tuple(batch.items()), told), SECOND_NS)
        except (UnreachableError, NoAnswerError):
            return False
        except RemoteError as error:
            # The daemon failed at it; it still holds them, and gives them to the kind when we leave.
            self.world.trace("client.return_failed", why=str(error), grants=len(batch))
        return True

    async def _tell_again(self, message: wire.Settle | wire.Release) -> bool:
        try:
            await self.ask(message)
        except (NetworkError, Unknown):
            # A daemon that fails at it may be going down: only one that decides has the last word.
            return False
        except (UsageError, Refused) as error:
            self.world.trace("client.not_told", id=message.id, why=str(error))
        return True

    async def flush(self) -> None:
        """Give back everything, for as long as the caller has patience."""
        self._return_soon()
        while self._returning:
            await self.world.clock.sleep(5 * MILLISECOND_NS)

    def close(self) -> None:
        self._closed = True

    async def _keep_alive(self) -> None:
        while not self._closed:
            await self.world.clock.sleep(ALIVE_NS)
            if self._holding > 0:
                try:
                    await self.call(wire.Alive(), SECOND_NS)
                except (NetworkError, UsageError, Unknown) as error:
                    self.world.trace("client.not_alive", why=str(error))
                self._tell_left()
            else:
                self._left.clear()

    def _tell_left(self) -> None:
        """Daemons that were left may hold what this client has not given back."""
        for peer in self._left - {self.peer}:
            self.world.network.send(peer, wire.TOPIC, wire.Alive())

    async def _answer_recall(self, sender: str, message: wire.Recall) -> wire.Recalled:
        self._recall(message.lot)
        told = next((each for each in self._told if each.lot == message.lot), None)
        self._told = [each for each in self._told if each is not told]
        return wire.Recalled(told)


def read_error(reply: Message) -> BursarError | None:
    match reply:
        case wire.Refusal():
            return Refused(
                reply.why,
                limit=reply.limit,
                remaining=reply.remaining,
                retry_after=reply.retry_after,
                reason=reply.reason,
            )
        case wire.Uncertain():
            return Unknown(reply.why, fallback=reply.fallback)
        case wire.Misused():
            return UsageError(reply.why)
        case wire.Denied():
            return DeniedError(reply.why)
    return None
