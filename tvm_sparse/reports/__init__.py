"""What is known of a model, for people and for programs: `inspect`, `bench`, `check` and `report`.

In: a model or an artifact, and options. Out: a `Report`, which prints itself, or a page.
"""
