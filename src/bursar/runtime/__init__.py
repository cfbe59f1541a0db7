"""The World that is real: clocks, sockets, files and shared memory; the daemon; the client.

- `clock`, `network` (with `frames`, `link`, `tls`), `journal`, `words`: the ports of `bursar.world`;
- `world`: one node with all its ports, and what happens when a part of it fails;
- `daemon`, `sessions`: serves a policy's resources to clients; `client`: what `bursar.connect` returns;
- `logs`, `metrics`, `kinds`: what operators see, and where a kind's code is found.
"""
