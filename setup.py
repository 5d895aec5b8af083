"""What setup.cfg cannot say: configs/, examples/ and patches/ lie beside the package here, and in it once installed."""

from setuptools import find_namespace_packages, setup

BESIDE = find_namespace_packages(include=["configs*", "examples*", "patches*"])

setup(packages=find_namespace_packages(include=["mammoth_sbs*"]) + [f"mammoth_sbs.{name}" for name in BESIDE],
      package_dir={f"mammoth_sbs.{name}": name.replace(".", "/") for name in BESIDE})
