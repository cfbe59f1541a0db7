"""What a pool's data node and one client can do on this machine.

Real processes (`processes`) read records in shared memory as fast as they can (`client`), one alone
and several together; `measures` makes of it what a policy needs.
"""
