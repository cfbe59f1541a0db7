"""What the exit code of a command says."""

FINE = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 130

EXIT_CODES = (
    "Exit codes: 0 fine; 1 what was checked is not so, or the command failed; "
    "2 wrong use or bad input; 130 stopped with Ctrl-C."
)
