"""A storage target of bursar's own: a server process whose device is shared out by `share`.

Tenant processes connect to a Unix socket and read and write real files in pieces of up to 1 MiB.
The device is paced to a rate that is printed and is the target's capacity, so that shares and
totals mean something whatever disk is underneath; bytes are the tokens.

`protocol` has the bytes on the socket, `device` the paced files, `server` the process, `tenant`
the processes that load it. Start one with `python -m bursar_lab.storage`.
"""
