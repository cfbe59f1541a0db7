"""rate: at least the reservation, at most the limit, of requests a period, over many servers.

**The idea** (the pShift paper, sections II and III). A tenant's requests go to many servers, and
no single one sees them all. Time is cut into periods. In each period a tenant has tokens: as many
as its limit, and of these as many with priority as its reservation. A *controller* places tokens
on servers, where the demand is and where the capacity is; each server's *scheduler* lets a request
go only against a token, priority tokens first. Several times in a period (an *interval*) servers
report what they see and the controller places what is left anew.

**The parts.**

- `bursar.allocation`: where the tokens go. Exact: as many reserved tokens can be
  consumed as a maximum flow would find, starting from the proportional split (algorithms 2 to 5).
  `reference` is the paper's algorithm as printed, for tests and measurements.
- `scheduler`: whose request goes next (algorithm 1), in a few steps however many tenants there are.
- `messages`, `server`, `controller`: the protocol; two books with the state that safety rests on. `grace`,
  `standing`: what a server may begin of the next period alone, as it and as its leader know it.
- `roll`, `columns`: tenants as numbers, and what is said of them as columns. `ledger`, `granting`: bounds,
  and the grants that they allow; `views`: servers as their leader sees them; `allotment`: a grant taken.
- `terms`: what the policy promises, looked up by need; `parts`: what a server has of a tenant that nobody
  has asked for yet; `roles`: which servers there are, and which of them run on this node.
- `blocks`: what a server of a long period charges to its journal before it dispatches it.
- `observation`, `placement`: what servers see, and what the controller makes of it (section III-D);
  `cells`: where anything was seen; `fronts`: room for whole requests.
- `zones`, `zoning`: two levels of controllers, where servers are in zones.
- `dispatcher`: the queues before a server, with its `capacity`, as given or `learnt`, and the requests
  in `service`; `choices`: which servers a request waits at; `charges`: what a grant took, so that it can
  be undone; `refusals`: why one does not go. `courier`: carries messages, elects a leader; `candidacy`: when
  a node takes a leader's place that it no longer hears.
- `resource`: what the front door asks. `promises`: the terms of this node's tenants; `telling` and
  `statistics`: what is said of them.

**The invariant: requests charged to a period never exceed the tenant's limit**, whatever is lost,
late, repeated or crashed, with any number of controllers that believe they lead. Six rules make
it true; each has a test in which it is taken out and the loss is found (tests/rates).

1. *Grants are absolute and ordered.* A server takes a grant only from a higher (epoch, sequence),
   never sets an allowance below what it has dispatched, and acknowledges what it then has.
2. *Falls before rises.* The leader's bound for a server rises when a grant is sent and falls only
   when the server acknowledged. The bounds add up to the limit at most.
3. *One period, one opening.* A period opens by one compare-and-set of (epoch, period, lives of
   servers, name of the terms) in the store, in a transaction that fails if the fleet's policy is newer
   than this node's. Whoever leads with other terms than the period's makes no tokens of it. A new leader
   raises the epoch, then asks every listed life what it holds; until all have answered it moves tokens
   among those that did and makes none.
4. *A restarted server has nothing*, and what its last life may have held counts as spent. Where a
   period is longer than a second it has its journal: then what that life charged counts as spent,
   which is all that it can have dispatched, and the rest is placed anew within the same period.
5. *No clock is trusted beyond its drift.* Tokens end so long after the server *sent* the report
   that the grant answers; the next period begins when even the slowest clock has seen them end.
6. *What may be begun alone is charged.* The state that opens a period fixes each listed life's part of the
   next one. A life that was granted it begins that period by itself, when the present one is over on every
   clock and nobody has spoken of the next; once. Whoever opens that period begins with these parts as
   bounds, under the terms they were fixed with. Terms that change take them back first: grants that say so,
   acknowledged; where one is not, the period keeps the old terms and fixes nothing for the next. A leader
   that does not know those terms lets it pass and opens the one after it.

**What differs from the paper, and why.** R-tokens and L-tokens are one allowance with a priority
part: the paper's text and its algorithm disagree about a tenant with only R-tokens, and one counter
that goes up makes repeated and late grants harmless. What is left of a limit when all demand is
covered is spread over the servers, so that a tenant that begins to send need not wait for the next
interval. What its servers have no capacity left for stays with the controller: when the tenant turns
to other servers it is sent with the first grants, where tokens that are out must first be given up
and acknowledged. Servers are asked (polled) rather than reporting by their own clocks, so that one round
sees them at one time.

**Tenants** are looked up when they ask. Each server that a period was opened with has a part of the limit
of everybody who is in no message: the parts add up to the limit, exactly, and the leader's bounds count
them. Whoever asks is named in the next report, and from then on placed by name until the period ends. A
tenant to which nothing was charged for a whole period is forgotten, and its number goes to another.

**Thousands of tenants** that ask at a few servers each have rows only there, in reports and in grants. At all
other servers a tenant that is named has one and the same allowance, of what nobody seems to need: a number a
tenant, in a column that is sent alike to everybody. Names are told once: each leader keeps a list (`roll`),
of which a grant has what its server has not acknowledged, and from then on both speak of numbers. So a round
costs what its active tenants cost where they are active, and a few passes over a column a server. A large
round is done a few milliseconds at a time, and whatever comes meanwhile is heard.

**Servers** come and go. One that starts says so, and is listed in the midst of the period; one that leaves
says for good what it has dispatched (`Left`), to every node, because each may come to lead: the rest of what
it held is placed elsewhere at once. One that is killed keeps its bound until the period ends, and its part of
the next one. A leader that stops gives up the lead at once.

**Leaders** come and go, too, and no period is empty for it. Within three beats of a leader's death another
raises the epoch, often in the midst of a period that servers have begun alone, and goes on with it from
there: it opens it as it stands, and makes what is left of each limit. Servers on the leader's own node have a
part in the numbering and none to begin alone, so a successor can make those tokens at once. What the dead
node's servers still had of the period is lost; that is the price of a kill.

**Pacing** spreads a limit over the period, so that two periods back to back do not show twice the limit;
the experiments run without it, as the paper did. A tenant is never further ahead of its pace than its
burst. The clock of the pace starts when the period opens; who waits saves up the time (within the
period), who idles does not; so no limit and no reservation is lost to it. Who used up a
few tokens at once, and waited for the next period, has those of that one by one. With several servers each
has a share of the pace, by the tokens that are left there, and of the burst in the same part; the shares that
a controller sends in one round add up to the limit. They are not acknowledged before others rise, as
allowances are: while tokens move, two servers may for the time of a message go at a pace that one of them
has lost. No period's limit rests on it.

**Large requests.** One that could never be granted is refused at once. Turns are even in tokens
(`scheduler`), tokens are gathered where a request waits that needs them all (`fronts`), and what a large
request takes longer than a server may run ahead is a debt (`capacity`) that only requests without priority
wait for. How long one waits at most is said in `scheduler` and `fronts`; `sim/scenarios/rate_costs.py`
holds it.

**Demand that moves.** A server says at once that a tenant begins to ask where it has no tokens
(`Wanted`), once until it is asked; the leader then places anew, now and shortly after, twice in an interval
at most, and so seldom that such rounds take a fiftieth of the time (`haste`). A queue to which nothing is
added any more, while requests arrive elsewhere, is no demand for more than itself.

**Lots.** A request that goes at once may bring tokens ahead of use, charged by the same call to the same
allowance, pace and capacity. They end with the server's tokens of the period (so with nothing that a
controller might count twice), and come back only to the opening of the period that they were charged to
(`ServerBook.openings`). Nobody who waits for the server is passed over for them; who waits for tokens of
its own is not kept waiting by them. A server that goes on alone, or is bound by concurrency, has none.
What is spent from lots is demand when its holder says so, just before a report.

**Capacity** (the paper's service rate, section III-D) is given, or learnt at the server from what is
completed while it is saturated (`learnt`); reports carry it. To see it saturated, the dispatcher lets in
enough to keep it busy, and hardly more than twice that, so that requests wait here and not in the server.

**Alone.** A server that heard of no period for a whole one does as `without_bursar` says. `keep` is what it
charged in the last period that there was, again in each, at most the limit. That is charged to no period
(0), counted apart, and told in the grants.

**Not promised.** Less than twice the limit in every window that straddles two periods (pacing keeps
it near once, unless a tenant was kept waiting and catches up); reservations in periods in which a server
or the leader failed, or demand moved faster than the interval; anything about the sum over servers that
go on alone (`without_bursar`).
"""
