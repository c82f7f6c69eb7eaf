"""Plans: memory is shared where lives do not meet; what is not whole, or not for this machine, is a sentence in C."""

import os
import shutil
import struct
import subprocess

import exported
import pytest
from exported import changed, signed

from tvm_sparse.exporter import bytecode
from tvm_sparse.exporter.bytecode import Call, Constant, Program, Register, UnknownBytecode
from tvm_sparse.exporter.library import Library
from tvm_sparse.exporter.plan import Base, plan_of
from tvm_sparse.exporter.plan_file import encoded
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.runtime.workspace import NEXT_CALL

X = TensorSpec("x", (1, 3, 5, 7), "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return exported.of_zoo("two_inputs", tmp_path_factory.mktemp("plan"))[1]


@pytest.fixture(scope="module")
def program(folder, tmp_path_factory):
    return exported.build(folder, tmp_path_factory.mktemp("program") / "main")


def said(program, plan):
    """The sentence with which the program ends."""
    done = subprocess.run([program, plan], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def chain(length):
    """A program of kernels that each write a piece of their own of 1,000 bytes, read by the next alone."""
    calls, kernels = [], frozenset(f"k{index}" for index in range(length))
    before = Register(0)
    for index in range(length):
        storage, after = Register(100 + index), Register(index + 1)
        calls.append(Call("vm.builtin.alloc_storage", storage, (None, (1000,), 0, "uint8", "global")))
        calls.append(Call("vm.builtin.alloc_tensor", after, (storage, 0, (250,), "float32")))
        # As models whose branches may run side by side say it.
        calls.append(Call(NEXT_CALL, Register(98), (1, after, before)))
        calls.append(Call(f"k{index}", Register(99), (before, after)))
        before = Register(200 + index)
        calls.append(Call("vm.builtin.copy", before, (after,)))
    return Program(1, tuple(calls), before), kernels


def test_memory_of_results_that_are_read_no_more_is_used_again():
    program, kernels = chain(9)
    plan = plan_of(program, Signature((X,), (X,), True), kernels)
    assert [step.kernel for step in plan.steps] == [f"k{index}" for index in range(9)]
    for step in plan.steps[1:]:
        read, written = step.arguments
        assert read.base is Base.WORKSPACE and {read.offset, written.offset} == {0, 1024}
    assert plan.workspace_bytes == 2024


@pytest.mark.parametrize(
    "call, sentence",
    [
        (Call("vm.builtin.shape_of", Register(1), (Register(0),)), "it calls vm.builtin.shape_of"),
        (Call("k", Register(1), (Register(0), "text")), "it passes 'text' to a kernel"),
        (Call("vm.builtin.null_value", Register(0), ()), "it returns something else than tensors"),
    ],
)
def test_what_no_plan_can_do(call, sentence):
    with pytest.raises(UnknownBytecode, match=sentence):
        plan_of(Program(1, (call,), Register(0)), Signature((X,), (X,), True), frozenset("k"))


def test_byte_code_that_is_none(folder):
    (path,) = folder.with_name("model.sparse").glob("*.so")
    data = Library.of(path.read_bytes()).data
    assert any(isinstance(each, Constant) for call in bytecode.read(data).calls for each in call.arguments)
    for size in range(0, len(data), 97):
        with pytest.raises(UnknownBytecode):
            bytecode.read(data[:size])
    with pytest.raises(UnknownBytecode, match="its magic number is another"):
        bytecode.read(data.replace(struct.pack("<Q", bytecode._MAGIC), bytes(8)))


def test_a_plan_that_is_not_whole(folder, program, tmp_path):
    plan = (folder / "model.plan").read_bytes()
    for number, (wrong, sentence) in enumerate(
        [
            (b"", "cannot be read (it is empty, or no file)"),
            (plan[:40], "is no plan of tvm-sparse export"),
            (b"x" + plan[1:], "is no plan of tvm-sparse export"),
            (plan[:8] + b"\1" + plan[9:], "is of another version, found 1; allowed: 3; use the C library"),
            (plan[:-1], "is damaged (its size or its SHA-256 differs)"),
            (plan[:-1] + b"\1", "is damaged (its size or its SHA-256 differs)"),
            (signed(plan[:-1]), "is damaged (it ends too early)"),
            (signed(plan + b"\0"), "is damaged (it does not end where it should)"),
        ]
    ):
        path = changed(folder, tmp_path / str(number), lambda _, wrong=wrong: wrong)
        assert said(program, path).startswith(f"{path}: {sentence}")
    missing = tmp_path / "none.plan"
    assert said(program, missing) == f"{missing}: cannot be read (No such file or directory)"
    assert said(program, tmp_path) == f"{tmp_path}: cannot be read (it is empty, or no file)"


def test_a_library_that_is_another(folder, program, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = (copy / "model.so").read_bytes()
    for wrong in (content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
        (copy / "model.so").write_bytes(wrong)
        assert "model.so: is not the file that was exported" in said(program, copy / "model.plan")
    (copy / "model.so").unlink()
    assert said(program, copy / "model.plan").endswith("model.so: cannot be read (No such file or directory)")


@pytest.mark.parametrize(
    "machine, sentence",
    [
        (("vax", "780", []), "it was built for vax, and this is "),
        ((os.uname().machine, "tomorrow's", ["teleport"]), "built for tomorrow's, and this processor lacks teleport"),
    ],
)
def test_another_machine(folder, program, tmp_path, machine, sentence):
    plan = plan_of(Program(1, (), Register(0)), Signature((X,), (X,), True), frozenset())
    library = ("model.so", (folder / "model.so").read_bytes())
    data = encoded(plan, Signature((X,), (X,), True), (), library, machine, 1)
    assert sentence in said(program, changed(folder, tmp_path / "other", lambda _: data))


def test_a_model_that_returns_its_input(folder, program, tmp_path):
    plan = plan_of(Program(1, (), Register(0)), Signature((X,), (X,), True), frozenset())
    library = ("model.so", (folder / "model.so").read_bytes())
    data = encoded(plan, Signature((X,), (X,), True), (), library, (os.uname().machine, "", []), 1)
    path, values = changed(folder, tmp_path / "same", lambda _: data), os.urandom(X.size_bytes)
    (tmp_path / "x.raw").write_bytes(values)
    done = subprocess.run([program, path, tmp_path / "x.raw"], stdout=subprocess.PIPE, check=True, timeout=60)
    assert done.stdout == values
