"""The one exception a user is meant to see."""

# A message may quote what it complains of, and that may be a whole file.
LONGEST = 1500


class GradleakError(Exception):
    """Something the user can mend: bad input, a missing file, an update that does not fit.

    Its message is one line. The command line prints it on stderr and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= LONGEST else line[:LONGEST] + " ...")
