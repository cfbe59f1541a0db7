"""The dashboard: what `statistics()` says, as pages.

`source` reads the figures of one or several nodes, `history` turns counters into rates, `charts`
and `alerts` are pure, `views` are the pages, `server` serves them on loopback. Nothing comes
from elsewhere: the pages work without a network.
"""
