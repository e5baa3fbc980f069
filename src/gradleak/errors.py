"""The one exception a user is meant to see."""


class GradleakError(Exception):
    """Something the user can mend: bad input, a missing file, an update that does not fit.

    Its message is one line. The command line prints it on stderr and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
