"""TF32: which kernels compute in it. Their names say so, and nothing else decides."""

# A variant of a schedule whose kernels round inputs to TF32.
TF32 = "tf32"


def is_tf32(schedule: str) -> bool:
    """Whether kernels of ``schedule`` or ``schedule:variant`` may round their inputs to TF32; all others are float32."""
    return schedule.partition(":")[2] == TF32
