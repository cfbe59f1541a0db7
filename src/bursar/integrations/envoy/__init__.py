"""A rate limit quota service (RLQS) for fleets of Envoys.

Envoys are where demand appears, tenants are their quota buckets, and reservations and limits hold
over the whole fleet, by demand. `split` decides who gets what, `fleet` keeps the book of what is
in force, `server` carries it over gRPC, `config` writes what Envoy needs to know.
"""
