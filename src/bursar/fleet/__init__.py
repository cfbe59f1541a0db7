"""One policy for a fleet of nodes, kept in the store that they share.

A *document* is the text of a policy with a version; beside it stand tenants that were set one by one.
Together they are the *terms*. Every change of terms sets one node of the store, the *head*, whose own
version number therefore stands for all of them: whoever opens a period or mints units does so in a
transaction that checks it (`bursar.world.Fleet.guards`). A node on older terms can therefore neither
lead nor mint, however late it learns of the change.

layout      the records and where they stand
documents   versions of the policy, in pieces
tenants     tenants set one by one
changes     what may be changed while it runs, shown beforehand
following   a node in step with its fleet
identity    which store this is
retries     a store that may not answer
rights      who may do what
tokens      what proves it
register    the rights that a node knows
refusals    what wrong tokens cost those who show them
audit       who did what
"""
