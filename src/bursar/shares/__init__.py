"""share: the bandwidth of one target, divided by weight, lent where unused and paid back.

**The idea.** A target (a disk, a storage server, anything with a capacity) hands out the tokens of
its capacity anew in every interval, 100 ms as a rule. Each tenant that asked for something in the
last interval is *active* and gets its weight's part. What it does not need is lent to those who
need more, and written down: a *record* of what each tenant has lent (positive) or borrowed
(negative). When a lender needs more than its part, those who owe give up some of theirs. Each
target is alone and looks only at what it sees itself.

**The parts.**

- `borrowing`  the allocation: arrays in, arrays out (the paper's section III-C)
- `filter`     which queued request goes when: a token bucket filter like Lustre's (II-A), with its
               `rules` and `queues`; `gate` is one in front of a target that bursar does not see, and
               `enforcer` keeps it at what the handouts say
- `book`       all state of a target: records, remainders, last allocation; closes one interval and
               opens the next; nothing in it waits or looks at a clock
- `bursts`     what tenants say will come, and what is kept for it (the hints of IV-E); `announcing` is
               how they say it
- `target`     the loop: statistics, allocation, rules (III-A, III-B, III-D); the place where rules
               are enforced is behind `Enforcer`
- `resource`   what the kind offers the front door; `explanation`, `statistics`: what it says of itself
- `served`     what tenants want, where only finished I/O is seen
- `capacity`   an estimate, where the capacity is not given or is said to be more than it is

**Invariants.** After every interval: the tokens handed out are the interval's tokens, no more and
no less, and over time the capacity times the time; the records sum to zero; nobody has less than
nothing. A debtor never has less than half of its own part, or all it asked for.

**Lots.** A program takes tokens ahead of use, so that most requests are a decrement. They are charged
like the requests that will come for them, to the tenant's bucket and to the target's time, but out of
time in which the target was idle: nobody ever waits for a token that nobody spent. At most 5 ms of the
target are out, at most 5 ms of a tenant's own rate, until the interval ends, and none while anybody
waits. What a tenant *wants* is what was asked for, from lots or not: had lots counted as demand, who
takes them would have lent less than it did. What comes back within its interval undoes its charge.

**The steps,** by the paper's equations:

1. *By weight* (1, 2): priority p = weight / all active weights; alpha = p * tokens.
2. *Lending* (3 to 8): a tenant that wants d < alpha offers alpha - d. The offers go to all by
   the distribution factor: u + u * p where u > 1, u * p otherwise, with u = d / (its last
   allocation). What one offers, less what it is given, is added to its record.
3. *Paying back* (9 to 20): a tenant that was owed tokens before and after step 2 is a lender, one
   that owed them before and after is a debtor. Debtors give up a part C of their tokens (13, 14),
   lenders divide it by the same factor.
4. *Whole tokens* (21 to 25): each step hands out whole tokens. Fractions are kept and added the
   next time; what is over goes to the largest remainders, what is too much comes off the smallest.

**What differs from the paper, and why.**

- *Nobody starves.* C as printed sums over lenders and can pass 1, (14) looks at the record before
  the interval only, and (20) can overpay: a borrower can be driven below zero and be left with
  nothing for hundreds of intervals. Here a debtor gives min(|r|, |r_RD|, floor(C * alpha_RD),
  alpha_RD - ceil(alpha / 2)), at least 0; C is at most 1; no lender is paid beyond its r_RD.
- *Payback does not stall.* Where floor(C * alpha_RD) is 0, one token is called in. So with every
  debtor at two tokens or more, and all backlogged, debts are gone within
  `borrowing.payback_bound` intervals, which `bursar why` states.
- *Where it is needed, first* (`Terms.needed_first`). The printed factor gives part of the offers
  back to tenants that do not need them, and C grows the *less* a lender needs: tokens go to waste
  while others wait. Here offers go up to each tenant's need first, and a lender is paid no more
  than it needs now (what it is owed stays on its record). False gives the paper's rule.
- *The target is not idle while anyone waits.* An eager filter lets an idle thread take what is due
  next. The paper's waits for the token, and leaves up to a quarter of the device unused in bursts
  (see the experiment shares-redistribution).
- *Remainders:* (24) must read rho[j] = alpha[j] + rho[j-1] - floor; excess comes off the smallest
  remainder, not the largest; allocations are clamped at zero.
- *Demand* is arrivals plus backlog where requests are seen. Where only finished I/O is seen
  (`served`), it is estimated: it grows while a tenant uses 95 % of its limit, and follows use where
  it does not. A tenant that wants less than its own part lends the rest but is held to its part, so
  that it is seen to want more; the records count what was lent *and used*.

**Bursts that are announced** (IV-E asks for hints). Until it begins an idle tenant that announced one
counts as active and lends its part, so its record rises up to what it announced: tokens are kept for it
as others' debts, and none are idle. From the first interval of its time on it counts as wanting all of it,
so its part is there before its first request, and it is paid back like every lender. What it lent for a
burst that did not come is forgiven to those who owe.

**Where the paper is silent.** A tenant that was not active in the last interval has no last
allocation: its own part stands in, as if it had had it. A tenant without demand neither lends nor
gets anything, and its record stays. Who leaves is settled: what it was owed is forgiven to those
who owe, what it owed is lost by those who are owed, in proportion. Records may decay by a half-life,
on both sides at once, so that their sum stays zero. Caps (`borrow`, `lend`) bind new loans; tokens
that nobody may borrow stay with those who offered them. A tenant given no tokens keeps a rule at
rate 1, because without a rule it would have no limit at all.

**A crash** costs the intervals it lasted and what changed in the records within the last second:
snapshots of them are journalled, each of which sums to zero.
"""
