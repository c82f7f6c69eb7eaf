"""Where cuDNN is looked for, and where not."""

import ctypes
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cudnn import VERSION, compiled
from random_convolutions import random_case

from tvm_sparse.cudnn import library
from tvm_sparse.cudnn.api import IDENTITY, RELU, Cudnn, CudnnError
from tvm_sparse.cudnn.convolution import strides_of
from tvm_sparse.errors import BuildError

# Whatever this machine has.
FIND = "from tvm_sparse.cudnn import library; print(library.find())"


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine without cuDNN, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDNN_PATH", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(library, "_LDCONFIG", str(tmp_path / "no_ldconfig"))
    monkeypatch.setattr(library, "_loaded", lambda: None)
    library._found.cache_clear()
    library.load.cache_clear()
    yield tmp_path
    library._found.cache_clear()
    library.load.cache_clear()


def put(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / library.NAME).write_bytes(b"")
    return path / library.NAME


def found():
    library._found.cache_clear()
    return library.find()


def test_a_machine_without_it_says_what_to_install(nowhere):
    assert found() is None
    assert library.version() is None
    with pytest.raises(BuildError, match=r"cuDNN: cuDNN 9 was not found; pip install nvidia-cudnn-cu13, or set CUDNN_"):
        library.load()


@pytest.mark.parametrize("place", ["nvidia/cudnn/lib", "nvidia/cu13/lib", "torch/lib"])
def test_packages_have_it(nowhere, monkeypatch, place):
    path = put(nowhere / "site-packages" / place)
    monkeypatch.setattr(sys, "path", ["", str(nowhere / "elsewhere"), str(nowhere / "site-packages")])
    assert found() == path


def test_the_most_particular_place_wins(nowhere, monkeypatch):
    """Each place is tried after all those that are left when it is taken away."""
    (nowhere / "ldconfig").write_text(f"#!/bin/sh\necho '\t{library.NAME} (libc6,x86-64) => {nowhere}/system/x.so.9'\n")
    (nowhere / "ldconfig").chmod(0o755)
    monkeypatch.setattr(library, "_LDCONFIG", str(nowhere / "ldconfig"))
    monkeypatch.setattr(sys, "path", [str(nowhere / "packages")])
    monkeypatch.setenv("CUDNN_PATH", str(nowhere / "given"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{nowhere}/none:{nowhere}/listed")
    places = ("given/lib", "given/lib64", "given", "packages/nvidia/cudnn/lib", "prefix/lib", "listed", "system")
    for path in [put(nowhere / place) for place in places]:
        assert found() == path
        path.unlink()
    assert found() is None


def test_never_from_the_working_directory(nowhere, monkeypatch):
    for place in (".", "lib", "nvidia/cudnn/lib", "torch/lib"):
        put(nowhere / place)
    for name in ("CUDNN_PATH", "LD_LIBRARY_PATH"):
        for value in ("", ".", ":", "lib", "lib:."):
            monkeypatch.setenv(name, value)
            monkeypatch.setattr(sys, "path", ["", ".", str(nowhere)])
            assert found() is None
        monkeypatch.delenv(name)


def test_never_from_the_working_directory_of_a_fresh_process(tmp_path):
    for place in (".", "nvidia/cudnn/lib", "torch/lib"):
        put(tmp_path / place)
    environment = {**os.environ, "LD_LIBRARY_PATH": ":.", "CUDNN_PATH": "."}
    command = [sys.executable, "-c", FIND]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert str(tmp_path) not in done.stdout


def test_it_is_loaded_with_its_version(nowhere, monkeypatch):
    path = compiled(nowhere / "given" / "lib")
    monkeypatch.setenv("CUDNN_PATH", str(nowhere / "given"))
    loaded = library.load()
    assert (loaded.path, loaded.version) == (path, VERSION)
    assert library.version() == VERSION
    assert library.load() is loaded


def test_one_that_the_process_has_already_is_taken(fake_folder, tmp_path):
    """Torch may have loaded its own; a second one would take the parts of the first."""
    other = compiled(tmp_path / "other" / "lib")
    code = (
        f"import ctypes; ctypes.CDLL({str(other)!r})\n"
        "from tvm_sparse.cudnn import library; print(library.find()); print(library.load().path)"
    )
    environment = {**os.environ, "CUDNN_PATH": str(fake_folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(fake_folder / "lib" / library.NAME), str(other)]


def test_a_file_that_is_none_is_a_sentence(nowhere, monkeypatch):
    put(nowhere / "given" / "lib").write_text("nonsense")
    monkeypatch.setenv("CUDNN_PATH", str(nowhere / "given"))
    with pytest.raises(BuildError, match=r"cuDNN: .*libcudnn.so.9 cannot be loaded \(.*file too short.*\); install it"):
        library.load()
    assert library.version() is None


def test_nvidias_library_takes_the_descriptors():
    """It makes them without a GPU, and says what a convolution's output is; only handles need a GPU."""
    if library.find() is None:
        pytest.skip(f"needs NVIDIA's cuDNN: {library.INSTALL}")
    # Not the one that other tests have put into this process.
    functions, choose = ctypes.CDLL(str(library.find())), random.Random(0).choice
    cudnn, output = Cudnn(library.Library(Path(), "", functions)), functions.cudnnGetConvolution2dForwardOutputDim
    output.argtypes = [ctypes.c_void_p] * 7
    for _ in range(50):
        spec = random_case(choose).spec
        padding = spec.symmetric_padding or (0, 0)
        shape = spec.input_shape if spec.symmetric_padding is not None else spec.padded_shape
        for layout in ("nchw", "nhwc"):
            x, filters = cudnn.tensor(shape, strides_of(shape, layout)), cudnn.filters(spec.weight_shape, layout)
            convolution = cudnn.convolution(padding, spec.stride, spec.dilation, spec.groups, layout == "nhwc")
            found = [ctypes.c_int() for _ in range(4)]
            assert output(convolution, x, filters, *map(ctypes.byref, found)) == 0
            assert tuple(each.value for each in found) == spec.output_shape
    assert cudnn.activation(RELU) and cudnn.activation(IDENTITY)
    with pytest.raises(CudnnError, match=r"cudnnSetTensor4dDescriptorEx: CUDNN_STATUS_BAD_PARAM"):
        cudnn.tensor((0, 1, 1, 1), (1, 1, 1, 1))
