"""The simulator: the same books and couriers as in production, in a world made of seeded faults.

One seed is one history. `loop` is an asyncio event loop in virtual time, `simulation` makes a
world for each node out of `clock`, `network`, `store`, `disk` and `words`, `nemesis` breaks them
as the `faults` say, `scenario` says what a run consists of, `campaign` runs many seeds, and
`search` walks every order of events of a small world of books. docs/simulator.md shows how to
write a scenario and replay a seed.
"""
