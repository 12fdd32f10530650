"""Back-propagation: block l is driven by the exact gradient at its output, g_{l+1}."""

from creditaudit.engine.credit.rule import Rule
from creditaudit.engine.network import Credit, carried, output_gradient


class BackPropagation(Rule):
    name = "bp"
    label = "BP"
    place = 1
    colour = "#16365f"
    marker = "o"
    full_name = "back-propagation"
    formula = "$a_l = g_{l+1}$, the exact gradient at the block's output"
    relays = chains = True

    def block(self, l: int) -> Credit:
        # g_{l+1} = g_{l+2} + J_{l+1}^T (what drove block l+1, its penalty included)
        self.g = output_gradient(self.tape) if l == self.depth - 1 else self.g + carried(self.tape, l + 1)
        return Credit(self.g)

    def embed(self) -> Credit:
        return Credit(self.g + carried(self.tape, 0))
