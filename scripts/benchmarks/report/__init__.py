"""Reports of results.

In: results of benchmarks. Out: Markdown and HTML pages.
"""
