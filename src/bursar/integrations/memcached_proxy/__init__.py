"""A proxy before memcached servers: any memcached client talks to it, tenants get what they may.

`commands` reads what clients send and `replies` what servers answer, without any I/O; `runs` is the quick
way through for plain requests. `routing` says which server has a key (`ketama`), `refusals` what a client is
told in place of an answer. `connection` joins a client and its `servers` and charges each request before it
goes on; `proxy` listens, `metrics` counts.
"""

from bursar.integrations.memcached_proxy.proxy import Proxy
from bursar.integrations.memcached_proxy.refusals import Refusals
from bursar.integrations.memcached_proxy.tenants import by_pattern, by_prefix

__all__ = ["Proxy", "Refusals", "by_pattern", "by_prefix"]
