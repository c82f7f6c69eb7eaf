"""Records of tuning logs, made up or damaged, for tests."""

import json
import math
import zlib

import numpy as np

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.record_codec import CHECKSUM, SCHEMA

SPEC = ConvSpec(n=1, c=8, h=6, w=6, k=8, r=3, s=3, padding=(1, 1, 1, 1), bias=True)


FINGERPRINT = {"kind": "llvm", "arch": "znver4", "device": "AMD EPYC", "tvm": "0.27.0", "threads": "2"}


def make_weight(density=0.1, seed=0, spec=SPEC):
    """A weight (K, C / groups, R, S) float32 with exactly round(density * size) non-zeros."""
    rng = np.random.default_rng(seed)
    weight = np.zeros(math.prod(spec.weight_shape), "float32")
    chosen = rng.permutation(weight.size)[: round(density * weight.size)]
    weight[chosen] = rng.uniform(0.5, 1, chosen.size)
    return weight.reshape(spec.weight_shape)


def make_record(**changes):
    values = {
        "spec": SPEC,
        "pattern": SparsityPattern.of(make_weight()),
        "schedule": "folded_cpu",
        "decisions": {"k_tile": 16, "pixels": [4, 16]},
        "status": "ok",
        "times_us": (12.5, 11.0, 14.25),
        "dense_times_us": (30.0, 33.0),
        "baseline": "dense_cpu",
        "error": 0.03,
        "target": {"kind": "llvm", "mcpu": "znver4", "num-cores": 2},
        "fingerprint": FINGERPRINT,
        "seed": 7,
        "timestamp": "2026-11-20T09:30:00+00:00",
    }
    return TuningRecord(**(values | changes))


def changed(path, value):
    """The line of a good record with one field, given by its keys, replaced."""
    data = json.loads(make_record().to_line())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return sealed(data)


def sealed(data):
    """The line of `data`, with the checksum that belongs to it."""
    data = {key: value for key, value in data.items() if key != CHECKSUM}
    body = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return f'{body[:-1]},"{CHECKSUM}":"{zlib.crc32(body.encode()):08x}"}}'


def newer_line(**changes):
    """A sound line of a schema that this tvm-sparse does not know."""
    return sealed({**json.loads(make_record(**changes).to_line()), "schema": SCHEMA + 1, "colour": "red"})
