"""The paper's figures, one file each. They need matplotlib: `pip install "mammoth-sbs[figures]"`."""

from mammoth_sbs.figures import bars, heatmap, table1

KINDS = {"bars": bars, "heatmap": heatmap, "samplers": table1}  # what `mammoth-sbs figure` draws
