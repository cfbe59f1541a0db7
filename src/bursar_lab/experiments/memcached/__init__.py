"""The memcached proxy and the clients that people use: memccapable's tests, and suites of 200 operations.

conformance   what of libmemcached's `memccapable -a` passes through the proxy
libraries     pymemcache, aiomcache, pylibmc and meta-memcache behind one set of verbs
suites        two tenants of one program, of whom one is refused most of the time
standing      memcached and the proxy, as processes of their own
"""

from bursar_lab.experiments.memcached.conformance import conformance
from bursar_lab.experiments.memcached.suites import clients

__all__ = ["clients", "conformance"]
