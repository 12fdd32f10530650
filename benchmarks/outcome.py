"""What was injected how often, and what came of it."""

import re
import sys
from dataclasses import dataclass, field

from creditaudit.runs.provenance import provenance
from creditaudit.study.injections import Injected


@dataclass
class Fault:
    """What was done how often, and what came of it."""

    name: str
    times: int = 0
    lost: int = 0
    identical: bool = True
    messages: set[str] = field(default_factory=set)

    def note(self, lost: int, identical: bool, said: str) -> None:
        self.times += 1
        self.lost += lost
        self.identical &= identical
        if "Traceback" in said:
            print(said, file=sys.stderr, flush=True)
        lines = [line for line in said.strip().splitlines() if line and "resource_tracker" not in line]  # Python's own
        own = [place for place, line in enumerate(lines) if line[0] != " "]  # what is indented explains the line before
        last = " ".join(" ".join(lines[own[-1] :]).split()) if own else ""
        self.messages.add("TRACEBACK" if "Traceback" in said else re.sub(r"(?<!\S)/\S*/", "", last))

    def sound(self) -> bool:
        return self.lost == 0 and self.identical and not self.messages & {"TRACEBACK", "HANGS"}

    def row(self) -> Injected:
        """With the worst of its messages."""
        one = sorted(self.messages, key=lambda text: (text not in {"TRACEBACK", "HANGS"}, not text, text))[0]
        return Injected(self.name, self.times, self.lost, self.identical, one[:100], provenance()["commit"])
