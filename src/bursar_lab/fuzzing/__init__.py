"""Fuzzing: every parser is given bytes that are almost right, and must say so in an error of its own.

A *target* (`target`, and one module an area under `targets`) is a parser, what it may refuse bytes with,
inputs that our own writers make, and words for a dictionary. Inputs are changed by atheris, which is
libFuzzer with eyes for Python: it keeps those that reach what no other did. Whatever a target raises but its
refusals is a fault, and so is a round trip that loses something, a hang, and memory without bound.

`corpus` has a few dozen inputs a target: those of the writers, and those that were found to reach lines that
no other does. The tests run them without atheris. `bursar fuzz` is the campaign (`campaign`), in a process
for each target (`child`); `reached` counts the lines; `live` sends hostile bytes to real processes.
"""
