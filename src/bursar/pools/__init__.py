"""pool: reserved I/O where the server cannot see the requests (the Haechi paper).

**The idea.** Clients read and write the data node's memory themselves, so nothing at the node could
arbitrate. Instead each client has an *engine* that does no I/O without a token, and the node a
*monitor* that decides how many tokens there are. Time is divided into periods. At the start of one
each client gets its reservation in tokens, and the rest of the capacity is a common *pool*, from
which a client takes a batch by one fetch-and-add when its own are used up. All of it goes through a
few shared 64-bit words (`layout`): neither side ever waits for the other.

**The parts, and their place in the paper.**

- `engine_book`, `engine` (II-D): reserved tokens first, then the pool; limits; a residual that
  falls at R/T and gives up what demand does not claim; reports of one word.
- `monitor_book`, `monitor`, `accounts` (II-E): the dispatch that opens a period, the periodic check,
  reports asked for only once the pool was touched, unused reservations turned into pool tokens.
- `capacity` (II-E, algorithm 1): what the node can do, learnt from what it did.
- `admission` (II-C): aggregate and local capacity.
- `placing`, `placer`: one reservation over several data nodes (section V leaves them for later): each node
  is a pool of its own, whose periods are intervals of that of the reservations, and what is reserved at it
  in the next one follows where requests are, by `bursar.allocation`.
- `resource`: what the pool offers the front door; `engines`: whose engines there are, and for how long (a
  reservation is claimed where it is asked for); `rounds`: what carries the books' operations to words that
  are a round trip away; `waiting`: requests for which there are no tokens yet, a line for each tenant;
  `refusals`, `explanation`, `statistics`: what it says of itself. Isolation (II-F) is told in docs/pool.md.

**Why it is safe, whatever dies or stands still.** *Tokens issued in a period never exceed its
capacity*, because:

1. *A pool token is taken once.* Clients only ever add to `taken`, and a client's tokens are those
   between what it was and the ceiling that the client had read *before* adding. Only the monitor
   moves the ceiling, upwards, by compare-and-swap. When it does, whatever was asked for beyond the
   old ceiling has been refused for good, so only what lies above both is newly issued.
2. *A reserved token is claimed once.* A client empties its word by compare-and-swap: a second life
   of it, or a second process of the same tenant, finds nothing.
3. *What comes back is certain.* Tokens count as returned only if the life that claimed them says
   that it will not spend them (a number that only falls), or if they were taken out of its word
   before anybody claimed them. A dead client's tokens count as spent.
4. *A word belongs to a period.* So a monitor opens one by a swap, and then writes the other words without
   looking: should it be so late that another one leads, what it writes is void. Period and count share a
   word, so an addition tells in which period it was made; what was made in another is nobody's. New tokens
   replace old ones.
5. *One monitor leads a period*: the one whose compare-and-swap of the ceiling opened it. One that
   finds the ceiling moved by another stands by; a standby takes over when no period was opened for
   one and a half.

No clock is needed for any of this; a wrong one costs throughput. `sim.scenarios.pool` checks it
under seeded crashes and pauses between any two operations, and searches a small world completely.

**Lots.** What callers take ahead of use comes out of their engine's own tokens, charged to the limit:
at most 5 ms of the data node in one process, a fiftieth of a tenant's limit, none while anybody waits,
until the period ends. To the monitor they are unspent until somebody is known to have spent them, so
that neither the capacity nor a reservation is judged by tokens that nobody used. The sum of spent and
unspent, by which tokens count as returned, stays as it is whoever holds them.

**What differs from the paper, and why.**

- The paper's monitor overwrites the word that clients decrement: a decrement between its reading
  and its writing is lost, and the tokens are handed out twice. Here the two sides write two words.
- The pool is filled just in time, at most 10 ms of capacity ahead, since it cannot be emptied
  again. What the node can do in the rest of the period, less what clients have in hand, bounds it
  (the paper's C * (T - t) - L ignores batches in hand), and so does what is left of the capacity.
  While requests of a client wait that is behind its reservation, only as many tokens as the node
  was idle for are put into the pool: requests with pool tokens would be served before its own.
- Tokens decay by the clock at each look, not by a thread each millisecond, which CPython's switch
  interval would defeat; ticks are 10 ms. A client may say how much it knows to be waiting
  (`pending`): that much does not decay, as definition 1 counts demand, not service.
- An engine may be `paced`: reserved tokens come due at R/T, which makes the local condition of
  definition 2 hold by itself. The paper has clients that pace themselves (III-D).
- Algorithm 1's open parts are filled in (`PrintedCapacity`), and `AdaptiveCapacity` also follows
  drops beyond three deviations, told from quiet periods by the tokens that are left over.
- The monitor may die. The paper does not say what happens then.
"""
