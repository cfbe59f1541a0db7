"""A store of fixed records to run a pool on, twice: one-sided and two-sided.

`store` keeps records of 4 KB in shared memory, which clients read and write by themselves; the
process that made it takes no part. `server` and `remote` are the same records behind a Unix socket,
where a process serves each request. `client` puts an engine in front of either.
"""
