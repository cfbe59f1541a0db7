"""quota: a total over many nodes that is never exceeded.

**The idea** (the quota paper, sections III and IV). Every node has a local allocation of the
quota's units and grants from it at once, without a message. Nodes form a tree. A node that runs
low starts a *round*: it gathers what its children can spare (aggregation, algorithm 1), goes to
its parent if that is not enough, and what was found is shared out among those that took part:
waiting requests first, then by how fast each uses units (distribution, algorithm 2).

**The invariants.**

- *Nothing is spent twice or lost.* For every account, over all ledgers: unspent + held + spent +
  in flight = the quota. A transfer is written before it is sent, sent until it is acknowledged,
  and credited once, in the line that says so; no timeout brings it back (`ledger`).
- *Charged before used.* A grant is told when its line is durable (mode `exact`), or comes out of a
  block that was charged before (mode `fast`: a crash loses at most one block).
- *A refusal is decided.* Only after the root heard every ledger that is not fenced, with nothing
  in flight or out in lots, and too little unspent. Until then the answer is `Unknown`.
- *Minted by the terms in force.* An account is opened, and its limit changed, in a transaction that checks
  the version of the policy that the limit was read from (`accounts`, `limits`).
- *One key, one acquisition*, at whichever node it is asked: the store names the one hold that stands
  for it, and that hold's ledger answers every repeat (`keys`).

**The parts.** `entries`, `balances`, `ledger`, `replay`: units and the journal. `messages`, `demand`,
`allocation`, `gathering`, `round`, `statement`, `rules`: the rounds, with the paper's own rules switchable.
`lots`: units ahead of use. `keys`: whose a key is. `requests`, `book`: one node's state. `tree`: who is
whose parent, through the store. `homes`: keys in the store. `windows`, `accounts`, `registry`: a
billing period is an account of its own; what the store has of them, and what a node has read. `history`,
`usage`: what was used, for bills. `limits`: those of a changed policy are carried out. `parting`: a node
that leaves hands its units over. `survey`, `watch`, `operations`: what people ask and do. `courier`:
journal, network and time. `chains`, `repeats`, `settling`, `issuing`, `explaining`, `verbs`, `statistics`,
`resource`: what the front door is offered.

**What differs from the paper, and why.** Rates are units a second, not a unit per event, so that
those of two nodes compare. Equations 5 and 6 are used the way the text has them (the listing swaps
them). A coordinator keeps its own threshold too. A node that answers "participating" is asked
again, never counted as empty. The paper's reconciliation, which gives lost units back after a
time, becomes an audit that must find nothing: what a timeout takes for lost may be in flight.
"""
