"""How pictures of pages look, and turning one into an <svg> element."""

from __future__ import annotations

import html
import io
import re
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.use("svg")

# Okabe and Ito's palette, which people with colour blindness can tell apart; the policy that stands for "as today" is grey.
COLOURS = {
    "single-path": "#9aa5b1",
    "railweave": "#0072b2",
    "nimble": "#56b4e9",
    "nccl": "#009e73",
    "ucx-rails": "#f0c808",
    "openmpi": "#e69f00",
    "ucx": "#cc79a7",
}

STYLE: Any = {  # keys of matplotlibrc
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a97a5",
    "axes.labelcolor": "#1c2733",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6ebf0",
    "text.color": "#1c2733",
    "xtick.color": "#1c2733",
    "ytick.color": "#5b6b7b",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "svg.fonttype": "path",  # looks the same on every machine, whatever fonts it has
    "svg.hashsalt": "railweave",  # equal results give equal files
}


def svg(figure: Figure, description: str, name: str) -> str:
    """The figure as an element; `description` is for people who cannot see it. `name` keeps the ids of several figures apart."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(description)}" ', 1)
