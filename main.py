"""What a user types: `python main.py --model derpp_sbs --dataset seq-cifar100`."""

from __future__ import annotations

import importlib.util

from mammoth_sbs import host, models


def main() -> None:
    """Choose the host, load the plugin, hand over."""
    root = host.activate()
    spec = importlib.util.spec_from_file_location("mammoth_main", root / "main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    models.register()
    module.main()


if __name__ == "__main__":
    main()
