from __future__ import annotations

from pathlib import Path

from caffe_recipes.caffe.log_files import LogFile
from caffe_recipes.run.launch import RankLogs


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def open_files(folder: Path) -> int:
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.append(entry.readlink())
        except OSError:  # the one that listed them
            continue
    return sum(target.is_relative_to(folder) for target in targets)


def test_each_rank_gets_a_file_of_its_own_without_labels(tmp_path: Path) -> None:
    with RankLogs(tmp_path / "init-1.ranks", ranks=128) as logs:
        logs.feed(["[0] I1120 a", "[101] I1120 b", "[0] I1120 c", "mpiexec: d", ""])
        logs.feed(["[7] e"])
    assert texts(tmp_path / "init-1.ranks") == {
        "000.log": "I1120 a\nI1120 c\n",
        "007.log": "e\n",
        "101.log": "I1120 b\n",
        "launcher.log": "mpiexec: d\n\n",
    }


def test_a_log_is_sorted_as_it_grows_and_its_last_line_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "init-1.log"
    log = LogFile(path)
    with RankLogs(tmp_path / "ranks", ranks=2) as logs:
        logs.read(log)
        path.write_text("[0] a\n[1] b\n[0] cut")
        logs.read(log)
        assert texts(tmp_path / "ranks") == {"0.log": "a\n", "1.log": "b\n"}
        with path.open("a") as file:
            file.write(" short\n[1] last")
        logs.read(log, to_end=True)
    assert texts(tmp_path / "ranks") == {"0.log": "a\ncut short\n", "1.log": "b\nlast\n"}


def test_labels_that_lost_their_lines_are_not_text(tmp_path: Path) -> None:
    with RankLogs(tmp_path, ranks=2) as logs:
        logs.feed(["[0] [1] no route", "[1] no host[0] "])
    assert texts(tmp_path) == {"1.log": "no route\nno host\n"}


def test_a_label_that_is_not_a_rank_is_kept_with_the_launcher_output(tmp_path: Path) -> None:
    with RankLogs(tmp_path, ranks=2) as logs:
        logs.feed(["[2026] started", "[999999999999999999] x", "[../../x] y"])
    assert texts(tmp_path) == {"launcher.log": "[2026] started\n[999999999999999999] x\n[../../x] y\n"}


def test_the_files_are_whole_while_a_launch_continues(tmp_path: Path) -> None:
    with RankLogs(tmp_path, ranks=2) as logs:
        logs.feed(["[0] a"])
        assert texts(tmp_path) == {"0.log": "a\n"}
        logs.feed(["[0] b"])
        assert texts(tmp_path) == {"0.log": "a\nb\n"}


def test_a_log_read_again_from_its_beginning_gives_the_same_files(tmp_path: Path) -> None:
    lines = [f"[{rank}] {line}" for line in range(3) for rank in range(40)]
    with RankLogs(tmp_path, ranks=40) as logs:
        logs.feed(lines)
    before = texts(tmp_path)
    with RankLogs(tmp_path, ranks=40) as logs:
        for line in lines:
            logs.feed([line])
    assert texts(tmp_path) == before
    assert before["07.log"] == "0\n1\n2\n"


def test_128_ranks_use_few_descriptors_without_losing_output(tmp_path: Path) -> None:
    with RankLogs(tmp_path / "ranks", ranks=128) as logs:
        assert not (tmp_path / "ranks").exists()
        for _ in range(2):
            logs.feed([f"[{rank}] x" for rank in range(128)])
            assert open_files(tmp_path) <= 16
    assert open_files(tmp_path) == 0
    assert set(texts(tmp_path / "ranks").values()) == {"x\nx\n"}
    assert len(texts(tmp_path / "ranks")) == 128


def test_a_full_disk_is_reported_once_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "0.log").symlink_to("/dev/full")
    messages: list[str] = []
    with RankLogs(tmp_path, ranks=2, complain=messages.append) as logs:
        logs.feed(["[0] a"])
        logs.feed(["[0] b", "[1] c"])
    what = f"{tmp_path}: nothing more is written: No space left on device; the launcher's log is complete"
    assert messages == [what]
    assert not (tmp_path / "1.log").exists()


def test_a_folder_that_cannot_be_made_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    messages: list[str] = []
    with RankLogs(tmp_path / "file" / "ranks", complain=messages.append) as logs:
        logs.feed(["[0] a"])
        logs.feed(["[0] a"])
    assert [line.count("Not a directory") for line in messages] == [1]
