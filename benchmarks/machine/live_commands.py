"""What `railweave doctor`, `advise` and `run` say and do on a GPU machine, against nvidia-smi, lscpu, /sys, /proc and PyTorch there, field
by field, and how long they take. Exits 1 where something differs.

usage: live_commands.py FOLDER    RAILWEAVE names the command, TORCH_PYTHON an interpreter that has PyTorch and torchrun.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

from table import Row, link_text, report

from railweave.doctor.probe import cuda_gpus, measure
from railweave.launch import cache
from railweave.launch.placement import cpu_set
from railweave.machine.source import LiveSource

HERE = Path(__file__).parent
RAILWEAVE = os.environ.get("RAILWEAVE", ".venv/bin/railweave").split()
TORCH = os.environ.get("TORCH_PYTHON", "python3")
# Bits of clocks_event_reasons that cost speed; all but idle, clocks that were asked for, and display.
HELD_BACK = 0x0004 | 0x0008 | 0x0020 | 0x0040 | 0x0080
# What a rank shows of itself: cores, memory policy of its first mapping, variables.
SHOW = "grep -E '^(Cpus_allowed_list|Mems_allowed_list)' /proc/self/status; head -1 /proc/self/numa_maps; env"


def output(*argv: str, **variables: str) -> str:
    """Standard output of a command that must end well."""
    done = subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)}: status {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def smi(fields: str) -> list[list[str]]:
    """A row a GPU."""
    text = output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    return [[word.strip() for word in line.split(",")] for line in text.splitlines()]


def file_text(path: str) -> str:
    """A file's text; `absent` where there is none."""
    return Path(path).read_text().strip() if Path(path).exists() else "absent"


class Answers:
    """Doctor's, by check and subject."""

    def __init__(self, *options: str) -> None:
        self.text = output(*RAILWEAVE, "doctor", "--json", *options)
        self._by_key = {(found["check"], found["subject"]): found for found in json.loads(self.text)["machines"][0]["findings"]}

    def of(self, check: str, subject: str = "machine") -> dict[str, Any]:
        """One answer; a mark where there is none."""
        return self._by_key.get((check, subject), {"answer": "none", "text": "", "evidence": []})

    def said(self, check: str, subject: str = "machine") -> str:
        """Fires, clear or unknown."""
        return str(self.of(check, subject)["answer"])

    def evidence(self, check: str, subject: str = "machine") -> str:
        """All lines."""
        return "; ".join(self.of(check, subject)["evidence"])


def doctor_rows(out: Path) -> list[Row]:
    """GPUs, links, host."""
    answers = Answers("--probe")
    (out / "doctor-probe.json").write_text(answers.text)
    (out / "doctor.txt").write_text(
        output(*RAILWEAVE, "doctor", "--html", str(out / "doctor.html"), "--prometheus", str(out / "doctor.prom"))
    )
    rows: list[Row] = []
    fields = smi("index,pci.bus_id,clocks_event_reasons.active")
    links_by_gpu, all_by_gpu = (by_gpu(output("nvidia-smi", *words)) for words in (("nvlink", "--status"), ("-q",)))
    loaded = links_under_load()
    for (index, bus_id, reasons), link_lines, lines in zip(fields, links_by_gpu, all_by_gpu, strict=True):
        gpu, at = f"GPU {index}", f"/sys/bus/pci/devices/{bus_id.lower()[-12:]}"
        links = link_lines.count("GB/s")
        fabric = re.search(r"Fabric\s+State\s+: (\S+)", lines)
        rows += [
            (f"{gpu} held back", "nvidia-smi", answers.said("gpu.throttle", gpu), "fires" if int(reasons, 16) & HELD_BACK else "clear"),
            (f"{gpu} NVLinks active", "nvidia-smi nvlink", *contains(answers.evidence("gpu.nvlinks", gpu), f"{links} active")),
            (
                f"{gpu} fabric state",
                "nvidia-smi -q",
                *contains(answers.evidence("gpu.fabric-manager"), fabric[1].lower() if fabric else "?"),
            ),
            (f"{gpu} IOMMU", "/sys", answers.said("pcie.iommu", gpu), iommu(at)),
            (f"{gpu} AER", "/sys", answers.said("pcie.aer", gpu), aer(at)),
            (f"{gpu} link under load", "nvidia-smi", *contains(answers.evidence("pcie.link", gpu), loaded[index])),
        ]
    cpus = dict(re.findall(r"^\s*([^:]+):\s+(.+)$", output("lscpu", LC_ALL="C"), re.MULTILINE))
    nodes = int(cpus["NUMA node(s)"])
    sub_numa = "fires" if nodes > int(cpus["Socket(s)"]) else "clear"
    balancing = "fires" if nodes > 1 and file_text("/proc/sys/kernel/numa_balancing") == "1" else "clear"
    pages = re.search(r"\[(\w+)\]", file_text("/sys/kernel/mm/transparent_hugepage/enabled"))
    governor = "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
    rows += [
        ("SMT", "lscpu", answers.said("cpu.smt"), "clear" if cpus["Thread(s) per core"] == "1" else "fires"),
        ("sub-NUMA", "lscpu", answers.said("cpu.sub-numa"), sub_numa),
        ("NUMA balancing", "/proc", answers.said("cpu.numa-balancing"), balancing),
        ("huge pages", "/sys", *contains(answers.evidence("cpu.hugepages"), pages[1] if pages else "?")),
        ("governor", "/sys", str(answers.said("cpu.clock") == "unknown"), str(file_text(governor) == "absent")),
        (
            "RDMA devices",
            "/sys",
            str("none" not in answers.of("nic.down")["text"] and "no fabric" not in answers.of("nic.down")["text"]),
            str(Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir())),
        ),
    ]
    return rows + probe_rows(out, answers)


def contains(text: str, wanted: str) -> tuple[str, str]:
    """Doctor's and the other's column: equal where the text has what is wanted."""
    return (wanted if wanted in text else text), wanted


def iommu(at: str) -> str:
    """The answer that the files of a device call for."""
    if not Path(f"{at}/iommu_group").exists():
        return "clear"
    return "clear" if file_text(f"{at}/iommu_group/type") == "identity" else "fires"


def aer(at: str) -> str:
    """The same, of its error counters."""
    if not Path(f"{at}/aer_dev_fatal").exists():
        return "unknown"
    counts = [
        int(line.split()[-1]) for name in ("correctable", "nonfatal", "fatal") for line in file_text(f"{at}/aer_dev_{name}").splitlines()
    ]
    return "fires" if any(counts) else "clear"


def by_gpu(text: str) -> list[str]:
    """nvidia-smi's text of all GPUs, in its order; each begins with `GPU` on the margin."""
    return re.split(r"^GPU ", text, flags=re.MULTILINE)[1:]


def links_under_load() -> dict[str, str]:
    """As nvidia-smi has them while PyTorch copies, GPU by GPU."""
    found = {}
    with subprocess.Popen([TORCH, str(HERE / "torch_copies.py"), "load"], stdin=PIPE, stdout=PIPE, text=True) as load:
        assert load.stdin is not None and load.stdout is not None
        for line in load.stdout:
            index = line.strip()
            time.sleep(0.5)  # a link that idled takes a moment to train again
            generation, width = smi("pcie.link.gen.current,pcie.link.width.current")[int(index)]
            found[index] = link_text(generation, width)
            load.stdin.write("next\n")
            load.stdin.flush()
    return found


def probe_rows(out: Path, answers: Answers) -> list[Row]:
    """Rates and dma-buf against PyTorch's."""
    theirs = json.loads(output(TORCH, str(HERE / "torch_copies.py")))
    (out / "torch-copies.json").write_text(json.dumps(theirs))
    addresses = {bus_id.lower()[-12:]: index for index, bus_id in smi("index,pci.bus_id")}
    rows: list[Row] = []
    for bus_id, probe in measure(LiveSource(), cuda_gpus()).gpus.items():
        index = addresses[bus_id]
        print(f"GPU {index} probe: {probe}")
        print(f"GPU {index} PyTorch: {theirs[index]}")
        for way, fact in (("to", probe.to_device), ("from", probe.to_host)):
            value = getattr(fact, "value", 0.0)
            near = abs(value - theirs[index][way]) <= 0.15 * theirs[index][way]
            rows.append(
                (
                    f"GPU {index} copies {way} it, within 15%",
                    "PyTorch",
                    *(("same", "same") if near else (f"{value:.4g}", str(theirs[index][way]))),
                )
            )
        rows.append(
            (
                f"GPU {index} dma-buf",
                "cuMemGetHandleForAddressRange",
                str(getattr(probe.dma_buf, "value", None)),
                str(theirs[index]["dma_buf"]),
            )
        )
        print(f"GPU {index}: {answers.of('gpu.copy-rate', f'GPU {index}')}")
    return rows


def job_rows(out: Path) -> list[Row]:
    """A process that has NCCL loaded, with variables to find fault with."""
    wrong = {"NCCL_IB_TIMEOUT": "20", "NCCL_NO_SUCH": "1", "LOCAL_RANK": "0"}
    job = subprocess.Popen([TORCH, str(HERE / "torch_copies.py"), "wait"], env={**os.environ, **wrong}, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    release = ".".join(map(str, json.loads(job.stdout.readline())["nccl"]))
    answers = Answers("--pid", str(job.pid))
    (out / "doctor-pid.json").write_text(answers.text)
    job.kill()
    process = f"process {job.pid}"
    shm = os.statvfs("/dev/shm")
    one_node = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) < 2
    expected = "clear" if shm.f_blocks * shm.f_frsize >= 1 << 30 else "fires"
    said = [answers.of(check, subject) for check, subject in (("nccl.default", "NCCL_IB_TIMEOUT=20"), ("nccl.unknown", "NCCL_NO_SUCH=1"))]
    print(f"NCCL {release}: {said}")
    return [
        ("/dev/shm", "statvfs", answers.said("job.shm", process), expected),
        ("NCCL_IB_TIMEOUT=20 is the default", f"NCCL {release}", str(said[0]["answer"]), "fires"),
        ("NCCL_NO_SUCH=1", f"NCCL {release}", str(said[1]["answer"]), "fires"),
        ("NCCL's release", "PyTorch", *contains(json.dumps(said), release)),
        ("cores of a process that is not bound", "/sys", answers.said("job.cpu-affinity", process), "clear" if one_node else "fires"),
    ]


def shown(text: str) -> dict[str, str]:
    """What SHOW printed: `cores`, `policy`, and the variables."""
    found = {}
    for line in text.splitlines():
        if line.startswith("Cpus_allowed_list"):
            found["cores"] = line.split()[1]
        elif re.match(r"[0-9a-f]+ \S+", line) and "policy" not in found:
            found["policy"] = line.split()[1]
        elif "=" in line:
            name, _, value = line.partition("=")
            found[name] = value
    return found


def run_rows(out: Path) -> list[Row]:
    """Each rank's binding by /proc, against advise and nvidia-smi topo -m; launchers; what the user set."""
    advice = json.loads(output(*RAILWEAVE, "advise", "--format", "json"))
    (out / "advice.json").write_text(json.dumps(advice, indent=1))
    (out / "advise.txt").write_text(output(*RAILWEAVE, "advise"))
    matrix = output("nvidia-smi", "topo", "-m")
    near = [
        re.findall(r"(?:^|\t)\s*((?:\d+-\d+|\d+)(?:,(?:\d+-\d+|\d+))*)\s*\t", line)[0]
        for line in matrix.splitlines()
        if re.match(r"GPU\d", line)
    ]
    ranks = [rank["cpus"] for rank in advice["ranks"]]
    rows: list[Row] = []
    dealt: set[int] = set()
    for index, cpus in enumerate(ranks):
        rows.append((f"rank {index} cores inside its GPU's", "nvidia-smi topo -m", str(cpu_set(cpus) <= cpu_set(near[index])), "True"))
        rows.append((f"rank {index} cores are its own", "advise", str(bool(dealt & cpu_set(cpus))), "False"))
        dealt |= cpu_set(cpus)
    rows.append(("cores that have a rank", "nvidia-smi topo -m", str(dealt == set().union(*(cpu_set(cpus) for cpus in near))), "True"))
    policy = shown(output("sh", "-c", SHOW))["policy"]
    many = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) > 1
    for index, rank in enumerate(advice["ranks"]):
        done = subprocess.run(
            [*RAILWEAVE, "run", "--explain", "--", "sh", "-c", SHOW],
            env={**os.environ, "LOCAL_RANK": str(index), "LOCAL_WORLD_SIZE": str(len(ranks))},
            capture_output=True,
            text=True,
            check=True,
        )
        with (out / "run-explain.txt").open("a") as file:
            file.write(done.stderr)
        seen = shown(done.stdout)
        rows.append((f"rank {index} Cpus_allowed_list", "/proc/self/status", str(cpu_set(seen["cores"]) == cpu_set(rank["cpus"])), "True"))
        wanted = f"prefer:{rank['memory'][0]}" if many else policy
        rows.append((f"rank {index} memory policy", "/proc/self/numa_maps", wanted, seen["policy"].replace("prefer (many):", "prefer:")))
        rows += [(f"rank {index} {name}", "env", value, seen.get(name, "absent")) for name, value in rank["environment"].items()]
    return rows + kept_rows(ranks) + torchrun_rows(ranks)


def kept_rows(ranks: list[str]) -> list[Row]:
    """What was set before stays; --override replaces it; CUDA_VISIBLE_DEVICES chooses."""
    run, rank0 = [*RAILWEAVE, "run"], {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(len(ranks))}
    show = ["--", "sh", "-c", SHOW]
    kept = shown(output("taskset", "-c", "1", *run, *show, **rank0, OMPI_MCA_pml="ob1"))
    replaced = shown(output("taskset", "-c", "1", *run, "--override", *show, **rank0, OMPI_MCA_pml="ob1"))
    last = shown(output(*run, *show, CUDA_VISIBLE_DEVICES=str(len(ranks) - 1)))
    return [
        ("cores that taskset chose", "/proc/self/status", kept["cores"], "1"),
        ("OMPI_MCA_pml that the user chose", "env", kept["OMPI_MCA_pml"], "ob1"),
        ("cores with --override", "/proc/self/status", str(cpu_set(replaced["cores"]) == cpu_set(ranks[0])), "True"),
        ("the last GPU by CUDA_VISIBLE_DEVICES", "/proc/self/status", str(cpu_set(last["cores"]) == cpu_set(ranks[-1])), "True"),
    ]


def torchrun_rows(ranks: list[str]) -> list[Row]:
    """Under the real launcher, where there is one."""
    torchrun = Path(TORCH if "/" in TORCH else shutil.which(TORCH) or "").parent / "torchrun"
    if not torchrun.exists():
        print(f"torchrun: not beside {TORCH}; not tried")
        return []
    one_line = "echo rank $LOCAL_RANK $(grep Cpus_allowed_list /proc/self/status)"
    text = output(str(torchrun), "--no-python", f"--nproc-per-node={len(ranks)}", *RAILWEAVE, "run", "--", "sh", "-c", one_line)
    found = dict(re.findall(r"rank (\d+) Cpus_allowed_list: (\S+)", text))
    return [
        (f"rank {index} of torchrun", "/proc/self/status", str(cpu_set(found.get(str(index), "")) == cpu_set(cpus)), "True")
        for index, cpus in enumerate(ranks)
    ]


def forget() -> None:
    """What root keeps for all users; whoever needs it works it out again."""
    if os.geteuid() == 0:
        for path in Path(cache.FOR_ALL).glob("placement-*"):
            path.unlink()


def times(name: str, count: int, *argv: str, nothing_kept: bool = False, **variables: str) -> None:
    """Wall clock of a whole command. With `nothing_kept` each finds no advice where it would be kept."""
    taken = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as empty:
            runtime = {"XDG_RUNTIME_DIR": empty} if nothing_kept else {}
            if nothing_kept:
                forget()
            begin = time.perf_counter()
            output(*argv, **variables, **runtime)
            taken.append(1e3 * (time.perf_counter() - begin))
    print(f"{name:<44} {statistics.median(taken):7.1f} ms median of {count}, {min(taken):.1f} to {max(taken):.1f}")


def start_times(gpus: int) -> None:
    """Of a rank: with advice that is kept, and of the first one, that works it out."""
    run, rank = [*RAILWEAVE, "run", "--", "true"], {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(gpus)}
    times("true", 20, "true")
    times("python that becomes true", 20, sys.executable, "-c", "import os; os.execvp('true', ['true'])")
    times("first start of a rank, advice worked out", 20, *run, nothing_kept=True, **rank)
    with tempfile.TemporaryDirectory() as kept:
        rank["XDG_RUNTIME_DIR"] = kept
        output(*run, **rank)
        times("start of a rank, advice kept", 20, *run, **rank)
    forget()


def main() -> int:
    """Prints the table and times; the exit status."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    gpus = len(smi("index"))
    start_times(gpus)
    rows: list[Row] = []
    for section in (run_rows, doctor_rows, job_rows):
        try:
            rows += section(out)
        except (SystemExit, OSError, ValueError, LookupError) as error:  # the others are still worth their time on the machine
            rows.append((section.__name__, "this script", f"{type(error).__name__}: {error}", "a table"))
    status = report(rows)
    output(*RAILWEAVE, "topo", "--record", str(out / "machine.tar.zst"))
    for form in ("shell", "slurm", "torchrun", "kubernetes", "rankfile"):
        (out / f"advice.{form}").write_text(output(*RAILWEAVE, "advise", "--format", form))
    times("railweave run --explain -- true", 2, *RAILWEAVE, "run", "--explain", "--", "true", LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(gpus))
    times("railweave doctor", 5, *RAILWEAVE, "doctor")
    times("railweave doctor --probe", 2, *RAILWEAVE, "doctor", "--probe")
    times("railweave doctor RECORDING", 5, *RAILWEAVE, "doctor", str(out / "machine.tar.zst"))
    times("railweave advise", 5, *RAILWEAVE, "advise")
    return status


if __name__ == "__main__":
    sys.exit(main())
