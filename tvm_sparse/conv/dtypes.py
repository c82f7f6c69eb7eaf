"""Names of the types in which tensors are stored."""

FLOAT32, FLOAT16, BFLOAT16 = "float32", "float16", "bfloat16"
HALVES = (FLOAT16, BFLOAT16)
DTYPES = (FLOAT32, *HALVES)
# What quantised models stand for; their tensors are stored in float32.
INT8 = "int8"
