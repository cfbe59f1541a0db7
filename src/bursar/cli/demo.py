"""`bursar demo`: a lease between two nodes over real sockets, live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES, FAILED, INTERRUPTED
from bursar.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from bursar.leases.courier import HolderNode, OwnerNode
    from bursar.runtime.world import LiveWorld

TOTAL = 5_000
TOKENS = 100
DURATION_NS = 400_000_000
DRIFT_PPM = 1_000
STEP_S = 0.1
SPENT_A_STEP = 6
SECONDS_MAX = 3_600


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(demo)


def demo(
    seconds: Annotated[float, typer.Option(help="How long it runs.")] = 10.0,
    headless: Annotated[bool, typer.Option("--headless", help="Plain lines, no live view.")] = False,
) -> None:
    """Watch two nodes share tokens through leases.

    An owner has 5,000 tokens and leases 100 at a time to a holder, over a socket; the holder spends
    while its lease is live and gives the rest back. Tokens at the owner, at the holder
    and spent never exceed the total; what is missing is under way. Needs no server and no root.

    Example: bursar demo --seconds 5 --headless
    """
    import asyncio
    import tempfile
    from pathlib import Path

    from bursar.runtime.loops import new_event_loop

    if not 0 < seconds <= SECONDS_MAX:
        raise UsageError(f"--seconds is more than 0 and at most {SECONDS_MAX}, not {seconds:g}")
    with tempfile.TemporaryDirectory(prefix="bursar-demo-") as directory:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(_run(Path(directory), seconds, headless))
        except KeyboardInterrupt:
            typer.echo("stopped")
            raise typer.Exit(INTERRUPTED) from None


class Pair:
    """The two nodes and what the holder has spent."""

    def __init__(self, owner: OwnerNode, holder: HolderNode, worlds: list[LiveWorld]) -> None:
        self.owner = owner
        self.holder = holder
        self.worlds = worlds
        self.spent = 0

    def spend(self) -> None:
        for _ in range(SPENT_A_STEP):
            self.spent += self.holder.spend()

    def figures(self) -> dict[str, int | str]:
        owner, holder = self.owner.book.unspent, self.holder.book.unspent
        now = self.worlds[0].clock.now()
        user = "owner" if self.owner.book.uses(now) else "holder"
        return {
            "owner": owner,
            "holder": holder,
            "under way": TOTAL - owner - holder - self.spent,
            "spent": self.spent,
            "lease": self.holder.book.number,
            "uses the thing": user if user == "owner" or self.holder.book.uses(now) else "nobody",
        }

    async def close(self) -> None:
        for world in self.worlds:
            await world.close()


async def _open_pair(directory: Path) -> Pair:
    from bursar.leases.book import HolderBook, OwnerBook
    from bursar.leases.courier import HolderNode, OwnerNode
    from bursar.runtime.world import open_world

    first = await open_world("owner", state=directory / "owner", listen="127.0.0.1:0")
    second = await open_world("holder", state=directory / "holder", peers={"owner": str(first.listening)})
    owner = OwnerNode(first, OwnerBook(TOTAL, TOKENS, "holder", DURATION_NS, DRIFT_PPM))
    holder = HolderNode(second, HolderBook(second.incarnation, "owner", DURATION_NS))
    owner.start()
    holder.start()
    return Pair(owner, holder, [first, second])


async def _run(directory: Path, seconds: float, headless: bool) -> None:
    import asyncio

    from rich.live import Live

    pair = await _open_pair(directory)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    try:
        if headless:
            while loop.time() < end:
                await _step(pair)
                typer.echo("  ".join(f"{name} {value}" for name, value in pair.figures().items()))
        else:
            with Live(_draw(pair), refresh_per_second=10, transient=False) as live:
                while loop.time() < end:
                    await _step(pair)
                    live.update(_draw(pair))
        _conclude(pair)
    finally:
        await pair.close()


async def _step(pair: Pair) -> None:
    import asyncio

    await asyncio.sleep(STEP_S)
    pair.spend()


def _draw(pair: Pair) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    figures = pair.figures()
    table = Table(title=f"a lease: {TOTAL} tokens, {TOKENS} at a time", width=70)
    table.add_column("tokens")
    table.add_column("", justify="right")
    table.add_column("")
    for name in ("owner", "holder", "under way", "spent"):
        table.add_row(name, str(figures[name]), ProgressBar(total=TOTAL, completed=float(figures[name])))
    table.caption = f"lease {figures['lease']}; the thing is used by {figures['uses the thing']}"
    return table


def _conclude(pair: Pair) -> None:
    figures = pair.figures()
    known = sum(int(figures[name]) for name in ("owner", "holder", "spent"))
    typer.echo(
        f"{figures['spent']} spent in {figures['lease']} leases; {known} of {TOTAL} tokens accounted for"
    )
    if known > TOTAL:
        raise typer.Exit(FAILED)
