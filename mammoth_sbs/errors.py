"""The one error a user should ever see."""


class UserError(SystemExit):
    """Bad input. Carries one line that names the flag or file, what was wrong and what to do.

    It is a `SystemExit`, so any host, ours or the real Mammoth, ends with that line and no traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"error: {message}")
