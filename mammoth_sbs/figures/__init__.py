"""The paper's figures, one file each. They need matplotlib: `pip install "mammoth-sbs[figures]"`."""

from mammoth_sbs.figures import bars, forgetting, gallery, heatmap, matrices, memory, table1

KINDS = {"bars": bars, "heatmap": heatmap, "samplers": table1, "forgetting": forgetting, "matrices": matrices,
         "memory": memory, "gallery": gallery}  # what `mammoth-sbs figure` draws
