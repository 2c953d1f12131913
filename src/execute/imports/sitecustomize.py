"""Tells tprimat which modules of the project a run imports.

Python imports `sitecustomize` when it starts; tprimat puts this folder in front of PYTHONPATH. The `sitecustomize` that would
have been found without it is run as well. A module that is a file of the project and no input of the run is not in the run's
key: an edit of it would go unnoticed, and an old measurement would pass for a new one. Early in a run that ends the run, with
the line to add. Later there is a measurement to lose, so the file is noted and the run goes on.
"""

import glob
import json
import os
import sys
import time
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import module_from_spec

HERE = os.path.dirname(os.path.abspath(__file__))
EARLY_SECONDS = 60


def run_shadowed():
    """The `sitecustomize` behind this one, if the environment has one."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    sys.path[:] = others
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def end_run(message):
    event = {"event": "error", "class": "input", "message": message, "time": time.time()}
    os.write(1, ("\n" + json.dumps(event) + "\n").encode())
    os._exit(1)


def end_other_python():
    """An environment that `blame --versions` made must be the one that is measured, for its version is in the run's key."""
    python = os.environ.get("TPRIMAT_PYTHON", "")
    prefix = os.path.dirname(os.path.dirname(python))
    is_made = glob.glob(os.path.join(glob.escape(prefix), "lib", "python*", "site-packages", "tprimat-blame.pth"))
    if is_made and os.path.realpath(sys.prefix) != os.path.realpath(prefix):
        end_run(f"{sys.executable} was started, and not {python}, which has the version: let the command start `python3`")


class Watch:
    def __init__(self):
        path = os.path.join(HERE, "inputs.json")
        with open(path, encoding="utf-8") as file:
            listed = json.load(file)
        self.root = os.path.join(os.path.realpath(listed["root"]), "")
        self.inputs = {os.path.realpath(os.path.join(self.root, name)) for name in listed["inputs"]}
        self.left_out = tuple(os.path.join(os.path.realpath(path), "") for path in listed["left_out"])
        self.setting = listed["setting"]
        self.path = path
        self.seen = set()

    def is_of_environment(self, path):
        """In an environment of Python, a hidden folder, or an installed package's folder."""
        folder = os.path.dirname(path)
        while len(folder) + 1 > len(self.root):
            name = os.path.basename(folder)
            if name.startswith(".") or name in ("site-packages", "dist-packages"):
                return True
            if os.path.exists(os.path.join(folder, "pyvenv.cfg")) or os.path.isdir(os.path.join(folder, "conda-meta")):
                return True
            folder = os.path.dirname(folder)
        return False

    def look(self, path):
        if path in self.seen:
            return
        self.seen.add(path)
        real = os.path.realpath(path)
        if not real.startswith(self.root) or real in self.inputs or real.startswith(self.left_out):
            return
        if not os.path.isfile(real) or self.is_of_environment(real):
            return
        name = os.path.relpath(real, self.root)
        if time.time() - os.stat(self.path).st_mtime > EARLY_SECONDS:
            with open(os.path.join(HERE, "late"), "a", encoding="utf-8") as file:
                file.write(json.dumps(name) + "\n")
            return
        folder = os.path.dirname(name)
        line = f'{self.setting}: ["{folder}/**/*.py"]' if folder else f'{self.setting}: ["{name}"]'
        message = f"{name} is imported and is not an input, so an edit of it would go unnoticed; add it to config.yaml: {line}"
        end_run(message)


def install(watch):
    # `python train.py` runs its script without a loader.
    for word in getattr(sys, "orig_argv", [])[1:]:
        if word.endswith(".py"):
            watch.look(os.path.abspath(word))
            break
    get_code = SourceFileLoader.get_code

    def watched(self, fullname):
        watch.look(os.path.abspath(self.path))
        return get_code(self, fullname)

    SourceFileLoader.get_code = watched


try:
    end_other_python()
    install(Watch())
    with open(os.path.join(HERE, "python"), "a", encoding="utf-8"):
        pass  # This file says that imports are reported.
except (OSError, ValueError, KeyError):
    pass  # Nothing is reported then, which tprimat says of the run.
run_shadowed()
