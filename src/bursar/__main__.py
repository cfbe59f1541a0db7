"""`python -m bursar` is `bursar`."""

from bursar.cli import main

main()
