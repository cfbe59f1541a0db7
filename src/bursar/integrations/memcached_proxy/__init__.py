"""A proxy before a memcached server: any memcached client talks to it, tenants get what they may.

`commands` reads what clients send and `replies` what the server answers, without any I/O;
`connection` joins the two and charges each request before it goes on; `proxy` listens.
"""

from bursar.integrations.memcached_proxy.proxy import Proxy, by_prefix

__all__ = ["Proxy", "by_prefix"]
