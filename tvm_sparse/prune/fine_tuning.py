"""A training loop under masks, a few lines to replace by your own."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.optional_imports import require


def fine_tune(
    model: Any,
    data: Any,
    *,
    epochs: int = 10,
    schedule: Sequence[float] = (),
    prune_to: Callable[[float], Any] | None = None,
    rate: float = 0.03,
    loss: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Train `model` in place with its masks held, pruning on the way, and return it in eval mode.

    Stochastic gradient descent with momentum 0.9; the learning rate rises to `rate` and falls to almost 0 (one cycle).

    Parameters
    ----------
    data
        Batches (x, y), gone through once an epoch; it has a length, as a `DataLoader` or a list has.
    schedule
        Shares of zeros, one before each of the first epochs: `cubic` or `one_shot`.
    prune_to
        Called with each of them: it prunes, for example ``lambda amount: prune.vector(conv, 16, amount)``.
    loss
        Of outputs and y; by default cross-entropy.

    Raises
    ------
    UsageError
        There are more steps than epochs, a schedule without `prune_to`, or no data.
    """
    torch = require("torch", "torch")
    if epochs < max(1, len(schedule)):
        raise UsageError("fine-tuning", "too few epochs", epochs, f"{max(1, len(schedule))} or more")
    if schedule and prune_to is None:
        raise UsageError("fine-tuning", "a schedule needs to know how to prune", hint="give prune_to")
    if not len(data):
        raise UsageError("fine-tuning", "there are no batches", hint="give (x, y) pairs")
    loss = loss or torch.nn.functional.cross_entropy
    # Pruning renames a layer's parameter, which stays the same one.
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * len(data), pct_start=0.2)
    model.train()
    for epoch in range(epochs):
        if epoch < len(schedule) and prune_to is not None:
            prune_to(schedule[epoch])
        for x, y in data:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            cycle.step()
    return model.eval()


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
