"""Envoys as places of a rate, and as those who ask about each request.

`service` is what a daemon starts: one port for both of Envoy's protocols. For quotas (RLQS), `quotas` carries
reports and assignments, `ledger` and `accounts` are the book of what Envoys were told and what is owed for
it, `charging` takes it from the node's own door, `wire` reads and writes. For questions (RLS), `decisions`
answers from the door. `config` writes what Envoy needs to know, `importing` reads the rules of another
service.
"""
