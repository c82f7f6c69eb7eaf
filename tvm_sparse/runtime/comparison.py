"""What the comparison of a compiled model with its source has shown."""

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """Of one random input.

    `reference` is what ran the source, None where nothing did; `difference` the largest of any output, as a fraction of
    that output's largest value, of integers and booleans the share that differs. `seconds` is how long compiling waited
    for it. `note` says why there was no comparison, or why a larger difference is no fault.
    """

    reference: str | None
    difference: float | None
    seconds: float
    note: str = ""

    def text(self) -> str:
        """As one line."""
        if self.reference is None:
            return f"not compared: {self.note}"
        difference = f"{self.difference:.2g} of the largest output" if self.difference is not None else "infinite"
        note = f"; {self.note}" if self.note else ""
        cost = f"{self.seconds:.1f} s; --no-compare leaves it out"
        return f"compared with {self.reference}: largest difference {difference}{note} ({cost})"

    def to_json(self) -> dict[str, Any]:
        """As JSON values; an infinite difference is None."""
        is_finite = self.difference is not None and math.isfinite(self.difference)
        return {**asdict(self), "difference": self.difference if is_finite else None}
