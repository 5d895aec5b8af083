"""The paper's figures, one file each. They need matplotlib: `pip install "mammoth-sbs[figures]"`."""

from mammoth_sbs.figures import (
    bars,
    curves,
    following,
    forgetting,
    gallery,
    heatmap,
    hosts,
    matrices,
    memory,
    regret,
    robustness,
    table1,
)

KINDS = {"bars": bars, "curves": curves, "heatmap": heatmap, "samplers": table1, "forgetting": forgetting,
         "matrices": matrices, "memory": memory, "gallery": gallery, "following": following, "robustness": robustness,
         "regret": regret, "hosts": hosts}  # what `mammoth-sbs figure` draws
