"""What a person can mend. Such an error is one message, without a traceback; any other one is a bug."""


class Mistake(Exception):
    """The message says what was wrong, where, and what to do."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """In a notebook too (IPython asks for this): the message alone."""
        return [str(self)]
