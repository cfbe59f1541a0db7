"""A service whose tenants have a guaranteed rate. Try it:

python examples/fastapi_service.py 8000
curl -i -H 'x-tenant: acme' http://127.0.0.1:8000/items
"""

import sys

import uvicorn
from fastapi import FastAPI, Request

from bursar.integrations.asgi import BursarMiddleware, by_header
from bursar.policy import parse

POLICY = parse("""
[resource.api]
kind = "rate"
servers = { here = "500/s" }

[resource.api.tenant]
acme = { reservation = "200/s", limit = "300/s", weight = 2 }
globex = { limit = "20/s" }
""")

app = FastAPI()
app.add_middleware(
    BursarMiddleware,
    bursar=POLICY,  # or "policy.toml", or "bursar://127.0.0.1:7070" for a daemon that several services share
    resource="api",
    tenant=by_header("x-tenant"),
    wait=0.2,
    # With a daemon, also: when_away="allow" or "refuse"; required=True to start only with it.
)


@app.get("/items")
async def items(request: Request) -> dict[str, object]:
    return {"items": [1, 2, 3], "tenant": request.state.grant.tenant}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, log_level="warning")
