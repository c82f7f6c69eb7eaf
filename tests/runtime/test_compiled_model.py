"""A compiled model takes any library's tensors, copies what it must, and says in one sentence what it cannot take."""

import warnings

import numpy as np
import pytest
import torch
import tvm
import zoo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvm_sparse.errors import InputError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.compiled_model import COLUMNS, CompiledModel
from tvm_sparse.runtime.signature import Signature, TensorSpec

TARGET = tvm.target.Target("llvm")


def compiled(name):
    module, shapes = zoo.TORCH[name]
    imported = ModelSource(module).relax_module(tuple(torch.zeros(shape) for shape in shapes))
    executable = tvm.compile(imported, TARGET)
    outputs = zoo.run_torch(module, *zoo.inputs_of(shapes))
    signature = Signature(
        tuple(TensorSpec(f"x{i}", shape, "float32") for i, shape in enumerate(shapes)),
        tuple(TensorSpec(f"y{i}", output.shape, "float32") for i, output in enumerate(outputs)),
        len(outputs) == 1,
    )
    decision = dict(
        zip(COLUMNS, ("conv1", 0.1, "unstructured", "folded_cpu", "float32", 12.5, 4.25, "fast"), strict=True)
    )
    return CompiledModel(executable, TARGET, signature, [decision])


@pytest.fixture(scope="module")
def model():
    return compiled("relu")


@pytest.fixture
def x():
    return torch.from_numpy(zoo.inputs_of([zoo.X])[0])


@pytest.fixture
def expected(x):
    return zoo.run_torch(zoo.TORCH["relu"][0], x.numpy())[0]


def assert_close(got, want):
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-4)


def test_torch_in_torch_out(model, x, expected):
    y = model(x.clone().requires_grad_())
    assert isinstance(y, torch.Tensor)
    assert not y.requires_grad
    assert_close(y, expected)


def test_numpy_in_numpy_out(model, x, expected):
    y = model(x.numpy())
    assert type(y) is np.ndarray
    y += 1  # the caller's own
    assert_close(y - 1, expected)


def test_read_only_and_reversed_numpy(model, x, expected):
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    assert_close(model(frozen), expected)
    assert_close(model(np.ascontiguousarray(x.numpy()[:, :, ::-1])[:, :, ::-1]), expected)


def test_tvm_in_tvm_out(model, x, expected):
    y = model(tvm.runtime.tensor(x.numpy()))
    assert isinstance(y, tvm.runtime.Tensor)
    assert_close(y.numpy(), expected)


class ArrayApi:
    """A tensor of a library that follows the array API."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return ArrayApi

    @classmethod
    def from_dlpack(cls, tensor):
        return cls(np.from_dlpack(tensor))


def test_array_api_in_array_api_out(model, x, expected):
    for array in (x.numpy(), np.asfortranarray(x.numpy())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = model(ArrayApi(array))
        assert isinstance(y, ArrayApi)
        assert_close(y.array, expected)


def test_aligned_inputs_are_not_copied(model, x, monkeypatch):
    for library in ("Torch", "NumPy", "DLPack"):
        monkeypatch.setattr(f"tvm_sparse.runtime.tensors.{library}.aligned_copy", None)
    raw = np.empty(4 * x.numel() + 64, np.uint8)
    place = -raw.ctypes.data % 64
    x = torch.from_numpy(raw[place : place + 4 * x.numel()].view(np.float32).reshape(x.shape)).copy_(x)
    model(x)
    model(x.numpy())
    model(tvm.runtime.tensor(x.numpy()))


def test_several_inputs_and_outputs():
    arrays = zoo.inputs_of([zoo.X, zoo.X])
    (want,) = zoo.run_torch(zoo.TORCH["two_inputs"][0], *arrays)
    assert_close(compiled("two_inputs")(*arrays), want)
    outputs = compiled("two_consumers")(torch.from_numpy(arrays[0]))
    assert all(isinstance(output, torch.Tensor) for output in outputs)
    for got, want in zip(outputs, zoo.run_torch(zoo.TORCH["two_consumers"][0], arrays[0]), strict=True):
        assert_close(got, want)


def test_mixed_inputs_follow_the_first():
    a, b = zoo.inputs_of([zoo.X, zoo.X])
    model = compiled("two_inputs")
    assert isinstance(model(torch.from_numpy(a), b), torch.Tensor)
    assert isinstance(model(a, torch.from_numpy(b)), np.ndarray)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), r"wrong number of tensors, found 0; allowed: 1 \(x0 float32"),
        (([1.0],), "this is no tensor, found list"),
        ((torch.zeros(1, 4, 9, 8),), r"input x0: wrong shape, found \(1, 4, 9, 8\); allowed: \(1, 4, 9, 9\)"),
        ((np.zeros((4, 9, 9), np.float32),), "wrong shape"),
        ((torch.zeros(zoo.X, dtype=torch.float64),), "wrong element type, found float64; allowed: float32"),
        ((torch.zeros(zoo.X, dtype=torch.bfloat16),), "wrong element type, found bfloat16"),
        ((np.zeros(zoo.X, ">f4"),), "foreign byte order"),
        ((torch.zeros(zoo.X, device="meta"),), "input x0: this tensor cannot be read, it is on the meta device"),
        ((torch.zeros(zoo.X).to_sparse(),), "cannot be read, it is sparse_coo, not strided; pass an ordinary"),
        # Nothing may depend on the number of elements: these have more than any memory.
        ((torch.zeros(1).expand(10**6, 10**6, 10**5, 1),), "wrong shape"),
        ((np.broadcast_to(np.zeros(1, np.float32), (10**6, 10**6, 10**5, 1)),), "wrong shape"),
    ],
)
def test_errors(model, inputs, message):
    with pytest.raises(InputError, match=message) as raised:
        model(*inputs)
    assert "\n" not in str(raised.value)


def test_copies_warn_once():
    model = compiled("relu")
    view = torch.zeros(1 + 324)[1:].reshape(zoo.X)
    with pytest.warns(UserWarning, match="input x0 is not contiguous and aligned to 64 bytes") as caught:
        model(view)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(view)
        compiled("relu")(np.zeros(1 + 324, np.float32)[1:].reshape(zoo.X))


def fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        return mode.from_tensor(x)


def freed(x):
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


def at_offset(x, offset):
    """A tensor whose first element lies `offset` bytes into a buffer, whether or not that is a multiple of 4."""
    buffer = bytearray(offset + x.numel() * 4)
    buffer[offset:] = x.numpy().tobytes()
    return torch.frombuffer(buffer, dtype=torch.float32, offset=offset).reshape(x.shape)


# Makers of tensors that a model must take, and of those that it must refuse, from a float32 torch tensor on the CPU.
TAKEN = {
    "parameter": torch.nn.Parameter,
    "subclass": lambda x: x.as_subclass(type("Sub", (torch.Tensor,), {})),
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "imaginary part of a conjugate": lambda x: torch.complex(x, -x).conj().imag,
    "inference mode": lambda x: torch.inference_mode()(x.clone)(),
    "strange bytes": lambda x: at_offset(x, 3),
    "masked array": lambda x: np.ma.masked_array(x.numpy()),
    "read-only memory": lambda x: np.frombuffer(x.numpy().tobytes(), np.float32).reshape(x.shape),
    "matrix of NumPy": lambda x: x.numpy().view(type("Sub", (np.ndarray,), {})),
}
REFUSED = {
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x[0, 0].to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[0]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[0], x[0]], layout=torch.jagged),
    "freed": freed,
    "fake": fake,
    "functional": torch._to_functional_tensor,
    "zero": lambda x: torch._efficientzerotensor(x.shape),
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "meta": lambda x: x.to("meta"),
    "objects": lambda x: x.numpy().astype(object),
    "fields": lambda x: np.zeros(x.shape, [("a", "f4")]),
    "times": lambda x: np.zeros(x.shape, "M8[s]"),
    "text": lambda x: np.zeros(x.shape, "U4"),
    "scalar": lambda x: np.float32(1),
    "list": lambda x: x.tolist(),
    "nothing": lambda x: None,
}


def try_strange_tensors(model, x):
    """Each kind of tensor is taken, with the right result, or refused in one sentence."""
    for make in TAKEN.values():
        value = make(x)
        with torch.no_grad():
            array = value.detach().resolve_neg().numpy() if isinstance(value, torch.Tensor) else np.array(value)
            assert_close(model(value), zoo.run_torch(zoo.TORCH["relu"][0], array.copy())[0])
    for name, make in REFUSED.items():
        try:
            model(make(x))
        except InputError as error:
            assert "\n" not in str(error), name
            continue
        raise AssertionError(f"{name} was taken")


def fuzz_views(model):
    """Any view of float32 is taken with the right result, any other element type or shape is refused."""
    module = zoo.TORCH["relu"][0]
    warnings.simplefilter("ignore")
    try_strange_tensors(model, torch.from_numpy(zoo.inputs_of([zoo.X])[0]))
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]

    @settings(max_examples=100, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.permutations(range(4)),
        st.integers(0, 80),
        st.tuples(*[st.integers(1, 3)] * 4),
        st.booleans(),
        st.booleans(),
        st.sampled_from([torch.float32, torch.float32, *dtypes]),
        st.sampled_from([zoo.X, zoo.X, (1, 4, 9, 8), (4, 9, 9), ()]),
    )
    def check(order, offset, steps, expand, negate, dtype, shape):
        sizes = [zoo.X[axis] * steps[axis] for axis in order]
        base = at_offset(torch.arange(int(np.prod(sizes)), dtype=torch.float32).sin(), offset)
        view = base.reshape(sizes).permute(*np.argsort(order).tolist())
        view = view[tuple(slice(None, None, step) for step in steps)]
        view = view[:, :, :1].expand(zoo.X) if expand else view
        view = torch._neg_view(view) if negate else view
        if dtype is not torch.float32 or shape != zoo.X:
            view = (view.to(dtype) if dtype is not torch.float32 else view).flatten()[: int(np.prod(shape))]
            with pytest.raises(InputError, match=r"wrong (shape|element type)"):
                model(view.reshape(shape))
            return
        assert_close(model(view), zoo.run_torch(module, view.clone().resolve_neg().numpy())[0])
        if not negate:
            array = view.numpy()
            assert_close(model(array), zoo.run_torch(module, array.copy())[0])

    check()


def test_any_tensor_is_safe(tmp_path):
    """What this guards against ends the process."""
    fuzz_views(artifact.load(artifact.save(compiled("relu"), tmp_path / "relu.sparse")))


def test_inputs_stay_and_outputs_are_the_caller_s_own(model, x, expected):
    before = x.clone()
    first = model(x)
    model(-x)
    assert_close(first, expected)
    assert torch.equal(x, before)


@pytest.mark.gpu
def test_the_current_stream_is_respected():
    """The input is written on a stream of its own, after a long wait; the model must run behind that."""
    from tvm_sparse.compiler import build_model

    module, shapes = zoo.TORCH["relu"]
    fast = build_model.compile(module, torch.zeros(shapes[0]), target="cuda")
    x = torch.from_numpy(zoo.inputs_of(shapes)[0])
    placed, stream = torch.zeros(shapes[0], device="cuda"), torch.cuda.Stream()
    (want,) = zoo.run_torch(module, x.numpy())
    fast(placed)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        placed.copy_(x)
        y = fast(placed)
    stream.synchronize()
    assert_close(y.cpu(), want)


@pytest.mark.gpu
def test_strange_tensors_on_a_gpu():
    from tvm_sparse.compiler import build_model

    module, shapes = zoo.TORCH["relu"]
    fast = build_model.compile(module, torch.zeros(shapes[0]), target="cuda")
    x = torch.from_numpy(zoo.inputs_of(shapes)[0])
    (want,) = zoo.run_torch(module, x.numpy())
    with pytest.raises(InputError, match="wrong device, found cpu:0; allowed: cuda:0"):
        fast(x)
    base = torch.zeros(x.numel() + 1, device="cuda")
    base[1:] = x.cuda().flatten()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for view in (base[1:].reshape(shapes[0]), x.cuda().to(memory_format=torch.channels_last), x.cuda()):
            assert_close(fast(view).cpu(), want)


def test_report(model):
    (row,) = model.report()
    assert list(row) == list(COLUMNS)
    header, line = model.report_text().splitlines()
    assert header.split() == ["layer", "density", "kernel", "us", "speed-up", "status"]
    # A row without words for its kernel, as in older artifacts.
    assert line.split() == ["conv1", "0.10", "folded_cpu", "4.25", "-"]
    assert "1 layers, cpu:0" in repr(model) and "<td>conv1</td>" in model._repr_html_()


def test_signature_survives_json(model):
    assert Signature.from_json(model.signature.to_json()) == model.signature
