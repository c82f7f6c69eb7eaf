"""Folders of published logs: written, served from this machine, and never trusted."""

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from factories import SPEC, make_record, make_weight

from tvm_sparse.autotune import session
from tvm_sparse.cli import main
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import LogError, UsageError
from tvm_sparse.logs import known_logs, published, publishing
from tvm_sparse.logs.published import INDEX, Published
from tvm_sparse.logs.publishing import publish
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})
HERE = fingerprint_of(TARGET)
PATTERN = SparsityPattern.of(make_weight())
OTHER = replace(SPEC, c=16)
HERE_RECORD = make_record(fingerprint=HERE)
RECORDS = [
    HERE_RECORD,
    make_record(fingerprint=HERE, times_us=(99.0,)),
    make_record(fingerprint=HERE, times_us=(1.0,), status="wrong", cause="it is wrong"),
    make_record(fingerprint={**HERE, "threads": "99"}, seed=8),
    make_record(fingerprint={**HERE, "arch": "haswell"}),
    make_record(fingerprint=HERE, spec=OTHER, pattern=SparsityPattern.of(make_weight(spec=OTHER))),
]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path):
    publish(tmp_path / "public", RECORDS)
    return tmp_path / "public"


@pytest.fixture
def server(folder):
    """Its URL, and the paths that were asked for."""
    with serving(folder) as found:
        yield found


@contextmanager
def serving(folder, context=None):
    pytest.importorskip("aiohttp", reason="the extra remote is not installed")
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield SimpleNamespace(url=f"http{'s' * bool(context)}://127.0.0.1:{server.server_port}", asked=asked)
    server.shutdown()
    server.server_close()


def candidates(place, spec=SPEC, pattern=PATTERN):
    return TuningLog(NO_FILE, published=[Published(str(place))]).candidates(spec, pattern, HERE)


def test_published_records_are_candidates_and_nothing_else(folder):
    log = TuningLog(NO_FILE, published=[Published(str(folder))])
    assert log.candidates(SPEC, PATTERN, HERE) == [HERE_RECORD, RECORDS[3]]
    assert not log.records and not log.trials(SPEC, PATTERN, HERE) and log.dense(SPEC, HERE) is None
    assert log.lookup(SPEC, PATTERN, HERE) is None and log.near(SPEC, PATTERN, HERE) is None


def test_a_search_begins_with_them(folder):
    log = known_logs.open_log(TARGET, "mine.jsonl", folder)
    notes = SimpleNamespace(task=lambda *_: None, note=lambda _: None)
    (task,) = session.tasks_of([SimpleNamespace(spec=SPEC, weight=make_weight(), pattern=PATTERN, name="conv")])
    known, starts = session.begin(task, TARGET, log, notes)
    assert not known and starts == [HERE_RECORD, RECORDS[3]]


def test_what_is_published_later_is_added_and_the_fastest_stay(folder):
    faster = make_record(fingerprint=HERE, times_us=(2.0,))
    publish(folder, [faster])
    assert candidates(folder)[0] == faster
    publish(folder, [HERE_RECORD])
    assert candidates(folder)[0] == faster and candidates(folder, OTHER, RECORDS[5].pattern)


def test_only_matching_parts_are_fetched_and_each_once(server, folder):
    for _ in range(2):
        assert candidates(server.url + "/") == [HERE_RECORD, RECORDS[3]]
    parts = [path for path in server.asked if path.startswith("/parts/")]
    assert len(parts) == len(set(parts)) == 2 < len(list(folder.glob("parts/*")))


def test_a_cached_part_that_was_damaged_is_fetched_again(server, tmp_path):
    candidates(server.url)
    for path in (tmp_path / "home" / "published").iterdir():
        path.write_text("damaged")
    assert candidates(server.url) == [HERE_RECORD, RECORDS[3]]


def test_what_is_checked_is_what_is_parsed(folder, monkeypatch):
    """Though the file changes meanwhile."""
    digest_of = published._digest_of

    def after_damage(data):
        for path in folder.glob("parts/*"):
            path.write_text("damaged" if path.read_bytes() == data else path.read_text())
        return digest_of(data)

    monkeypatch.setattr(published, "_digest_of", after_damage)
    assert candidates(folder) == [HERE_RECORD, RECORDS[3]]
    assert candidates(folder) == []


def test_a_part_here_is_as_small_as_a_servers(folder, caplog, monkeypatch):
    monkeypatch.setattr(published, "MAX_PART_BYTES", 100)
    assert candidates(folder) == []
    assert "more than 100" in caplog.text


def test_a_file_url_is_fetched_as_any(folder):
    pytest.importorskip("fsspec", reason="the extra remote is not installed")
    assert candidates(f"file://{folder}") == [HERE_RECORD, RECORDS[3]]


def test_a_server_that_is_down_is_said_once_and_its_cache_is_not_needed(server, folder, caplog):
    site = Published(server.url)
    for path in folder.glob("parts/*"):
        path.unlink()
    assert site.records(SPEC, HERE) == site.records(OTHER, HERE) == []
    assert Published("http://name:secret@127.0.0.1:1/logs").records(SPEC, HERE) == []
    assert [each.getMessage().count("cannot be read") for each in caplog.records] == [1, 1]
    assert (
        "http://127.0.0.1:1/logs, index.json: it cannot be read (Cannot connect to host" in caplog.text
        and "secret" not in caplog.text
    )


GOOD = {"format": published.FORMAT, "version": 1, "machines": []}
DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (None, "No such file"),
        ("{", "no index of published logs"),
        ("[" * 100_000, "nested too deeply"),
        ([], "lacks the format"),
        (GOOD | {"version": 2}, "found 2; allowed: 1; update tvm-sparse"),
        (GOOD | {"machines": {}}, "dict stands where a list should"),
        (GOOD | {"machines": [{"machine": HERE}]}, "NoneType stands where a dict should"),
        (GOOD | {"machines": [{"machine": {"kind": "llvm"}, "parts": {}}]}, "a machine is not told by kind"),
        (GOOD | {"machines": [{"machine": HERE, "parts": {"x": "../../secret"}}]}, "64 hex digits"),
        (GOOD | {"machines": [{"machine": HERE, "parts": {replace(SPEC, bias=False).key: DIGEST}}]}, "No such file"),
        (GOOD | {"pad": "x" * 5000}, "more than 4000"),
    ],
)
def test_a_bad_index_is_one_sentence(tmp_path, caplog, monkeypatch, index, said):
    monkeypatch.setattr(published, "MAX_INDEX_BYTES", 4000 if "pad" in (index or ()) else 1 << 20)
    if index is not None:
        (tmp_path / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))
    assert candidates(tmp_path) == []
    (message,) = (each.getMessage() for each in caplog.records)
    assert said in message and message.endswith("the records published there are not used")


def test_a_part_is_what_the_index_means(server, folder, caplog):
    for path in folder.glob("parts/*"):
        path.write_bytes(path.read_bytes() + b"\n")
    assert candidates(folder) == candidates(server.url) == []
    assert caplog.text.count("its SHA-256 is not that of its name") == 2
    with pytest.raises(LogError, match="SHA-256"):
        publish(folder, RECORDS)


def test_bad_lines_of_a_part_are_skipped(folder, caplog):
    line = HERE_RECORD.to_line()
    data = f"{line}\n{line.replace('12.5', '0.1')}\n".encode()
    digest = sha256(data).hexdigest()
    (folder / "parts" / f"{digest}.jsonl").write_bytes(data)
    machines = [{"machine": HERE, "parts": {replace(SPEC, bias=False).key: digest}}]
    (folder / INDEX).write_text(json.dumps(GOOD | {"machines": machines}))
    assert candidates(folder) == [HERE_RECORD]
    assert "1 line(s) skipped" in caplog.text


def test_what_is_too_large_for_readers_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "MAX_PART_BYTES", 100)
    with pytest.raises(LogError, match="too many records"):
        publish(tmp_path / "public", RECORDS)
    assert not (tmp_path / "public" / INDEX).exists()


@pytest.mark.parametrize(("package", "url"), [("fsspec", "s3://b/x"), ("aiohttp", "https://127.0.0.1:1/x")])
def test_a_missing_package_is_named(monkeypatch, package, url):
    pytest.importorskip("fsspec", reason="the extra remote is not installed")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=r"tvm-sparse\[remote\]"):
        Published(url)


def test_an_unknown_protocol_is_said():
    pytest.importorskip("fsspec", reason="the extra remote is not installed")
    with pytest.raises(UsageError, match="no installed package fetches from there"):
        Published("nowhere://x")


def test_names_of_logs(folder, monkeypatch):
    record = make_record(fingerprint=HERE, seed=9)
    TuningLog("mine.jsonl").append(record)
    assert known_logs.open_log(TARGET, str(folder)).path == known_logs.user_log(TARGET)
    assert not known_logs.open_log(TARGET).published
    monkeypatch.setenv("TVM_SPARSE_LOGS", f" {folder} ,mine.jsonl,")
    log = known_logs.known_log(TARGET)
    assert [each.place for each in log.published] == [str(folder)] and record in log.records
    assert not known_logs.open_log(TARGET, "mine.jsonl").published


def test_the_command_publishes_logs_that_are_named_or_the_users(tmp_path, capsys):
    TuningLog("tuning.jsonl").append(HERE_RECORD)
    assert main.main(["logs", "publish", "public", "tuning.jsonl"]) == 0
    assert "published: public, 1 records" in capsys.readouterr().out
    assert main.main(["logs", "publish", "other"]) == 0
    assert (tmp_path / "public" / INDEX).read_bytes() == (tmp_path / "other" / INDEX).read_bytes()
    assert main.main(["logs", "publish", "public", "missing.jsonl"]) == LogError.exit_code
    for action, *logs in (["publish", "https://me:pw@host/logs"], ["stats", "s3://b/x"]):
        assert main.main(["logs", action, *logs]) == UsageError.exit_code
        said = capsys.readouterr().err
        assert "knows no URLs" in said and "pw" not in said
    assert not (tmp_path / "https:").exists()


# How many candidates a published folder has for the convolution of each line, in a process of its own.
LOOK_UP = """
import json, sys
from factories import make_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.logs.published import Published
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog

log, pattern = TuningLog(NO_FILE, published=[Published(sys.argv[1])]), SparsityPattern.of(make_weight())
for line in sys.stdin:
    record = TuningRecord.from_line(line)
    print(sum(each.spec == record.spec for each in log.candidates(record.spec, pattern, record.fingerprint)))
"""


@pytest.mark.exhaustive
def test_a_model_needs_few_of_a_hundred_thousand_records(folder, tmp_path):
    """A search of 20 convolutions fetches 20 parts of 10,000, from a server whose certificate is trusted."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    names = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    specs = [replace(SPEC, h=6 + number) for number in range(10_000)]
    publish(folder, (replace(HERE_RECORD, spec=spec, seed=seed) for spec in specs for seed in range(10)), keep=10)
    lines = "".join(f"{replace(HERE_RECORD, spec=spec).to_line()}\n" for spec in specs[100:120])
    with serving(folder, context) as server:

        def found(environment):
            words, options = [sys.executable, "-c", LOOK_UP, server.url], {"text": True, "capture_output": True}
            environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(words, input=lines, env={**os.environ, **environment}, check=True, **options)
            return done.stdout.split(), done.stderr

        counts, said = found({"SSL_CERT_FILE": str(certificate)})
        assert counts == ["1"] * 20 and not said
        assert len(server.asked) == 21
        counts, said = found({})
        assert counts == ["0"] * 20 and said.count("certificate verify failed") == 1
        assert len(server.asked) == 21
