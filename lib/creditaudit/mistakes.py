"""What a person can mend. Such an error is one message, without a traceback; any other one is a bug."""


class Mistake(Exception):
    """The message says what was wrong, where, and what to do."""

    exit_code = 1

    def __str__(self) -> str:
        return legible(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """In a notebook too (IPython asks for this): the message alone."""
        return [str(self)]


def legible(text: str, also: str = "\n\t") -> str:
    """What a file or its name says, without the characters by which it could rewrite a terminal."""
    return "".join(each if each.isprintable() or each in also else ascii(each)[1:-1] for each in text)
