"""The rate paper's simulated experiments, run again (sections IV-B to IV-D).

Each experiment is a function `(out, quick) -> figures`: it writes its pictures below `out` and
returns its numbers, with a table beside the paper's under "table". `quick` runs the same code at
a size for tests.
"""
