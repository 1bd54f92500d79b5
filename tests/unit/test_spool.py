"""Records from worker to master: each line once, whatever is lost, repeated or full."""

import errno
import os

import pytest

with pytest.MonkeyPatch.context() as patch:
    # the package loads Locust, which would put gevent under the other tests' threads
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from tokenswarm.distributed import spool
    from tokenswarm.distributed.spool import RecordFile, Spool


class Link:
    """Batches on their way; a test says which arrive."""

    def __init__(self):
        self.sent = []

    def __call__(self, number, data):
        self.sent.append((number, bytes(data)))


@pytest.fixture
def link():
    return Link()


def lines(n, start=0):
    return [b'{"index":%d}\n' % i for i in range(start, start + n)]


def filled(path, link, n=5):
    made = Spool(path, link)
    for line in lines(n):
        made.add(line)
    return made


def test_lines_travel_in_numbered_batches(tmp_path, link):
    made = filled(tmp_path / "workers" / "w1.jsonl", link, 3)
    assert link.sent == []
    made.flush()
    made.flush()
    made.add(b"late\n")
    made.flush()
    assert link.sent == [(0, b"".join(lines(3))), (1, b"late\n")]
    assert made.path.read_bytes() == b"".join(lines(3)) + b"late\n"
    made.close(keep=True)


def test_a_batch_leaves_by_itself_when_it_is_large(tmp_path, link, monkeypatch):
    monkeypatch.setattr(spool, "_BATCH_BYTES", 100)
    made = filled(tmp_path / "w.jsonl", link, 50)
    assert len(link.sent) == len(b"".join(lines(50))) // 100
    made.close(keep=False)


def test_what_is_not_acknowledged_is_sent_again_from_disk(tmp_path, link, monkeypatch):
    made = filled(tmp_path / "w.jsonl", link, 2)
    made.flush()
    made.add(b"x\n")
    made.flush()
    made.acknowledge(0)
    monkeypatch.setattr(spool, "_RESEND_S", -1)
    made.flush()
    assert link.sent[2:] == [(1, b"x\n")]
    made.acknowledge(1)
    made.flush()
    assert len(link.sent) == 3
    assert made.empty
    made.add(b"y\n")
    made.flush()  # reading again has not moved the place where lines are added
    assert made.path.read_bytes() == b"".join(lines(2)) + b"x\ny\n"
    made.close(keep=False)


def test_the_file_goes_when_all_was_acknowledged_and_stays_else(tmp_path, link):
    made = filled(tmp_path / "workers" / "w.jsonl", link)
    made.flush()
    made.close(keep=False)
    assert made.path.read_bytes() == b"".join(lines(5))
    made = filled(tmp_path / "workers" / "w.jsonl", link)
    made.flush()
    made.acknowledge(0)
    made.close(keep=False)
    assert not made.path.parent.exists()


def test_a_folder_with_another_workers_file_stays(tmp_path, link):
    (tmp_path / "w2.jsonl").touch()
    made = Spool(tmp_path / "w1.jsonl", link)
    made.close(keep=False)
    assert [p.name for p in tmp_path.iterdir()] == ["w2.jsonl"]


def test_records_are_kept_in_memory_where_the_disk_cannot_be_written(tmp_path, link, monkeypatch):
    (tmp_path / "file").touch()
    made = filled(tmp_path / "file" / "w.jsonl", link)
    assert made.disk_error.startswith(str(made.path))
    monkeypatch.setattr(spool, "_RESEND_S", -1)
    made.flush()  # sends it, and at once again
    assert link.sent == [(0, b"".join(lines(5)))] * 2
    made.acknowledge(0)
    assert made.empty
    made.close(keep=False)


class FullAfter:
    """A file on a disk that takes so many more bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.file.write(data[: self.room])
        self.room -= taken
        return taken


def test_a_disk_that_fills_up_loses_nothing(tmp_path, link, monkeypatch):
    made = Spool(tmp_path / "w.jsonl", link)
    made._file = FullAfter(made._file, 20)
    for line in (b"first line\n", b"second line\n", b"third\n"):
        made.add(line)
        made.flush()
    assert "No space left" in made.disk_error
    monkeypatch.setattr(spool, "_RESEND_S", -1)
    link.sent.clear()
    made.flush()
    assert link.sent == [(0, b"first line\n"), (1, b"second line\n"), (2, b"third\n")]
    made.close(keep=False)


# -- the master's side -------------------------------------------------------------------------


def test_each_batch_of_each_worker_is_written_once(tmp_path):
    file = RecordFile(tmp_path / "requests.jsonl")
    got = [file.write(*batch) for batch in (
        ("w1", 0, b"a\nb\n"), ("w2", 0, b"c\n"), ("w1", 0, b"a\nb\n"), ("w1", 1, b"d\n"),
    )]  # fmt: skip
    file.close()
    assert got == [2, 1, 0, 1]
    assert (tmp_path / "requests.jsonl").read_bytes() == b"a\nb\nc\nd\n"
    assert (file.lines, file.unwritten, file.error) == (4, 0, None)


def test_without_a_file_lines_are_counted_only():
    file = RecordFile(None)
    assert file.write("w", 0, b"a\n") == 1
    assert (file.unwritten, file.error) == (0, None)
    file.close()


def test_a_file_that_cannot_be_opened_is_said_and_its_lines_counted(tmp_path):
    file = RecordFile(tmp_path / "no" / "requests.jsonl")
    assert file.write("w", 0, b"a\nb\n") == 2
    assert "requests.jsonl: No such file" in file.error
    assert file.unwritten == 2
    file.close()


def test_a_batch_that_did_not_fit_leaves_no_torn_line(tmp_path):
    file = RecordFile(tmp_path / "requests.jsonl")
    file._file = full = FullAfter(file._file, 12)
    file.write("w", 0, b"whole\n")
    file.write("w", 1, b"does not fit\n")
    full.room = 100
    file.write("w", 2, b"again\n")
    file.close()
    assert "No space left" in file.error
    assert file.unwritten == 1
    assert file.path.read_bytes() == b"whole\nagain\n"


def test_batches_that_overtake_each_other_and_come_twice_give_every_line(
    tmp_path, link, monkeypatch
):
    monkeypatch.setattr(spool, "_RESEND_S", -1)
    made, file = Spool(tmp_path / "w.jsonl", link), RecordFile(tmp_path / "requests.jsonl")
    for line in lines(20):
        made.add(line)
        made.flush()
    for number, data in reversed(link.sent):
        file.write("w", number, data)
        made.acknowledge(number)
    made.close(keep=False)
    file.close()
    assert sorted(file.path.read_bytes().splitlines(keepends=True)) == sorted(lines(20))
    assert not made.path.exists()
