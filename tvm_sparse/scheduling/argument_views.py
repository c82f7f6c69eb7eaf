"""Scheduled functions whose arguments have other shapes than what they compute on, which are the same in memory."""

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferRegion, BufferStore, DeclBuffer, Var

Indices = Sequence[tirx.Expr]


def with_shapes(func: tirx.PrimFunc, shapes: Sequence[Sequence[int]]) -> tirx.PrimFunc:
    """`func` with arguments of such `shapes`; it reads and writes them as its own have them."""
    arguments, views = list(func.params), []
    for i, (own, shape) in enumerate(zip(func.params, shapes, strict=True)):
        if tuple(shape) != shape_of(own):
            arguments[i] = tirx.decl_buffer(shape, own.ty.dtype, own.name)
            views.append(DeclBuffer(own, data=tirx.buffer_data(arguments[i])))
    if not views:
        return func
    root = func.body.block
    body = tirx.SeqStmt([*views, root.body])
    rest = (root.init, root.alloc_buffers, root.match_buffers, root.annotations)
    block = SBlock(root.iter_vars, root.reads, root.writes, root.name_hint, body, *rest)
    realize = SBlockRealize(func.body.iter_values, func.body.predicate, block)
    return tirx.PrimFunc(arguments, realize, func.ret_type, func.attrs)


def storing_at(
    func: tirx.PrimFunc, index: int, shape: Sequence[int], at: Callable[[Indices], Indices]
) -> tirx.PrimFunc:
    """`func` with an argument of such a `shape` at `index`, and what is stored to it elsewhere: `at` these indices."""
    own = func.params[index]
    new = tirx.decl_buffer(shape, own.ty.dtype, own.name)

    def store(node: BufferStore) -> BufferStore:
        return BufferStore(new, node.value, at(node.indices)) if node.buffer.same_as(own) else node

    def region(write: BufferRegion) -> BufferRegion:
        pairs = zip(at([each.min for each in write.region]), write.region, strict=True)
        return BufferRegion(new, [Range.from_min_extent(first, old.extent) for first, old in pairs])

    def block(node: SBlock) -> SBlock:
        if not any(write.source.same_as(own) for write in node.writes):
            return node
        writes = [region(write) if write.source.same_as(own) else write for write in node.writes]
        rest = (node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers, node.annotations)
        return SBlock(node.iter_vars, node.reads, writes, *rest)

    body = tvm_ffi.structural_map(func.body, [(BufferStore, store), (SBlock, block)], order="post")
    parameters = [new if i == index else each for i, each in enumerate(func.params)]
    return tirx.PrimFunc(parameters, body, func.ret_type, func.attrs)


def shape_of(buffer: Var) -> tuple[int, ...]:
    """The constant shape of a buffer."""
    return tuple(int(each) for each in buffer.ty.shape)
