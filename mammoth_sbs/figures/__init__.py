"""The paper's figures, one file each. They need matplotlib: `pip install "mammoth-sbs[figures]"`."""
