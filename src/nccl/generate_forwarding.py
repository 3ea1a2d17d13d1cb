#!/usr/bin/env python3
"""Writes forwarding.cpp: every function of NCCL's headers that the shim takes no part in, passed on to the real NCCL.

    src/nccl/generate_forwarding.py INCLUDE_DIRECTORY ... > src/nccl/forwarding.cpp

The directories are those of several releases, newest first (nvidia/nccl/include of the nvidia-nccl wheels). A function keeps the
signature of the first that has it; the tool fails when another release passes it in another way, or knows a type that it does not.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = ["nccl.h", "nccl_device/host.h", "nccl_device/impl/core__funcs.h", "nccl_device.h"]
# How a type is passed. Handles and everything with a * are pointers.
PASSED = {
    "ncclResult_t": "ncclResult_t", "ncclUniqueId": "ncclUniqueId", "ncclTeam_t": "Team", "void": "void", "bool": "bool", "float": "float",
    "int": "int", "size_t": "std::size_t", "unsigned int": "unsigned", "uint32_t": "unsigned", "uint64_t": "std::uint64_t",
    "ncclDataType_t": "int", "ncclRedOp_t": "int", "ncclScalarResidence_t": "int", "ncclCommMemStat_t": "int", "ncclCftTeamMode_t": "int",
    "ncclComm_t": "void*", "cudaStream_t": "void*", "ncclWindow_t": "void*", "ncclParamHandle_t": "void*",
    "ncclTeam": "Team",
    "ncclMultimemHandle_t": "void*",  # a struct of one pointer, which travels as the pointer does
}  # fmt: skip
DECLARATION = re.compile(r"(?:^|[;}\s])(const char\s*\*|ncclResult_t|ncclTeam_t|void|int)\s+(p?nccl[A-Z]\w*)\s*\(([^()]*)\)\s*;")
NOTICE = "// Made by generate_forwarding.py from NCCL's headers; change that, not this."


def strip(text: str) -> str:
    """Leaves declarations: no comments, preprocessor lines, attributes."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    text = text.replace("\\\n", " ")
    text = re.sub(r"^\s*#[^\n]*", " ", text, flags=re.M)
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)", " ", text)
    return text.replace("NCCL_EXTERN_C", ";")


def passed(declared: str, where: str) -> str:
    """How a parameter or result travels."""
    if "*" in declared or "[" in declared:
        return "void*"
    name = re.sub(r"=.*", "", declared.replace("const ", " ").replace(" const", " ")).strip()
    for candidate in (name, " ".join(name.split()[:-1])):
        if candidate in PASSED:
            return PASSED[candidate]
    raise SystemExit(f"{where}: type of '{declared.strip()}' is not known; add how it is passed to PASSED")


# Result, parameters as they are passed, and of a call that gives NCCL work where the communicator and the stream are among them.
Signature = tuple[str, list[str], tuple[int, ...]]


def worked_on(parameters: list[str]) -> tuple[int, ...]:
    """Where the communicator and the stream are; nothing of a call that does not have both."""
    found = tuple(i for kind in ("ncclComm_t", "cudaStream_t") for i, p in enumerate(parameters) if p.split()[0] == kind and "*" not in p)
    return found if len(found) == 2 else ()


def declared_in(directory: Path) -> dict[str, Signature]:
    """Functions of one release."""
    functions: dict[str, Signature] = {}
    for header in HEADERS:
        if not (directory / header).is_file():
            continue
        for result, name, parameters in DECLARATION.findall(strip((directory / header).read_text())):
            where = f"{directory / header}: {name}"
            list_ = [] if parameters.strip() in ("", "void") else parameters.split(",")
            gives = "const char*" if "char" in result else passed(result, where)
            functions[name] = (gives, [passed(p, where) for p in list_], worked_on(list_))
    if not functions:
        raise SystemExit(f"{directory}: no NCCL header there; expected {HEADERS[0]}")
    return functions


def routed() -> set[str]:
    """What api.cpp defines itself."""
    return set(re.findall(r"RAILWEAVE_NCCL_API .*?(nccl[A-Z]\w*)\(", (HERE / "api.cpp").read_text()))


def forwarder(name: str, result: str, parameters: list[str], work: tuple[int, ...]) -> str:
    """One function; what the real NCCL lacks gives ncclInvalidUsage, or nothing where there is no error to give."""
    takes = ", ".join(f"{kind} p{i}" for i, kind in enumerate(parameters))
    gives = ", ".join(f"p{i}" for i in range(len(parameters)))
    if result == "ncclResult_t":
        types = ", ".join(parameters)
        # What passes the shim by is no business of its groups.
        note = f"  note_work(p{work[0]}, p{work[1]});\n" if work and not name.startswith("p") else ""
        body = f'  static const Real<ncclResult_t({types})> real("{name}");\n{note}  return real({gives});'
    else:
        absent = {"void": "return", "const char*": 'return ""'}.get(result, "return {}")
        types = ", ".join(parameters)
        body = (
            f'  static const auto real = reinterpret_cast<{result} (*)({types})>(real_symbol("{name}"));\n'
            f'  if (real == nullptr) {{\n    missing("{name}");\n    {absent};\n  }}\n'
            f"  {'' if result == 'void' else 'return '}real({gives});"
        )
    return f"RAILWEAVE_FORWARD {result} {name}({takes}) {{\n{body}\n}}\n"


def main() -> None:
    """Reads the releases, writes the file."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    functions: dict[str, Signature] = {}
    for directory in map(Path, sys.argv[1:]):
        for name, signature in declared_in(directory).items():
            if functions.setdefault(name, signature) != signature:
                raise SystemExit(f"{directory}: {name} is passed as {signature}, in a newer release as {functions[name]}")
    # Each has a twin, which profilers call and which passes the shim by; the device API exports its twins without declaring them.
    for name, signature in list(functions.items()):
        functions.setdefault("p" + name.removeprefix("p"), signature)
    own = routed()
    print(NOTICE)
    print('#include "group.hpp"\n#include "nccl_abi.hpp"\n#include "real_nccl.hpp"\n')
    print('#define RAILWEAVE_FORWARD extern "C" __attribute__((visibility("default")))\n')
    print("namespace {\n\nusing namespace railweave::nccl;\n\n// ncclTeam_t\nstruct Team {\n  int ranks, rank, stride;\n};")
    print("\n}  // namespace\n")
    print("\n".join(forwarder(name, *functions[name]) for name in sorted(functions) if name not in own), end="")


if __name__ == "__main__":
    main()
