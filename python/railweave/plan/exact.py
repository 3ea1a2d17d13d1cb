"""The exact optimum over the routes that the planner considers: a linear program over all of them, solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from railweave._native import Demand, Fabric, LinkState, Planner
from railweave.errors import Error, UnreachableError
from railweave.matrix import between_ranks

# Above this many columns interior point without crossover is faster than the simplex method: 49,000 columns take 8 s against
# 76 s (HiGHS 1.15), 2,000 columns 0.2 s against 0.05 s.
SIMPLEX_MAX_COLUMNS = 5000


class _SilentHighs(highspy.Highs):
    """Prints nothing, not even who it is.

    HiGHS 1.16 greets when its callbacks are set, which the constructor does. Standard output cannot be turned away meanwhile: it belongs
    to the whole process, to other threads too, and may be closed.
    """

    def __init__(self) -> None:
        highspy.Highs.__init__(self)

    def enableCallbacks(self) -> None:  # noqa: N802, the name is HiGHS's
        self.setOptionValue("output_flag", False)
        highspy.Highs.enableCallbacks(self)


class SolverError(Error):
    """HiGHS did not reach an optimum."""


@dataclass(frozen=True)
class Optimum:
    """The least time any split of the bytes over the planner's candidate routes can take, in the fluid limit; others may take less."""

    seconds: float
    columns: int
    rows: int
    solver: str


class ExactRouting:
    """Linear programs over the routes of one fabric and link state; expanded routes are kept, so several demands share them."""

    def __init__(self, fabric: Fabric, planner: Planner, links: LinkState) -> None:
        """`planner` supplies the candidate routes; they are those of `links`."""
        self._planner = planner
        self._links = links
        self._capacity = np.array(
            [links.rate_Bps(r) if r < len(fabric.edges) else resource.capacity_Bps for r, resource in enumerate(fabric.resources)],
            dtype=np.float64,
        )
        self._loads: dict[tuple[int, int], list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]] = {}

    def _routes(self, src: int, dst: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """For each candidate route the resources it loads and how often."""
        if (src, dst) not in self._loads:
            routes = []
            for route in self._planner.candidates(src, dst, self._links):
                resource, times = np.unique(np.array(self._planner.expand(route).resources, dtype=np.int64), return_counts=True)
                routes.append((resource, times.astype(np.float64)))
            if not routes:
                raise UnreachableError(f"no usable path from GPU {src} to GPU {dst}")
            self._loads[src, dst] = routes
        return self._loads[src, dst]

    def optimum(self, demand: Demand, at_least: float = 0.0) -> Optimum:
        """Solve the linear program of a demand; `at_least` is a lower bound (seconds) that is known already and makes it smaller.

        It has to hold for any split, as `endpoint_bound` does: an optimum below it would not be found.
        """
        matrix = between_ranks(demand.to_numpy()).astype(np.float64)
        pairs = [(int(s), int(d)) for s, d in np.argwhere(matrix > 0)]
        if not pairs:
            return Optimum(0.0, 0, 0, "none")
        options = [self._routes(*pair) for pair in pairs]
        size = np.array([matrix[pair] for pair in pairs])

        # A resource that stays below the known bound whatever is chosen needs no row.
        most = np.zeros(len(self._capacity))
        for routes, size_of_pair in zip(options, size, strict=True):
            loaded: dict[int, float] = {}
            for resource, times in routes:
                for r, t in zip(resource.tolist(), times.tolist(), strict=True):
                    loaded[r] = max(loaded.get(r, 0.0), t)
            for r, t in loaded.items():
                most[r] += t * size_of_pair
        binding = np.flatnonzero(most > at_least * self._capacity * (1 - 1e-9))
        row_of = np.full(len(self._capacity), -1)
        row_of[binding] = np.arange(len(binding)) + len(pairs)

        # Columns are parts of their demand (so all are of one scale), time is in units of `unit`.
        unit = max(at_least, float(np.max(size)) / float(np.max(self._capacity)))
        starts, index, value = [0], [], []
        for row, (routes, size_of_pair) in enumerate(zip(options, size, strict=True)):
            for resource, times in routes:
                kept = row_of[resource] >= 0
                index += [row, *row_of[resource[kept]].tolist()]
                value += [1.0, *(times[kept] * size_of_pair / (self._capacity[resource[kept]] * unit)).tolist()]
                starts.append(len(index))
        index += row_of[binding].tolist()
        value += [-1.0] * len(binding)
        starts.append(len(index))
        return self._solve(len(pairs), len(binding), starts, index, value, unit, at_least)

    def _solve(
        self, pairs: int, resources: int, starts: list[int], index: list[int], value: list[float], unit: float, at_least: float
    ) -> Optimum:
        columns = len(starts) - 1
        lp = highspy.HighsLp()
        lp.num_col_ = columns
        lp.num_row_ = pairs + resources
        lp.col_cost_ = np.concatenate([np.zeros(columns - 1), [1.0]])
        lp.col_lower_ = np.concatenate([np.zeros(columns - 1), [at_least / unit]])
        lp.col_upper_ = np.full(columns, highspy.kHighsInf)
        lp.row_lower_ = np.concatenate([np.ones(pairs), np.full(resources, -highspy.kHighsInf)])
        lp.row_upper_ = np.concatenate([np.ones(pairs), np.zeros(resources)])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.array(starts)
        lp.a_matrix_.index_ = np.array(index)
        lp.a_matrix_.value_ = np.array(value)
        solver = "simplex" if columns <= SIMPLEX_MAX_COLUMNS else "ipm"
        highs = _SilentHighs()
        highs.setOptionValue("output_flag", False)  # for versions that set no callbacks when they are made
        highs.setOptionValue("threads", 1)
        highs.setOptionValue("solver", solver)
        if solver == "ipm":
            highs.setOptionValue("run_crossover", "off")
        highs.passModel(lp)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise SolverError(f"HiGHS ended with '{highs.modelStatusToString(highs.getModelStatus())}' on {columns} columns")
        return Optimum(highs.getInfo().objective_function_value * unit, columns, pairs + resources, solver)
