"""Imported once by the server that local workers are forked from, so that no run waits for imports."""

import io
import json
import os
import threading
from contextlib import redirect_stdout, suppress

import sklearn.datasets  # noqa: F401
import sklearn.model_selection  # noqa: F401
import torch._dynamo  # noqa: F401  the first optimiser of a process imports it: 3 seconds
from tqdm import tqdm

from mammoth_sbs.experiments.worker import trial
from mammoth_sbs.models import load_host

load_host()
with redirect_stdout(io.StringIO()), suppress(Exception):
    trial(json.loads(os.environ.pop("MAMMOTH_SBS_COMPILED", "[]")))  # what is wrong was found before
tqdm.set_lock(threading.RLock())  # its default lock would outlive a worker that is killed, and Python would complain
