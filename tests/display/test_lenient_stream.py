"""A reader that leaves costs the text, and nothing else."""

import os

from rich.console import Console

from tvm_sparse.display.lenient_stream import LenientStream


def test_a_reader_that_leaves():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", buffering=1) as raw:
        stream = LenientStream(raw)
        console = Console(file=stream)
        console.print("one")
        assert os.read(reader, 100) == b"one\n"
        os.close(reader)
        for _ in range(2):
            # rich would end the process.
            console.print("two")
            assert stream.write("three") == 5
            stream.flush()
        assert stream.encoding == raw.encoding
