"""Small torch modules that between them show what is imported right: tables of cases, by kind of operator."""

from torch_cases import binary, elementwise, layers, reductions, shapes, spatial

CASES = {
    f"{table.__name__.rpartition('.')[2]}: {name}": case
    for table in (elementwise, binary, reductions, shapes, spatial, layers)
    for name, case in table.CASES.items()
}
