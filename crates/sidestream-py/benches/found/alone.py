"""Loads one module of a release by itself, from the folder that RELEASE names."""

import importlib.util
import os
import sys
import types


def load(name, **others):
    """Load the module NAME; OTHERS (``__`` for a dot) stand for the modules that it imports."""
    parts = name.split(".")
    for package in [".".join(parts[:i]) for i in range(1, len(parts))]:
        sys.modules.setdefault(package, types.ModuleType(package)).__path__ = []
    for other, names in others.items():
        module = sys.modules.setdefault(other.replace("__", "."), types.ModuleType(other))
        vars(module).update({"__path__": [], **names})
    path = os.path.join(os.environ["RELEASE"], parts[-1] + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
