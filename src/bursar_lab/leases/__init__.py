"""A lease between two nodes: the smallest protocol that has everything the kinds have.

**The idea.** An *owner* has tokens, and one thing (a disk, a pump, a key) that one node at a time
may use. It leases both to a *holder*: some tokens, and the thing for `duration_ns`. The holder
spends tokens while its lease is live and gives the unspent ones back when it ends. While nothing
is leased the owner uses the thing itself.

**Why it is safe, whatever the network does.**

1. *A token is in one place at a time.* The owner writes the debit before it sends the lease, and
   repeats the lease until the tokens are back; the holder writes the credit and counts it only
   once it is durable; every lease has a number and is credited once. A return goes the same way.
2. *What is unknown counts as spent.* A holder that crashed does not know how much of its lease it
   had spent: it gives nothing back. No timeout ever returns tokens to the owner.
3. *One node uses the thing.* The holder counts the lease from the moment it *asked* and lets go
   `duration_ns` later, by its own clock. The owner counts from the granting, which is later, and
   waits `guarded_ns`: even if its clock is the fastest and the holder's the slowest that the drift
   bound allows, the holder has let go. A lease that arrives too late to be used still moves its
   tokens.

The invariants, checked after every event in the simulator and in every state of the search:

- tokens at the owner + tokens at the holder + spent never exceed the total;
- the owner and the holder never use the thing at the same true time;
- once everything was delivered, and no holder crashed, they equal the total.

`book.py` has the messages and the two books, `courier.py` the nodes that run them.
"""
