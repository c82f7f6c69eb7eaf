"""What `OPERATORS` allows is compared with torch, form by form; everything else is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch_cases import CASES
from torch_cases.case import Together

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.torch.import_program import export_module, import_program, readable
from tvm_sparse.frontend.torch.rules.operators import OPERATORS
from tvm_sparse.frontend.torch.rules.require_operators import words

# A case of each kind, that is quick to compile.
SAMPLE = (
    "binary: arithmetic of integers with fractions",
    "binary: scaled terms",
    "elementwise: activations of ordinary numbers",
    "reductions: max of ties",
    "shapes: indices",
    "spatial: adaptive pools of rows",
    "spatial: antialiased bilinear",
    "layers: transposed convolutions of volumes",
)


def assert_imported_right(name):
    inputs, steps = CASES[name]
    module = Together(*steps)
    with torch.no_grad():
        wanted = [each.numpy() for each in pytree.tree_leaves(module(*(x.clone() for x in inputs)))]
    found = zoo.run_relax(import_program(name, export_module(module, inputs)), *(x.numpy() for x in inputs))
    assert len(found) == len(wanted)
    for index, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), index
        finite = theirs[np.isfinite(theirs)]
        bound = 1e-4 * np.abs(finite).max(initial=0) if theirs.dtype.kind == "f" else 0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound, err_msg=f"output {index}")


@pytest.mark.conformance
@pytest.mark.parametrize("name", CASES)
def test_what_is_imported_computes_what_torch_does(name):
    assert_imported_right(name)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_computes_what_torch_does(name):
    assert_imported_right(name)


@pytest.mark.conformance
def test_every_form_that_is_allowed_has_a_case():
    """And no case has another, or it would not be imported."""
    seen: dict[str, set[str]] = {}
    for inputs, steps in CASES.values():
        program, _ = readable(export_module(Together(*steps), inputs))
        for node in program.graph.nodes:
            if hasattr(node.target, "_schema"):
                seen.setdefault(str(node.target).removeprefix("aten."), set()).update(words(node))
    assert seen == {name: set(row.split()) for name, row in OPERATORS.items()}


class Call(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def forward(self, x):
        return self.step(x)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda x: torch.fft.rfft2(x).abs(),
            r"_fft_r2c has an operator that is not imported, found _fft_r2c\.default; ",
        ),
        (lambda x: torch.linalg.inv(x[..., :6]), "not imported, found linalg_inv_ex"),
        (
            lambda x: x.half() * 2,
            r"mul has mul\.Tensor in a form that is not imported, found float16; allowed: .*float32",
        ),
        (
            lambda x: functional.adaptive_max_pool2d(x, 3, return_indices=True),
            r"adaptive_max_pool2d\.default in a form that is not imported, found \[1\]; ",
        ),
        (lambda x: functional.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3), "found divisor_override"),
        (lambda x: torch.where(x > 0)[0] + 1, "nonzero"),
    ],
)
def test_what_is_not_known_is_refused_by_name(step, message):
    with pytest.raises(ModelError, match=message) as raised:
        import_program("model", export_module(Call(step), torch.zeros(1, 4, 6, 6)))
    assert "\n" not in str(raised.value)


def test_a_refused_operator_is_named_with_its_module():
    module = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sequential(Call(torch.lgamma))).eval()
    with pytest.raises(
        ModelError, match=r"model: module 1\.0 \(Call\) has an operator that is not imported, found lgamma"
    ):
        import_program("model", export_module(module, torch.zeros(1, 4, 6, 6)))


def test_a_batch_of_none_is_refused():
    with pytest.raises(ModelError, match=r"model: input input has no elements, found \[0, 4, 6, 6\]; .*a batch of 1"):
        import_program("model", export_module(nn.Conv2d(4, 4, 1).eval(), torch.zeros(0, 4, 6, 6)))


def test_a_form_that_is_mended_is_decomposed_wherever_it_is():
    """A sum of scaled terms, in a network of which nothing else needs it."""
    module = nn.Sequential(nn.Conv2d(4, 4, 1), Call(lambda x: torch.add(x, x, alpha=2))).eval()
    x = torch.randn(1, 4, 6, 6)
    (y,) = zoo.run_relax(import_program("model", export_module(module, x)), x.numpy())
    np.testing.assert_allclose(y, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)
