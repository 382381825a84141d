"""The command line: verbs, and one sentence with an exit code for every error.

0    done
1    the outside world failed (network, disk), or a fault of ours, with its traceback
2    something given was wrong: the sentence on stderr says what and what to do
130  stopped by Ctrl-C
"""

from unmask.cli.main import main

__all__ = ["main"]
