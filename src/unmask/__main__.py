"""`python -m unmask`, for where the command is not on the path."""

from unmask.cli import main

main()
