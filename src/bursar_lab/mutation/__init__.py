"""Mutation: one small mistake at a time is put into a copy of the source, and the tests must notice.

operators   which mistakes there are, and where in a file each can be made
rooms       a *room* is some source files and the tests that answer for them
trials      the copy of the tree, and the tests that are run in it
report      the table, and what is kept of each mutant

An operator of our own rather than a tool: the tools rewrite whole files, count annotations and docstrings
as code, or do not run asynchronous tests.
"""
