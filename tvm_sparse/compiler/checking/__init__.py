"""What a compiled model computes, beside what it should.

In: a model, random inputs. Out: outputs, layer by layer, and how far they are apart.
"""
