"""The lab: what shows that bursar does what it says, and is not part of what is installed.

experiments   the five papers' experiments, run again
benchmarks    bursar beside its peers, measured in one run
leases        the smallest protocol there is, as a model for new ones; `scenarios` has its simulation
storage       a storage target of our own, which the experiments on shares load
storm         a fleet of real processes in bad weather, and the checker that judges it
mutation      small mistakes in a copy of the source, and the tests that are to notice them

It comes with the source (`pip install -e '.[lab]'`), not with the wheel. Where it is there, `bursar
experiment`, `bursar bench`, `bursar storm`, `bursar mutate` and `bursar sim lease` are too; `python -m
bursar_lab` has the first four.
"""
