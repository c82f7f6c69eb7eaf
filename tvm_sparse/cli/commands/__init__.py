"""The commands of the command line, one a file.

Each has ``run(arguments, console) -> document``, which does the work, says on `console` (standard error) how it goes
and returns a `Report`, which prints itself; or JSON values, which ``show(document, console)`` prints for people. One
that looks for faults has ``failure(document)``, the error to end with once the document is out, or None; one whose
document says itself what is wrong has ``exit_code(document)``.
"""
