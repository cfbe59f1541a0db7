"""The kernel's I/O controller as the place where a share is enforced: cgroup v1 blkio, v2 io.

Each tenant is a cgroup; bytes are the tokens. `groups` speaks both versions' files, `enforcer`
fills in what the share's loop needs, `discovery` finds the groups that templates cover, `found` remembers
the limits of others, `guard` is the small process that gives them back when bursar was killed, and
`opening` makes of a policy's resource an enforcer.

What to know first: cgroup v1 sees and holds back reads and direct writes only. Buffered writes are
done later by the kernel's own threads, in nobody's name: they pass unseen. (Version 2 charges
them to whoever wrote, where the file system supports it.)

A limit is written only when it changes by more than a few per cent: each write makes the kernel
begin its accounting anew, and done every interval it would disturb what it measures.
"""
