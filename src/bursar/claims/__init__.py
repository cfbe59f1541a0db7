"""Claims: named resources, shared or exclusive, all at once or not at all.

**The idea** (the thesis, chapter 3). Work that needs several things does not lock them one by one; it
says what it needs, waits as a *task*, and is granted everything in one step. Nobody holds one thing
while waiting for another, so nothing deadlocks and nothing stands idle in the hands of a waiter.

**The parts.**

    requirements    names and modes; paths, parts, templates (sections 3.2.1, 6.2.4)
    model           a task, and the table of its states (4.4.1, figure 4-6)
    layout          where things are in the store (4.2)
    queue           who waits for what and who is next: the algorithm, pure (3.2, 6.2.1, 6.2.2)
    book            every transaction that changes who owns what, with the invariants (4.3)
    instance_book   what an instance looks after, and what makes that nobody waits for what is free
    ages            how long a task has waited, without anybody's wall clock
    acquisitions    claims from a ticket to its answer: the same key once, nothing held by nobody
    settling        what the store has of a claim, where nobody here knows
    holding         claims that this process holds, and how each ends
    tracker         how a task is done and how its end is learnt (4.1)
    fences          numbers that tell an old owner from a new one (`bursar.integrations.guards` checks them)
    verbs           tasks as users submit, wait for and cancel them
    records, seen   what the store has of tasks, for people; some of it for statistics
    resource        what the kind offers the front door

An instance (`courier`) puts its parts together; each holds those that it asks, and none is told of who
asks it but through what it is given:

    era, membership      the resource in its store; a session, and one generation for each
    reader               reading the store, and what became of a transaction whose reply was lost
    names, reservations  names that tasks wait for, followed; for whom they are reserved
    admission            tasks on their way into the queue
    granting, recording  grants, and claims that wait, on their way to the store
    ending, end_batches  ends, and names taken by force
    submission           tasks put in the queue and taken back
    cancels              tasks that run, and that somebody asked to be cancelled
    doing                granted tasks, with a tracker, until the store has their end (6.2.3)
    looking, division    where to look for tasks that nobody looks after; which of them are whose
    takeover             failover by state (4.4.3)
    tending, sweeping    what is done now and then; what is no longer used

**Why it is safe.** The store decides: see the invariants in `book`. An instance may be stale, slow,
paused, cut off or dead; several may run; replies may be lost. Execution is at least once, its
completion is recorded once, and a deposed owner is refused wherever a guard stands.

**What differs from the thesis, and why.**

- Releasing is one transaction too. Figure 4-5 deletes node by node, and a crash in between leaves a
  name that nobody owns and nobody can take.
- An exclusive owner is written in the name's own node, under its version; sharers are nodes of
  their own, so that they do not disturb each other. An empty shared phase counts as free: the
  thesis's last sharer must know that it is the last.
- `busy` marks are beside the tasks, not below them, so that two listings tell what nobody looks
  after.
- A task waits at one name that blocks it, and a release looks at those who wait at that name; the
  thesis loops over everybody. Both grant the same tasks (tests/claims/test_queue.py).
- The order: by conflicts instead of release, with priorities, turns of tenants, and an aging bound
  past which a task reserves its names (6.2.1). The thesis's own order is there as `release_order`.
- Grants, and ends, go many to a transaction, and several transactions are in flight (6.2.3). A
  transaction is never built on what another one in flight has yet to make so.
- Tasks are divided among the instances by a hash; one that has nothing to do asks, and one that has
  more than it can begin gives it some. In the thesis each takes the first it finds: whoever starts
  first then has them all.
- A task that fails may be tried again: one transaction gives its names back and lets its record wait, with
  the time before which it is not to be begun. A request to cancel what runs is a node beside the tasks, so
  that it outlives the worker, and whoever looks after the task next does not begin it.
- Names that nobody uses are removed; the thesis keeps every resource that ever was.

**The bound of waiting.** A task that has waited `aging` reserves its names; from then on nobody who
asked later takes one of them. It is granted once all who hold them, and all who reserved them before it,
have let go: `aging` + the time until the other instances know (200 ms) + those holds, one after the other
where they conflict. Aging, order and wake-ups come from what is known already: the order is the revision
of a task's record, the age is counted by the instance that looks after it (`ages`), and the store is told
of a reservation when it changes. What was submitted or left is found in an index (`offered`), so that
nobody lists everything that waits.
"""
