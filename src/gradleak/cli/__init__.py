"""The command line: parse, call, print. Every error a user can mend is one line on stderr and exit code 2.

Each file of this package holds a group of commands; importing it joins them to the application, in this order.
"""

# The order of the help.
from gradleak.cli import (  # noqa: I001
    audits, candidates, verdicts, checks, converts, experiments, training, images, lists, inspecting, benches,  # noqa: F401
)  # fmt: skip
from gradleak.cli.app import app, main

__all__ = ["app", "main"]
