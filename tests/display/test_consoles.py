"""Where text goes, and where progress is shown."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from tvm_sparse.display import live_line
from tvm_sparse.display.consoles import plain_text, progress_console, result_console, watched_console


def test_consoles_write_where_they_should(capsys):
    result_console().print("result")
    progress_console().print("progress")
    assert capsys.readouterr() == ("result\n", "progress\n")


class Terminal(io.StringIO):
    """Standard error that somebody looks at."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What colours a log: that is no terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(("given", "in_file", "in_terminal"), [(None, False, True), (True, True, True), (False,) * 3])
def test_progress_is_shown_where_somebody_looks(given, in_file, in_terminal, monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert (watched_console(given) is not None) == in_file
    monkeypatch.setattr("sys.stderr", Terminal())
    assert (watched_console(given) is not None) == in_terminal


def test_a_notebook_is_looked_at(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert watched_console(None) is not None and watched_console(False) is None


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_renews_lines_with_ipywidgets_only(has_widgets, monkeypatch):
    """rich warns at each renewal without."""
    monkeypatch.setattr(live_line, "find_spec", lambda _name: has_widgets or None)
    monkeypatch.setattr(live_line.Live, "start", lambda _self: None)
    line = live_line.LiveLine(Console(force_jupyter=True), lambda: "text")
    line.start()
    assert line.is_shown == has_widgets


def test_text_is_plain_in_jupyter(monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert plain_text(Text("bold", style="bold"), "and not") == "bold\nand not"
    assert capsys.readouterr().out == ""
