"""A gateway with token budgets: what is reserved for the longest answer and not used goes back.

python examples/llm_gateway.py
"""

import asyncio
import tempfile

import bursar
from bursar.policy import parse

POLICY = """
[daemon]
state = "{state}"

[resource.llm]
kind = "quota"
unit = "tokens"

[resource.llm.tenant]
acme = {{ limit = 3_000 }}
"acme/search" = {{ limit = 1_000 }}
"""
LONGEST = 400


async def ask_model(prompt: str) -> tuple[str, int]:
    """Put your model here. This one repeats the prompt, and a word costs ten tokens."""
    await asyncio.sleep(0.01)
    return prompt.upper(), 10 * len(prompt.split())


async def complete(llm: bursar.Resource, tenant: str, prompt: str, request_id: str) -> tuple[str, int]:
    # The same request_id twice is one charge: a client may try again after a lost answer.
    async with llm.acquire(tenant, LONGEST, key=request_id, wait=1.0) as grant:
        answer, used = await ask_model(prompt)
        grant.settle(used)
        return answer, used


async def main() -> None:
    with tempfile.TemporaryDirectory() as state:
        async with await bursar.connect(parse(POLICY.format(state=state))) as b:
            llm = b.resource("llm")
            spent = 0
            for number in range(40):
                try:
                    _, used = await complete(llm, "acme/search", "how much is left", f"request-{number}")
                    spent += used
                except (bursar.Refused, bursar.Unknown) as no:
                    print(f"after {number} answers and {spent} tokens: {no}")
                    break
            answer, _ = await complete(llm, "acme", "the company itself has more", "another")
            print(answer)


if __name__ == "__main__":
    asyncio.run(main())
