"""What the store says of names: read, and followed while somebody here waits for what others hold."""

from __future__ import annotations

from collections.abc import Iterable

from bursar.claims.instance_book import InstanceBook
from bursar.claims.limits import RETRY_NS
from bursar.claims.membership import Membership
from bursar.claims.reader import Reader
from bursar.claims.reservations import Reservations
from bursar.errors import FormatError, SessionExpiredError, StoreUnknownError

VIEWS_MAX = 200_000


class Names:
    """Invariant: a name for which somebody here waits, and which another instance's task holds or reserves,
    is followed by the node that changes when it is let go."""

    def __init__(self, member: Membership, book: InstanceBook, reader: Reader) -> None:
        self._member = member
        self._book = book
        self._reader = reader
        self._followed: dict[str, str] = {}
        self.reservations = Reservations(member, book, reader, self)

    def forget(self) -> None:
        self._followed.clear()
        self.reservations.forget()

    async def refresh(self, names: Iterable[str]) -> None:
        """Read names, and let the queue see what others did to them."""
        member, plans = self._member, self._book.plans
        if len(plans.views) > VIEWS_MAX:
            self._book.forget_unused_views()
        wanted, generation, doubted = list(names), member.generation, False
        while True:
            if not plans.is_floor_sure:
                found = await self._reader.read_floor()
                if generation != member.generation:
                    return
                plans.stand_on(found)
            floor = plans.floor
            views = await self._reader.read_names(wanted)
            if generation != member.generation:
                return
            if floor != plans.floor:
                continue  # names were removed meanwhile, and what was read is older than that
            if doubted or not any(self._book.is_older(name, view) for name, view in views.items()):
                break
            # A slow reader's, or the name was removed and begins anew: the floor tells which.
            doubted, plans.is_floor_sure = True, False
        for name, view in views.items():
            self._book.see(name, view)
        self.follow_again(views)
        self._book.changed.set()

    def follow_again(self, names: Iterable[str]) -> None:
        """It may be another node's to tell now."""
        for name in names:
            if name in self._followed and self._book.is_foreign(name):
                self._follow_from(self._telling_node(name), name)

    def follow_blockers(self) -> None:
        for name in self._book.queue.drain_touched():
            if self._book.is_foreign(name):
                self._follow_from(self._telling_node(name), name)

    def _follow_from(self, path: str, name: str) -> None:
        """Follow a name by this node, unless that is done already."""
        if self._followed.get(name) != path:
            self._followed[name] = path
            self._member.spawn(self._follow(name, path, self._member.generation), "follow")

    async def _follow(self, name: str, path: str, generation: int) -> None:
        """Read a name whenever this node changes, for as long as it is the one that tells of another's
        task for which somebody here waits."""
        member = self._member
        try:
            watch = await self._reader.repeat(lambda: member.world.store.watch(path))
            await self.refresh([name])
            await self.reservations.clear_stale(name, generation)
            while self._is_followed(name, path, generation):
                await watch.changed()
                await self.refresh([name])
            watch.close()
        except SessionExpiredError:
            member.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            member.problem = str(error)
            await member.world.clock.sleep(RETRY_NS)
        if generation == member.generation and self._followed.get(name) == path:
            del self._followed[name]
            if self._book.is_foreign(name):
                self._follow_from(self._telling_node(name), name)

    def _is_followed(self, name: str, path: str, generation: int) -> bool:
        wanted = generation == self._member.generation and self._followed.get(name) == path
        return wanted and self._book.is_foreign(name) and self._telling_node(name) == path

    def _telling_node(self, name: str) -> str:
        """The node that changes when those who hold the name let go."""
        place, layout = self._book.queue.places[name], self._member.layout
        in_shared = not place.owner and bool(place.sharers)
        return layout.sharers(name) if in_shared else layout.name(name)

    def check_reservations(self) -> None:
        """Of names that nobody holds, and that others have reserved: whether those are still there."""
        for name in list(self._followed):
            place = self._book.queue.places.get(name)
            if place is not None and place.reserved and not place.owner and not place.sharers:
                self._member.spawn(self.reservations.check(name, self._member.generation), "reserve")
