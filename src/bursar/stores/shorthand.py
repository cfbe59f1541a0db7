"""Single changes as transactions of one operation, the same for every store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bursar.errors import NodeExistsError
from bursar.stores.bounds import check_path
from bursar.stores.draft import Result
from bursar.world import Create, Delete, Operation, Set, Stat


class Shorthand(ABC):
    """create, set, delete and ensure in terms of `transact` and `exists`."""

    @abstractmethod
    async def transact(self, operations: Sequence[Operation]) -> list[Result]: ...

    @abstractmethod
    async def exists(self, path: str) -> Stat | None: ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        (created,) = await self.transact([Create(path, data, ephemeral, sequential)])
        assert isinstance(created, str)
        return created

    async def set(self, path: str, data: bytes, version: int | None = None) -> Stat:
        (stat,) = await self.transact([Set(path, data, version)])
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int | None = None) -> None:
        await self.transact([Delete(path, version)])

    async def ensure(self, path: str) -> None:
        check_path(path)
        if await self.exists(path) is not None:
            return
        names = path[1:].split("/")
        for depth in range(1, len(names) + 1):
            await self._create_missing("/" + "/".join(names[:depth]))

    async def _create_missing(self, path: str) -> None:
        if await self.exists(path) is not None:
            return
        try:
            await self.create(path)
        except NodeExistsError:
            return  # another session was faster, which is as good
