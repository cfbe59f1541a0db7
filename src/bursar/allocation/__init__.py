"""Exact placement of tokens on the places where they can be used, compiled.

Used wherever one promise holds over many places: a rate's controller places tenants' tokens on servers, a
pool of several data nodes places their reservations on nodes.

- `reservations`  which tokens go where: as many as can be used, as near as can be to where demand is
- `allowances`    the same for limits: reserved tokens first, then the rest of what is allowed
- `matrix`        demand as the caller has it, dense or sparse, checked
- `kernels`       the compiled parts
"""
