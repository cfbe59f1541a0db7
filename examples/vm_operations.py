"""Operations on virtual machines: each needs its machine alone and its host with others, all at
once or not at all; and a fence keeps out an owner that was deposed and does not know it yet.

    python examples/vm_operations.py
"""

import asyncio
import tempfile

import bursar
from bursar.policy import parse

POLICY = """
[daemon]
state = "{state}"

[resource.datacentre]
kind = "claim"
"""


class Machine:
    """What is operated on. It remembers the highest fence, and refuses a lower one."""

    def __init__(self) -> None:
        self.fence = 0
        self.users = 0

    def write(self, what: str, fence: int) -> None:
        if fence < self.fence:
            raise PermissionError(f"{what}: fence {fence} is older than {self.fence}")
        self.fence = fence


async def operate(b: bursar.Bursar, machine: Machine, what: str) -> None:
    async with b.claim("vm-7:E", "host-1:S", tenant="ops", wait=30) as grant:
        machine.users += 1
        assert machine.users == 1, "nobody else is here"
        machine.write(what, grant.fence["vm-7"])
        await asyncio.sleep(0.05)
        machine.users -= 1
        print(f"{what}: done with fence {grant.fence['vm-7']}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as state:
        async with await bursar.connect(parse(POLICY.format(state=state))) as b:
            machine = Machine()
            await asyncio.gather(*(operate(b, machine, what) for what in ("resize", "snapshot", "migrate")))
            try:
                machine.write("a late write", fence=machine.fence - 1)
            except PermissionError as no:
                print(f"refused: {no}")


if __name__ == "__main__":
    asyncio.run(main())
