"""The demo: five nodes in one process, real sockets between them, real load, and a story.

`cluster` opens the nodes, `load` is what asks them, `story` is what happens when; it tells only
what it measured. Nothing here is needed to use bursar.
"""
