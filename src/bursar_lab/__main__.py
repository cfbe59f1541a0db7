"""`python -m bursar_lab experiment NAME` or `bench NAME`."""

from bursar.cli import LAB_COMMANDS, main

if __name__ == "__main__":
    main(commands=LAB_COMMANDS)
