"""What launchers are given: goldens, the shells run for real, OpenMPI's own reading of the rankfile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from railweave import fabric
from railweave.advise import formats
from railweave.advise.advice import Advice, advise
from railweave.advise.cpulist import from_list
from railweave.advise.document import document
from railweave.advise.errors import AdviceError
from railweave.advise.host import Core, Host, Numa, read_host
from railweave.advise.text import render

GOLDENS = Path(__file__).parent / "goldens"
SCHEMA = json.loads((Path(__file__).parents[3] / "schema" / "advice.schema.json").read_text())
Furnished = Callable[..., Host]


def check_golden(name: str, text: str) -> None:
    """RAILWEAVE_UPDATE_GOLDENS=1 writes them again."""
    golden = GOLDENS / name
    if os.environ.get("RAILWEAVE_UPDATE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("name", ["xe9680-4hca", "lineyahoo-2nic", "charisma-ab"])
def test_text_golden(name: str) -> None:
    check_golden(f"{name}.txt", render(advise(read_host(fabric.load(name)))))


@pytest.mark.parametrize("form", [*formats.FORMATS, *formats.OVERRIDABLE])
def test_format_golden(furnished: Furnished, form: str) -> None:
    check_golden(f"kisti-v100-8gpu.{form}", formats.render(advise(furnished("kisti-v100-8gpu")), form))


@pytest.mark.parametrize("name", fabric.templates())
def test_json_follows_its_schema(furnished: Furnished, name: str) -> None:
    for advice in (advise(furnished(name)), advise(read_host(fabric.load(name)))):
        jsonschema.validate(json.loads(json.dumps(document(advice))), SCHEMA)


@pytest.mark.parametrize("form", ["rankfile", "slurm"])
def test_binding_formats_need_cores(form: str) -> None:
    with pytest.raises(AdviceError, match="cores of 'xe9680-4hca' are not known"):
        formats.render(advise(read_host(fabric.load("xe9680-4hca"))), form)


def test_nodes_without_a_free_cpu_are_not_called_unknown(furnished: Furnished) -> None:
    """As where all CPUs of a socket are offline, or isolated."""
    host = furnished("xe9680-4hca")
    advice = advise(replace(host, numas=(replace(host.numas[0], cores=()), host.numas[1])))
    bare = "NUMA node 0 has no CPU that is online and not isolated"
    assert advice.missing == (f"cores of the ranks there: {bare}",) and bare in render(advice)
    for form in ("rankfile", "slurm"):
        with pytest.raises(AdviceError, match=bare):
            formats.render(advice, form)
    for form in formats.BINDING:
        assert f"\n# {bare}: ranks 0, 1, 2, 3 not bound\n" in formats.render(advice, form)


@pytest.mark.parametrize("form", formats.BINDING)
def test_without_cores_the_rest_is_set_and_what_is_missing_is_said(
    tmp_path: Path, cli: Callable[..., subprocess.CompletedProcess[str]], form: str
) -> None:
    made = cli("advise", "xe9680-4hca", "--format", form)
    assert made.returncode == 0
    assert made.stderr.startswith(f"railweave: --format {form}: cores not known: nothing is bound; ")
    assert "\n# cores not known: nothing is bound\n" in made.stdout
    assert "railweave_bind" not in made.stdout and "taskset" not in made.stdout
    script = tmp_path / "advice.sh"
    script.write_text(made.stdout)
    show = 'echo "pml=$OMPI_MCA_pml"'
    done = run(f"set -eu; . {script}; {show}" if form == "shell" else f"sh {script} sh -c '{show}'", LOCAL_RANK="2")
    assert (done.stdout, done.stderr) == ("pml=ucx\n", "")
    done = run(f'. {script}; echo "$?"' if form == "shell" else f'sh {script} true; echo "$?"')
    assert done.stdout == "64\n" and "no local rank from 0 to 7" in done.stderr


@pytest.mark.parametrize("form", formats.BINDING)
def test_ranks_whose_cores_are_not_known_are_named(form: str) -> None:
    advice = here(2)
    some = replace(advice, bindings=(advice.bindings[0], replace(advice.bindings[1], cpus=None)))
    text = formats.render(some, form)
    assert "\n# cores of rank 1 not known: not bound\n" in text
    assert len(re.findall(r"railweave_bind \d", text)) == 1
    assert "not known" not in formats.render(advice, form)


def here(ranks: int) -> Advice:
    """Advice for a node with this machine's own CPUs, so that binding can be tried."""
    cpus = sorted(os.sched_getaffinity(0))
    host = read_host(fabric.load({1: "kisti-v100-2gpu", 2: "kisti-v100-2gpu", 4: "charisma-ab"}[ranks]))
    numas = (Numa(0, 0, tuple(Core((cpu,)) for cpu in cpus)),)
    nics = tuple(replace(nic, device=f"mlx5_{i}:1") for i, nic in enumerate(host.nics))
    return advise(replace(host, gpus=tuple(replace(gpu, numa=0) for gpu in host.gpus), nics=nics, numas=numas))


REPORT = 'echo "$(taskset -pc $$ | sed "s/.*: //") $UCX_NET_DEVICES $OMPI_MCA_pml"'


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"])
def test_shell_binds_and_sets_the_rank_that_sources_it(tmp_path: Path, variable: str) -> None:
    advice = here(4)
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(advice, "shell"))
    environment = {"PATH": os.environ["PATH"], "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", variable: "2"}
    done = subprocess.run(["sh", "-c", f". {script}; {REPORT}"], env=environment, capture_output=True, text=True, check=True, timeout=120)
    cpus, device, pml = done.stdout.split()
    assert from_list(cpus) == advice.bindings[2].cpus
    assert (device, pml) == (advice.environment(2)["UCX_NET_DEVICES"], "ucx")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", program], env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("rank", ["", "4", "0; echo no"])
def test_shell_without_a_rank_says_so_and_leaves_the_shell_alive(tmp_path: Path, rank: str) -> None:
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(here(4), "shell"))
    done = run(f'. {script}; echo "status $?"; type railweave_bind', **({"LOCAL_RANK": rank} if rank else {}))
    assert done.stdout.startswith("status 64\n") and "railweave_bind: not found" in done.stdout + done.stderr
    assert "no local rank from 0 to 3" in done.stderr


def test_a_batch_script_of_slurm_is_no_rank(tmp_path: Path) -> None:
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(here(4), "shell"))
    assert run(f'. {script}; echo "status $?"', SLURM_LOCALID="0").stdout == "status 64\n"


def test_shell_is_safe_to_evaluate_under_strict_options(tmp_path: Path) -> None:
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(here(4), "shell"))
    done = run(f'set -eu; eval "$(cat {script})"; {REPORT}', LOCAL_RANK="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == [here(4).environment(1)["UCX_NET_DEVICES"], "ucx"]
    assert set(run(f". {script}; set", LOCAL_RANK="1").stdout.replace("railweave-", "").split("\n")).isdisjoint({"before=", "allowed="})


@pytest.mark.parametrize("form", ["shell", "torchrun"])
@pytest.mark.parametrize(("given", "override", "found"), [("mine", False, "mine"), ("", False, ""), ("mine", True, "ucx")])
def test_what_the_user_set_stays_unless_told(tmp_path: Path, form: str, given: str, override: bool, found: str) -> None:
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(here(4), form, override))
    show = 'echo "pml=$OMPI_MCA_pml"'
    done = run(f". {script}; {show}" if form == "shell" else f"sh {script} sh -c '{show}'", LOCAL_RANK="2", OMPI_MCA_pml=given)
    assert done.stdout == f"pml={found}\n", done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to choose from")
@pytest.mark.parametrize("form", ["shell", "torchrun"])
@pytest.mark.parametrize("override", [False, True])
def test_an_affinity_that_was_chosen_stays_unless_told(tmp_path: Path, form: str, override: bool) -> None:
    advice = here(2)
    chosen = max(os.sched_getaffinity(0))
    assert advice.bindings[0].cpus is not None and chosen not in advice.bindings[0].cpus
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(advice, form, override))
    show = "grep Cpus_allowed_list /proc/self/status"
    rest = f". {script}; {show}" if form == "shell" else f"sh {script} {show}"
    done = run(f"taskset -pc {chosen} $$ >/dev/null; {rest}", LOCAL_RANK="0")
    assert from_list(done.stdout.split()[-1]) == (advice.bindings[0].cpus if override else (chosen,))
    assert ("CPU affinity was set before and is kept" in done.stderr) == (not override)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to choose from")
@pytest.mark.parametrize("form", ["shell", "torchrun"])
def test_isolated_cpus_are_no_choice_of_the_user_and_are_left_alone(tmp_path: Path, form: str) -> None:
    *free, isolated = sorted(os.sched_getaffinity(0))
    (tmp_path / "isolated").write_text(f"{isolated}\n")
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(here(2), form).replace("/sys/devices/system/cpu/isolated", str(tmp_path / "isolated")))
    show = "grep Cpus_allowed_list /proc/self/status"
    rest = f". {script}; {show}" if form == "shell" else f"sh {script} {show}"
    (first, second) = (set(binding.cpus or ()) for binding in here(2).bindings)
    for before in (free, [*free, isolated]):  # as the kernel and as a container's cpuset begin a process
        done = run(f"taskset -pc {','.join(map(str, before))} $$ >/dev/null; {rest}", LOCAL_RANK="0")
        assert (set(from_list(done.stdout.split()[-1])), done.stderr) == (first, "")
        done = run(f"taskset -pc {','.join(map(str, before))} $$ >/dev/null; {rest}", LOCAL_RANK="1")
        assert set(from_list(done.stdout.split()[-1])) == (second - {isolated} or set(before))
        assert ("none of the advised cores" in done.stderr) == (second == {isolated})


def test_torchrun_wrapper_ends_without_a_rank(tmp_path: Path) -> None:
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(here(4), "torchrun"))
    done = run(f"sh {script} echo started")
    assert (done.returncode, done.stdout) == (64, "") and "no local rank" in done.stderr


def test_override_is_for_what_runs_in_the_job(cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    refused = cli("advise", "xe9680-4hca", "--format", "kubernetes", "--override")
    assert refused.returncode == 2 and "--override goes with --format shell, slurm, torchrun" in refused.stderr


def test_torchrun_wrapper_passes_arguments_and_status(tmp_path: Path) -> None:
    advice = here(2)
    script = tmp_path / "advice.sh"
    script.write_text(formats.render(advice, "torchrun"))
    program = 'printf "%s|" "$@"; grep Cpus_allowed_list /proc/self/status; exit 7'
    command = ["sh", str(script), "sh", "-c", program, "name", "a b", "$x"]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"], "LOCAL_RANK": "1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("a b|$x|")
    assert from_list(done.stdout.split()[-1]) == advice.bindings[1].cpus


def test_slurm_prolog_prints_what_slurm_takes(tmp_path: Path) -> None:
    advice = here(4)
    script = tmp_path / "prolog.sh"
    script.write_text(formats.render(advice, "slurm"))
    done = subprocess.run(["sh", str(script)], env={"SLURM_LOCALID": "3"}, capture_output=True, text=True, check=True, timeout=120)
    printed = dict(line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines())
    assert printed == advice.environment(3)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI")
def test_open_mpi_binds_as_the_rankfile_says(tmp_path: Path) -> None:
    advice = here(2)
    path = tmp_path / "rankfile"
    path.write_text(formats.render(advice, "rankfile").replace("=node0 ", "=localhost "))
    options = [
        "--host",
        "localhost:2",
        "--rankfile",
        path.name,  # Open MPI 5.0.7 takes none whose path has a hyphen, as those of pytest have
        "--mca",
        "rmaps_rank_file_physical",
        "1",
        "--use-hwthread-cpus",
        "-np",
        "2",
    ]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    program = 'echo "$OMPI_COMM_WORLD_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f 2)"'
    command = ["mpirun", *root, *options, "sh", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    bound = {int(rank): from_list(cpus) for rank, cpus in (line.split() for line in done.stdout.splitlines())}
    assert bound == {rank: binding.cpus for rank, binding in enumerate(advice.bindings)}


def test_command(cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert cli("advise", "xe9680-4hca").stdout == (GOLDENS / "xe9680-4hca.txt").read_text()
    parsed = json.loads(cli("advise", "charisma-ab", "--for", "latency", "--format", "json").stdout)
    assert parsed["ranks"][3]["nics"] == [{"name": "nic0", "device": None}]
    failed = cli("advise", "charisma-ab", "--format", "slurm")
    assert failed.returncode == 1
    assert failed.stderr.startswith("railweave: --format slurm binds ranks to cores")
