"""Weights as immediates: zeros fold away, chains of multiply-adds are left.

In: a scheduled function, its weight. Out: straight code, for CPUs as assembly where that is faster.
"""
