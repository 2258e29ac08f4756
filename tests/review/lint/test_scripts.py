"""Scripts, READMEs and logs: reading their commands, mistakes included."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.errors import InputError
from caffe_recipes.review.lint.scripts import Script, UnresolvedTrain, load_script, parse_script

# As in a README: a line break without its backslash, a stray quote behind the last command, quoted values.
README = """# Training
First set `OMP_NUM_THREADS` and `MLSL_SERVER_AFFINITY` as below.

    export MLSL_NUM_SERVERS=2
    export MLSL_SERVER_AFFINITY="39,38,43,42"
    mpiexec.hydra -PSM2 -l -n 896 -ppn 2 -f hostfile
      -genv OMP_NUM_THREADS 22 -genv KMP_AFFINITY 'granularity=fine,compact,1,0' \\
      ./build/tools/caffe train --solver=models/a/solver.prototxt
    mpiexec.hydra -n 896 -ppn 2 ./build/tools/caffe train \\
      --solvers "models/a/solver_collapse.prototxt" \\
      -weights '/tmp/a_iter_7638.caffemodel' ; '
    ./build/tools/caffe test --model=models/a/train_val.prototxt --weights=a_coll.caffemodel --iterations=1000
"""


def test_a_readme_with_mistakes_is_read_as_intended() -> None:
    script = parse_script(README, "README.md")
    assert [(one.solver, one.weights, one.where) for one in script.trainings] == [
        ("models/a/solver.prototxt", "", "README.md:8"),
        ("models/a/solver_collapse.prototxt", "/tmp/a_iter_7638.caffemodel", "README.md:10"),
    ]
    assert script.tested == ("models/a/train_val.prototxt",)
    assert (script.ranks, script.ranks_per_node, script.omp_num_threads) == (896, 2, 22)
    assert (script.mlsl_cores, script.mlsl_where) == ((39, 38, 43, 42), "README.md:5")


@pytest.mark.parametrize(
    "command",
    [
        "OMP_NUM_THREADS=4 MLSL_SERVER_AFFINITY=8,9 mpirun -np 6 -ppn 3 {caffe}",
        "mpiexec -n 6 -ppn 3 -genv OMP_NUM_THREADS=4 -genv MLSL_SERVER_AFFINITY=8,9 {caffe}",
        "mpiexec -env MLSL_SERVER_AFFINITY 8,9 -env OMP_NUM_THREADS 4 -n 6 -perhost 3 {caffe}",
        "#SBATCH --ntasks=6\n#SBATCH --ntasks-per-node=3\n"
        "export OMP_NUM_THREADS=4 MLSL_SERVER_AFFINITY='8,9'\nsrun {caffe}",
        "N=6\nmpirun -np $N -ppn 3 -x OMP_NUM_THREADS=4 -x MLSL_SERVER_AFFINITY=8,9 {caffe}",
    ],
)
def test_settings_are_read_however_they_are_given(command: str) -> None:
    script = parse_script(command.format(caffe="./build/tools/caffe train -solver s.prototxt"))
    assert (script.ranks, script.ranks_per_node, script.omp_num_threads) == (6, 3, 4)
    assert script.mlsl_cores == (8, 9)
    assert [one.solver for one in script.trainings] == ["s.prototxt"]


def test_weights_belong_to_the_command_they_stand_in() -> None:
    script = parse_script(
        "caffe train --weights=a.caffemodel --solver=1.prototxt\n"
        "caffe train --solver=2.prototxt\n"
        "caffe train --solver=3.prototxt --snapshot=2_iter_5.solverstate\n"
        "caffe train --solver=4.prototxt --weights=$(ls -t | head -1)\n"
    )
    assert [one.weights for one in script.trainings] == ["a.caffemodel", "", None, None]


def test_text_that_only_looks_like_an_option_changes_nothing() -> None:
    text = "mpirun -n 8 caffe train --solver=s.prototxt\necho -n done\nsed -n p\n# mpirun -n 9 caffe\n"
    assert parse_script(text).ranks == 8


def test_solvers_in_comments_and_of_unset_variables_are_not_started() -> None:
    script = parse_script('# caffe train --solver=old.prototxt\ncaffe train --solver="$1"\n')
    assert script == Script(unresolved=(UnresolvedTrain("$1", "<script>:2"),))


def test_the_variables_of_a_script_are_put_in() -> None:
    text = (
        'DIR=models/a\nPREFIX="/tmp/a"\n'
        "caffe train --solver=$DIR/s.prototxt --weights=${PREFIX}_iter_5.caffemodel"
    )
    (training,) = parse_script(text).trainings
    assert (training.solver, training.weights) == ("models/a/s.prototxt", "/tmp/a_iter_5.caffemodel")


def test_a_script_without_commands_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("train it well\n")
    with pytest.raises(InputError, match=r"notes.txt: contains no training command; give the script"):
        load_script(path, MOST_BYTES)


def test_a_script_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    with pytest.raises(InputError, match="cannot be read"):
        load_script(path, MOST_BYTES)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8; give the text of a script that starts Caffe"):
        load_script(path, MOST_BYTES)


@pytest.mark.parametrize(
    "text", ["", "-n", "--solver", "--solver=", "mpirun", "-genv", "\0", "'" * 1000, "=" * 1000]
)
def test_nothing_stops_the_reading(text: str) -> None:
    assert parse_script(text) == Script()


def test_numbers_of_other_commands_are_not_taken_for_ranks() -> None:
    script = parse_script(README + "    result=$(head -n 1 hostfile)\n    tail -n 20 log\n")
    assert script.ranks == 896
    assert parse_script("#SBATCH -n 64\nibrun caffe train --solver=a.prototxt").ranks == 64


def test_each_training_has_the_ranks_of_its_own_command() -> None:
    one, other = (
        "mpirun -n 8 caffe train --solver=1.prototxt\n",
        "mpirun -n {} caffe train --solver=2.prototxt\n",
    )
    differing, same = parse_script(one + other.format(4)), parse_script(one + other.format(8))
    assert [training.ranks for training in differing.trainings] == [8, 4]
    assert differing.ranks is None
    assert same.ranks == 8
    slurm = parse_script("#SBATCH -n 64\nibrun caffe train --solver=a.prototxt")
    assert [training.ranks for training in slurm.trainings] == [64]


def test_each_training_has_its_own_snapshot_to_resume() -> None:
    script = parse_script(
        "caffe train --solver=1.prototxt\n"
        "caffe train --solver=2.prototxt --snapshot=a_iter_5.solverstate\n"
        "caffe train --solver=3.prototxt --snapshot b_iter_5.solverstate.h5 --weights=c.caffemodel\n"
    )
    assert [(one.weights, one.snapshot) for one in script.trainings] == [
        ("", ""),
        (None, "a_iter_5.solverstate"),
        ("c.caffemodel", "b_iter_5.solverstate.h5"),
    ]


@pytest.mark.parametrize(
    ("command", "ranks", "per_node"),
    [
        ("srun -N 16 --ntasks-per-node=2 {caffe}", 32, 2),
        ("srun --nodes=16 --ntasks-per-node 2 {caffe}", 32, 2),
        ("srun -N16 -n64 {caffe}", 64, None),
        ("#SBATCH -N 16\n#SBATCH --ntasks-per-node=2\nsrun {caffe}", 32, 2),
        ("#SBATCH --nodes=16 --ntasks-per-node=2\nmpirun {caffe}", 32, 2),
        ("#SBATCH --nodes 16\nsrun --ntasks-per-node 4 {caffe}", 64, 4),
        ("#SBATCH -N 16 --ntasks-per-node=2\nmpirun -np $SLURM_NTASKS {caffe}", 32, 2),
        ("#SBATCH -N 16 --ntasks-per-node=2\nmpirun -np $COUNT {caffe}", None, 2),
        ("#SBATCH -N 16-32 --ntasks-per-node=2\nsrun {caffe}", None, 2),
        ("aprun -n 32 -N 2 {caffe}", 32, 2),
        ("aprun -N 2 {caffe}", None, 2),
        ("mpiexec -n 32 -ppn 2 {caffe}", 32, 2),
        ("mpiexec -ppn 2 -f hostfile {caffe}", None, 2),
        ("srun -N 16 {caffe}", None, None),
    ],
)
def test_ranks_are_nodes_by_tasks_where_they_are_not_given(
    command: str, ranks: int | None, per_node: int | None
) -> None:
    script = parse_script(command.format(caffe="./build/tools/caffe train --solver=s.prototxt"))
    assert (script.trainings[0].ranks, script.ranks_per_node) == (ranks, per_node)
    assert script.ranks == ranks
