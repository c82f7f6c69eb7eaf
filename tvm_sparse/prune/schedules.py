"""When to prune how much: shares of zeros, one for each step of pruning and training in turns."""


def one_shot(amount: float) -> list[float]:
    """The whole amount before the first epoch."""
    return [amount]


def cubic(amount: float, steps: int = 8, start: float = 0.0) -> list[float]:
    """Shares that rise fast, then slowly: ``amount + (start - amount) (1 - i / steps)^3`` (Zhu and Gupta 2017).

    Parameters
    ----------
    amount
        Share of zeros after the last step.
    steps
        How many there are, 1 or more.
    start
        Share of zeros before the first.
    """
    return [amount + (start - amount) * (1 - step / steps) ** 3 for step in range(1, steps + 1)]
