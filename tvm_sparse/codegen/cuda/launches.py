"""How a scheduled function launches its CUDA kernels, as plain data: its host code without its device code.

TVM splits a function into kernels and a host function that allocates what lies between them and launches one after the
other. `Launches.of` reads that host function, `host_function` writes it again, to the same machine code, and
`device_stubs` writes functions with the kernels' signatures and launch settings, from which TVM makes a module around
machine code that was built before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, Expr, Op, PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx import AllocBuffer, DeclBuffer, Evaluate, IntImm, PrimFunc, Var
from tvm.tirx.script import builder as T

from tvm_sparse.codegen.tir.tir_builder import nothing, statements_of
from tvm_sparse.scheduling.tir_writing import whole

# Attributes of a device function: its name, its calling convention (of a kernel) and its launch settings.
_NAME, _CONVENTION, _KERNEL, _SETTINGS = "global_symbol", "calling_conv", 2, "tirx.kernel_launch_params"


@dataclass(frozen=True)
class Array:
    """An argument of the function, or a workspace that it allocates: name, shape, element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Launch:
    """One kernel and how it is launched.

    Its arguments are pointers to `types`, to the arrays numbered `arrays`: the function's arguments first, then its
    workspaces. `values` (a number and its type each) are for `tags`: grid, block, cluster, bytes of dynamic shared
    memory. `settings` are the tags that the kernel itself is registered with, those without a value among them.
    """

    kernel: str
    types: tuple[str, ...]
    arrays: tuple[int, ...]
    tags: tuple[str, ...]
    values: tuple[tuple[int, str], ...]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Launches:
    """A host function: its arguments, its workspaces, its launches in order."""

    arguments: tuple[Array, ...]
    workspaces: tuple[Array, ...]
    launches: tuple[Launch, ...]

    @classmethod
    def of(cls, host: PrimFunc, device: tvm.IRModule) -> Launches | None:
        """What `host` does with the kernels in `device`; None where it does more than allocate and launch."""
        kernels = {str(func.attrs[_NAME]): func for func in device.functions.values()}
        arrays = list(host.params)
        # A variable, or the view of one, and the array that it is.
        places = {param: index for index, param in enumerate(arrays)}
        found: list[Launch] = []
        for stmt in statements_of(host.body):
            if isinstance(stmt, AllocBuffer) and not stmt.annotations and stmt.buffer.ty.storage_scope == "global":
                places[stmt.buffer] = len(arrays)
                arrays.append(stmt.buffer)
            elif isinstance(stmt, DeclBuffer) and _owner(stmt.data) in places:
                places[stmt.buffer] = places[_owner(stmt.data)]
            else:
                launch = _launch(stmt, kernels, places)
                if launch is None:
                    return None
                found.append(launch)
        described = [_array(each) for each in arrays]
        count = len(host.params)
        return cls(tuple(described[:count]), tuple(described[count:]), tuple(found)) if found else None

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels' names."""
        return tuple(each.kernel for each in self.launches)

    def renamed(self, names: Mapping[str, str]) -> Launches:
        """The same with other names of kernels."""
        launches = (replace(each, kernel=names[each.kernel]) for each in self.launches)
        return replace(self, launches=tuple(launches))

    def host_function(self) -> PrimFunc:
        """The function, scheduled: `main` with `arguments`, which Relax can call and TVM compile."""
        with IRBuilder() as builder, T.prim_func(s_tir=True):
            T.func_name("main")
            arrays = [T.arg(each.name, T.buffer(each.shape, each.dtype, layout=None)) for each in self.arguments]
            # In a block, where Relax looks for a reshape in each function of one input.
            with T.sblock("root"):
                T.reads(*map(whole, arrays[:-1]))
                T.writes(whole(arrays[-1]))
                for each in self.workspaces:
                    arrays.append(T.sblock_alloc_buffer(each.shape, each.dtype))
                    IRBuilder.name(each.name, arrays[-1])
                for launch in self.launches:
                    pointers = [arrays[index].data for index in launch.arrays]
                    values = [IntImm(dtype, value) for value, dtype in launch.values]
                    T.evaluate(tirx.call_ffi_kernel(launch.kernel, *pointers, *values, launch_params=list(launch.tags)))
        return builder.get().with_attr("tirx.noalias", True)

    def device_stubs(self, target: Target) -> tvm.IRModule:
        """Empty functions in the place of the kernels."""
        stubs = {}
        for launch in self.launches:
            params = [
                Var(f"p{index}", PointerType(PrimType(dtype), "global")) for index, dtype in enumerate(launch.types)
            ]
            attributes = {_NAME: launch.kernel, _CONVENTION: _KERNEL, _SETTINGS: list(launch.settings)}
            stubs[launch.kernel] = PrimFunc(params, nothing()).with_attr({**attributes, "target": target})
        return tvm.IRModule(stubs)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Launches:
        """What `to_json` gave, read from JSON; KeyError, TypeError or ValueError where it is something else."""
        arguments, workspaces = (
            tuple(Array(str(each["name"]), _integers(each["shape"]), str(each["dtype"])) for each in data[name])
            for name in ("arguments", "workspaces")
        )
        return cls(arguments, workspaces, tuple(map(_launch_of_json, data["launches"])))


def _launch_of_json(data: Any) -> Launch:
    return Launch(
        str(data["kernel"]),
        tuple(map(str, data["types"])),
        _integers(data["arrays"]),
        tuple(map(str, data["tags"])),
        tuple((int(value), str(dtype)) for value, dtype in data["values"]),
        tuple(map(str, data["settings"])),
    )


def _integers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(int, values))


def _array(buffer: Var) -> Array:
    return Array(str(buffer.name), _integers(buffer.ty.shape), str(buffer.ty.dtype))


def _launch(stmt: tirx.Stmt, kernels: Mapping[str, PrimFunc], places: Mapping[Var, int]) -> Launch | None:
    """The launch that `stmt` is; None where it is something else, or passes something else than arrays."""
    call = stmt.value if isinstance(stmt, Evaluate) else None
    if not isinstance(call, Call) or not call.op.same_as(Op.get("tirx.call_ffi_kernel")):
        return None
    name, *arguments = call.args
    func = kernels.get(str(name.value))
    if func is None:
        return None
    count = len(func.params)
    owners, values = [_owner(each) for each in arguments[:count]], arguments[count:]
    is_plain = all(isinstance(each.ty, PointerType) and each.ty.storage_scope == "global" for each in func.params)
    if not is_plain or not all(owner in places for owner in owners) or not all(isinstance(v, IntImm) for v in values):
        return None
    return Launch(
        str(name.value),
        tuple(str(each.ty.element_type.dtype) for each in func.params),
        tuple(places[owner] for owner in owners),
        tuple(map(str, call.attrs.launch_params)),
        tuple((int(value), str(value.ty.dtype)) for value in values),
        tuple(map(str, func.attrs[_SETTINGS])),
    )


def _owner(data: Expr) -> Var | None:
    """The array whose data pointer `data` is."""
    is_pointer = isinstance(data, Call) and data.op.same_as(Op.get("tirx.buffer_data"))
    return data.args[0] if is_pointer else None


def launched(func: PrimFunc) -> tuple[str, ...]:
    """Names of what a host function calls by name, in order: the kernels of a library."""
    calls = (stmt.value for stmt in statements_of(func.body) if isinstance(stmt, Evaluate))
    return tuple(
        str(call.args[0].value)
        for call in calls
        if isinstance(call, Call) and call.op.same_as(Op.get("tirx.tvm_call_packed"))
    )
