"""Lustre as the place where a share is enforced: job statistics in, TBF rules out.

One target for each OSS, because its rules hold for the whole OSS: `formats` reads and writes what
`lctl` speaks, `enforcer` fills in what the share's loop needs. A tenant is a job id; a token is an
RPC, as in the paper.

Lustre applies a rule's rate in each CPU partition of the OSS on its own (LU-17158), so a tenant's
rate is divided by their number; requests that crowd one partition get less than the whole.

No Lustre runs where this was developed: it is tested against the documented formats and a
stand-in `lctl` that keeps state. Try it on one OSS before you trust it with all of them. A policy that
somebody chose (crrn, "tbf nid") is not replaced; fifo is, and given back at the end. Rules left behind by a
bursar that was killed stay until the next start, which stops them, and gives fifo back when it ends.
"""
