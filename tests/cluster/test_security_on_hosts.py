"""No prompt, no key added, no agent forwarded, no string read by a shell: on separate hosts."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest
import yaml

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cluster.hosts import file_bytes
from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.cluster.remote import own_file_stamp
from caffe_recipes.cluster.ssh import SshHost
from caffe_recipes.errors import ClusterError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.run.journal import load_journal
from tests.cluster.harness.cluster import ROOT, Cluster
from tests.cluster.harness.keys import write_key

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
HYDRA = shutil.which("mpiexec.hydra", path=f"{BIN}:{os.defpath}") or "mpiexec.hydra"
STRICT = DEFAULT_LAUNCHER.environment({})
CLEAN = [str(BIN / "caffe-recipes"), "stage", "digits-local", "--profile", "mpich", "--clean"]


@contextmanager
def configured(cluster: Cluster, first: str, known: Path, key: Path | None = None) -> Iterator[None]:
    """Have every ssh configured by `first`, as a careless user might, with that known_hosts and that key."""
    file = cluster.ssh / "ssh_config"
    before = file.read_text()
    text = re.sub(r"(?m)^  (BatchMode|StrictHostKeyChecking) yes\n", "", before)
    text = text.replace(str(cluster.ssh / "known_hosts"), str(known))
    file.write_text(first + (text.replace(str(cluster.ssh / "id"), str(key)) if key else text))
    yield
    file.write_text(before)


def launch(cluster: Cluster, shared: Path, environment: dict[str, str], *command: str) -> int:
    """Have hydra start a command on node1, in a session without a terminal; return its exit code."""
    (shared / "hosts").write_text("node1\n")
    argv = ["setsid", "-w", HYDRA, "-n", "1", "-f", str(shared / "hosts"), *command]
    return cluster.run("head", argv, env=environment, check=False, timeout_s=60).returncode


@pytest.mark.promise("connections are as strict as your ssh")
@pytest.mark.parametrize("careless", ["accept-new", "askpass"])
def test_hydras_ssh_adds_no_key_and_never_prompts(cluster: Cluster, shared: Path, careless: str) -> None:
    known, asked, askpass = shared / "known", shared / "asked", shared / "askpass"
    askpass.write_text(f'#!/bin/sh\necho "$1" >>{asked}; echo yes\n')
    askpass.chmod(0o755)
    window = {"SSH_ASKPASS": str(askpass), "DISPLAY": ":0", "SSH_ASKPASS_REQUIRE": "prefer"}
    first = "StrictHostKeyChecking accept-new\n" if careless == "accept-new" else ""
    known.touch()
    with configured(cluster, first, known):
        assert launch(cluster, shared, {**window, **STRICT}, "true") != 0
        assert known.read_text() == ""
        assert not asked.exists()
        assert launch(cluster, shared, window, "true") == 0  # what hydra does of itself
        assert "10.77.0.2" in known.read_text()


@pytest.mark.promise("connections are as strict as your ssh")
def test_hydras_ssh_forwards_no_agent(cluster: Cluster, shared: Path) -> None:
    known, socket = cluster.ssh / "known_hosts", shared / "agent"
    agent = subprocess.run(["ssh-agent", "-s", "-a", str(socket)], capture_output=True, text=True, check=True)
    try:
        with configured(cluster, "ForwardAgent yes\n", known):
            look = ("sh", "-c", "ls -d /tmp/ssh-*")
            given = {"SSH_AUTH_SOCK": str(socket)}
            assert launch(cluster, shared, {**given, **STRICT}, *look) != 0
            assert launch(cluster, shared, given, *look) == 0  # what hydra does of itself
    finally:
        os.kill(int(re.findall(r"SSH_AGENT_PID=(\d+)", agent.stdout)[0]), 15)


@pytest.mark.parametrize(
    ("sshd", "locked", "message"),
    [
        ({"PubkeyAuthentication": "no"}, False, "it accepts only password, keyboard-interactive"),
        ({"AuthenticationMethods": "publickey,password"}, False, "after the key, it requires password"),
        ({}, True, r"locked \(needs its passphrase: ssh-add it\); it accepts none of them"),
    ],
    ids=["password", "key and password", "locked key"],
)
def test_a_host_that_would_ask_fails_at_once_in_one_line_and_the_terminal_is_not_read(
    make_cluster: Callable[..., Cluster], sshd: dict[str, str], locked: bool, message: str
) -> None:
    asks = {"PasswordAuthentication": "yes", "KbdInteractiveAuthentication": "yes", "UsePAM": "yes"}
    cluster = make_cluster(1, **{**asks, **sshd})
    key = cluster.shared / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    hostfile = cluster.write_hostfile()
    ours, terminal = pty.openpty()
    os.write(ours, b"secret\n")
    with configured(cluster, "", cluster.ssh / "known_hosts", key if locked else None):
        # A separate terminal, which any process that opens /dev/tty gets.
        # If it is aborted, it prints what each of its threads waits for.
        bounded = ["env", "PYTHONFAULTHANDLER=1", "timeout", "--signal=ABRT", "300", *CLEAN]
        argv = ["setsid", "--ctty", "--wait", *bounded, "--hostfile", str(hostfile)]
        pipe = subprocess.PIPE
        process = cluster.popen("head", argv, stdin=terminal, stdout=pipe, stderr=pipe, text=True)
        out, error = process.communicate()
        assert launch(cluster, cluster.shared, STRICT, "true") != 0
    assert (process.returncode, out) == (3, ""), error
    assert re.search(
        rf"(?m)^node1: not cleaned: cannot be reached by ssh as \w+ at [\d.:]+: .*{message}$", error
    )
    assert error.count("\n") == 2
    assert struct.unpack("i", fcntl.ioctl(terminal, termios.FIONREAD, bytes(4)))[0] == len("secret\n")
    os.set_blocking(ours, False)
    assert os.read(ours, 1000) == b"secret\r\n"  # its echo; nothing was written to the terminal
    os.close(ours)
    os.close(terminal)


@pytest.mark.parametrize("whose", ["node3", "node2"], ids=["the host's", "the jump host's"])
@pytest.mark.parametrize("verdict", ["not in known_hosts", "CHANGED"])
def test_a_key_that_is_refused_is_refused_by_name_and_nothing_is_written(
    cluster: Cluster, shared: Path, whose: str, verdict: str
) -> None:
    folder = shared / "ssh"
    folder.mkdir()
    lines = (cluster.ssh / "known_hosts").read_text().splitlines()
    other = f"{whose},{cluster.addresses[whose]} {write_key(shared / 'other')}"
    kept = [line for line in lines if not line.startswith(f"{whose},")]
    (folder / "known_hosts").write_text("\n".join([*kept, *([other] if verdict == "CHANGED" else [])]) + "\n")
    text = (
        (cluster.ssh / "config")
        .read_text()
        .replace(str(cluster.ssh / "known_hosts"), f"{folder}/known_hosts")
    )
    careless = "Host *\n  StrictHostKeyChecking no\n  UpdateHostKeys yes\n  ForwardAgent yes\n"
    (folder / "config").write_text(f"Host node3\n  ProxyJump node2\n{careless}{text}")
    before = {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir()}
    with pytest.raises(ClusterError, match=f"^{whose}: its host key .*{verdict}"):
        SshHost("node3", folder).connect()
    assert {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir()} == before


def test_a_greeting_shell_and_a_silent_name_server_are_tolerated(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(1, UseDNS="yes", PrintMotd="yes", Banner="/etc/hosts")
    greeting = 'printf "Welcome\\n%s" "caffe-recipes-"; printf "quota exceeded" >&2\n'
    cluster.replace("node1", "/etc/bash.bashrc", greeting)
    cluster.replace("node1", "/etc/hosts", "127.0.0.1 localhost\n")
    cluster.replace("node1", "/etc/resolv.conf", "nameserver 10.77.200.200\noptions timeout:3 attempts:1\n")
    folder = tmp_path / "ssh"
    folder.mkdir()
    (folder / "config").write_text(f"Host *\n  ConnectTimeout 2\n{(cluster.ssh / 'config').read_text()}")
    host = SshHost("node1", folder)
    done = host.run(["sh", "-c", "echo said; echo failed >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n", "failed\n")
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    host.put(tmp_path / "file", "/tmp/file")
    host.fetch("/tmp/file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()
    assert file_bytes(host, "/tmp/file") == 100_000
    assert own_file_stamp(host, "/tmp/none", tmp_path) is None
    with host.start(["cat"]) as command:
        command.send(b"word")
        assert command.read() == b"word"
    host.close()
    assert cluster.leftovers() == {}


# As Caffe's own text format, hydra, sh, ssh and the file systems meet them; line breaks the model refuses.
BAD = "a b'c\"$(touch hacked)`touch hacked`;touch hacked&*~{x,y}\\ é #"
STAND_IN = f'#!/bin/sh\nexec "{sys.executable}" -IS "{ROOT}/tests/stand_in/caffe.py" "$@"\n'


def write_hostile_root(root: Path) -> None:
    """Make a Caffe root whose recipe's and profile's every text is hostile to a shell."""
    (root / BAD).mkdir(parents=True)
    for name, count in ((f"-tr {BAD}", 128), (f"-te {BAD}", 16)):
        datums = (
            pb.Datum(channels=3, height=28, width=28, data=bytes(2352), label=n % 10) for n in range(count)
        )
        write_datums(root / name, ((f"{n}", datum) for n, datum in enumerate(datums)))
    (root / BAD / "caffe").write_text(STAND_IN)
    (root / BAD / "caffe").chmod(0o755)
    phase = {"lr_policy": "fixed", "display": 2, "solver_mode": "CPU", "max_iter": 4, "comment": BAD}
    phase |= {"net": "train_val", "base_lr": 0.1}
    recipe = {
        "name": "small",
        "title": BAD,
        "source": BAD,
        "trainer": f"{BAD}/caffe",
        "prototxt_dir": f"-pr {BAD}",
        "net": {"name": BAD, "builder": "resnet_small", "classes": 10},
        "nets": {"train_val": {}},
        "data": {
            "train": {"lmdb": f"/tmp/lmdb {BAD}", "source": f"-tr {BAD}", "images": 128},
            "test": {"lmdb": f"-te {BAD}", "images": 16, "batch_size": 16},
            "crop_size": 28,
            "mean_value": [104, 117, 123],
        },
        "cluster": {
            **{"nodes": 2, "ranks_per_node": 1, "batch_per_rank": 8, "omp_num_threads": 1},
            "kmp_affinity": BAD,
        },
        "phases": [
            {"name": name, "snapshot_prefix": f"/tmp/{name} {BAD}/-{name}", **phase}
            for name in ("init", "last")
        ],
        "evaluation": {"net": "train_val", "iterations": 1},
    }
    (root / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    profile = {
        "name": "bad",
        "title": BAD,
        "copy_with": "ssh",
        "launcher": {"environment": {"BAD": f"-x {BAD}"}},
    }
    (root / "profile.yaml").write_text(yaml.safe_dump(profile))
    (root / "hostfile").write_text("node[1-2]\n")


@pytest.mark.parametrize("how", ["copy", "chain"])
def test_a_whole_run_of_hostile_strings_trains_and_runs_none_of_them(
    cluster: Cluster, shared: Path, how: str
) -> None:
    root = shared / f"-root\n{BAD}"
    write_hostile_root(root)
    cluster.replace("node2", "/etc/bash.bashrc", "echo Welcome; echo quota exceeded >&2\n")
    argv = [str(BIN / "caffe-recipes"), "run", "recipe.yaml", "--profile", "profile.yaml", "--how", how]
    done = cluster.run(
        "head", ["env", "-C", str(root), *argv], env={"XDG_CACHE_HOME": str(shared / "cache")}, check=False
    )
    cluster.restore("node2", "/etc/bash.bashrc")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert load_journal(root / "runs/small-1/journal.jsonl").outputs
    snapshots = sorted(path.name for path in (root / "runs/small-1/snapshots").iterdir())
    assert snapshots == ["-init_iter_4.caffemodel", "-last_iter_4.caffemodel"]
    assert_nothing_ran(cluster, shared)


def test_a_script_of_hostile_strings_trains_and_runs_none_of_them(cluster: Cluster, shared: Path) -> None:
    root = shared / f"-root\n{BAD}"
    write_hostile_root(root)
    (root / "hostfile").write_text("node1\nnode2\n")
    recipe = load_recipe(root / "recipe.yaml").model_copy(update={"evaluation": None})
    for path, text in generate(recipe).items():
        (shared / "ours" / path).parent.mkdir(parents=True, exist_ok=True)
        (shared / "ours" / path).write_text(text)
    script = str(shared / "ours/jobs/small/run.sh")
    done = cluster.run("head", ["env", "-C", str(root), "bash", script], check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert {"-init_iter_4.caffemodel", "-last_iter_4.caffemodel"} <= {path.name for path in root.iterdir()}
    assert_nothing_ran(cluster, shared)


MALLORY = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", "--"]


@pytest.fixture
def scripted(cluster: Cluster, shared: Path) -> Iterator[tuple[Path, str]]:
    """Give a Caffe root and its run.sh; what it has on the hosts is taken away."""
    root = shared / "root"
    write_hostile_root(root)
    (root / "hostfile").write_text("node1\nnode2\n")
    recipe = load_recipe(root / "recipe.yaml").model_copy(update={"evaluation": None})
    for path, text in generate(recipe).items():
        (shared / "ours" / path).parent.mkdir(parents=True, exist_ok=True)
        (shared / "ours" / path).write_text(text)
    yield root, str(shared / "ours/jobs/small/run.sh")
    for name in cluster.pids:
        cluster.run(name, ["sh", "-c", "rm -rf /tmp/lmdb* /tmp/init* /tmp/last* /tmp/hydra_*"])


@pytest.mark.promise("connections are as strict as your ssh")
@pytest.mark.parametrize("verdict", ["unknown", "changed"])
def test_run_sh_names_the_host_whose_key_is_refused_and_adds_none(
    cluster: Cluster, shared: Path, scripted: tuple[Path, str], verdict: str
) -> None:
    root, script = scripted
    lines = (cluster.ssh / "known_hosts").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("node2,")]
    other = (
        [f"node2,{cluster.addresses['node2']} {write_key(shared / 'other')}"] if verdict == "changed" else []
    )
    known = shared / "known_hosts"
    known.write_text("\n".join([*kept, *other]) + "\n")
    with configured(cluster, "StrictHostKeyChecking accept-new\n", known):
        done = cluster.run("head", ["env", "-C", str(root), "bash", script], check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr == "small: node2: Host key verification failed. \n"
    assert known.read_text().splitlines() == [*kept, *other]
    assert not list(root.glob("*.caffemodel"))


OWN_NETS = """\
from pathlib import Path
from caffe_recipes.caffe import layers as L

Path(__file__).with_name("ran").touch()


def own(net):
    ip = L.inner_product("ip", "data", num_output=net.classes)
    return L.net("own", ip, L.softmax_with_loss("loss", "ip", "label"))
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """Give a project whose recipe has a function make its net, and a folder where everybody may write."""
    text = resources.files("caffe_recipes").joinpath("recipes", "digits-local.yaml").read_text()
    net = {"name": "own", "classes": 10, "function": "my_nets:own"}
    raw = yaml.safe_load(text) | {"name": "mine", "accept": [], "net": net}
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name) / "project"
        (folder / "state").mkdir(parents=True)
        (folder / "mine.yaml").write_text(yaml.safe_dump(raw))
        (folder / "my_nets.py").write_text(OWN_NETS)
        folder.parent.chmod(0o755)
        (folder / "state").chmod(0o1777)  # as /tmp
        (folder / "my_nets.py").chmod(0o644)
        yield folder


def ours(project: Path, *words: str, state: str = "state") -> subprocess.CompletedProcess[str]:
    """Call caffe-recipes as the victim, whose consent is kept where everybody may write."""
    environment = {**os.environ, "XDG_STATE_HOME": str(project / state)}
    argv = [str(BIN / "caffe-recipes"), *words]
    (project / "ran").unlink(missing_ok=True)
    return subprocess.run(
        argv, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def as_mallory(project: Path, script: str, *words: str) -> int:
    argv = [*MALLORY, "sh", "-c", script, *words]
    return subprocess.run(argv, cwd=project, check=False, stderr=subprocess.DEVNULL).returncode


def test_another_user_cannot_consent_to_code_for_us(project: Path) -> None:
    assert ours(project, "generate", "mine.yaml", state="elsewhere").returncode == 0
    (record,) = (project / "elsewhere").rglob("*.json")
    script = 'umask 022; mkdir -p "$(dirname "$0")" && printf %s "$1" >"$0"'
    planted = project / "state" / record.relative_to(project / "elsewhere")
    assert as_mallory(project, script, str(planted), record.read_text()) == 0
    assert planted.stat().st_uid == 4242
    done = ours(project, "summary", "mine.yaml")
    assert done.returncode == 2, done.stdout
    assert "the code of 'my_nets' next to the recipe, which you have not allowed" in done.stderr
    assert not (project / "ran").exists()


def test_another_user_can_neither_read_nor_change_our_consent(project: Path) -> None:
    assert ours(project, "generate", "mine.yaml").returncode == 0
    (record,) = (project / "state").rglob("*.json")
    before = record.read_bytes()
    for script in ('cat "$0"', 'echo {} >"$0"', 'rm -f "$0"', 'ln -sf /dev/null "$0"'):
        assert as_mallory(project, script, str(record)) != 0
    assert record.read_bytes() == before
    assert ours(project, "summary", "mine.yaml").returncode == 0
    assert (project / "ran").exists()


def test_code_that_another_user_changed_is_not_run(project: Path) -> None:
    assert ours(project, "generate", "mine.yaml").returncode == 0
    (project / "my_nets.py").chmod(0o666)
    assert as_mallory(project, "echo 'import os; os.mkdir(\"hacked\")' >>my_nets.py") == 0
    for words in (["summary", "mine.yaml"], ["lint", "mine.yaml"], ["submit", "--dry-run", "mine.yaml"]):
        done = ours(project, *words)
        assert done.returncode == 2, done.stdout
        assert "my_nets.py is not run: anybody can change it" in done.stderr
        assert not (project / "ran").exists()
        assert not (project / "hacked").exists()
    (project / "my_nets.py").chmod(0o644)
    for words in (["summary", "mine.yaml"], ["lint", "mine.yaml"], ["submit", "--dry-run", "mine.yaml"]):
        done = ours(project, *words)
        assert done.returncode == 2, done.stdout
        assert "my_nets.py has changed since you allowed it" in done.stderr
        assert not (project / "hacked").exists()


def assert_nothing_ran(cluster: Cluster, shared: Path) -> None:
    """Assert that no shell has expanded a string, and remove what was trained."""
    hacked = [str(path) for path in shared.rglob("hacked")]
    for name in cluster.pids:
        look = 'for folder in / /tmp "$HOME"; do ls -d "$folder/hacked"; done 2>/dev/null; true'
        hacked += [f"{name}: {line}" for line in cluster.run(name, ["sh", "-c", look]).stdout.splitlines()]
        cluster.run(name, ["sh", "-c", "rm -rf /tmp/lmdb* /tmp/init* /tmp/last* /tmp/hydra_*"])
    assert hacked == []
