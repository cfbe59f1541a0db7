"""The pool paper's experiments, run again (section III): simulated with the paper's values, and
live on this machine with values profiled here.

Each experiment is a function `(out, quick) -> findings`: it writes its pictures below `out` and
returns its numbers, with a table beside the paper's under "table". `quick` runs the same code at a
size for tests.
"""
