"""Reasons as people read them; other tests ask for their kind."""

import pytest

from tvm_sparse.compiler.plan import reasons
from tvm_sparse.compiler.plan.reasons import Kind
from tvm_sparse.logs.ranking import Comparison
from tvm_sparse.measure.quartiles import Quartiles

FP32, TF32 = "dense_cudnn:fp32", "dense_cudnn:tf32"


def compared(own_us, baseline_us, tf32_us=None, is_cold=False, name=FP32):
    others = {} if tf32_us is None else {TF32: Quartiles.of([tf32_us])}
    return Comparison(Quartiles.of([own_us]), Quartiles.of([baseline_us]), is_cold, name, others)


@pytest.mark.parametrize(
    ("reason", "kind", "sentence"),
    [
        (
            reasons.faster("csr_cpu", compared(6, 12, is_cold=True, name="dense_cpu"), "tuned for these weights"),
            Kind.FASTER,
            "csr_cpu is 2.00x faster than dense_cpu with cold code, tuned for these weights",
        ),
        (
            reasons.faster("folded_cuda", compared(10, 21, tf32_us=13), "tuned for these weights"),
            Kind.FASTER,
            "folded_cuda is 2.10x faster than cuDNN float32, 1.30x than cuDNN TF32, tuned for these weights",
        ),
        (
            reasons.faster("folded_cuda", compared(10, 21, tf32_us=5), "transferred from density 0.1"),
            Kind.FASTER,
            "folded_cuda is 2.10x faster than cuDNN float32 (cuDNN TF32 is 2.00x faster, --allow-tf32 allows it), "
            "transferred from density 0.1",
        ),
        (
            reasons.not_faster(compared(14, 12.1, name="dense_cpu"), 1),
            Kind.SLOWER,
            "dense_cpu is faster: 12.1 us against 14 us",
        ),
        (
            reasons.not_faster(compared(30, 8), 7.5),
            Kind.SLOWER,
            "cuDNN float32 is faster: 8 us against 30 us expected with 7.5 times the non-zeros",
        ),
        (
            reasons.not_faster(compared(7, 8, name="dense_cpu"), 1),
            Kind.OVERLAP,
            "their times overlap, so dense_cpu is kept: 8 us against 7 us",
        ),
        (
            reasons.was_faster("csr_cpu", compared(2, 10, name="dense_cpu"), "on znver3 with 2 thread(s)", ", x.jsonl"),
            Kind.NEAR,
            "predicted: csr_cpu was 5.00x faster than dense_cpu on znver3 with 2 thread(s), x.jsonl; not measured here",
        ),
        (
            reasons.predicted("csr_cpu", 1.54),
            Kind.PREDICTED,
            "predicted: csr_cpu should be about 1.5x faster than dense; not measured here",
        ),
        (
            reasons.in_nhwc(TF32, 10, False, FP32, 12),
            Kind.IN_NHWC,
            "cuDNN TF32 in NHWC, like its neighbours: about 10 us without conversions (estimated), "
            "against 12 us of cuDNN float32",
        ),
        (
            reasons.pools_faster("pooled_cuda", 1.5, "folded_cuda", "tuned for these weights"),
            Kind.FASTER,
            "pooled_cuda is 1.50x faster than folded_cuda and the max pool behind it, tuned for these weights",
        ),
        (
            reasons.pools_as_predicted("pooled_cuda", "folded_cuda"),
            Kind.PREDICTED,
            "predicted: pooled_cuda should be faster than folded_cuda and the max pool behind it; not measured here",
        ),
        (
            reasons.joined("b"),
            Kind.JOINED,
            "predicted: dense in one kernel with b should be faster, as what it computes stays in the caches",
        ),
        (
            reasons.no_record([]).and_computes("a"),
            Kind.NO_RECORD,
            "no record for this shape; its kernel computes a too",
        ),
        (reasons.no_record(["2 are for cuda", "1 failed"]), Kind.NO_RECORD, "2 are for cuda; 1 failed"),
        (reasons.dense_because("it is wrong"), Kind.DENSE_INSTEAD, "dense, because it is wrong"),
    ],
)
def test_a_reason(reason, kind, sentence):
    assert (reason.kind, str(reason)) == (kind, sentence)
